"""Random numbers from a counter: element n of a tensor is a hash of (seed, n), so that every
backend draws the same numbers in any order and in parallel.

The hash is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014; constants by David Stafford) applied to seed_key + n * golden, where golden
is 2^64 divided by the golden ratio. The top 24 bits make a uniform number in [0, 1); two draws
make a normal one by Box and Muller. ONNX leaves the generator open and lets an omitted `seed` mean
any: here it means seed 0, so that results repeat.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, boolean, f32, f64, i64, u64
from graphc.ir.expr import Const, Expr, as_expr, cast, cos, log, maximum, sqrt
from graphc.ir.graph import Value
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.opdef import Any_, Float, Operand, OutIndex, composite, imperative, linear, op
from graphc.ir.types import TensorType

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(z: Expr) -> Expr:
    """The splitmix64 finaliser of a u64 expression."""
    z = (z ^ (z >> _u64(30))) * _u64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> _u64(27))) * _u64(0x94D049BB133111EB)
    return z ^ (z >> _u64(31))


def _u64(value: int) -> Const:
    return Const(value & _MASK, u64)


def _seed_key(seed: float | None) -> Const:
    """The start of a stream: the bits of the seed as a double, mixed."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", float(seed or 0.0)))
    key = _mix(_u64(bits + _GOLDEN))
    assert isinstance(key, Const)
    return key


def uniform(seed: float | None, counter: Expr | int) -> Expr:
    """A float32 in [0, 1), number `counter` of the stream of `seed`."""
    hashed = _mix(_seed_key(seed) + cast(as_expr(counter, i64), u64) * _u64(_GOLDEN))
    return cast(hashed >> _u64(40), f32) * (2.0**-24)


def normal(seed: float | None, counter: Expr) -> Expr:
    """A standard normal float32 from draws 2*counter and 2*counter + 1."""
    radius = sqrt(log(maximum(1 - uniform(seed, counter * 2), 2.0**-24)) * -2)
    return radius * cos(uniform(seed, counter * 2 + 1) * (2 * math.pi))


def _float_type(dtype: int | None, default: DType | None = None) -> DType:
    """The dtype attribute (an ONNX number), a float."""
    chosen = default if dtype is None else dtypes.of(dtype)
    if chosen is None or not chosen.is_float:
        raise ModelError(f"dtype {chosen} is not a float type")
    return chosen


def _scaled(unit: Expr, scale: float, shift: float, dtype: DType) -> Expr:
    wide = cast(unit, f64 if dtype is f64 else f32)
    return cast(wide * scale + shift, dtype)


@op("RandomUniform", infer=lambda shape: tuple(shape))
def random_uniform(
    i: OutIndex, *, shape: Sequence[int], dtype: int = 1, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Expr:  # fmt: skip
    """Numbers in [low, high)."""
    draw = uniform(seed, linear(i, i.shape))
    return _scaled(draw, high - low, low, _float_type(dtype))


@op("RandomUniformLike", infer=lambda x: x.shape)
def random_uniform_like(
    i: OutIndex, x: Any_, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Expr:  # fmt: skip
    """Numbers in [low, high), with the shape (and dtype) of x."""
    draw = uniform(seed, linear(i, i.shape))
    return _scaled(draw, high - low, low, _float_type(dtype, x.dtype))


@op("RandomNormal", infer=lambda shape: tuple(shape))
def random_normal(
    i: OutIndex, *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Expr:  # fmt: skip
    """Normally distributed numbers."""
    draw = normal(seed, linear(i, i.shape))
    return _scaled(draw, scale, mean, _float_type(dtype))


@op("RandomNormalLike", infer=lambda x: x.shape)
def random_normal_like(
    i: OutIndex, x: Any_, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Expr:  # fmt: skip
    """Normally distributed numbers, with the shape (and dtype) of x."""
    draw = normal(seed, linear(i, i.shape))
    return _scaled(draw, scale, mean, _float_type(dtype, x.dtype))


@op("Bernoulli", infer=lambda x: x.shape)
def bernoulli(
    i: OutIndex, x: Float, *, dtype: int | None = None, seed: float | None = None
) -> Expr:
    """1 with probability x, else 0."""
    target = x.dtype if dtype is None else dtypes.of(dtype)
    hit = cast(uniform(seed, linear(i, i.shape)), x.dtype) < x[i]
    return hit if target is boolean else cast(hit, target)


@composite("Multinomial")
def multinomial(
    b: Builder, x: Float, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Value:
    """Class numbers drawn with probabilities softmax(x[batch])."""
    if x.tensor.rank != 2:
        raise ModelError(f"the input has rank {x.tensor.rank}, expected 2 (batch, class)")
    wide = x if x.tensor.dtype is f64 else b.Cast(x, to=f32.onnx)
    weights = b.Exp(b.Sub(wide, b.ReduceMax(wide, np.array([1]), keepdims=1)))
    sums = b.CumSum(weights, np.array(1))
    return b.op("Draw", sums, domain="graphc", dtype=dtype, sample_size=sample_size, seed=seed)


def _drawn_type(sums: Operand, dtype: int, sample_size: int) -> TensorType:
    target = dtypes.of(dtype)
    if target not in (dtypes.i32, i64):
        raise ModelError(f"dtype {target} is not int32 or int64")
    if sums.shape[1] == 0:
        raise ModelError("there is no class to draw")
    return TensorType(target, (sums.shape[0], sample_size))


@imperative("Draw", infer=_drawn_type, domain="graphc")
def draw(
    k: Collectives, sums: Float, *, dtype: int, sample_size: int, seed: float | None = None
) -> None:
    """Class numbers drawn with weights of which `sums` [batch, class] are the running sums.

    A uniform number times the total weight is looked for among these sums, by halves.
    """
    (y,) = k.outputs
    batch, classes = sums.shape
    with k.loops(batch, sample_size, kind="parallel") as (row, sample):
        number = uniform(seed, linear((row, sample), (batch, sample_size)))
        target = k.let(cast(number, sums.dtype) * sums[row, classes - 1])
        last = classes - 1
        drawn = k.search(as_expr(last, i64), last, lambda j: sums[row, j] <= target)
        k.store(y, (row, sample), cast(drawn, y.dtype))
