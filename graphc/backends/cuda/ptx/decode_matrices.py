"""Matrices in registers and their products, decoded: ldmatrix, stmatrix, mma, wgmma."""

from __future__ import annotations

import re

from graphc.backends.cuda.ptx.code import Reg
from graphc.backends.cuda.ptx.decode import Decoder, handles
from graphc.backends.cuda.ptx.operations import BITS
from graphc.backends.cuda.ptx.text import Immediate, Instruction, Operand, Vector

TYPES = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4}
PER_WORD = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}
SHARED = 2
ALL = 2  # lanes of a warp must be there


@handles("ldmatrix", "stmatrix")
def _matrices(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    loads = parts[0] == "ldmatrix"
    if "m8n8" not in parts or parts[-1] != "b16":
        raise d.unknown(instruction)
    registers = d.exact(instruction.operands[1 - loads], "b32")
    base, offset = d.address(instruction.operands[loads])
    count = next((int(p[1:]) for p in parts if re.fullmatch(r"x[124]", p)), 0)
    if count != len(registers):
        raise d.unknown(instruction, f"; it has {len(registers)} registers for {count} matrices")
    space = SHARED if any(p.startswith("shared") for p in parts) else 0
    aux = (space, int("trans" in parts), 0, 0, offset, base.bits // 8)
    if loads:
        d.to.emit("LOAD_MATRICES", registers, [base], *aux, aligned=ALL)
    else:
        d.to.emit("STORE_MATRICES", [], [base, *registers], *aux, aligned=ALL)


@handles("mma")
def _mma(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    shape = re.fullmatch(r"m(\d+)n8k(\d+)", parts[3])
    saturates = parts[6:7] == ["satfinite"] and parts[-1] == "s32"
    parts = [*parts[:6], *parts[6 + saturates :]]
    a, b = parts[-3:-1]
    wide = {"f32": "f32", "s32": "s32", "f16": "f16"}
    if (
        shape is None or parts[1:3] != ["sync", "aligned"] or parts[4:6] != ["row", "col"]
        or a not in TYPES or b not in TYPES or parts[6] not in wide or parts[-1] != parts[6]
        or len(parts) != 10
    ):  # fmt: skip
        raise d.unknown(instruction)
    rows, words = int(shape[1]), int(shape[2]) // PER_WORD[a]
    if len(instruction.operands) != 4:
        raise d.unknown(instruction, "; it takes 4 operands")
    results, left, right, sums = (d.exact(o, "b32") for o in instruction.operands)
    half = parts[6] == "f16"
    counts = (rows * 8 // 32 // (1 + half), rows * words // 32, words * 8 // 32)
    given = tuple(map(len, (results, left, right)))
    if given != counts or len(sums) != counts[0]:
        raise d.unknown(instruction, f"; its operands must have {counts} registers, found {given}")
    aux = (rows, words, TYPES[a], TYPES[b], counts[1], counts[2], int(half), int(saturates))
    d.to.emit("MMA", results, [*left, *right, *sums], *aux, aligned=ALL)


@handles("wgmma")
def _wgmma(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    kind = parts[1]
    plain = {"fence": "WGMMA_FENCE", "commit_group": "WGMMA_COMMIT", "wait_group": "WGMMA_WAIT"}
    if parts[2:4] != ["sync", "aligned"]:
        raise d.unknown(instruction, "; it lacks .sync.aligned")
    if kind in plain:
        given = [o.value for o in instruction.operands if isinstance(o, Immediate)]
        d.to.emit(plain[kind], [], [], *given, aligned=ALL)
        return
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", parts[4])
    if kind != "mma_async" or shape is None or len(parts) != 8:
        raise d.unknown(instruction)
    sum, a, b = parts[5:]
    columns, depth = int(shape[1]), int(shape[2])
    valid = a in TYPES and b in TYPES and sum == ("s32" if a in ("s8", "u8") else "f32")
    if not valid or depth != 8 * PER_WORD[a] or columns % 8 or columns > 256:
        raise d.unknown(instruction)
    _product(d, instruction, columns, (TYPES[a], TYPES[b]), sum == "f32")


def _product(
    d: Decoder, instruction: Instruction, columns: int, types: tuple[int, int], is_float: bool
) -> None:
    if len(instruction.operands) < 4:
        raise d.unknown(instruction, "; it takes 4 operands at least")
    first, left, right, scale, *rest = instruction.operands
    sums = d.exact(first, "b32")
    if len(sums) != columns // 2:
        raise d.unknown(instruction, f"; it must have {columns // 2} sums, found {len(sums)}")
    held = isinstance(left, Vector)
    operands: list[Reg] = [*sums, *d.exact(left, "b32" if held else "b64"), *d.exact(right, "b64")]
    if held and len(operands) != len(sums) + 5:
        raise d.unknown(instruction, "; rows in registers are 4 words")
    numbers = [o.value for o in rest if isinstance(o, Immediate)]
    if len(numbers) != len(rest):
        raise d.unknown(instruction)
    signs, across = (numbers[:2], numbers[2:]) if is_float else ([1, 1], [])
    across = [0, *across] if held and across else across
    if any(s not in (1, -1) for s in signs) or any(x not in (0, 1) for x in across):
        raise d.unknown(instruction, "; scales are 1 or -1, transposes 0 or 1")
    if len(signs) != 2 or (any(across) and types[0] > 1):
        raise d.unknown(instruction)
    scale_d = _scale(d, scale, operands)
    aux = (
        columns, *types, int(held), scale_d, int(signs[0] < 0) + 2 * int(signs[1] < 0),
        sum(x << n for n, x in enumerate(across)),
    )  # fmt: skip
    d.code.has_products = True
    d.code.shared_width = min(d.code.shared_width, 16)
    d.to.emit("WGMMA", sums, operands, *aux, aligned=ALL)


def _scale(d: Decoder, operand: Operand, operands: list[Reg]) -> int:
    """Whether sums are added to: 0, 1, or 2 where a predicate, the last operand, says it."""
    if isinstance(operand, Immediate):
        return int(operand.value != 0)
    operands.append(d.reg(operand, "pred"))
    return 2


assert set(TYPES) <= {*BITS}
