"""The operator whose body is an attribute, `graphc.Generic`, as linalg.generic is in MLIR.

The attribute is the text of an expression (ir/text/expr_printer.py): `$0[i0, i1] * $1[i1]` over the
indices i0, i1, ... of the result and loads of the operands by number. So an op that was derived,
such as a gradient, prints, parses, and is fused and lowered as any other. Sizes that it depends on
are s0, s1, ... in the text, and given by an attribute of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Expr,
    Index,
    Load,
    Reduce,
    Sym,
    as_expr,
    free_indices,
    reduces,
    substitute,
    transform,
    walk,
)
from graphc.ir.graph import Op, Value
from graphc.ir.opdef import Any_, Operand, OutIndex, op
from graphc.ir.text.expr_parser import Scope, parse_expr
from graphc.ir.text.expr_printer import to_text
from graphc.ir.types import Dim, Shape

NAME, DOMAIN = "Generic", "graphc"
APART = "apart"  # the trait of what keeps its readers out of the kernels of what it reads


def _declared(*_: Operand, shape: Sequence[Dim]) -> Shape:
    return tuple(shape)


@op(NAME, domain=DOMAIN, infer=_declared)
def generic(
    i: OutIndex, *operands: Any_, body: str, shape: Sequence[Dim], sizes: Sequence[Dim] = ()
) -> Expr:
    """The expression `body` at every index of `shape`; the `sizes` are s0, s1, ... in it."""
    sources = {str(x.position): x.dtype for x in operands}
    names: dict[str, Expr] = {index.name: index for index in i}  # type: ignore[misc]
    names.update((f"s{n}", as_expr(size, i64)) for n, size in enumerate(sizes))
    expr = parse_expr(body, Scope(names, sources))
    ranks = {str(x.position): x.rank for x in operands}
    for node in walk(expr):
        if isinstance(node, Load) and len(node.index) != ranks[node.source]:
            raise ModelError(f"operand {node.source} has rank {ranks[node.source]}, found {node}")
    return expr


def is_generic(op: Op) -> bool:
    """Whether the body of an op is an attribute."""
    return op.name == NAME and op.defn.domain == DOMAIN


def generic_op(
    b: Builder, space: Sequence[Index], body: Expr, value_of: Callable[[str], Value]
) -> Value:
    """Adds an op that computes `body` at every index of `space`; `value_of` gives the values that
    its loads are from. Axes of extent 1 are kept."""
    order: dict[str, int] = {}
    for node in walk(body):
        if isinstance(node, Load):
            order.setdefault(node.source, len(order))
    values = [value_of(source) for source in order]
    sizes = _sizes_in(body)
    renamed = with_plain_names(body, space, sizes)

    def numbered(node: Expr) -> Expr | None:
        if isinstance(node, Load):
            return Load(str(order[node.source]), node.index, node.dtype)
        return None

    text = to_text(transform(renamed, numbered))
    shape = tuple(index.extent for index in space)
    return b.op(NAME, *values, domain=DOMAIN, body=text, shape=shape, sizes=sizes or None)


def _sizes_in(body: Expr) -> tuple[Expr, ...]:
    """The sizes that the text of a body names: its own, and open extents of reductions."""
    named = [node for node in walk(body) if isinstance(node, Sym)]
    extents = [axis.extent for node in reduces(body) for axis in node.axes]
    return tuple(dict.fromkeys([*named, *(e for e in extents if isinstance(e, Expr))]))


def with_plain_names(body: Expr, space: Sequence[Index], sizes: Sequence[Expr] = ()) -> Expr:
    """The body with the indices of `space` named i0, i1, ..., axes of reductions k0, k1, ..., all
    different, and `sizes` s0, s1, ..., so that its text depends on nothing but its structure."""
    made: dict[tuple, Expr] = {}
    outer: dict[Expr, Expr] = {x: Index(f"i{d}", x.extent) for d, x in enumerate(space)}
    plain: dict[Expr, Expr] = {size: Sym(f"s{n}", 0) for n, size in enumerate(sizes)}

    def visit(node: Expr, names: dict[Expr, Expr]) -> Expr:
        if not reduces(node):
            return substitute(node, names)
        key = node, tuple(names[x] for x in sorted(free_indices(node), key=lambda x: x.name))
        if key not in made:
            made[key] = reduction(node, names) if isinstance(node, Reduce) else inner(node, names)
        return made[key]

    def inner(node: Expr, names: dict[Expr, Expr]) -> Expr:
        return node.rebuild([visit(child, names) for child in node.children])

    def reduction(node: Reduce, names: dict[Expr, Expr]) -> Expr:
        first = sum(len(known.axes) for known in made.values() if isinstance(known, Reduce))
        depth = sum(isinstance(x, Index) and x.name.startswith("k") for x in names.values())  # type: ignore
        extents = [plain.get(a.extent, a.extent) for a in node.axes]  # type: ignore[arg-type]
        axes = tuple(Index(f"k{first + depth + n}", e) for n, e in enumerate(extents))
        return Reduce(node.op, visit(node.body, {**names, **dict(zip(node.axes, axes))}), axes)

    return visit(body, {**outer, **plain})


@op("StopGradient", domain=DOMAIN)
def stop_gradient(i: OutIndex, x: Any_) -> Expr:
    """x, which no gradient passes."""
    return x[i]


@op("Again", domain=DOMAIN, traits=(APART,))
def again(i: OutIndex, x: Any_, *, reader: int = 0) -> Expr:
    """x, for ops that compute again what others have computed of it: they stay apart from these,
    and, by the number of their reader, from each other."""
    return x[i]
