"""Which sums of products can be taken in vectors, and in which way."""

from __future__ import annotations

from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, u8
from graphc.ir.expr import Call, Const, Expr, Index, Load, free_indices, loads
from graphc.ir.extents import points
from graphc.ir.simplify import simplify
from graphc.passes.analysis.factors import centred_byte
from graphc.passes.analysis.weighted import ProductMatch

SHORT_ROW = 8  # bytes in a row, below which lanes are faster than dots
MOST_COPIED = 256  # bytes that are copied to lie in a row
LEAST_COLUMNS = 4  # that share a copy


def problem(match: ProductMatch) -> str:
    """Why a sum of products cannot be taken in vectors; empty if it can."""
    column, hole = match.column, match.hole
    if column is None or is_affine_in(match.offset, column) != 1:
        return "columns of the weights must be neighbours in the output, found them apart"
    stored = {x.dtype for x in loads(match.b)}
    known = {f32} if hole.dtype is f32 else {i8, u8, i32}
    if not stored <= known:
        wanted, types = (", ".join(sorted(d.name for d in some)) for some in (known, stored))
        return f"weights for sums of {hole.dtype} must be {wanted}, found {types}"
    for atom in match.guards:
        summed = [k for k in match.depth if k in free_indices(atom)]
        if len(summed) != 1 or column in free_indices(atom):
            return "a guard must depend on one summed index and on no column, found another"
    read = element(unguarded(match), hole.dtype)
    if read is None:
        return "the other factor must be an element, found a computed value"
    if any(is_affine_in(read.index[0], k) is None for k in (*match.indices, *match.depth)):
        return "the other factor must be read at affine places, found another"
    if is_affine_in(read.index[0], column) not in (0, 1):
        return "the other factor must be read at one place or at neighbours, found others"
    return ""


def element(factor: Expr, dtype: DType) -> Load | None:
    """The load of a factor that is an element, or a byte less its centre."""
    if isinstance(factor, Load):
        return factor if factor.dtype is dtype else None
    centred = centred_byte(factor) if dtype is i32 else None
    return None if centred is None else centred[0]


def unguarded(match: ProductMatch) -> Expr:
    """The factor that is not constant, where all its guards hold."""
    return simplify(match.a, {a: Const(True, boolean) for a in match.guards})


def has_byte_rows(match: ProductMatch) -> bool:
    """Whether sixteen products are one instruction: sums of bytes, the same for all columns, that
    lie in a row or are copied into one (`is_apart`)."""
    quad = centred_byte(unguarded(match))
    if quad is None or match.column in free_indices(match.a) or match.hole.dtype is not i32:
        return False
    load, centre = quad
    weights = loads(match.b)
    narrow = isinstance(match.b, Call) and match.b.op.name == "cast" and len(weights) == 1
    if not narrow or weights[0].dtype is not i8:
        return False
    if match.guards and not load.dtype.min <= centre <= load.dtype.max:
        return False
    return not is_apart(load, match.depth) or _is_worth_a_copy(match)


def is_apart(load: Load, depth: list[Index]) -> bool:
    """Whether bytes that are summed have to be copied: they do not lie in a row of some length."""
    return is_affine_in(load.index[0], depth[-1]) != 1 or _row_length(load, depth) < SHORT_ROW


def is_one_run(load: Load, depth: list[Index]) -> bool:
    """Whether a sum is over signed bytes that lie in one row."""
    along = is_affine_in(load.index[0], depth[-1]) == 1
    return load.dtype is i8 and along and _row_length(load, depth) == points(depth)


def _is_worth_a_copy(match: ProductMatch) -> bool:
    """Whether all columns together take much longer than a copy of what they sum."""
    assert match.column is not None
    deep = points(match.depth)
    return SHORT_ROW <= deep <= MOST_COPIED and match.column.count >= LEAST_COLUMNS


def _row_length(load: Load, depth: list[Index]) -> int:
    """How many neighbours the innermost summed indices run through."""
    length = 1
    for axis in reversed(depth):
        if is_affine_in(load.index[0], axis) != length:
            break
        length *= axis.count
    return length


def guarded_indices(match: ProductMatch, guards: list[Expr]) -> set[Index]:
    """The indices of the output on whose account guards hold taps back."""
    return {x for x in match.indices for a in guards if x in free_indices(a)}
