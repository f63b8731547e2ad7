"""Operands of contractions as tensors of their own: constants in another order, made at compile
time, and what copies can bring once it has been converted.

Weights of convolutions are stored with their windows last, and the depth of a contraction goes over
channels last. As they are, they would be gathered element by element, each from a sector of its
own; so they become rows along the depth, from which chunks of 16 bytes are read. What takes less
than a byte per element stays as it is, and is computed where it is fetched.
"""

from __future__ import annotations

from graphc.backends.cuda.strategies.contraction.operands import Operand
from graphc.backends.cuda.strategies.contraction.words import Kind, Words, padded_depth
from graphc.ir.addresses import flatten_index, flatten_loads, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    cast,
    free_indices,
    loads,
    select,
    substitute,
)
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.factors import is_below_a_byte


def lay_out_constant(match: Match, kind: Kind, across: bool = False) -> bool:
    """A constant second operand as [outer, columns, depth], the depth in whole chunks; whether that
    was needed. `across`: chunks along the columns will do as well."""
    flat = flatten_loads(match.b, match.shapes)
    sources = {x.source for x in loads(flat)}
    operand = Operand(flat, match.cols, match.depth)
    words = Words(operand, kind)
    fits = words.copies() or (across and words.contiguous(match.cols))
    if (
        not sources <= match.computation.constants
        or fits
        or is_below_a_byte(match.b, match.computation)
    ):
        return False
    used = free_indices(match.b)
    outer = [x for x in match.outer if x in used]
    deep = tuple(x.count for x in match.depth)
    padded = padded_depth(operand, kind)
    shape = (*(x.count for x in outer), operand.count, padded)
    index = tuple(Index(f"i{n}", extent) for n, extent in enumerate(shape))
    *front, column, at = index
    mapping: dict[Expr, Expr] = dict(zip(outer, front))
    mapping.update(operand.place(column))
    mapping.update(zip(match.depth, unflatten_index(at, deep)))
    contents = simplify(match.b, mapping)
    if padded > operand.depth_count:
        contents = select(at < operand.depth_count, contents, Const(0, contents.dtype))
    buffer = Buffer("panels", match.b.dtype, shape)
    match.add(buffer, index, simplify(contents), f"panels of {match.computation.label}")
    place = (*outer, _flat(match.cols), _flat(match.depth))
    match.b = buffer[place]
    return True


def store_narrow(match: Match, kind: Kind) -> None:
    """Asks for a first operand that is converted from a wider type as a tensor of the kind's, where
    copies bring what is stored so."""
    guarded = match.a if isinstance(match.a, Call) and match.a.op.name == "select" else None
    converted = match.a if guarded is None else guarded.args[1]
    if not (isinstance(converted, Call) and converted.op.name == "cast"):
        return
    wide = converted.args[0]
    if not isinstance(wide, Load):
        return
    shape = match.shapes[wide.source]
    buffer = Buffer("narrow", kind.dtype, shape)
    stored: Expr = buffer[wide.index]
    if guarded is not None:
        stored = select(guarded.args[0], stored, guarded.args[2])
    flat = flatten_loads(stored, {**match.shapes, buffer.name: shape})
    words = Words(Operand(flat, match.rows, match.depth), kind)
    if words.copies() or words.copies_across():
        index = tuple(Index(f"i{n}", extent) for n, extent in enumerate(shape))
        contents = cast(Load(wide.source, index, wide.dtype), kind.dtype)
        match.add(buffer, index, contents, f"{kind.dtype} of {match.computation.label}")
        match.a = stored


def _flat(indices: list[Index]) -> Expr:
    return flatten_index(tuple(indices), tuple(x.count for x in indices))


def whole_depth(panels: Operand, padded: int) -> Operand:
    """Panels laid out so, over one index of their whole depth, in which chunks are contiguous."""
    (load,) = loads(panels.expr)
    deep = Index("deep", padded)
    start: dict[Expr, Expr] = {k: Const(0, i64) for k in panels.depth}
    place = simplify(substitute(load.index[0], start) + deep)
    return Operand(Load(load.source, (place,), load.dtype), panels.side, [deep])
