"""What is made of sums, less what is the same for many of them and read once, before their loop."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.dtypes import i32
from graphc.ir.expr import Call, Const, Expr, Load, Ref, free_indices, substitute, walk
from graphc.ir.kernel import KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.core import Core

_SUM = Ref("sum_of_products", i32)


@dataclass(frozen=True)
class Epilogue:
    """A sum begins with `start`; `rest` is what becomes of it."""

    start: Expr
    rest: Expr

    def of(self, total: Expr) -> Expr:
        """What becomes of a sum."""
        return substitute(self.rest, {_SUM: total})


def epilogue(expr: Expr, core: Core, at: dict, k: KernelBuilder) -> Epilogue:
    """The epilogue of sums that differ in indices other than those of `at`: constants that depend
    on these alone get names, and one that is only added to a sum is what it begins with."""
    expr = substitute(expr, {core.hole: _SUM})
    names: dict[Expr, Expr] = {}
    for node in walk(expr):
        is_own = isinstance(node, Load) and node.source in core.computation.constants
        is_own = is_own and _SUM not in walk(node)  # as the index of a table may be
        if is_own and free_indices(node) <= at.keys() and node not in names:
            names[node] = k.let(simplify(node, at))
    expr = substitute(expr, names)
    bias = _bias(expr, set(names.values()))
    if bias is None:
        return Epilogue(Const(0, i32), expr)
    return Epilogue(bias, substitute(expr, {_SUM + bias: _SUM, bias + _SUM: _SUM}))


def _bias(expr: Expr, names: set[Expr]) -> Expr | None:
    """The name that is added wherever there is the sum."""
    users = [n for n in dict.fromkeys(walk(expr)) if isinstance(n, Call) and _SUM in n.args]
    if len(users) != 1 or users[0].op.name != "add" or users[0].dtype is not i32:
        return None
    others = [x for x in users[0].args if x is not _SUM]
    return others[0] if others and others[0] in names else None
