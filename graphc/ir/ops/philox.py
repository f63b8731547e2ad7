"""Dropout and stochastic rounding of training, with random numbers from a counter: the same on
every target, in any order.

The generator is Philox2x32 with ten rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as
easy as 1, 2, 3, SC 2011). Its counter holds the number of the element and that of the draw (of the
step, say), its key the seed and the number of the layer. The mask is never stored: the derivative
of the body draws it again.
"""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir.dtypes import f32, i64, u64
from graphc.ir.expr import Const, Expr, as_expr, cast, floor, minimum, select
from graphc.ir.opdef import Float, Int, Operand, OutIndex, linear, op
from graphc.ir.types import Shape, TensorType

ROUNDS, MULTIPLIER, WEYL = 10, 0xD256D193, 0x9E3779B9
_LOW = (1 << 32) - 1


def philox(low: Expr, high: Expr, key: int) -> tuple[Expr, Expr]:
    """Two random numbers of 32 bits, from a counter of twice 32 bits and a key of 32; all u64."""
    for _ in range(ROUNDS):
        product = low * _u64(MULTIPLIER)
        low, high = (product >> _u64(32)) ^ _u64(key) ^ high, product & _u64(_LOW)
        key = (key + WEYL) & _LOW
    return low, high


def _u64(value: int) -> Const:
    return Const(value, u64)


def _word(number: Expr) -> Expr:
    """The lower 32 bits of an integer."""
    return cast(number, u64) & _u64(_LOW)


def _same(x: Operand, draw: Operand, *, ratio: float) -> Shape:
    if draw.shape != ():
        raise ModelError(f"the number of the draw must be a scalar, found {draw.type}")
    if not 0 <= ratio < 1:
        raise ModelError(f"ratio must be from 0 to below 1, found {ratio}")
    return x.shape


@op("DropoutAt", infer=_same, domain="graphc")
def dropout_at(
    i: OutIndex, x: Float, draw: Int, *, ratio: float = 0.5, seed: int = 0, layer: int = 0
) -> Expr:
    """x / (1 - ratio), or 0 with probability `ratio`; other zeros for each draw, seed and layer."""
    number = _uniform(i, draw, seed, layer)
    return select(number >= ratio, x[i] * (1 / (1 - ratio)), 0)


def _uniform(i: OutIndex, draw: Operand, seed: int, layer: int) -> Expr:
    """A number from 0 to below 1 for an element: another one for each draw, seed and layer."""
    key = (seed * WEYL ^ layer * MULTIPLIER ^ seed >> 32) & _LOW
    word, _ = philox(_word(as_expr(linear(i, i.shape), i64)), _word(draw[()]), key)
    return cast(word >> _u64(8), f32) * 2.0**-24


def _coded(
    x: Operand, scale: Operand, zero_point: Operand, draw: Operand, *, axis: int, **_: int
) -> TensorType:
    if draw.shape != ():
        raise ModelError(f"the number of the draw must be a scalar, found {draw.type}")
    return TensorType(zero_point.dtype, x.shape)


@op("QuantizeAt", infer=_coded, domain="graphc")
def quantize_at(
    i: OutIndex, x: Float, scale: Float, zero_point: Int, draw: Int, *, axis: int = 0,
    seed: int = 0, layer: int = 0,
) -> Expr:  # fmt: skip
    """x / scale rounded up or down, up with a probability of what is lost otherwise, shifted,
    saturated: right in the mean, so that small updates of weights of few bits are not lost (Gupta
    et al., "Deep Learning with Limited Numerical Precision", 2015)."""
    at = (i[axis],) if scale.rank else ()
    zero, target = zero_point[at if zero_point.rank else ()].cast(f32), zero_point.dtype
    whole = floor(x[i].cast(f32) / scale[at].cast(f32) + _uniform(i, draw, seed, layer)) + zero
    return minimum(select(whole > target.min, whole, target.min), target.max).cast(target)
