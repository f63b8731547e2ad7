"""Interpolation: what the elements around a position between them count for.

Weights are those of kernels, even functions of the distance from the position, which sum to 1 over
all integers: the triangle, and Keys' cubic (IEEE TASSP 29(6), 1981).
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.expr import Expr, absolute, maximum, select

Weight = Callable[[Expr], Expr]


def linear_weight(distance: Expr) -> Expr:
    """The triangle 1 - |d| on -1 .. 1."""
    return maximum(1 - absolute(distance), 0)


def linear_weights(fraction: Expr) -> list[Expr]:
    """Weights of the taps at floor and floor + 1."""
    return [1 - fraction, fraction]


def cubic_weight(a: float) -> Weight:
    """Keys' kernel with parameter `a`, on -2 .. 2."""
    near, far = _cubics(a)

    def weight(distance: Expr) -> Expr:
        d = absolute(distance)
        return select(d <= 1, near(d), select(d < 2, far(d), 0))

    return weight


def cubic_weights(fraction: Expr, a: float = -0.75) -> list[Expr]:
    """Weights of the taps at floor - 1 .. floor + 2."""
    near, far = _cubics(a)
    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]


def _cubics(a: float) -> tuple[Weight, Weight]:
    """Keys' kernel at distances up to 1, and from 1 to 2."""

    def near(d: Expr) -> Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Expr) -> Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return near, far
