"""Sizes that a program of open shape is tried at, and what the bodies of operators are there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from graphc.ir.expr import Expr, Index, Reduce, Sym, reduce
from graphc.ir.simplify import simplify
from graphc.ir.types import at, largest

MOST_CORNERS = 16


def trials(
    sizes: Sequence[Sym], corners: int = MOST_CORNERS, between: int = 3
) -> list[tuple[int, ...]]:
    """Values of sizes at which something is tried that should hold for all: the least of all, the
    largest of all, other corners (so many in all), and some at random, the same every time."""
    if not sizes:
        return []
    dice = random.Random(0)
    ranges = [(size.lo, largest(size)) for size in sizes]
    ends = [tuple(pair[end] for pair in ranges) for end in (0, 1)]
    others = itertools.islice(itertools.product(*ranges), max(corners - len(ends), 0))
    inside = (tuple(dice.randint(*pair) for pair in ranges) for _ in range(between))
    return list(dict.fromkeys((*ends, *others, *inside)))


def body_at(body: Expr, sizes: Mapping[Expr, Expr]) -> Expr:
    """The body of an op at some sizes, simplified."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in done:
            if isinstance(node, Index):
                done[node] = Index(node.name, at(node.extent, sizes))
            elif isinstance(node, Reduce):
                axes = [Index(a.name, at(a.extent, sizes)) for a in node.axes]
                done[node] = reduce(node.op, visit(node.body), axes)
            else:
                known = sizes.get(node)
                done[node] = (
                    node.rebuild([visit(c) for c in node.children]) if known is None else known
                )
        return done[node]

    return simplify(visit(body))
