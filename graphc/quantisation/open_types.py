"""Types of a graph of open sizes that follow from shapes it computes, for choosing layers.

An export of open size is full of arithmetic on shapes, behind which type inference over symbols
knows nothing. The graph is typed at the sizes of a sample and at other ones: a dim that is the same
at both is that number, one that differs is a symbol, named after its two extents so that dims that
go together are equal. The symbols are none of the graph's: `lend` puts such types on a graph, and
`take_back` removes whatever mentions them once layers are chosen and operators inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.expr import Expr, Sym, symbols
from graphc.ir.graph import Graph, Value
from graphc.ir.types import TensorType
from graphc.passes.integers import KEEP_INTEGERS
from graphc.passes.specialise import specialise

Types = Mapping[str, TensorType]


def types_between(graph: Graph, feeds: Mapping[str, Any]) -> Types:
    """Types by name of values that have none, by the shapes of a sample; none where the model has
    no other size near these."""
    untyped = {value.name for value in graph.values() if not value.is_ranked}
    extents = _extents(graph, feeds)
    if not untyped or not extents:
        return {}
    here = _typed(graph, extents)
    for others in _others(extents):
        there = _typed(graph, others)
        if here and there:
            pairs = ((name, here.get(name), there.get(name)) for name in untyped)
            return {name: made for name, a, b in pairs if (made := _between(a, b)) is not None}
    return {}


def lend(graph: Graph, types: Types) -> None:
    """Gives values without a type the ones of their names, in place."""
    for value in graph.values():
        if not value.is_ranked and value.name in types:
            value.type = types[value.name]


def take_back(graph: Graph) -> None:
    """Removes types over symbols that a graph does not have, in place."""
    own = set(graph.symbols)
    for value in graph.values():
        if isinstance(value.type, TensorType) and not _symbols(value.type) <= own:
            value.type = None


def _symbols(type: TensorType) -> set[str]:
    dims = [dim for dim in type.shape or () if isinstance(dim, Expr)]
    return {symbol.name for dim in dims for symbol in symbols(dim)}


def _extents(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, int]:
    """The extents of symbols in a sample; none if a dim of an input is no symbol, or not known."""
    extents: dict[str, int] = {}
    for param in graph.params:
        type = param.type
        if not isinstance(type, TensorType) or type.shape is None or param.name not in feeds:
            return {}
        for dim, extent in zip(type.dims, np.shape(feeds[param.name])):
            if isinstance(dim, Sym):
                extents[dim.name] = extent
            elif not isinstance(dim, int):
                return {}
    return extents


def _others(extents: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Other sizes near these: of all symbols, then of one of them."""
    for change in (lambda n: 2 * n, lambda n: n + 1, lambda n: n // 2, lambda n: n - 1):
        changed = {name: max(change(n), 1) for name, n in extents.items()}
        if changed != extents:
            yield changed
    for name, n in extents.items():
        yield {**extents, name: n + 1}


def _typed(graph: Graph, extents: Mapping[str, int]) -> dict[str, Value]:
    """The values by name of a graph at given sizes; none if it has no types there."""
    try:
        typed = specialise(graph, dims=extents, policy=KEEP_INTEGERS, partial=True)
    except GraphcError:
        return {}
    return {value.name: value for value in typed.values() if value.is_ranked}


def _between(one: Value | None, other: Value | None) -> TensorType | None:
    """The type that two values have in common."""
    if one is None or other is None or _maker(one) != _maker(other):
        return None
    a, b = one.tensor, other.tensor
    if a.dtype is not b.dtype or a.rank != b.rank:
        return None
    pairs = zip(a.static_shape, b.static_shape)
    return TensorType(a.dtype, tuple(m if m == n else Sym(f"{m} or {n}") for m, n in pairs))


def _maker(value: Value) -> str:
    return "" if value.producer is None else value.producer.name
