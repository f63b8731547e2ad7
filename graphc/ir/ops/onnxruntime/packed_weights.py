"""ONNX Runtime's products with weights that are packed otherwise than in rows of blocks.

MatMulBnb4 has codes of bitsandbytes: numbers of a table of 16, scaled by the largest of a block.
The weights are one row of blocks, wherever rows of the matrix end. MatMulFpQ4 has blocks as they
lie in memory, scales and all. Reference: docs/ContribOperators.md of ONNX Runtime, its CPU kernels,
and for the tables Dettmers et al., "QLoRA" (2023).
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.expr import Const, Expr, as_expr, bitcast, reduce, select
from graphc.ir.opdef import Float, Int, Known, Operand, OutIndex, axes, op
from graphc.ir.ops.helpers import RUNTIME, choose, ints_of
from graphc.ir.ops.onnxruntime.blocks import code_in
from graphc.ir.types import Shape

FP4 = (0.0, 5.208333333e-03, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
TABLES = ((*FP4, *(-x for x in FP4)), NF4)


def _bnb4_shape(
    x: Operand, codes: Operand, scales: Operand, *, K: int, N: int, block_size: int,  # noqa: N803
    quant_type: int, transB: int, training_mode: int,  # noqa: N803
) -> Shape:  # fmt: skip
    if quant_type not in range(len(TABLES)):
        raise ModelError(f"quant_type is 0 (FP4) or 1 (NF4), found {quant_type}")
    taken, given = (K, N) if transB else (N, K)
    if not x.rank or x.shape[-1] != taken:
        raise ModelError(f"takes rows of {taken} elements, found {x.type}")
    for name, operand, size in (("B", codes, (N * K + 1) // 2),
                                ("absmax", scales, -(-N * K // block_size))):  # fmt: skip
        if operand.size != size:
            raise ModelError(f"{name} must hold {size} elements, found {operand.type}")
    return (*x.shape[:-1], given)


@op("MatMulBnb4", domain=RUNTIME, infer=_bnb4_shape)
def matmul_bnb4(
    i: OutIndex, x: Float, codes: Int, scales: Float, *, K: int, N: int, block_size: int,  # noqa: N803
    quant_type: int, training_mode: int = 0, transB: int = 1,  # noqa: N803
) -> Expr:  # fmt: skip
    """x W' (or x W unless transB), W (N, K) of codes of 4 bits, the first of a byte in its upper
    half; a weight is a number of a table (FP4 or NF4) times the scale of its block."""
    (k,) = axes(K if transB else N)
    element = i[-1] * K + k if transB else k * K + i[-1]
    code = code_in(codes.flat(element // 2), 1 - element % 2, 4)
    table = [Const(np.float32(v), dtypes.f32) for v in TABLES[quant_type]]
    weight = choose(code, table) * scales.flat(element // block_size).cast(dtypes.f32)
    return reduce("sum", x[i[:-1] + (k,)] * weight.cast(x.dtype), (k,))


# ---------------------------------------------------------------- MatMulFpQ4

HALF = 16  # codes of a block that are lower halves of bytes, and of those that are upper ones
BLOCK = 2 * HALF
HEAD = (4, 5)  # bytes before the codes, by type: a scale, and of the second a zero point


def _fpq4_shape(x: Operand, blob: Operand, shape: np.ndarray, *, blk_quant_type: int) -> Shape:
    if blk_quant_type not in range(len(HEAD)):
        raise UnsupportedError(f"blk_quant_type {blk_quant_type} is neither 0 nor 1")
    depth, columns = ints_of(shape)
    expected = columns * -(-depth // BLOCK) * (HEAD[blk_quant_type] + HALF)
    if not x.rank or x.shape[-1] != depth or blob.size != expected:
        raise ModelError(
            f"takes rows of {depth} elements and {expected} bytes, found {x.type} and {blob.type}"
        )
    return (*x.shape[:-1], columns)


@op("MatMulFpQ4", domain=RUNTIME, infer=_fpq4_shape)
def matmul_fpq4(
    i: OutIndex, x: Float, blob: Int, shape: Known(Int), *, blk_quant_type: int = 1
) -> Expr:
    """x W, W (K, N) by columns of blocks: a scale (float32), perhaps a zero point (else it is 8),
    and codes of 4 bits, the first 16 in the lower halves of bytes, the next in the upper ones."""
    head, depth = HEAD[blk_quant_type], ints_of(shape)[0]
    blocks = -(-depth // BLOCK)
    block, upper, place = axes(blocks, 2, HALF)
    start = (i[-1] * blocks + block) * (head + HALF)
    k = block * BLOCK + upper * HALF + place
    scale = as_expr(0, dtypes.u32)
    for n in range(4):
        scale = scale | (blob.flat(start + n).cast(dtypes.u32) << (8 * n))
    zero = blob.flat(start + 4).cast(dtypes.i32) if blk_quant_type else Const(8, dtypes.i32)
    code = code_in(blob.flat(start + head + place), upper, 4)
    weight = (code - zero).cast(dtypes.f32) * bitcast(scale, dtypes.f32)
    factor: Expr = x[i[:-1] + (k,)]
    if blocks * BLOCK != depth:
        factor = select(k < depth, factor, 0)
    return reduce("sum", factor * weight.cast(x.dtype), (block, upper, place))
