"""PTX as text, taken apart: a module's variables and functions, a function's instructions.

Only what the text says is kept; what an instruction means is for decode.py. Functions are parsed
when they are asked for, since a run needs few of a module's kernels.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace

from graphc.errors import InternalError


class PtxError(InternalError):
    """PTX that cannot be read, or that has an instruction which the machine does not know."""


@dataclass(frozen=True)
class Register:
    """A register of a function: its type as declared (b32, pred) and which it is."""

    name: str
    type: str
    number: int


@dataclass(frozen=True)
class Immediate:
    """A number: an integer, or the bits of a float with its type."""

    value: int
    type: str = ""


@dataclass(frozen=True)
class Symbol:
    """The name of a label, a variable or a special register."""

    name: str


@dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True)
class BoxAddress:
    """`[map, {x, y}]`: a box of a tensor."""

    base: Register | Symbol
    at: Vector


@dataclass(frozen=True)
class Negated:
    """`!%p`: the opposite of a predicate."""

    register: Register


@dataclass(frozen=True)
class Vector:
    """`{a, b}`; also `p|q`, two results."""

    parts: tuple[Operand, ...]


Operand = Register | Immediate | Symbol | Address | BoxAddress | Negated | Vector


@dataclass(frozen=True)
class Instruction:
    """One instruction: `@guard opcode operands`, and where it stands in the text."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    line: int
    text: str

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass(frozen=True)
class Variable:
    """An array of a state space: its bytes, alignment and contents; of `extern` ones the launch
    decides the size."""

    name: str
    space: str
    alignment: int
    size: int
    contents: bytes = b""
    external: bool = False


@dataclass
class Function:
    """A kernel or device function: parameters with their types, variables of its own, its
    instructions, and labels as the number of the instruction that follows."""

    name: str
    parameters: list[tuple[str, str]]
    results: list[tuple[str, str]]
    threads: int  # most of a block, 0: not said
    cluster: int = 1  # blocks of a cluster
    variables: list[Variable] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


SIZES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4,
         "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "pred": 4, "bf16": 2,
         "f16x2": 4, "bf16x2": 4, "b128": 16}  # fmt: skip
_FUNCTION = re.compile(
    r"\.(?P<kind>entry|func)\b\s*(?:\((?P<results>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*"
    r"(?:\((?P<parameters>[^)]*)\))?(?P<directives>[^{;]*)(?P<end>[{;])"
)
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:extern|visible|weak)\s+)*)\.(?P<space>global|const|shared|local)\s+"
    r"(?:\.align\s+(?P<alignment>\d+)\s+)?\.(?P<type>[a-z]\w*)\s+(?P<name>[\w$%]+)"
    r"(?P<extent>\[\d*\])?\s*(?:=\s*(?P<values>\{[^}]*\}|[^;]+))?$",
    re.S,
)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,]*?([\w$]+)(?:\[(\d+)\])?\s*$")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.S)
_INSTRUCTION = re.compile(r"(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_LABEL = re.compile(r"([\w$]+):(?!:)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*\.(?:loc|file)\b[^\n]*", re.S | re.M)
"""Also lines of the source's places, which no semicolon ends."""


class Module:
    """A file of PTX: `functions[name]` gives where its body is, `variables` those of the module."""

    def __init__(self, text: str):
        self.text = _COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
        target = re.search(r"\.target\s+(\w+)", self.text)
        if target is None:
            raise PtxError("PTX must name its .target; the text has none")
        self.target = target[1]
        self.variables: list[Variable] = []
        self.heads: dict[str, re.Match[str]] = {}
        self.ends: dict[str, int] = {}
        self._parsed: dict[str, Function] = {}
        place = 0
        outside = []
        while head := _FUNCTION.search(self.text, place):
            outside.append(self.text[place : head.start()])
            place = head.end()
            if head["end"] == "{":
                place = _closing(self.text, head.end())
                self.heads[head["name"]], self.ends[head["name"]] = head, place
        outside.append(self.text[place:])
        for piece in "".join(outside).split(";"):
            variable = _VARIABLE.search(piece.strip())
            if variable:
                self.variables.append(_variable(variable))

    def kernels(self) -> list[str]:
        return [name for name, head in self.heads.items() if head["kind"] == "entry"]

    def function(self, name: str) -> Function:
        """A function by name; PtxError if there is none, or it cannot be read."""
        if name not in self.heads:
            raise PtxError(f"the PTX has no function {name}; it has {', '.join(self.heads)}")
        if name not in self._parsed:
            head = self.heads[name]
            first = self.text.count("\n", 0, head.end()) + 1
            threads = re.search(r"\.maxntid\s+(\d+)", head["directives"])
            made = Function(
                name, _parameters(head["parameters"]), _parameters(head["results"]),
                int(threads[1]) if threads else 0, _cluster(head["directives"]),
            )  # fmt: skip
            _Body(made, first).parse(self.text[head.end() : self.ends[name] - 1])
            self._parsed[name] = made
        return self._parsed[name]


def _closing(text: str, place: int) -> int:
    """Behind the brace that closes the one before a place."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[place:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return place + brace.end()
    raise PtxError("a function of the PTX has no closing brace")


def _cluster(directives: str) -> int:
    directive = re.search(r"\.reqnctapercluster\s+(\d+)((?:\s*,\s*\d+)*)", directives)
    if directive is None:
        return 1
    if any(int(n) != 1 for n in re.findall(r"\d+", directive[2])):
        raise PtxError(f"the machine knows clusters along x alone, found {directive[0]!r}")
    return int(directive[1])


def _parameters(text: str | None) -> list[tuple[str, str]]:
    parameters = []
    for parameter in (text or "").split(","):
        match = _PARAMETER.search(parameter.strip())
        if match:
            parameters.append((match[2], match[1] if match[3] is None else f"b8x{match[3]}"))
    return parameters


def _variable(declared: re.Match[str]) -> Variable:
    size = SIZES[declared["type"]]
    extent = declared["extent"]
    external = "extern" in declared["linkage"]
    count = 1 if extent is None else int(extent[1:-1] or 0)
    contents = b""
    if declared["values"]:
        listed = [_number(v).value for v in re.findall(r"[^\s{},]+", declared["values"])]
        contents = b"".join((v & (1 << 8 * size) - 1).to_bytes(size, "little") for v in listed)
        count = max(count, len(listed))
    alignment = int(declared["alignment"] or size)
    return Variable(
        declared["name"], declared["space"], alignment, size * count, contents, external
    )


def _number(text: str) -> Immediate:
    """A literal: 12, -3, 0x1F, 12U, 0f3F800000, 0d..."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if digits[:2] in ("0f", "0F"):
        bits = int(digits[2:], 16) ^ (1 << 31 if sign < 0 else 0)
        return Immediate(bits, "f32")
    if digits[:2] in ("0d", "0D"):
        return Immediate(int(digits[2:], 16) ^ (1 << 63 if sign < 0 else 0), "f64")
    if re.fullmatch(r"\d+\.\d*(?:[eE][-+]?\d+)?", digits):
        return Immediate(struct.unpack("<Q", struct.pack("<d", sign * float(digits)))[0], "f64")
    return Immediate(sign * int(digits.rstrip("Uu"), 0), "")


class _Body:
    """The statements of a function, with the registers that are in scope."""

    def __init__(self, function: Function, line: int):
        self.function, self.line = function, line
        self.scopes: list[dict[str, Register]] = [{}]
        self.inner: list[tuple[int, dict[str, str]]] = []  # first instructions and labels of scopes

    def parse(self, body: str) -> None:
        for piece in body.split(";"):
            rest = self._trimmed(piece)
            while rest:
                label = _LABEL.match(rest)
                if rest[0] == "{":
                    self.scopes.append({})
                    self.inner.append((len(self.function.instructions), {}))
                    rest = self._trimmed(rest[1:])
                elif rest[0] == "}":
                    self.scopes.pop()
                    self._leave()
                    rest = self._trimmed(rest[1:])
                elif label:
                    self._label(label[1])
                    rest = self._trimmed(rest[label.end() :])
                else:
                    self._statement(" ".join(rest.split()))
                    self.line += rest.count("\n")
                    break

    def _label(self, name: str) -> None:
        """A label, which in a scope of its own is another one than elsewhere."""
        labels, unique = self.function.labels, name
        if self.inner:
            unique = f"{name}.{len(labels)}"
            self.inner[-1][1][name] = unique
        labels[unique] = len(self.function.instructions)

    def _leave(self) -> None:
        """Leaves a scope, in which branches go to its own labels."""
        first, labels = self.inner.pop()
        instructions = self.function.instructions
        for number in range(first, len(instructions) if labels else first):
            instruction = instructions[number]
            target = instruction.operands[-1] if instruction.opcode.startswith("bra") else None
            if isinstance(target, Symbol) and target.name in labels:
                operands = (Symbol(labels[target.name]),)
                instructions[number] = replace(instruction, operands=operands)

    def _trimmed(self, text: str) -> str:
        rest = text.lstrip()
        self.line += text[: len(text) - len(rest)].count("\n")
        return rest

    def _statement(self, text: str) -> None:
        if text.startswith(".reg"):
            self._declare(text)
        elif text.startswith(".param"):
            parameter = _PARAMETER.search(text)
            if parameter is None or parameter[3]:
                raise PtxError(f"line {self.line}: the machine does not know {text!r}")
            self._register(parameter[2], parameter[1])
        elif text.startswith("."):
            variable = _VARIABLE.match(text)
            if variable:
                self.function.variables.append(_variable(variable))
            elif not re.match(r"\.(pragma|branchtargets|callprototype)\b", text):
                raise PtxError(f"line {self.line}: the machine does not know {text!r}")
        else:
            self._instruction(text)

    def _declare(self, text: str) -> None:
        declared = _REGISTERS.match(text)
        if declared is None:
            raise PtxError(f"line {self.line}: cannot read {text!r}")
        for name in (n.strip() for n in declared[2].split(",")):
            many = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name)
            if many:
                for number in range(int(many[2])):
                    self._register(f"{many[1]}{number}", declared[1])
            else:
                self._register(name, declared[1])

    def _register(self, name: str, type: str) -> None:
        made = Register(name, type, len(self.function.registers))
        self.function.registers.append(made)
        self.scopes[-1][name] = made

    def _instruction(self, text: str) -> None:
        matched = _INSTRUCTION.match(text)
        if matched is None:
            raise PtxError(f"line {self.line}: cannot read {text!r}")
        guard = self._named(matched[2]) if matched[2] else None
        if guard is not None and not isinstance(guard, Register):
            raise PtxError(f"line {self.line}: {matched[2]} is no predicate")
        operands = tuple(self._operand(operand) for operand in _split(matched[4]))
        self.function.instructions.append(
            Instruction(matched[3], operands, guard, bool(matched[1]), self.line, text)
        )

    def _named(self, name: str) -> Register | Symbol:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return Symbol(name)

    def _operand(self, text: str) -> Operand:
        first = text[0]
        if first in "{(":
            return Vector(tuple(self._operand(part) for part in _split(text[1:-1])))
        if first == "[":
            return self._address(text[1:-1])
        if first == "!":
            named = self._named(text[1:])
            if isinstance(named, Register):
                return Negated(named)
        if "|" in text:
            return Vector(tuple(self._named(part) for part in text.split("|")))
        if first.isdigit() or first == "-":
            return self._literal(text)
        return self._named(text)

    def _address(self, text: str) -> Address | BoxAddress:
        box = re.fullmatch(r"\s*([\w$%.]+)\s*,\s*(\{[^}]*\})\s*", text)
        if box is not None:
            at = self._operand(box[2])
            assert isinstance(at, Vector)
            return BoxAddress(self._named(box[1]), at)
        parts = re.fullmatch(r"\s*([\w$%.]+)\s*(?:\+\s*(-?\w+))?\s*", text)
        if parts is None:
            raise PtxError(f"line {self.line}: the machine does not know the address [{text}]")
        base = self._literal(parts[1]) if parts[1][0].isdigit() else self._named(parts[1])
        return Address(base, self._literal(parts[2]).value if parts[2] else 0)

    def _literal(self, text: str) -> Immediate:
        try:
            return _number(text)
        except ValueError:
            raise PtxError(f"line {self.line}: {text!r} is no number") from None


def _split(text: str) -> list[str]:
    """Operands, split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, *filter(None, [text[start:].strip()])]
