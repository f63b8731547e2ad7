"""Operand packing: operands of contractions that become tensors of their own.

Convolutions store weights with the window last, while the depth of a contraction runs over channels
last. Read as they are, weights would be gathered element by element: accesses would not be
coalesced, and each would fetch a whole sector. So constants are repacked at compile time as rows
along the depth, which are read in chunks of 16 bytes. A left operand that must be converted first
is stored converted if asynchronous copies can then bring it. Constants that take less than a byte
per element (packed codes) stay as they are and are dequantised where they are fetched.
"""

from __future__ import annotations

from graphc.backends.cuda.strategies.contraction.mma_operands import Kind, Words, padded_depth
from graphc.backends.cuda.strategies.contraction.operands import Operand
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
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.factors import is_below_a_byte
from graphc.passes.analysis.spaces import count


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
    shape = (*(x.count for x in outer), count(match.cols), padded)
    *front, column, at = index = index_of(shape)
    mapping: dict[Expr, Expr] = dict(zip(outer, front))
    mapping.update(operand.place(column))
    mapping.update(zip(match.depth, unflatten_index(at, deep)))
    contents = simplify(match.b, mapping)
    if padded > count(match.depth):
        contents = select(at < count(match.depth), contents, Const(0, contents.dtype))
    buffer = match.copied("panels", index, contents)
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
        index = index_of(shape)
        contents = cast(Load(wide.source, index, wide.dtype), kind.dtype)
        match.copied(buffer.name, index, contents, str(kind.dtype))
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
