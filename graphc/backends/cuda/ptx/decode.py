"""From instructions of PTX to code of the machine: scalar operations, control flow, exchanges.

Loads, stores and matrices are in decode_memory.py and decode_matrices.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from graphc.backends.cuda.ptx.code import AUX, FIELDS, FIXED, SPECIALS, Assembler, Code, Reg
from graphc.backends.cuda.ptx.flow import joins
from graphc.backends.cuda.ptx.operations import BITS, OPERATIONS
from graphc.backends.cuda.ptx.text import (
    SIZES,
    Address,
    Function,
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxError,
    Register,
    Symbol,
    Variable,
    Vector,
)

SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 0x7FFE << 40, 0x7FFD << 40, 0x7FFC << 40
BLOCK_SHIFT = 24  # as in memory.h
MAP_ALIGNMENT = 64  # of a parameter that is a structure
FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
ATOMIC_TYPES = {"u32": 0, "b32": 0, "s32": 1, "u64": 2, "b64": 2, "s64": 3, "f32": 4, "f64": 5}
SHUFFLES = ("up", "down", "bfly", "idx")
VOTES = ("all", "any", "uni", "ballot")


def parameter_size(type: str) -> int:
    """Bytes of a parameter: of a number, or of a structure (b8x128)."""
    return int(type[3:]) if type.startswith("b8x") else SIZES[type]


Handler = Callable[["Decoder", Instruction, list[str]], None]
HANDLERS: dict[str, Handler] = {}


def handles(*opcodes: str) -> Callable[[Handler], Handler]:
    """Registers a function that decodes instructions of these first names."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(opcodes, handler))
        return handler

    return register


class Decoder:
    """Decodes a function, whose calls are gone. `addresses`: where variables of the module are."""

    def __init__(self, function: Function, variables: list[Variable], addresses: dict[str, int]):
        self.function = function
        self.to = Assembler(function.name)
        self.code = self.to.code
        self.code.threads, self.code.cluster = function.threads, function.cluster
        self.registers = [
            self.to.register(1 if r.type == "pred" else 8 * SIZES[r.type])
            for r in function.registers
        ]
        self.addresses = dict(addresses)
        self.parameters: dict[str, int] = {}
        self._place(variables)
        offset = 0
        for name, type in function.parameters:
            size = parameter_size(type)
            offset += -offset % min(size, MAP_ALIGNMENT)
            self.parameters[name] = offset
            self.code.parameters.append((type, offset))
            offset += size

    def _place(self, outer: list[Variable]) -> None:
        """Finds places for variables in shared and local memory; that of a launch comes last."""
        code = self.code
        own = self.function.variables
        used = [v for v in outer if v.space == "shared"]
        for v in sorted([*own, *used], key=lambda v: v.external):
            if v.space not in ("shared", "local"):
                raise PtxError(f"the machine does not know {v.space} variables of functions")
            end = code.shared if v.space == "shared" else code.local
            end += -end % v.alignment
            self.addresses[v.name] = end
            if v.external:
                code.dynamic = code.shared = end
            elif v.space == "shared":
                code.shared = end + v.size
            else:
                code.local = end + v.size

    def decode(self) -> Code:
        """The code; PtxError if there is an instruction that the machine does not know."""
        starts = []
        for instruction in self.function.instructions:
            starts.append(self.code.count)
            self.to.line = instruction.line
            self.code.lines[instruction.line] = instruction.text
            self.to.guard = None
            if instruction.guard is not None:
                self.to.guard = self.registers[instruction.guard.number], instruction.negated
            parts = instruction.parts
            HANDLERS.get(parts[0], _operation)(self, instruction, parts)
        self.to.guard = None
        starts.append(self.code.count)
        if not self.code.ends.get(self.code.count - 1):
            self.code.ends[self.code.count] = True
            self.to.emit("EXIT")
        self._branches(starts)
        return self.code

    def _branches(self, starts: list[int]) -> None:
        targets = {}
        for number, label in self.code.targets.items():
            if label not in self.function.labels:
                raise PtxError(f"{self.function.name} has no label {label}")
            targets[number] = starts[self.function.labels[label]]
        meet = joins(self.code.count, targets, self.code.ends)
        for number, target in targets.items():
            first = number * (FIELDS + AUX)
            self.code.words[first + 8 : first + 10] = [target, meet[number]]

    def unknown(self, instruction: Instruction, why: str = "") -> PtxError:
        return PtxError(
            f"{self.function.name}, line {instruction.line}: the PTX machine does not know "
            f"{instruction.text!r}{why}"
        )

    def reg(self, operand: Operand, type: str) -> Reg:
        """The register of an operand, which is read as a type."""
        bits = 1 if type == "pred" else BITS[type]
        if isinstance(operand, Register):
            return self.registers[operand.number]
        if isinstance(operand, Immediate):
            return self.to.constant(operand.value, bits)
        if isinstance(operand, Negated):
            made = self.to.register(1)
            self.to.emit("not.pred", [made], [self.registers[operand.register.number]])
            return made
        if isinstance(operand, Symbol):
            return self._symbol(operand.name, bits)
        raise PtxError(f"line {self.to.line}: an operand is no register")

    def _symbol(self, name: str, bits: int) -> Reg:
        if name == "_":
            return self.to.register(bits)
        if name in SPECIALS:
            return self.to.special(name)
        if name in FIXED:
            return self.to.constant(FIXED[name], bits)
        if name in self.parameters:  # of a structure, which is read by its address
            return self.to.constant(PARAM_WINDOW + self.parameters[name], bits)
        if name in self.addresses:
            return self.to.constant(self.addresses[name], bits)
        raise PtxError(f"line {self.to.line}: the PTX machine does not know {name}")

    def parts(self, operand: Operand, type: str) -> list[Reg]:
        """The registers of `{a, b}`, or of one operand."""
        if isinstance(operand, Vector):
            return [self.reg(part, type) for part in operand.parts]
        return [self.reg(operand, type)]

    def exact(self, operand: Operand, type: str) -> list[Reg]:
        """As `parts`, of instructions whose registers must be as wide as the type."""
        registers = self.parts(operand, type)
        wanted = 1 if type == "pred" else BITS[type]
        if any(r.bits != wanted for r in registers):
            raise PtxError(f"line {self.to.line}: an operand is not of {wanted} bits")
        return registers

    def place(self, operand: Operand) -> Reg:
        """An address in a register of 64 bits."""
        base, offset = self.address(operand)
        base = self.wide(base)
        if not offset:
            return base
        made = self.to.register(64)
        self.to.emit("add.u64", [made], [base, self.to.constant(offset, 64)])
        return made

    def wide(self, register: Reg) -> Reg:
        """A register of 64 bits."""
        if register.bits == 64:
            return register
        made = self.to.register(64)
        self.to.emit(f"cvt.u64.u{register.bits}", [made], [register])
        return made

    def address(self, operand: Operand) -> tuple[Reg, int]:
        """The register and the offset of an address."""
        if not isinstance(operand, Address):
            raise PtxError(f"line {self.to.line}: expected an address")
        return self.reg(operand.base, "b64"), operand.offset


@handles("bra")
def _branch(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    target = instruction.operands[-1]
    if not isinstance(target, Symbol):
        raise d.unknown(instruction)
    d.code.targets[d.code.count] = target.name
    if instruction.guard is None:
        d.code.ends[d.code.count] = True
    d.to.emit("BRANCH")


@handles("ret", "exit")
def _exit(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    d.code.ends[d.code.count] = instruction.guard is None
    d.to.emit("EXIT")


@handles("trap", "brkpt")
def _trap(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    d.to.emit("TRAP")


@handles("fence")
def _fence(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    if parts[1:3] == ["proxy", "async"]:
        d.to.emit("PROXY_FENCE")
    else:
        d.to.emit("INIT_FENCE" if parts[1] == "mbarrier_init" else "NOTHING")


@handles("membar", "prefetch", "prefetchu", "nanosleep", "pmevent", "griddepcontrol")
def _nothing(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    d.to.emit("NOTHING")


@handles("bar", "barrier")
def _barrier(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    parts = [p for p in parts if p != "cta"]
    if parts[1] == "cluster":
        _cluster_barrier(d, instruction, parts)
        return
    if parts[1] == "warp":
        d.to.emit("MEET", [], [d.reg(instruction.operands[0], "b32")])
        return
    aligned = int(parts[0] == "bar" or "aligned" in parts)
    if parts[1] == "red":
        kind = ("popc", "and", "or").index(parts[2]) + 1
        result = d.reg(instruction.operands[0], "b32" if kind == 1 else "pred")
        given = [d.reg(o, "b32") for o in instruction.operands[1:-1]]
        holds = d.reg(instruction.operands[-1], "pred")
        aux = (int(len(given) > 1), kind, 0)
        d.to.emit("BARRIER", [result], [*given, holds], *aux, aligned=aligned)
        return
    if parts[1] not in ("sync", "arrive"):
        raise d.unknown(instruction)
    given = [d.reg(o, "b32") for o in instruction.operands]
    aux = (int(len(given) > 1), 0, int(parts[1] == "arrive"))
    d.to.emit("BARRIER", [], given, *aux, aligned=aligned)


def _cluster_barrier(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    aligned = int("aligned" in parts)
    if parts[2] == "arrive":
        d.to.emit("CLUSTER_ARRIVE", [], [], int("relaxed" not in parts), aligned=aligned)
    elif parts[2] == "wait":
        d.to.emit("CLUSTER_WAIT", aligned=aligned)
    else:
        raise d.unknown(instruction)


@handles("elect")
def _elect(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    if parts[1] != "sync" or not isinstance(instruction.operands[0], Vector):
        raise d.unknown(instruction)
    d.to.emit(
        "ELECT",
        _with_predicate(d, instruction.operands[0]),
        [d.reg(instruction.operands[1], "b32")],
    )


@handles("setmaxnreg")
def _registers(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    count = instruction.operands[0]
    if (
        parts[1] not in ("inc", "dec") or parts[2:] != ["sync", "aligned", "u32"]
        or not isinstance(count, Immediate) or count.value % 8 or not 24 <= count.value <= 256
    ):  # fmt: skip
        raise d.unknown(instruction, "; it takes a multiple of 8 from 24 to 256")
    d.to.emit("NOTHING", aligned=2)


@handles("mapa")
def _mapped(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    """An address in the shared memory of another block of the cluster."""
    if parts[1] != "shared::cluster":
        raise d.unknown(instruction, "; it takes .shared::cluster")
    type = parts[2]
    result, given = d.reg(instruction.operands[0], type), d.reg(instruction.operands[1], type)
    rank, place = d.to.register(32), d.to.register(32)
    d.to.operate("add.u32", rank, [d.reg(instruction.operands[2], "u32"), d.to.constant(1, 32)])
    d.to.operate("shl.b32", place, [rank, d.to.constant(BLOCK_SHIFT, 32)])
    if type == "u64":
        place = d.wide(place)
    d.to.operate(f"or.b{BITS[type]}", result, [given, place])


@handles("shfl")
def _shuffle(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    if parts[1] != "sync":
        raise d.unknown(instruction, "; it lacks .sync")
    results = _with_predicate(d, instruction.operands[0])
    given = [*itertools.chain(*(d.exact(o, "b32") for o in instruction.operands[1:]))]
    if len(given) != 4:
        raise d.unknown(instruction, "; it takes 4 operands")
    d.to.emit("SHUFFLE", results, given, SHUFFLES.index(parts[2]))


def _with_predicate(d: Decoder, operand: Operand) -> list[Reg]:
    """A result of 32 bits, and a predicate beside it if there are two."""
    if not isinstance(operand, Vector):
        return d.exact(operand, "b32")
    first, second = operand.parts
    return [*d.exact(first, "b32"), *d.exact(second, "pred")]


@handles("vote")
def _vote(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    if parts[1] != "sync":
        raise d.unknown(instruction, "; it lacks .sync")
    kind = VOTES.index(parts[2])
    result = d.reg(instruction.operands[0], "b32" if parts[2] == "ballot" else "pred")
    given = [d.reg(instruction.operands[1], "pred"), d.reg(instruction.operands[2], "b32")]
    d.to.emit("VOTE", [result], given, kind)


@handles("match")
def _match(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    results = _with_predicate(d, instruction.operands[0])
    given = [*d.exact(instruction.operands[1], parts[3]), *d.exact(instruction.operands[2], "b32")]
    d.to.emit("MATCH", results, given, int(parts[1] == "any"), SIZES[parts[3]])


@handles("redux")
def _reduce(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    if parts[3] not in ATOMIC_TYPES:
        raise d.unknown(instruction)
    given = [d.reg(o, "b32") for o in instruction.operands[1:]]
    aux = (0, 4, 0, ATOMIC_TYPES[parts[3]], 0, 0, 0, ATOMICS.index(parts[2]))
    d.to.emit("REDUCE", [d.reg(instruction.operands[0], "b32")], given, *aux)


@handles("activemask")
def _active(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    d.to.emit("ACTIVE", [d.reg(instruction.operands[0], "b32")])


@handles("cvta")
def _converted_address(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    to_space = parts[1] == "to"
    space = parts[2 if to_space else 1]
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    result, given = d.reg(instruction.operands[0], "b64"), d.reg(instruction.operands[1], "b64")
    sign = "sub" if to_space else "add"
    d.to.operate(f"{sign}.u64", result, [given, d.to.constant(window, 64)])


@handles("mov")
def _move(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    to, given = instruction.operands
    type = parts[1]
    if isinstance(to, Vector) or isinstance(given, Vector):
        pieces = to if isinstance(to, Vector) else given
        assert isinstance(pieces, Vector)
        each_type = f"b{BITS[type] // len(pieces.parts)}"
        name = "SPLIT" if isinstance(to, Vector) else "JOIN"
        d.to.emit(name, d.parts(to, type if name == "JOIN" else each_type),
                  d.parts(given, type if name == "SPLIT" else each_type),
                  0, SIZES[each_type])  # fmt: skip
        return
    kind = "pred" if type == "pred" else type if type in FLOATS else f"b{BITS[type]}"
    kind = kind if f"mov.{kind}" in OPERATIONS else f"b{BITS[type]}"
    source = d.reg(given, type)
    if isinstance(given, Symbol) and given.name in SPECIALS and BITS[type] == 64:
        d.to.operate("cvt.u64.u32", d.reg(to, type), [source])
        return
    d.to.operate(f"mov.{kind}", d.reg(to, type), [source])


@handles("setp")
def _compare(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    """Compares; `setp.lt.and.f32 p|q, a, b, c` joins another predicate, and has two results."""
    joined = parts[2] if parts[2] in ("and", "or", "xor") else None
    type = parts[-1]
    name = f"setp.{parts[1]}.{type}"
    if name not in OPERATIONS:
        raise d.unknown(instruction)
    results = d.parts(instruction.operands[0], "pred")
    given = [d.reg(o, type) for o in instruction.operands[1:3]]
    if "ftz" in parts:
        given = [_flushed(d, register) for register in given]
    if joined is None and len(results) == 1:
        d.to.operate(name, results[0], given)
        return
    holds_first, opposite = d.to.register(1), d.to.register(1)
    d.to.operate(name, holds_first, given)
    d.to.emit("not.pred", [opposite], [holds_first])
    for result, holds in zip(results, (holds_first, opposite)):
        if joined is None:
            d.to.emit("mov.pred", [result], [holds])
        else:
            d.to.emit(f"{joined}.pred", [result], [holds, d.reg(instruction.operands[3], "pred")])


def _flushed(d: Decoder, register: Reg) -> Reg:
    """A number, or 0 of its sign where it is subnormal."""
    made = d.to.register(32)
    d.to.operate("cvt.ftz.f32.f32", made, [register])
    return made


def _operation(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    """An operation of each lane, by the name that the table has for its opcode."""
    name = next((n for n in _names(parts) if n in OPERATIONS), None)
    if name is None:
        raise d.unknown(instruction)
    operation = OPERATIONS[name]
    given = [d.reg(o, t) for o, t in zip(instruction.operands[1:], operation.operands)]
    if len(given) != len(operation.operands) or len(instruction.operands) != len(given) + 1:
        raise d.unknown(instruction, f"; it takes {len(operation.operands)} operands")
    d.to.operate(name, d.reg(instruction.operands[0], operation.result), given)


def _names(parts: list[str]) -> list[str]:
    """Names that the operation may have in the table, the likeliest first."""
    base, *middle, type = parts
    whole = ".".join(parts)
    names = [whole]
    if (
        type in FLOATS
        and base in ("add", "sub", "mul")
        and not {"rn", "rz", "rm", "rp"} & {*middle}
    ):
        names.append(".".join([base, "rn", *middle, type]))
    if type in BITS and type not in (*FLOATS, "u16x2", "s16x2") and BITS[type] > 8:
        names.append(".".join([base, *middle, f"b{BITS[type]}"]))
        names.append(".".join([base, *middle, f"u{BITS[type]}"]))
    if middle[:1] == ["rn"] and not middle[1:]:
        names.append(f"{base}.{type}")
    if type in ("f16", "bf16", "f16x2", "bf16x2") and base == "fma":
        names.append(f"fma.rn.{type}")
    return names
