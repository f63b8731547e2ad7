"""Sampling tables: positions and weights of interpolation, computed once and read by all channels.

Where images are sampled (resize, grid sample), the source position of an element, its weights and
whether it lies inside depend on its position alone. All channels share them. They are hoisted out
of the loop over channels (loop-invariant code motion) into tables, which a kernel of its own fills.
Then an element takes a few loads where there was arithmetic for each channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    cost,
    free_indices,
    loads,
    substitute,
)
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import Computation, Output, loop_indices

Tabled = tuple[Computation, list[Computation], list[Buffer]]
SHARED = 4  # elements that are worth a table
COSTLY = 8  # operations for each that are


def shared_places(
    computation: Computation,
) -> Tabled:
    """The computation with tables of what elements share whose place is data; what fills these, and
    their buffers."""
    unchanged: Tabled = computation, [], []
    space = computation.outputs[0].extents
    index = loop_indices(space)
    exprs = [substitute(o.expr, dict(zip(o.index, index))) for o in computation.outputs]
    own = _deciding(exprs) & set(index)
    wide = [x for x in index if x.extent != 1]
    if not wide or wide[-1] not in own:
        return unchanged
    if points(x for x in index if x not in own) < SHARED:
        return unchanged
    kept = tuple(x for x in index if x in own)
    shared = list(dict.fromkeys(node for e in exprs for node in _shared(e, set(kept))))
    if sum(map(cost, shared)) < COSTLY:
        return unchanged
    return _with_tables(computation, index, exprs, kept, shared)


def _with_tables(
    computation: Computation,
    index: tuple[Index, ...],
    exprs: list[Expr],
    kept: tuple[Index, ...],
    shared: list[Expr],
) -> Tabled:
    shape = tuple(x.extent for x in kept)
    tables = [Buffer(f"place{n}", node.dtype, shape) for n, node in enumerate(shared)]
    mapping: dict[Expr, Expr] = {node: table[kept] for node, table in zip(shared, tables)}
    filled = tuple(
        Output(Buffer(t.name, t.dtype, shape, "out"), kept, node) for t, node in zip(tables, shared)
    )
    outputs = [
        Output(o.buffer, index, substitute(e, mapping)) for o, e in zip(computation.outputs, exprs)
    ]
    wider = replace(computation, inputs=(*computation.inputs, *tables))
    return wider.restricted(outputs), [computation.restricted(filled)], tables


def _deciding(exprs: list[Expr]) -> set[Expr]:
    """The indices on which places depend that are data."""
    indices: set[Expr] = set()
    for expr in exprs:
        for load in loads(expr):
            for place in load.index:
                if loads(place):
                    indices |= free_indices(place)
    return indices


def _shared(expr: Expr, kept: set[Expr]) -> Iterator[Expr]:
    """The largest parts of an expression that are made of data and depend on these indices alone;
    of a part that is combined with a constant, the part."""
    waiting, seen = [expr], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        data = isinstance(node, Call) and bool(loads(node))
        if data and free_indices(node) <= kept and not _has_constant(node):
            yield node
        else:
            waiting += reversed(node.children)


def _has_constant(node: Expr) -> bool:
    args = node.args if isinstance(node, Call) else ()
    return len(args) == 2 and any(isinstance(x, Const) for x in args)
