"""Loads, stores, atomic operations and asynchronous copies, decoded."""

from __future__ import annotations

from graphc.backends.cuda.ptx.code import Reg
from graphc.backends.cuda.ptx.decode import ATOMIC_TYPES, ATOMICS, Decoder, handles
from graphc.backends.cuda.ptx.decode_bulk import arrival_with_copies, bulk_copy
from graphc.backends.cuda.ptx.text import (
    SIZES,
    Address,
    Immediate,
    Instruction,
    Register,
    Symbol,
)

SPACES = {"global": 1, "const": 1, "shared": 2, "local": 3}
GENERIC, GLOBAL, SHARED = 0, 1, 2


def _space(parts: list[str]) -> int:
    names = [p.split("::")[0] for p in parts]
    return next((SPACES[n] for n in names if n in SPACES), GENERIC)


def _seen(d: Decoder, space: int, width: int) -> None:
    """Keeps the width of the narrowest access of a space, in which pieces of it are marked."""
    if space in (GENERIC, SHARED):
        d.code.shared_width = min(d.code.shared_width, width)
    if space in (GENERIC, GLOBAL):
        d.code.global_width = min(d.code.global_width, width)


def _aux(parts: list[str], registers: list[Reg], address: tuple[Reg, int]) -> list[int]:
    type = parts[-1]
    base, offset = address
    width = registers[0].bits // 8
    signed = int(type[0] == "s")
    return [_space(parts), SIZES[type], width, signed, offset, base.bits // 8, int("nc" in parts)]


@handles("ld", "ldu")
def _load(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    results = d.parts(instruction.operands[0], parts[-1])
    address = instruction.operands[1]
    if "param" in parts and isinstance(address, Address):
        base = address.base
        if isinstance(base, Register):
            d.to.operate(_plain_move(d, base), results[0], [d.reg(base, parts[-1])])
            return
        if isinstance(base, Symbol) and base.name in d.parameters:
            offset = d.parameters[base.name] + address.offset
            width = results[0].bits // 8
            signed = int(parts[-1][0] == "s")
            d.to.emit("PARAMETER", results, [], 0, SIZES[parts[-1]], width, signed, offset)
            return
        raise d.unknown(instruction)
    place = d.address(address)
    aux = _aux(parts, results, place)
    _seen(d, aux[0], SIZES[parts[-1]] * len(results))
    d.to.emit("LOAD", results, [place[0]], *aux)


def _plain_move(d: Decoder, register: Register) -> str:
    return f"mov.b{max(d.registers[register.number].bits, 16)}"


@handles("st")
def _store(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    values = d.parts(instruction.operands[1], parts[-1])
    address = instruction.operands[0]
    if "param" in parts:
        if not isinstance(address, Address) or not isinstance(address.base, Register):
            raise d.unknown(instruction)
        to = d.reg(address.base, parts[-1])
        d.to.operate(_plain_move(d, address.base), to, values)
        return
    width = max(v.bits for v in values)
    values = [_as_wide(d, v, width) for v in values]
    place = d.address(address)
    aux = _aux(parts, values, place)
    _seen(d, aux[0], SIZES[parts[-1]] * len(values))
    d.to.emit("STORE", [], [place[0], *values], *aux)


def _as_wide(d: Decoder, register: Reg, bits: int) -> Reg:
    if register.bits == bits:
        return register
    made = d.to.register(bits)
    d.to.emit(f"cvt.u{bits}.u{register.bits}", [made], [register])
    return made


@handles("atom", "red")
def _atomic(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    type = parts[-1]
    how = next((p for p in parts if p in ATOMICS), None)
    if how is None or type not in ATOMIC_TYPES:
        raise d.unknown(instruction)
    operands = list(instruction.operands)
    results = [d.reg(operands.pop(0), type)] if parts[0] == "atom" else []
    base, offset = d.address(operands[0])
    values = [r for o in operands[1:] for r in d.exact(o, type)]
    if len(values) != (2 if how == "cas" else 1):
        raise d.unknown(instruction)
    space, size = _space(parts), SIZES[type]
    _seen(d, space, size)
    aux = (space, size, size, ATOMIC_TYPES[type], offset, base.bits // 8, 0, ATOMICS.index(how))
    d.to.emit("ATOMIC_OPERATION", results, [base, *values], *aux)


@handles("cp")
def _copy(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    kind = parts[2]
    if parts[1] == "async" and kind == "bulk":
        bulk_copy(d, instruction, parts)
        return
    if parts[1] == "async" and kind == "mbarrier":
        arrival_with_copies(d, instruction, parts)
        return
    if parts[1] != "async":
        raise d.unknown(instruction)
    if kind == "commit_group":
        d.to.emit("COMMIT_COPIES")
        return
    if kind in ("wait_group", "wait_all"):
        left = instruction.operands[0].value if kind == "wait_group" and isinstance(
            instruction.operands[0], Immediate
        ) else -1  # fmt: skip
        d.to.emit("WAIT_COPIES", [], [], left)
        return
    to, at = d.address(instruction.operands[0])
    source, offset = d.address(instruction.operands[1])
    size = instruction.operands[2]
    if (
        not isinstance(size, Immediate)
        or size.value not in (4, 8, 16)
        or len(instruction.operands) > 4
    ):
        raise d.unknown(instruction)
    given = [_as_wide(d, to, 32), source, *(d.reg(o, "b32") for o in instruction.operands[3:])]
    _seen(d, SHARED, size.value)
    _seen(d, GLOBAL, size.value)
    d.to.emit("COPY", [], given, 0, size.value, 0, offset, at)
