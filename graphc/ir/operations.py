"""Arithmetic operations and reads of expressions and of kernels, as rooflines count them.

An operation is one arithmetic operation or comparison on data: a multiply-add counts two, exp and
the like one. Index arithmetic (64-bit integers), choices, conversions and copies count nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Call, Expr, Index, Reduce, free_indices, loads, walk
from graphc.ir.kernel import Body, For, If, Kernel, Let, Store, While
from graphc.ir.types import largest

FREE = frozenset(("select", "cast", "cast_sat", "bitcast"))


def operations(exprs: Iterable[Expr], fixed: frozenset[Index] = frozenset()) -> int:
    """Operations of evaluating expressions for all values of their free indices but the `fixed`
    ones, each value once: what does not depend on an index is not computed again for it."""
    nodes = dict.fromkeys(node for expr in exprs for node in walk(expr))
    return sum(_own(node) * _points(free_indices(node) - fixed) for node in nodes)


def elements_read(exprs: Iterable[Expr]) -> Counter[str]:
    """At most how many elements of each source expressions read, for all values of their indices:
    of a table, as many as are looked up. Sizes count as much as they can be."""
    counts: Counter[str] = Counter()
    for load in dict.fromkeys(x for expr in exprs for x in loads(expr)):
        counts[str(load.source)] += math.prod(largest(x.extent) for x in free_indices(load))
    return counts


def _own(node: Expr) -> int:
    """Operations of one value of a node, given those it is made of."""
    if isinstance(node, Reduce):
        return _points(node.axes)
    if not isinstance(node, Call) or node.op.name in FREE:
        return 0
    if any(a.dtype is i64 or a.dtype is boolean for a in node.args):
        return 0
    return 2 if node.op.name == "fma" else 1


def _points(indices: Iterable[Index]) -> int:
    """How many values several indices have; those of unknown extents count one."""
    return math.prod(x.extent for x in indices if isinstance(x.extent, int))


def kernel_operations(kernel: Kernel) -> int:
    """Operations of a kernel. Loops of unknown extent count their width, or one iteration."""
    return _body(kernel.body)


def _body(body: Body) -> int:
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            extent = stmt.extent if isinstance(stmt.extent, int) else max(stmt.width, 1)
            total += extent * _body(stmt.body)
        elif isinstance(stmt, (Let, Store)):
            total += operations([stmt.value], free_indices(stmt.value))
        elif isinstance(stmt, If):
            total += max(_body(stmt.then), _body(stmt.orelse))
        elif isinstance(stmt, While):
            total += _body(stmt.body)
    return total
