"""Conversions, decoded: in one operation, or by way of float64 or integers of 64 bits.

Both ways are exact up to the last step, which rounds.
"""

from __future__ import annotations

from graphc.backends.cuda.ptx.code import Reg
from graphc.backends.cuda.ptx.decode import Decoder, handles
from graphc.backends.cuda.ptx.operations import (
    BITS,
    INTEGERS,
    OPERATIONS,
    ROUNDINGS,
    VALUES,
    WHOLE_ROUNDINGS,
)
from graphc.backends.cuda.ptx.text import Instruction


@handles("cvt")
def _convert(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    *how, target, source = parts[1:]
    if source == "f32" and target in ("f16", "bf16", "f16x2", "bf16x2"):
        how = [h for h in how if h != "ftz"]  # what is flushed is less than they can hold
    direct = ".".join(["cvt", *how, target, source])
    if direct in OPERATIONS:
        given = [d.reg(o, source) for o in instruction.operands[1:]]
        if len(given) != len(OPERATIONS[direct].operands):
            raise d.unknown(instruction)
        d.to.operate(direct, d.reg(instruction.operands[0], target), given)
        return
    names = _way(how, target, source)
    if any(name not in OPERATIONS for name in names):
        raise d.unknown(instruction)
    value = d.reg(instruction.operands[1], source)
    for name in names[:-1]:
        value = _step(d, name, value)
    d.to.operate(names[-1], d.reg(instruction.operands[0], target), [value])


def _step(d: Decoder, name: str, value: Reg) -> Reg:
    result = OPERATIONS[name].result
    made = d.to.register(max(BITS[result], 16))
    d.to.operate(name, made, [value])
    return made


def _way(how: list[str], target: str, source: str) -> list[str]:
    """The operations that a conversion is made of; one that is unknown, if it cannot be."""
    names = ["cvt.ftz.f32.f32"] if "ftz" in how and source == "f32" else []
    mode = next((h for h in how if h in (*ROUNDINGS, *WHOLE_ROUNDINGS)), "")
    sat, unknown = "sat" in how, set(how) - {mode, "sat", "ftz"}
    if unknown or source not in (*INTEGERS, *VALUES) or target not in (*INTEGERS, *VALUES):
        return ["unknown"]
    if source in INTEGERS:
        wide = f"{source[0]}64"
        last = f"cvt.sat.{target}.{wide}" if sat else f"cvt.{target}.{wide}"
        last = f"cvt.{mode}.{target}.{wide}" if target in VALUES else last
        return [f"cvt.{wide}.{source}", last]
    names.append(f"cvt.f64.{source}")
    if target in INTEGERS:
        return [*names, f"cvt.{mode}.{target}.f64"]  # clips without being asked, as GPUs do
    if mode in WHOLE_ROUNDINGS:
        names.append(f"cvt.{mode}.f64.f64")
        mode = "rn"
    return [*names, f"cvt.sat.{target}.f64" if sat else f"cvt.{mode or 'rn'}.{target}.f64"]
