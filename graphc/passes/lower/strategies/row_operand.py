"""The row operand of a contraction: a flat load whose offset separates rows from depth.

Any other operand is copied first: the windows of a padded convolution into a buffer of positions
(transforms/im2col.py), anything else into rows. For products of bytes, four neighbouring bytes
along the depth are taken at once (`take_quads`): the depth is padded to a multiple of four, with
weights that are 0. Where a machine multiplies pairs of int16, two are, of a copy in that type, from
which zero points are taken already (`take_pairs`).
"""

from __future__ import annotations

from collections.abc import Mapping

from graphc.ir.addresses import flatten_loads, is_affine_in, stride_in
from graphc.ir.dtypes import DType, i16, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    as_expr,
    call,
    free_indices,
    select,
    substitute,
)
from graphc.ir.extents import as_dim, least, points
from graphc.ir.instructions import LANES, LINE, PAIR
from graphc.ir.simplify import bounds, simplify, to_poly
from graphc.ir.types import Dim
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.factors import narrowed
from graphc.passes.lower.transforms.im2col import Window, window
from graphc.passes.lower.transforms.zero_points import take_zero_points
from graphc.records import dataclass

LARGEST_COPY = 1 << 26  # elements
FEWEST_ROWS, FEWEST_COLUMNS = 4, 8  # from which on a copy of rows in int16 pays


def prepare_rows(match: Match) -> None | str:
    """Makes `a` a flat load whose offset separates rows from depth, the innermost summed index the
    one that moves least in it; a reason if it cannot."""
    access = _access(match)
    if access is None:
        problem = _copy_rows(match, match.depth[-1], match.depth[-1])
        if problem:
            return problem
    else:
        match.a = access.taken(match)
    _order_depth(match)
    return None


def take_quads(match: Match, centres: Mapping[DType, int]) -> Index | str:
    """Makes both factors of a sum of int32 bytes, `b` signed, and `a` a flat load of the first of
    four neighbours, which the last summed index counts. Returns the index of single bytes, which
    `b` still has, or why it cannot be done. `centres` are what the multiplication subtracts from
    bytes of `a`, by their type."""
    if any(not isinstance(k.extent, int) for k in match.depth):
        return "contraction: products of bytes need a static depth, found an open one"
    if not take_zero_points(match, centres, signed=True):
        return "contraction: factors of sums of integers must be bytes, found wider integers"
    match.a, match.b = _byte(match.a), _byte(match.b)
    return _take(match, LANES)


def take_pairs(match: Match) -> Index | str | None:
    """The same for factors of int16: bytes less their zero points, two neighbours at once. None if
    the factors are others, or there are too few rows, or columns, to make up for a copy of them."""
    if any(not isinstance(k.extent, int) for k in match.depth):
        return None
    if points(match.rows) < FEWEST_ROWS or points(match.cols) < FEWEST_COLUMNS:
        return None
    a, b = narrowed(match.a, i16), narrowed(match.b, i16)
    if a is None or b is None:
        return None
    match.a, match.b = a, b
    return _take(match, PAIR)


def _take(match: Match, together: int) -> Index | str:
    """Makes `a` a flat load of the first of so many neighbours, as `take_quads` says."""
    aligned = _access_along(match, together)
    if aligned is None:
        along = max(reversed(match.depth), key=lambda k: k.count)
        longer = _longer(along, together)
        problem = _copy_rows(match, along, longer)
        if problem:
            return problem
    else:
        access, along = aligned
        longer = _longer(along, together)
        match.a = substitute(access.taken(match), {along: longer})
    if longer is not along:
        inside = substitute(match.b, {along: call("min", longer, Const(along.count - 1, i64))})
        match.b = select(longer < along.count, inside, Const(0, match.b.dtype))
    quad = Index(f"{along.name}_quad", longer.count // together)
    match.a = simplify(match.a, {longer: quad * together})
    match.depth = [*(k for k in match.depth if k is not along)]
    _order_depth(match)
    match.depth.append(quad)
    return longer


def _byte(factor: Expr) -> Expr:
    assert isinstance(factor, Call) and factor.op.name == "cast"
    return factor.args[0]


def _longer(index: Index, together: int) -> Index:
    """The same index, made up to a multiple of so many."""
    return Index(index.name, -(-index.count // together) * together)


@dataclass(frozen=True)
class _Access:
    """`a` as a load of an input, or of a `copy` of what is read of it. `flat` is the same load in
    one dimension, `width` the extent of the last one."""

    load: Load
    flat: Load
    width: Dim
    copy: Window | None

    def taken(self, match: Match) -> Load:
        """The flat load; asks for the copy."""
        if self.copy is not None:
            match.copied(self.copy.buffer.name, self.copy.index, self.copy.contents, "window")
        return self.flat

    def along(self, depth: list[Index], together: int) -> Index | None:
        """The summed index along which bytes are neighbours that wastes the fewest products when
        so many are read together."""
        last = simplify(self.load.index[-1])
        contiguous = [k for k in depth if is_affine_in(last, k) == 1]
        return max(
            contiguous, key=lambda k: (k.count / _longer(k, together).count, k.count), default=None
        )

    def missing(self, index: Index, together: int) -> int:
        """Elements by which the last extent is too small for an index made up to so many."""
        longer = _longer(index, together)
        end = bounds(simplify(self.load.index[-1]))[1] + longer.count - index.count
        return int(max(0, end + 1 - least(self.width)))


def _access(match: Match, spare: int = 0) -> _Access | None:
    """`a` as it lies in memory, or in a window whose last extent has so much to spare; None if
    that does not separate rows from depth."""
    if isinstance(match.a, Load):
        access = _loaded(match, match.a, None)
        if separable(access.flat.index[0], set(match.depth)):
            return access
    copy = window(match.a, "rows", match.computation, spare)
    return None if copy is None else _loaded(match, copy.load, copy)


def _loaded(match: Match, load: Load, copy: Window | None) -> _Access:
    shape = match.shapes[load.source] if copy is None else copy.buffer.shape
    flat = flatten_loads(load, {load.source: shape})
    assert isinstance(flat, Load)
    return _Access(load, flat, shape[-1], copy)


def _access_along(match: Match, together: int) -> tuple[_Access, Index] | None:
    """`a` in memory with an index to read so many at once along; None if that cannot be."""
    access = _access(match)
    index = None if access is None else access.along(match.depth, together)
    if access is None or index is None:
        return None
    spare = access.missing(index, together)
    if spare and access.copy is None:
        return None
    wider = _access(match, spare) if spare else access
    return None if wider is None else (wider, index)


def _copy_rows(match: Match, last: Index, longer: Index) -> str:
    """Copies `a` into rows that run along the depth; index `last` is made up to `longer`, and runs
    along memory."""
    used = free_indices(match.a)
    own = [x for x in (*match.indices, *match.depth) if x in used and x is not last]
    places = [*own, *([longer] if last in used else [])]
    shape = tuple(x.extent for x in places)
    if points(places) > LARGEST_COPY:
        return (
            f"contraction: a copy of the row operand may have {LARGEST_COPY} elements, found shape "
            f"{list(shape)}"
        )
    index = index_of(shape)
    mapping: dict[Expr, Expr] = dict(zip(own, index))
    if last in used:
        end = as_expr(last.extent - 1, i64)
        mapping[last] = index[-1] if last is longer else call("min", index[-1], end)
    buffer = match.copied("rows", index, substitute(match.a, mapping), "operand")
    match.a = flatten_loads(buffer[tuple(places)], match.shapes)
    return ""


def spread_rows(match: Match) -> None:
    """Copies rows whose places in a cache are the same into rows that are a little longer, so that
    several stay there while columns pass over them."""
    used = free_indices(match.a)
    own = [x for x in (*match.outer, *match.rows, *match.depth) if x in used]
    shape = [x.extent for x in own]
    shape[-1] = as_dim(shape[-1] + LINE // match.a.dtype.size)
    index = tuple(Index(f"i{n}", extent) for n, extent in enumerate(shape))
    contents = substitute(match.a, dict(zip(own, index)))
    contents = select(index[-1] < own[-1].extent, contents, Const(0, match.a.dtype))
    buffer = match.copied("rows", index, simplify(contents), "rows")
    match.a = flatten_loads(buffer[tuple(own)], match.shapes)


def separable(offset: Expr, depth: set[Index]) -> bool:
    """Whether an offset is f(rows, outer) + g(depth)."""
    for atoms in to_poly(simplify(offset)):
        used = frozenset().union(*(free_indices(x) for x in atoms)) if atoms else frozenset()
        if used & depth and used - depth:
            return False
    return True


def _order_depth(match: Match) -> None:
    """Sorts the summed indices so that the innermost moves least in `a`."""
    assert isinstance(match.a, Load)
    offset = match.a.index[0]
    strides = {k: stride_in(offset, k) for k in match.depth}
    if all(s is not None for s in strides.values()):
        longest = {k: max(map(abs, bounds(s))) for k, s in strides.items() if s is not None}
        match.depth.sort(key=lambda k: -longest[k])
