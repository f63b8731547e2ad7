"""The loops of a sum: over summed indices, with the step of both factors in each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphc.ir.expr import Const, Expr, Index, call
from graphc.ir.simplify import simplify


@dataclass(frozen=True)
class Level:
    """One loop of a sum: an axis, or several that are passed through as one. `step` is how far it
    moves in the other factor, `weight` in the packed weights; `guards` must hold for a position of
    the axis to count."""

    axis: Index
    count: int
    step: int
    weight: int
    guards: tuple[Expr, ...] = ()

    def guard(self, position: Expr) -> Expr | None:
        """The condition for a position; None if it always counts."""
        atoms = [simplify(g, {self.axis: position}) for g in self.guards]
        return conjunction([a for a in atoms if not (isinstance(a, Const) and a.value)])


def merged(levels: list[Level]) -> list[Level]:
    """Neighbouring levels that move through both factors as one are one."""
    result = [levels[-1]]
    for outer in reversed(levels[:-1]):
        inner = result[0]
        if (
            outer.guards or inner.guards or outer.step != inner.step * inner.count
            or outer.weight != inner.weight * inner.count
        ):  # fmt: skip
            result.insert(0, outer)
        else:
            result[0] = replace(inner, count=outer.count * inner.count)
    return result


def conjunction(conditions: list[Expr]) -> Expr | None:
    """Whether all of them hold; None if there are none."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else call("and", result, condition)
    return result
