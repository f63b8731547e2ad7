"""Extents of loops: integers, or expressions over symbols with bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphc.ir.expr import Call, Const, Expr, Index, Sym, as_expr, minimum, walk
from graphc.ir.simplify import bounds, bounds_of_poly, simplify, to_poly
from graphc.ir.types import Dim, at

UNKNOWN = 1 << 30  # what estimates take for an extent that has no bound


def as_dim(extent: Dim) -> Dim:
    """The normal form of an extent: an integer if it is constant."""
    return at(extent, {})


def divided(extent: Dim, by: int) -> tuple[Dim, Dim]:
    """How many times `by` goes into an extent, and what is left."""
    if isinstance(extent, int):
        return divmod(extent, by)
    return as_dim(extent // by), as_dim(extent % by)


def ceil_divided(extent: Dim, by: int) -> Dim:
    """How many parts of a size cover an extent."""
    return -(-extent // by) if isinstance(extent, int) else as_dim((extent + (by - 1)) // by)


def part_from(extent: Dim, first: Expr, size: int) -> Dim:
    """How long the part is that begins at `first`, a multiple of `size`: shorter than `size` where
    it is the last and the extent no multiple."""
    if divided(extent, size)[1] == 0:
        return size
    return as_dim(minimum(extent - first, size))


def common_factor(extent: Dim, number: int) -> int:
    """The largest factor of a number that is known to divide an extent, of the number and its
    halves."""
    while number > 1 and divided(extent, number)[1] != 0:
        number //= 2
    return number


def most(extent: Dim) -> int:
    """The largest value of an extent, or a bound of it."""
    return extent if isinstance(extent, int) else int(min(bounds(extent)[1], UNKNOWN))


def least(extent: Dim) -> int:
    """The smallest value of an extent, or a bound of it."""
    return extent if isinstance(extent, int) else int(max(bounds(extent)[0], 0))


def at_most(one: Dim, other: Dim) -> bool:
    """Whether an extent is known to be no larger than another, at all sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return one <= other
    return bounds_of_poly(to_poly(simplify(as_expr(other) - one)))[0] >= 0


def is_of_sizes(dim: Dim) -> bool:
    """Whether a number is made of symbols and constants alone."""
    return isinstance(dim, int) or all(isinstance(x, (Call, Const, Sym)) for x in walk(dim))


def points(indices: Iterable[Index]) -> int:
    """The positions of several indices; at most so many, if extents are not known."""
    return math.prod(most(x.extent) for x in indices)


def is_below(position: Expr, extent: Dim) -> bool:
    """Whether a position is known to lie in 0 .. extent-1."""
    low, high = bounds(position)
    if isinstance(extent, int):
        return low >= 0 and high < extent
    room = as_expr(extent) - 1 - position
    return low >= 0 and bounds_of_poly(to_poly(simplify(room)))[0] >= 0
