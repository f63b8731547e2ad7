"""Intervals: what the scalar operations give for arguments between two ends, for arrays of ends.

Interval arithmetic (R. Moore, Interval Analysis, 1966). The ends are computed by the operations
themselves, which keep order, so they hold for what machines compute: integers are exact, and one
that might wrap can be anything of its type. Floats may besides be NaN, if `nan` says so. Where
machines may round otherwise (fused products, sums in another order, functions of their libraries)
ends are moved outwards, or not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from graphc.ir.dtypes import DType, boolean, u64
from graphc.ir.expr import Call, Const
from graphc.ir.scalar.ops import TABLE, apply
from graphc.passes.analysis.ranges import CODOMAINS
from graphc.records import dataclass

LOOSE = 2.0**-7  # of a float sum's magnitude, for factors rounded to bfloat16 and any order
RISING = ("floor", "ceil", "round", "trunc", "sign")
SHIFTS = ("shr", "shr_rounded", "shr_to_even", "shr_to_odd")
QUOTIENTS = ("div", "floordiv")
NEVER_NAN = ("exp", "cosh", "tanh", "erf", "atan")  # of numbers
LARGEST = 2.0**62  # integers up to here are told apart from ones that wrap
EXACT = 2.0**52  # floats up to here hold all integers and halves


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, ends included: arrays that broadcast, int64 or narrower for
    integers and booleans, float64 for floats. With `nan`, some may be NaN."""

    low: np.ndarray
    high: np.ndarray
    nan: bool = False

    @property
    def is_point(self) -> np.ndarray:
        """Where there is but one number, and one zero."""
        if self.low is self.high:
            return np.full(np.shape(self.low), not self.nan)
        same = (self.low == self.high) & (np.signbit(self.low) == np.signbit(self.high))
        return np.asarray(same & (not self.nan))

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def joined(self, other: Interval) -> Interval:
        """What is in one of two."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Interval(low, high, self.nan or other.nan)

    def along(self, axes: tuple[int, ...]) -> Interval:
        """What is at any place along axes, which are kept as ones."""
        return Interval(self.low.min(axes, keepdims=True), self.high.max(axes, keepdims=True),
                        self.nan)  # fmt: skip

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Interval:
        """Other places of the same numbers."""
        low = function(self.low)
        return Interval(low, low if self.low is self.high else function(self.high), self.nan)


def point(array: np.ndarray) -> Interval:
    """Numbers that are known; of floats, without NaN."""
    return Interval(array, array)


def whole(dtype: DType) -> Interval | None:
    """All that a type has; None of one whose numbers have no ends here."""
    if dtype is boolean:
        return Interval(np.int64(0), np.int64(1))  # type: ignore[arg-type]
    if dtype.is_integer and dtype is not u64:
        return Interval(np.int64(dtype.min), np.int64(dtype.max))  # type: ignore[arg-type]
    if dtype.is_float and dtype.bits >= 32:
        return Interval(np.float64(-np.inf), np.float64(np.inf), True)  # type: ignore[arg-type]
    return None


def of_array(array: np.ndarray, dtype: DType) -> Interval | None:
    """The elements of a constant."""
    if array.size == 0 or whole(dtype) is None:
        return None
    if dtype is boolean:
        return point(array.astype(np.int8))
    if dtype.is_integer:
        return point(array if array.dtype.isbuiltin == 1 else array.astype(np.int64))
    wide = array.astype(np.float64)
    unordered = np.isnan(wide)
    if not unordered.any():
        return point(wide)
    return Interval(np.where(unordered, -np.inf, wide), np.where(unordered, np.inf, wide), True)


def called(node: Call, args: list[Interval | None]) -> Interval | None:
    """What an operation gives for arguments in these intervals."""
    result = _called(node, args)
    numbers = all(arg is not None and arg.low is arg.high for arg in args)
    if result is not None and numbers and np.all(result.is_point):
        return point(result.low)
    return result


def _called(node: Call, args: list[Interval | None]) -> Interval | None:
    anything = whole(node.dtype)
    known = [arg for arg in args if arg is not None]
    if anything is None or len(known) < len(args):
        return _between(node, anything)
    name = node.op.name
    if name in _SPECIAL:
        return _SPECIAL[name](node, known)
    if node.op.rule == "compare":
        return _compared(name, *known)
    floats = node.dtype.is_float
    if name in RISING or (name == "sqrt" and not known[0].nan and np.min(known[0].low) >= 0):
        return _ends(node, known[0].low, known[0].high, known[0].nan)
    if not floats and name in (*SHIFTS, *QUOTIENTS, "mod", "shl"):
        return _by_number(node, known)
    return _between(node, anything, known)


def _between(node: Call, anything: Interval | None, args: list[Interval] = []) -> Interval | None:  # noqa: B006
    """The numbers that a function gives at all."""
    ends = CODOMAINS.get(node.op.name)
    if anything is None or ends is None or not node.dtype.is_float:
        return anything
    nan = node.op.name not in NEVER_NAN or not args or any(arg.nan for arg in args)
    return Interval(np.float64(ends.low), np.float64(ends.high), nan)  # type: ignore[arg-type]


# ---------------------------------------------------------------- ends that operations compute


def _numbers(node: Call, *arrays: np.ndarray) -> np.ndarray:
    """What an operation gives for numbers, as ends are kept."""
    given = [np.asarray(x).astype(arg.dtype.np) for x, arg in zip(arrays, node.args)]
    result = apply(node.op, node.dtype, *given)
    return result.astype(np.float64 if node.dtype.is_float else np.int64)


def _ends(node: Call, low: np.ndarray, high: np.ndarray, nan: bool = False) -> Interval:
    return Interval(_numbers(node, low), _numbers(node, high), nan)


def exact(low: np.ndarray, high: np.ndarray, dtype: DType) -> Interval:
    """Ends of integers, computed as floats: all of the type where these do not fit."""
    with np.errstate(invalid="ignore"):
        ends = low.astype(np.int64), high.astype(np.int64)
    return _fitting(ends[0], ends[1], _wraps(low, high, dtype, EXACT), dtype)


def _wraps(low: np.ndarray, high: np.ndarray, dtype: DType, most: float) -> np.ndarray:
    return (low < max(float(dtype.min), -most)) | (high > min(float(dtype.max), most))


def _fitting(low: np.ndarray, high: np.ndarray, wraps: np.ndarray, dtype: DType) -> Interval:
    if not np.any(wraps):
        return Interval(low, high)
    return Interval(np.where(wraps, dtype.min, low), np.where(wraps, dtype.max, high))


def _checked(node: Call, low: tuple, high: tuple, nan: bool) -> Interval:
    """The ends that an operation has for two choices of arguments."""
    dtype = node.dtype
    if dtype.is_float:
        ends = Interval(_numbers(node, *low), _numbers(node, *high), nan)
        products = any(isinstance(x, Call) and x.op.name == "mul" for x in node.args)
        return _outwards(ends, dtype) if products else ends
    with np.errstate(over="ignore"):
        wide = [[np.asarray(x).astype(np.int64) for x in side] for side in (low, high)]
        numbers = [np.asarray(node.op.numpy(*side)) for side in wide]  # type: ignore[misc]
    about = [node.op.numpy(*(x.astype(np.float64) for x in side)) for side in wide]  # type: ignore[misc]
    wraps = _wraps(about[0], about[1], dtype, LARGEST)
    return _fitting(numbers[0], numbers[1], wraps, dtype)


def _outwards(ends: Interval, dtype: DType) -> Interval:
    """Ends with one more number on either side, as a product may be rounded or not."""
    low = np.nextafter(ends.low.astype(dtype.np), np.asarray(-np.inf, dtype.np))
    high = np.nextafter(ends.high.astype(dtype.np), np.asarray(np.inf, dtype.np))
    return Interval(low.astype(np.float64), high.astype(np.float64), ends.nan)


def _added(node: Call, args: list[Interval]) -> Interval | None:
    a, b = args
    if node.dtype.is_float and not (a.is_finite and b.is_finite):
        return whole(node.dtype)
    return _checked(node, (a.low, b.low), (a.high, b.high), a.nan or b.nan)


def _subtracted(node: Call, args: list[Interval]) -> Interval | None:
    a, b = args
    if node.dtype.is_float and not (a.is_finite and b.is_finite):
        return whole(node.dtype)
    return _checked(node, (a.low, b.high), (a.high, b.low), a.nan or b.nan)


def _multiplied(node: Call, args: list[Interval]) -> Interval | None:
    a, b = args
    if node.dtype.is_float and not (a.is_finite and b.is_finite):
        return whole(node.dtype)
    corners = [_checked(node, (x, y), (x, y), False) for x in (a.low, a.high)
               for y in (b.low, b.high)]  # fmt: skip
    low = np.minimum.reduce(np.broadcast_arrays(*(c.low for c in corners)))
    high = np.maximum.reduce(np.broadcast_arrays(*(c.high for c in corners)))
    return Interval(low, high, a.nan or b.nan)


def _negated(node: Call, args: list[Interval]) -> Interval | None:
    (a,) = args
    if node.dtype.is_float:
        return _ends(node, a.high, a.low, a.nan)
    return exact(-a.high.astype(np.float64), -a.low.astype(np.float64), node.dtype)


def _extreme(node: Call, args: list[Interval]) -> Interval | None:
    """Of a zero and another, either may be taken."""
    a, b = args
    ends = Interval(
        _numbers(node, a.low, b.low), _numbers(node, a.high, b.high), a.nan or b.nan
    )  # fmt: skip
    if not node.dtype.is_float:
        return ends
    zeros = all(np.any((x.low <= 0) & (x.high >= 0)) for x in args)
    low = np.where((ends.low == 0) & zeros, -0.0, ends.low)
    return Interval(low, np.where((ends.high == 0) & zeros, 0.0, ends.high), ends.nan)


def _limited(node: Call, args: list[Interval]) -> Interval | None:
    x, low, high = args
    nan = x.nan or low.nan or high.nan
    return _checked(node, (x.low, low.low, high.low), (x.high, low.high, high.high), nan)


def _converted(node: Call, args: list[Interval]) -> Interval | None:
    (a,) = args
    before, after = node.args[0].dtype, node.dtype
    if after is boolean:
        some, none = (a.low > 0) | (a.high < 0), (a.low == 0) & (a.high == 0) & (not a.nan)
        return Interval(some.astype(np.int64), 1 - none.astype(np.int64))
    if after.is_float:
        return _ends(node, a.low, a.high, a.nan)
    fits = (a.low >= after.min) & (a.high <= after.max)
    if before.is_float:
        inside = not a.nan and after.bits <= 32 and np.all(fits)
        return _ends(node, a.low, a.high) if inside else whole(after)
    return _fitting(a.low, a.high, ~fits, after) if not np.all(fits) else a


def _by_number(node: Call, args: list[Interval]) -> Interval | None:
    """Shifts, and quotients and rests by a positive number, which keep order."""
    a, b = args
    if not np.all(b.is_point):
        return whole(node.dtype)
    name, by = node.op.name, b.low
    if name == "shl":
        if np.any(by < 0) or np.any(by >= node.dtype.bits):
            return whole(node.dtype)
        factor = np.ldexp(1.0, by.astype(np.int64))
        return exact(a.low * factor, a.high * factor, node.dtype)
    if np.any(by < 0) or (name not in SHIFTS and np.any(by == 0)):
        return whole(node.dtype)
    if name != "mod":
        return Interval(_numbers(node, a.low, by), _numbers(node, a.high, by))
    same = np.floor_divide(a.low, by) == np.floor_divide(a.high, by)
    low = np.where(same, np.remainder(a.low, by), 0)
    return Interval(low, np.where(same, np.remainder(a.high, by), by - 1))


# ---------------------------------------------------------------- truth


def _compared(name: str, a: Interval, b: Interval) -> Interval:
    """Whether a comparison always holds, and whether it may. With NaN none does but "ne"."""
    if name in ("gt", "ge"):
        name, a, b = {"gt": "lt", "ge": "le"}[name], b, a
    if name in ("eq", "ne"):
        equal = a.is_point & b.is_point & (a.low == b.low)
        apart = (a.high < b.low) | (b.high < a.low)
        always, never = (equal, apart) if name == "eq" else (apart, equal)
    elif name == "lt":
        always, never = a.high < b.low, a.low >= b.high
    else:
        always, never = a.high <= b.low, a.low > b.high
    nan = a.nan or b.nan
    always = np.asarray(always & (not nan or name == "ne"))
    return Interval(always.astype(np.int64), 1 - np.asarray(never).astype(np.int64))


def _tested(node: Call, args: list[Interval]) -> Interval | None:
    """Whether a number is none, or infinite."""
    (a,) = args
    is_nan = node.op.name == "isnan"
    may = np.asarray(a.nan) if is_nan else ~np.isfinite(a.low) | ~np.isfinite(a.high)
    return Interval(np.zeros(np.shape(may), np.int64), may.astype(np.int64))


def _selected(node: Call, args: list[Interval]) -> Interval | None:
    condition, then, other = args
    then, other = _narrowed(node, then, other)
    always, never = condition.low == 1, condition.high == 0
    low = np.where(always, then.low, np.where(never, other.low, np.minimum(then.low, other.low)))
    high = np.where(
        always, then.high, np.where(never, other.high, np.maximum(then.high, other.high))
    )
    nan = (then.nan and not np.all(never)) or (other.nan and not np.all(always))
    return Interval(low, high, bool(nan))


def _narrowed(node: Call, then: Interval, other: Interval) -> tuple[Interval, Interval]:
    """The sides of a choice by whether a < b, or alike, where these are a and b themselves."""
    compared, *sides = node.args
    if not isinstance(compared, Call) or compared.op.name not in ("lt", "le", "gt", "ge"):
        return then, other
    a, b = compared.args if compared.op.name in ("lt", "le") else compared.args[::-1]
    ends = dict(zip(sides, (then, other)))
    for x in (a, b):
        if isinstance(x, Const) and x not in ends and isinstance(x.value, (int, float)):
            ends[x] = point(np.asarray(x.value))
    if a not in ends or b not in ends:
        return then, other
    less, more = ends[a], ends[b]
    below = {a: _cut(less, high=more.high), b: _cut(more, low=less.low)}
    above = {  # with NaN on one side, the other can be anything
        a: less if more.nan else replace(_cut(less, low=more.low), nan=less.nan),
        b: more if less.nan else replace(_cut(more, high=less.high), nan=more.nan),
    }
    return below.get(sides[0], then), above.get(sides[1], other)


def _cut(ends: Interval, low: np.ndarray | None = None, high: np.ndarray | None = None) -> Interval:
    """The part of an interval up to a number, or from it, without NaN; some of it, if there is no
    such part."""
    first = ends.low if low is None else np.minimum(np.maximum(ends.low, low), ends.high)
    last = ends.high if high is None else np.maximum(np.minimum(ends.high, high), ends.low)
    return Interval(first, last)


def _inverted(node: Call, args: list[Interval]) -> Interval | None:
    return Interval(1 - args[0].high, 1 - args[0].low)


def _both(node: Call, args: list[Interval]) -> Interval | None:
    a, b = args
    take = np.minimum if node.op.name == "and" else np.maximum
    return Interval(take(a.low, b.low), take(a.high, b.high))


_SPECIAL: dict[str, Callable[[Call, list[Interval]], Interval | None]] = {
    "add": _added, "sub": _subtracted, "mul": _multiplied, "neg": _negated, "min": _extreme,
    "max": _extreme, "clamp": _limited, "cast": _converted, "select": _selected,
    "isnan": _tested, "isinf": _tested, "not": _inverted, "and": _both, "or": _both,
}  # fmt: skip
assert all(name in TABLE for name in (*_SPECIAL, *RISING, *SHIFTS, *QUOTIENTS))


# ---------------------------------------------------------------- reductions


def summed(terms: Interval, axes: tuple[int, ...], count: int, dtype: DType) -> Interval | None:
    """The sum along axes of an array, which are kept as ones, of `count` such terms each."""
    low, high = (end.astype(np.float64).sum(axes, keepdims=True) * count
                 for end in (terms.low, terms.high))  # fmt: skip
    if not dtype.is_float:
        return exact(low, high, dtype)
    sizes = np.maximum(np.abs(terms.low), np.abs(terms.high))
    size = sizes.sum(axes, keepdims=True) * count
    return _loosened(low, high, size, count * _product(sizes.shape, axes), terms.nan, dtype)


def _product(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _loosened(
    low: np.ndarray, high: np.ndarray, size: np.ndarray, terms: int, nan: bool, dtype: DType
) -> Interval | None:
    """A float sum in any order, `size` being that of the terms' magnitudes."""
    if not np.max(size) < float(np.finfo(dtype.np).max) / 2:  # NaN is not
        return whole(dtype)
    slack = size * (LOOSE + terms * 2.0**-23)
    return Interval(low - slack, high + slack, nan)


def products_summed(
    varying: Interval, factor: np.ndarray, axes: tuple[int, ...], count: int, dtype: DType
) -> Interval | None:
    """The sum along axes of products with numbers, `count` such terms each: that of the middles,
    give or take those of half the widths."""
    if _is_uniform(varying) and not dtype.is_float and _sums_fit(factor, axes):
        return _uniform_summed(varying, factor, axes, count, dtype)
    wide = factor.astype(np.float64)
    middle = (varying.low.astype(np.float64) + varying.high) / 2
    half = (varying.high.astype(np.float64) - varying.low) / 2
    total = _contracted(wide, middle, axes) * count
    wide = np.abs(wide)
    spread = _contracted(wide, half, axes) * count
    if not dtype.is_float:
        return exact(total - spread, total + spread, dtype)
    size = _contracted(wide, np.abs(middle) + half, axes) * count
    terms = count * _product(np.broadcast_shapes(wide.shape, half.shape), axes)
    return _loosened(total - spread, total + spread, size, terms, varying.nan, dtype)


def _is_uniform(varying: Interval) -> bool:
    low, high = varying.low, varying.high
    return bool((low == low.flat[0]).all() and (high == high.flat[0]).all())


def _sums_fit(factor: np.ndarray, axes: tuple[int, ...]) -> bool:
    """Whether float32 holds sums of bytes."""
    return factor.dtype.itemsize == 1 and 128 * _product(factor.shape, axes) < 1 << 24


def _uniform_summed(
    varying: Interval, factor: np.ndarray, axes: tuple[int, ...], count: int, dtype: DType
) -> Interval:
    """As `products_summed`, if everything varies alike: by sums of the numbers alone."""
    shape = np.broadcast_shapes(varying.low.shape, factor.shape)
    count *= _product(shape, axes) // max(_product(factor.shape, axes), 1)
    wide = factor.astype(np.float32)
    ones = np.ones([factor.shape[n] if n in axes else 1 for n in range(factor.ndim)], np.float32)
    total = _contracted(wide, ones, axes).astype(np.float64) * count
    spread = _contracted(np.abs(wide, out=wide), ones, axes).astype(np.float64) * count
    low, high = float(varying.low.flat[0]), float(varying.high.flat[0])
    middle, half = total * ((low + high) / 2), spread * ((high - low) / 2)
    return exact(middle - half, middle + half, dtype)


def _contracted(a: np.ndarray, b: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The sum of a * b along axes, which are kept as ones: a matrix product where b has no more."""
    kept = tuple(n for n in range(a.ndim) if n not in axes)
    if any(b.shape[n] != 1 for n in kept) or any(a.shape[n] < b.shape[n] for n in axes):
        return (a * b).sum(axes, keepdims=True)
    rows = a.transpose(*kept, *axes).reshape(-1, _product(a.shape, axes))
    column = np.broadcast_to(b, [a.shape[n] if n in axes else 1 for n in range(a.ndim)])
    total = rows @ column.transpose(*kept, *axes).reshape(-1)
    return total.reshape([1 if n in axes else a.shape[n] for n in range(a.ndim)])
