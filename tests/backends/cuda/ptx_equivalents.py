"""Equivalent mutants: planted errors that provably change nothing, so that nothing can catch them.

Which errors are equivalent is decided by what the kernel says, by one of these criteria:

* machine code: ptxas makes the same machine code of both (trivial compiler equivalence), and the
  error is in no fence of products, which ptxas adds where it is missing;
* fence of products: on every way to a product, a fence that is left comes after all that touches
  the product's registers, other than products of the same shape (PTX ISA, wgmma.fence);
* values: wherever the changed instruction gives another value, an undefined one takes its place,
  and the PTX machine still finds no fault in any block: no address, branch or stored value is made
  of it. This is for instructions and control flow that no data has a part in, which do the same for
  all inputs; others are not called equivalent.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from graphc.backends.cuda import nvcc
from graphc.backends.cuda.ptx.calls import without_calls
from graphc.backends.cuda.ptx.text import (
    Address,
    BoxAddress,
    Function,
    Instruction,
    Module,
    Negated,
    Operand,
    Register,
    Symbol,
    Vector,
)

Lines = Sequence[str]
CODE, FENCE, VALUES = "the same machine code", "a fence too many", "values that nothing uses"
FENCE_TEXT, PRODUCT = "wgmma.fence", "wgmma.mma_async"
SCALAR = {"add", "sub", "mul", "mad", "fma", "and", "or", "xor", "not", "shl", "shr", "setp",
          "selp", "cvt", "mov", "min", "max", "mapa", "neg", "abs", "bfe", "shf"}  # fmt: skip
"""Operations whose only effect is their result."""
NO_RESULT = ("bra", "ret", "exit", "st", "bar", "barrier", "fence", "cp", "red")
EXCHANGES = {"shfl", "vote", "match", "redux"}
"""What gives lanes the operands of others."""
SILENT = ("ld.param", "mbarrier.try_wait", "mbarrier.test_wait", "elect.sync", "activemask")
"""What has results that are no data: addresses, sizes, and whether to wait longer."""
TYPES = {"%p": "pred", "%rs": "b16", "%h": "b16", "%r": "b32", "%f": "b32", "%rd": "b64",
         "%fd": "b64"}  # fmt: skip
_LINE = re.compile(r"^\s*([a-z][\w.:]*)\s+(.*);\s*(?://.*)?$")
_OPERAND = re.compile(r"(%[a-z]+\d+|(?<![\w.%$])\d+\b)")
_REGISTER = re.compile(r"(%[a-z]+)\d+")


def equivalent(
    before: Lines, changes: Mapping[int, str], arch: str, fault: Callable[[Lines], str]
) -> str:
    """The criterion by which lines of a PTX text that are changed mean the same; nothing if none
    holds. `fault`: what is wrong when a text is run, in all blocks."""
    after = [changes.get(number, line) for number, line in enumerate(before)]
    if all(FENCE_TEXT in before[number] for number in changes):
        return FENCE if _is_needless_fence(after, changes) else ""
    if _assembled(before, arch) == _assembled(after, arch) is not None:
        return CODE
    poisoned = _poisoned(before, changes)
    if poisoned is not None and not fault(poisoned):
        return VALUES
    return ""


def _assembled(lines: Lines, arch: str) -> bytes | None:
    """Machine code by ptxas; nothing where there is none, or it refuses the text."""
    compiler = nvcc.find_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        text, target = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        text.write_text("\n".join(lines))
        command = [compiler, f"-arch={arch}", "-cubin", "-o", str(target), str(text)]
        if compiler is None or subprocess.run(command, capture_output=True).returncode:
            return None
        return target.read_bytes()


# ---------------------------------------------------------------- control flow and registers


def kernel_at(lines: Lines, number: int) -> Function:
    """The kernel that a line belongs to, with the functions it calls in it."""
    text = "\n".join(lines[: number + 1])
    return without_calls(Module("\n".join(lines)), re.findall(r"\.entry\s+([\w$]+)", text)[-1])


def _followers(function: Function) -> list[list[int]]:
    """Which instructions may come after each."""
    found = []
    for number, instruction in enumerate(function.instructions):
        after = []
        if instruction.parts[0] == "bra":
            target = instruction.operands[-1]
            assert isinstance(target, Symbol)
            after.append(function.labels[target.name])
        if instruction.guard is not None or instruction.parts[0] not in ("bra", "ret", "exit"):
            after.append(number + 1)
        found.append([n for n in after if n < len(function.instructions)])
    return found


def _registers(operand: Operand) -> Iterator[int]:
    if isinstance(operand, Register):
        yield operand.number
    elif isinstance(operand, Negated):
        yield operand.register.number
    elif isinstance(operand, Vector):
        for part in operand.parts:
            yield from _registers(part)
    elif isinstance(operand, Address | BoxAddress):
        yield from _registers(operand.base)
        if isinstance(operand, BoxAddress):
            yield from _registers(operand.at)


def _bits(operands: Iterable[Operand]) -> int:
    return sum({1 << number for operand in operands for number in _registers(operand)})


# ---------------------------------------------------------------- fences of products


def _is_needless_fence(after: Lines, changes: Mapping[int, str]) -> bool:
    """Whether fences of products are gone, and those that are left are enough."""
    if any(after[number].strip() for number in changes):
        return False
    function = kernel_at(after, min(changes))
    touched = _touched(function)
    shapes: dict[int, set[str]] = {}
    for number, instruction in enumerate(function.instructions):
        if instruction.opcode.startswith(PRODUCT):
            sums, left = instruction.operands[:2]
            own = _bits([sums, left] if isinstance(left, Vector) else [sums])
            if touched[number] >= 0 and touched[number] & (own | 1 << len(function.registers)):
                return False
            for register in _registers(sums):
                shapes.setdefault(register, set()).add(instruction.opcode)
    return all(len(known) == 1 for known in shapes.values())


def _touched(function: Function) -> list[int]:
    """Registers that may have been read or written since the last fence of products, before each
    instruction; one bit more where there may have been no fence yet."""
    everything = (2 << len(function.registers)) - 1
    followers = _followers(function)
    touched = [-1] * len(function.instructions)  # not come to
    touched[0] = everything
    left = {0}
    while left:
        number = left.pop()
        instruction = function.instructions[number]
        after = touched[number]
        if instruction.opcode.startswith(FENCE_TEXT):
            after = 0
        elif not instruction.opcode.startswith(PRODUCT):
            after |= _bits(instruction.operands)
        for follower in followers[number]:
            known = touched[follower]
            joined = after if known < 0 else known | after
            if joined != known:
                touched[follower] = joined
                left.add(follower)
    return touched


# ---------------------------------------------------------------- values


def _poisoned(before: Lines, changes: Mapping[int, str]) -> list[str] | None:
    """The text with undefined values where changed lines give others; nothing if data has a part in
    them, or what changes is no value."""
    lines = [*before]
    for number, text in changes.items():
        function = kernel_at(before, number)
        ways = (_of_result, _of_operand, _of_guard)
        made = next(filter(None, (way(before[number], text) for way in ways)), None)
        if made is None or _has_data(function, number + 1):
            return None
        lines[number] = " ".join(made)
    return lines


def _type(register: str) -> str:
    found = _REGISTER.fullmatch(register)
    return TYPES.get(found[1], "") if found else ""


def _undefined(type: str, value: str, other: str, to: str) -> list[str]:
    """Makes `to` of `value`, undefined where `other` differs from it."""
    comparison = "xor.pred" if type == "pred" else f"setp.ne.{type}"
    return [f"{comparison} differs, {value}, {other};", f"mov.{type} {to}, {value};",
            f"@differs mov.{type} {to}, nothing;"]  # fmt: skip


def _scope(type: str, lines: Iterable[str]) -> list[str]:
    return ["{", f".reg .pred differs; .reg .{type} given, other, nothing;", *lines, "}"]


def _of_result(before: str, after: str) -> list[str] | None:
    """Of an operation whose result may be another one."""
    old, new = _LINE.match(before), _LINE.match(after)
    if old is None or new is None or {old[1].split(".")[0], new[1].split(".")[0]} - SCALAR:
        return None
    result, _, given = old[2].partition(",")
    other, _, changed = new[2].partition(",")
    type = _type(result)
    if not type or result != other:
        return None
    return _scope(type, [f"{new[1]} other, {changed};", f"{old[1]} given, {given};",
                         *_undefined(type, "given", "other", result)])  # fmt: skip


def _of_operand(before: str, after: str) -> list[str] | None:
    """Of an instruction that takes other registers or numbers in the place of registers."""
    old, new = _LINE.match(before), _LINE.match(after)
    if old is None or new is None or old[1] != new[1]:
        return None
    parts, others = (_OPERAND.split(match[2]) for match in (old, new))
    if len(parts) != len(others) or parts[::2] != others[::2]:
        return None
    own = 0 if old[1].split(".")[0] in NO_RESULT else len(_first(old[2]))
    lines: list[str] = []
    for n in range(1, len(parts), 2):
        if parts[n] == others[n]:
            continue
        type = _type(parts[n])
        if not type or sum(map(len, parts[:n])) < own:
            return None
        lines += _scope(type, _undefined(type, parts[n], others[n], f"given{n}"))
        lines.insert(0, f".reg .{type} given{n};")
        parts[n] = f"given{n}"
    return ["{", *lines, f"{old[1]} {''.join(parts)};", "}"]


def _first(operands: str) -> str:
    """The first operand."""
    vector = re.match(r"\s*\{[^}]*\}", operands)
    return vector[0] if vector else operands.partition(",")[0]


def _of_guard(before: str, after: str) -> list[str] | None:
    """Of an instruction that is gone, and was never done if its guard never holds."""
    guard = re.match(r"\s*(@!?%p\d+)\s", before)
    return None if guard is None or after.strip() else [f"{guard[1]} trap;"]


def _has_data(function: Function, line: int) -> bool:
    """Whether data has a part in the operands of a line, or in which way the kernel goes."""
    known = _data(function)
    for instruction in function.instructions:
        guard = () if instruction.guard is None else (instruction.guard,)
        if instruction.parts[0] in ("bra", "ret", "exit") and _bits(guard) & known:
            return True
        if instruction.line == line and _bits([*guard, *instruction.operands[1:]]) & known:
            return True
    return False


def _data(function: Function) -> int:
    """Registers that may hold data, or what is computed from it."""
    known, before = 0, -1
    while known != before:
        before = known
        for instruction in function.instructions:
            results, given = _results(instruction)
            guard = () if instruction.guard is None else (instruction.guard,)
            is_made = instruction.parts[0] in SCALAR | EXCHANGES
            if instruction.opcode.startswith(SILENT):
                continue
            if not is_made or _bits([*given, *guard]) & known:
                known |= _bits(results)
    return known


def _results(instruction: Instruction) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """What an instruction writes and reads, or may; of what has no result, nothing is written."""
    if instruction.parts[0] in NO_RESULT:
        return (), instruction.operands
    return instruction.operands[:1], instruction.operands[1:]
