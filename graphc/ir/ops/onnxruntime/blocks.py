"""ONNX Runtime's operators on weights quantised in blocks of rows, several to a byte.

A weight is (code - zero point) * scale, with a scale and a zero point for every `block_size`
weights of a row. Codes of less than 8 bits share bytes, the first in the lowest bits. Codes are
unpacked where they are read: in memory they stay packed. Reference: docs/ContribOperators.md of
ONNX Runtime.
"""

from __future__ import annotations

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import Const, Expr, as_expr, call, maximum, minimum, reduce, select
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Int, Operand, OutIndex, axes, composite, op
from graphc.ir.ops.helpers import RUNTIME, inside, normal_axis, replaced
from graphc.ir.types import Dim, Shape

WIDTHS = (2, 4, 8)  # bits of a code


def _check_bits(bits: int, block_size: int) -> int:
    """Codes per byte."""
    if bits not in WIDTHS:
        raise UnsupportedError(f"weights of {bits} bits are not one of {WIDTHS}")
    if block_size < 16 or block_size & (block_size - 1):
        raise ModelError(f"block_size must be a power of two from 16 on, found {block_size}")
    return 8 // bits


def code_in(byte: Expr, place: Dim, bits: int) -> Expr:
    """The code at a place (an index) in a byte, as an i32."""
    if bits == 8:
        return byte.cast(dtypes.i32)
    shift = as_expr(place, dtypes.i64).cast(dtypes.i32) * bits
    return (byte.cast(dtypes.i32) >> shift) & ((1 << bits) - 1)


def weight_of(code: Expr, zero: Expr, scale: Expr) -> Expr:
    """(code - zero) * scale, in the type of the scale."""
    wide = scale.dtype.compute
    value = (code - zero).cast(wide) if zero.dtype is dtypes.i32 else code.cast(wide) - zero
    return (value * scale.cast(wide)).cast(scale.dtype)


# ---------------------------------------------------------------- MatMulNBits

BYTES_OF_X = 4  # the accuracy level at which activations become bytes, too


@composite("MatMulNBits", domain=RUNTIME)
def matmul_nbits(
    b: Builder, x: Float, codes: Int, scales: Float, zero_points: Any_ | None = None,
    g_idx: Int | None = None, bias: Float | None = None, *, K: int, N: int, block_size: int,  # noqa: N803
    accuracy_level: int = 0, bits: int = 4, weight_prepacked: int = 0,
) -> Value:  # fmt: skip
    """x W' + bias, W (N, K) in blocks of `block_size` along K.

    Zero points are packed as the codes of a row are, or floats; without them 2^(bits - 1) is one.
    With an accuracy_level of 4, and zero points that are no floats, blocks of x become int8 as in
    ONNX Runtime: numbers of -127..127 times the block's largest over 127.
    """
    if g_idx is not None or weight_prepacked:
        raise UnsupportedError("g_idx and weights that are packed for a GPU are not supported")
    _check_bits(bits, block_size)
    attrs = {"K": K, "N": N, "block_size": block_size, "bits": bits}
    weights = codes, scales, zero_points, bias
    whole = zero_points is None or zero_points.tensor.dtype is dtypes.u8
    if accuracy_level != BYTES_OF_X or not whole:
        return b.op("BlockProduct", x, *weights, domain="graphc", **attrs)
    if not x.tensor.rank or x.tensor.dims[-1] != K:
        raise ModelError(f"takes rows of K = {K} elements, found {x.tensor}")
    of_x = [
        b.op(name, x, domain="graphc", block_size=block_size)
        for name in ("BlockCodes", "BlockScales")
    ]
    product = b.op("ByteBlockProduct", *of_x, *weights, domain="graphc", **attrs)
    return b.Cast(product, to=x.tensor.dtype.onnx)


def _product_shape(
    x: Operand, codes: Operand, scales: Operand, zero_points: Operand | None = None,
    bias: Operand | None = None, *, K: int, N: int, bits: int, block_size: int,
) -> Shape:  # fmt: skip
    if not x.rank or x.shape[-1] != K:
        raise ModelError(f"takes rows of K = {K} elements, found {x.type}")
    _check_weights(codes, scales, zero_points, bias, -(-K // block_size), N, bits, block_size)
    return (*x.shape[:-1], N)


def _check_weights(
    codes: Operand, scales: Operand, zero_points: Operand | None, bias: Operand | None,
    blocks: int, columns: int, bits: int, block_size: int,
) -> None:  # fmt: skip
    """ModelError unless weights have the elements of so many blocks and columns."""
    per_byte = _check_bits(bits, block_size)
    given = [
        ("B", codes, columns * blocks * (block_size // per_byte)),
        ("scales", scales, columns * blocks),
    ]
    if zero_points is not None:
        packed = zero_points.dtype is dtypes.u8
        in_row = -(-blocks // per_byte) if packed else blocks
        given.append(("zero_points", zero_points, columns * in_row))
    if bias is not None:
        given.append(("bias", bias, columns))
    for name, operand, size in given:
        if operand.size != size:
            raise ModelError(f"{name} must hold {size} elements, found {operand.type}")


@op("BlockProduct", domain="graphc", infer=_product_shape)
def block_product(
    i: OutIndex, x: Float, codes: Int, scales: Float, zero_points: Any_ | None = None,
    bias: Float | None = None, *, K: int, N: int, block_size: int, bits: int = 4,  # noqa: N803
) -> Expr:  # fmt: skip
    """MatMulNBits of x as it is."""
    per_byte, blocks = 8 // bits, -(-K // block_size)
    block, byte, place = axes(blocks, block_size // per_byte, per_byte)
    row, column = i[:-1], i[-1]
    k = block * block_size + byte * per_byte + place
    factor: Expr = x[row + (k,)]
    if blocks * block_size != K:
        factor = select(k < K, factor, 0)
    at = column * blocks + block
    code = code_in(codes.flat(at * (block_size // per_byte) + byte), place, bits)
    zero = _zero_point(zero_points, column, block, blocks, bits)
    weight = weight_of(code, zero, scales.flat(at))
    total = reduce("sum", factor * weight.cast(x.dtype), (block, byte, place))
    return total if bias is None else total + bias[(column,)]


def _zero_point(
    zero_points: Operand | None, column: Expr, block: Expr, blocks: int, bits: int
) -> Expr:
    """The zero point of a block of a column."""
    if zero_points is None:
        return Const(1 << (bits - 1), dtypes.i32)
    if zero_points.dtype is not dtypes.u8:
        return zero_points.flat(column * blocks + block).cast(zero_points.dtype.compute)
    per_byte = 8 // bits
    byte = zero_points.flat(column * -(-blocks // per_byte) + block // per_byte)
    return code_in(byte, block % per_byte, bits)


# ---------------------------------------------------------------- products of bytes

LARGEST_CODE = 127
SMALLEST = 4e-37  # magnitude by which LARGEST_CODE can be divided; blocks of less count as zeros


def _largest(x: Operand, row: tuple, block: Expr, block_size: int) -> Expr:
    """The largest magnitude in a block of a row, as float32."""
    (k,) = axes(block_size)
    return reduce("max", call("abs", _in_block(x, row, block, k, block_size)), (k,))


def _in_block(x: Operand, row: tuple, block: Expr, k: Expr, block_size: int) -> Expr:
    """An element of a block of a row, as float32; 0 past the end of the row."""
    place, end = block * block_size + k, x.shape[-1]
    if end % block_size:
        value = x[row + (minimum(place, end - 1),)].cast(dtypes.f32)
        return select(place < end, value, 0)
    return x[row + (place,)].cast(dtypes.f32)


def _blocks_of(x: Operand, block_size: int) -> Shape:
    return (*x.shape[:-1], -(-x.shape[-1] // block_size))


@op("BlockScales", domain="graphc", infer=_blocks_of)
def block_scales(i: OutIndex, x: Float, *, block_size: int) -> Expr:
    """What the numbers of BlockCodes are multiplied by: float32s, one per block."""
    return _largest(x, i[:-1], i[-1], block_size) / LARGEST_CODE


@op("BlockCodes", domain="graphc",
    infer=lambda x, block_size: (*_blocks_of(x, block_size), block_size))  # fmt: skip
def block_codes(i: OutIndex, x: Float, *, block_size: int) -> Expr:
    """Rows of x in blocks of int8: the largest magnitude of a block is 127, the rest is rounded,
    halves to even. Rows are filled up by zeros."""
    *row, block, k = i
    most = _largest(x, tuple(row), block, block_size)
    factor = select(most < SMALLEST, 0, LARGEST_CODE / most)
    number = call("round", _in_block(x, tuple(row), block, k, block_size) * factor)
    return minimum(maximum(number, -LARGEST_CODE), LARGEST_CODE).cast(dtypes.i8)


def _byte_product_shape(
    x: Operand, x_scales: Operand, codes: Operand, scales: Operand,
    zero_points: Operand | None = None, bias: Operand | None = None, *,
    K: int, N: int, bits: int, block_size: int,
) -> Shape:  # fmt: skip
    blocks = -(-K // block_size)
    if x.shape[-2:] != (blocks, block_size) or x_scales.shape != x.shape[:-1]:
        raise ModelError(f"takes {blocks} blocks and their scales, found {x.type}, {x_scales.type}")
    _check_weights(codes, scales, zero_points, bias, blocks, N, bits, block_size)
    return (*x.shape[:-2], N)


@op("ByteBlockProduct", domain="graphc", infer=_byte_product_shape)
def byte_block_product(
    i: OutIndex, x: Int, x_scales: Float, codes: Int, scales: Float,
    zero_points: Int | None = None, bias: Float | None = None, *, K: int, N: int,  # noqa: N803
    block_size: int, bits: int = 4,
) -> Expr:  # fmt: skip
    """MatMulNBits of blocks of bytes (BlockCodes) and their scales, in float32: products of bytes
    are summed in int32 within a block."""
    per_byte, (blocks, _) = 8 // bits, x.shape[-2:]
    (block,), (byte, place) = axes(blocks, name="b"), axes(block_size // per_byte, per_byte)
    row, column = i[:-1], i[-1]
    at = column * blocks + block
    number = x[row + (block, byte * per_byte + place)].cast(dtypes.i32)
    code = code_in(codes.flat(at * (block_size // per_byte) + byte), place, bits)
    zero = _zero_point(zero_points, column, block, blocks, bits)
    total = reduce("sum", number * (code - zero), (byte, place))
    scale = scales.flat(at).cast(dtypes.f32) * x_scales[row + (block,)].cast(dtypes.f32)
    whole = reduce("sum", total.cast(dtypes.f32) * scale, (block,))
    return whole if bias is None else whole + bias[(column,)].cast(dtypes.f32)


# ---------------------------------------------------------------- GatherBlockQuantized


class _Blocks:
    """How a quantised table lies: its logical shape, and which scale belongs to an element."""

    def __init__(
        self, codes: Operand, scales: Operand, bits: int, block_size: int, quantize_axis: int
    ):
        self.codes, self.scales, self.bits, self.block_size = codes, scales, bits, block_size
        packed = codes.dtype is dtypes.u8
        self.per_byte = _check_bits(bits, block_size) if packed else 1
        self.axis = normal_axis(quantize_axis, codes.rank, "quantize_axis")
        self.shape = (*codes.shape[:-1], codes.shape[-1] * self.per_byte)
        blocks = -(-self.shape[self.axis] // block_size)
        expected = replaced(self.shape, self.axis, blocks)
        if scales.shape != expected:
            raise ModelError(f"scales must be {list(expected)}, found {scales.type}")

    def parameter(self, index: tuple) -> tuple:
        """The index of the scale of an element."""
        return replaced(index, self.axis, index[self.axis] // self.block_size)

    def code(self, operand: Operand, index: tuple) -> Expr:
        """The code, or the zero point, at a logical index of an operand that is packed alike."""
        if self.per_byte == 1:
            return operand[index].cast(dtypes.i32)
        byte = operand[index[:-1] + (index[-1] // self.per_byte,)]
        return code_in(byte, index[-1] % self.per_byte, self.bits)

    def zero_point(self, zero_points: Operand | None, index: tuple) -> Expr:
        if zero_points is not None:
            return self.code(zero_points, self.parameter(index))
        middle = 1 << (self.bits - 1) if self.codes.dtype is dtypes.u8 else 0
        return Const(middle, dtypes.i32)


def _gathered_shape(
    codes: Operand, indices: Operand, scales: Operand, zero_points: Operand | None = None, *,
    bits: int, block_size: int, gather_axis: int, quantize_axis: int,
) -> Shape:  # fmt: skip
    if not codes.dtype.is_integer:
        raise UnsupportedError(f"tables of {codes.dtype} are not supported")
    shape = _Blocks(codes, scales, bits, block_size, quantize_axis).shape
    axis = normal_axis(gather_axis, codes.rank, "gather_axis")
    if axis == len(shape) - 1 and shape != codes.shape:
        raise ModelError("the axis along which codes share bytes cannot be gathered from")
    return (*shape[:axis], *indices.shape, *shape[axis + 1 :])


@op("GatherBlockQuantized", domain=RUNTIME, infer=_gathered_shape)
def gather_block_quantized(
    i: OutIndex, codes: Any_, indices: Int, scales: Float, zero_points: Int | None = None, *,
    bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1,
) -> Expr:  # fmt: skip
    """Gather from a table quantised in blocks along `quantize_axis`.

    Indices that are out of range give zeros. Codes of type u8 have `bits` bits each, packed along
    the last axis; those of other types are elements of their own.
    """
    blocks = _Blocks(codes, scales, bits, block_size, quantize_axis)
    axis = normal_axis(gather_axis, codes.rank)
    end, extent = axis + indices.rank, blocks.shape[axis]
    index = indices[tuple(i[axis:end])].cast(dtypes.i64)
    position = select(index < 0, index + extent, index)
    within = inside(position, extent)
    at = (*i[:axis], select(within, position, 0), *i[end:])
    weight = weight_of(
        blocks.code(codes, at), blocks.zero_point(zero_points, at), scales[blocks.parameter(at)]
    )
    return select(within, weight, 0)
