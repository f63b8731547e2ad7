"""Types of ops over symbolic dimensions, found by examples.

Type rules are made for static shapes; many work on symbols as well, some do not. Where a rule fails
on symbols it is tried on two sets of extents: an extent that is the same both times is that number,
one that follows a symbol is that symbol, and otherwise only the element type is known. The extents
have many divisors, so that splits and reshapes of a symbolic dimension come out even.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import GraphcError, NeedsValue
from graphc.ir.expr import Const, Expr, Sym, substitute, walk
from graphc.ir.graph import Op, Value
from graphc.ir.infer import infer_op, output_types
from graphc.ir.types import TensorType, Type

_DIVISIBLE = 5040


def infer(op: Op) -> None:
    """Types the outputs of an op as far as its operands tell; the others stay untyped.

    Raises the error of the type rule if it fails on all examples too.
    """
    try:
        infer_op(op)
    except NeedsValue:
        return
    except GraphcError:
        symbols = _symbols(op)
        if not symbols:
            raise
        if op.regions:
            return
        types = _by_example(op, symbols)
        if types is None:
            raise
        for value, type in zip(op.outputs, types):
            value.type = type


def _symbols(op: Op) -> list[Sym]:
    types = [v.type for v in op.inputs if v is not None]
    dims = [d for t in types if isinstance(t, TensorType) and t.shape is not None for d in t.shape]
    nodes = (node for d in dims if isinstance(d, Expr) for node in walk(d))
    return list(dict.fromkeys(node for node in nodes if isinstance(node, Sym)))


def _by_example(op: Op, symbols: Sequence[Sym]) -> list[Type | None] | None:
    """The output types, or None if no example has any."""
    examples = [
        {s: _extent(s, _DIVISIBLE * (n + 1)) for n, s in enumerate(symbols)},
        {s: _extent(s, _DIVISIBLE * 11 * (n + 2)) for n, s in enumerate(symbols)},
    ]
    results = [_run(op, extents) for extents in examples]
    if None in results:
        return None
    return [
        _common(types, examples)
        for types in zip(*results)  # type: ignore[arg-type]
    ]


def _extent(symbol: Sym, wish: int) -> int:
    return max(symbol.lo, wish if symbol.hi is None else min(symbol.hi, wish))


def _run(op: Op, extents: dict[Sym, int]) -> list[Type] | None:
    values = {s: Const(extent) for s, extent in extents.items()}
    inputs = [None if v is None else _example(v, values) for v in op.inputs]
    try:
        return output_types(Op(op.defn, inputs, op.attrs, len(op.outputs), loc=op.loc))
    except GraphcError:
        return None


def _example(value: Value, values: dict) -> Value:
    if value.constant is not None or not isinstance(value.type, TensorType):
        return value
    dims = [substitute(d, values) if isinstance(d, Expr) else d for d in value.tensor.dims]
    return Value(value.type.with_shape(dims), name=value.name)


def _common(types: Sequence[Type], examples: Sequence[dict[Sym, int]]) -> Type | None:
    first, second = types
    if not (isinstance(first, TensorType) and isinstance(second, TensorType)):
        return first if first == second else None
    if first.rank != second.rank:
        return TensorType(first.dtype, None)
    dims = [_dim(pair, examples) for pair in zip(first.static_shape, second.static_shape)]
    known = [d for d in dims if d is not None]
    return TensorType(first.dtype, tuple(known) if len(known) == len(dims) else None)


def _dim(extents: tuple[int, int], examples: Sequence[dict[Sym, int]]) -> int | Sym | None:
    for symbol in examples[0]:
        values = tuple(example[symbol] for example in examples)
        if values == extents and values[0] != values[1]:
            return symbol
    return extents[0] if extents[0] == extents[1] else None
