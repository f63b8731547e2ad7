"""Dimensions that must be multiples of a number.

A network that halves an image three times and doubles it again takes what is a multiple of 8 where
it joins the two. For a size H, `(H // 8) * 8` is not H, so such a graph has no types that hold for
all H; for 8*h it has. `multiples` finds by trial, at the op that cannot be typed, which sizes have
to be multiples, and of what.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphc.errors import GraphcError, UnsupportedError
from graphc.ir.expr import Const, Expr, Sym, symbols
from graphc.ir.graph import Graph, Op, Value, clone_graph
from graphc.ir.infer import output_types
from graphc.ir.types import TensorType
from graphc.passes.at_sizes import type_at, value_at

FACTORS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64)

Multiples = dict[Sym, int]


def multiples(op: Op, met: Mapping[str, int]) -> Multiples:
    """What the sizes of an op's operands have to be multiples of for it to have a type: the least
    factors for all of them, then for each by itself; sizes that were met are such multiples. Empty
    if none of these help."""
    sizes = _sizes_of(op.inputs)
    possible = {s: [f for f in (1, *FACTORS) if met.get(s.name, 0) % f == 0] for s in sizes}
    trials = ({s: f if f in possible[s] else 1 for s in sizes} for f in FACTORS)
    chosen = next((factors for factors in trials if _is_typed(op, factors)), None)
    if chosen is None:
        return {}
    for size in sizes:
        chosen[size] = next(f for f in possible[size] if _is_typed(op, {**chosen, size: f}))
    return {size: f for size, f in chosen.items() if f > 1}


def with_multiples(graph: Graph, factors: Multiples) -> Graph:
    """A copy of a graph whose sizes are numbers times sizes of their own. UnsupportedError if no
    two multiples lie within the bounds of a size."""
    result = clone_graph(graph)
    sizes: dict[Expr, Expr] = {size: _multiple(size, f) for size, f in factors.items()}
    for param in result.params:
        if isinstance(param.type, TensorType) and param.type.shape is not None:
            param.type = type_at(param, sizes)
    return result


def met_multiples(met: Mapping[str, int], factors: Multiples) -> dict[str, int]:
    """Sizes that were met, and what they are times these factors."""
    by = {f"{s.name}_by_{f}": met[s.name] // f for s, f in factors.items() if s.name in met}
    return {**met, **by}


def _sizes_of(values: list[Value | None]) -> list[Sym]:
    """The symbols in the types of values that are known."""
    dims = [
        dim
        for value in values
        if value is not None and isinstance(value.type, TensorType) and value.type.shape is not None
        for dim in value.type.dims
        if isinstance(dim, Expr)
    ]
    return list(dict.fromkeys(size for dim in dims for size in symbols(dim)))


def _is_typed(op: Op, factors: Mapping[Sym, int]) -> bool:
    try:
        sizes: dict[Expr, Expr] = {s: _multiple(s, f) for s, f in factors.items()}
        operands = [value_at(value, sizes) for value in op.inputs]
        output_types(Op(op.defn, operands, op.attrs, len(op.outputs)))
    except GraphcError:
        return False
    return True


def _multiple(size: Sym, factor: int) -> Expr:
    """The multiples of a number within the bounds of a size, in terms of a size of their own."""
    if factor == 1:
        return size
    lo = -(-size.lo // factor)
    hi = None if size.hi is None else size.hi // factor
    if hi is not None and hi <= lo:
        raise UnsupportedError(f"{size.lo}..{size.hi} has no two multiples of {factor}")
    return Const(factor, size.dtype) * Sym(f"{size.name}_by_{factor}", lo, hi)
