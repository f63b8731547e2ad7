"""Whether something holds for one of several lanes."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Const, Expr
from graphc.ir.kernel import KernelBuilder

CHAINS = 4  # vectors that are looked at before it is asked whether something holds for a lane


def any_lane(k: KernelBuilder, lanes: int, vectors: int, holds: Callable[[Expr], Expr]) -> Expr:
    """Whether something holds for one of the positions in so many vectors."""
    some = k.alloc(boolean, (lanes,), "reg")
    for number in range(vectors):
        with k.loop(lanes, "vector", width=lanes) as lane:
            held = k.let(holds(lane + number * lanes))
            k.store(some, lane, some[lane] | held if number else held)
    while lanes > 1:
        half = lanes // 2
        with k.loop(half, "vector", width=half) as lane:
            k.store(some, lane, some[lane] | some[lane + half])
        lanes = half
    return k.let(some[Const(0, i64)])
