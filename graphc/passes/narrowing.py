"""Bounds within which a graph has a type for all sizes.

An op can ask more of sizes than a model says: that a window fits, that a text is no longer than a
table of positions, that channels are as many as a constant weight has. Then bounds are narrowed
about sizes that have been met, by as little as does: a size is no less than the least that the op
takes and no more than the most, found by bisection; or no less than what was met, or no more, or
just that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphc.ir.graph import Graph
from graphc.passes.fold import FoldPolicy
from graphc.passes.general import Bounds, Further, NotOpen, general
from graphc.passes.specialise import pin
from graphc.records import dataclass


@dataclass(frozen=True)
class Opened:
    """A graph typed for all sizes within bounds, and why these are narrower than was asked for, if
    they are. `most` are the upper ends beyond which an op does not take a size."""

    graph: Graph
    bounds: Bounds
    why: str
    most: Mapping[str, int]


def open_within(
    graph: Graph,
    bounds: Bounds,
    met: Mapping[str, int],
    policy: FoldPolicy | None = None,
    contents: Mapping[str, np.ndarray] | None = None,
    further: Further | None = None,
    most_bytes: int | None = None,
) -> Opened:
    """A graph typed for all sizes within bounds, or within narrower ones about sizes that were met;
    `contents`, `further` and `most_bytes` are those of `general`.

    Raises what `general` raises: NotOpen if no size can stay open, or nothing was met.
    """

    def attempt(bounds: Bounds) -> Graph | NotOpen:
        try:
            return general(pin(graph, dims=bounds), policy, contents, further, met, most_bytes)
        except NotOpen as error:
            return error

    made, why = attempt(bounds), ""
    most: dict[str, int] = {}
    while isinstance(made, NotOpen):
        why = why or str(made)
        names = [name for name in made.sizes if name in met and _is_open(bounds[name])]
        taken = {**bounds, **{name: _taken(made, name, bounds, met) for name in names}}
        most |= {name: taken[name][1] for name in names if taken[name][1] < bounds[name][1]}
        best = attempt(taken) if taken != bounds else made
        if _helps(best, made):
            bounds, made = taken, best
        else:
            bounds, made = _narrowed(made, names, taken, met, attempt)
    most = {name: high for name, high in most.items() if bounds[name][1] == high}
    return Opened(made, bounds, why, most)


def _narrowed(
    failed: NotOpen,
    names: list[str],
    bounds: Bounds,
    met: Mapping[str, int],
    attempt: Callable[[Bounds], Graph | NotOpen],
) -> tuple[Bounds, Graph | NotOpen]:
    """Narrower bounds that the op which failed takes, and what comes of them: with the sizes of
    these names fixed, then one after the other as wide as it takes. The error is raised if there
    are none."""
    tight = {**bounds, **{name: (met[name], met[name]) for name in names}}
    best = attempt(tight) if names else failed
    if not _helps(best, failed):
        raise failed
    for name in names:
        low, high = bounds[name]
        for wider in ((low, high), (met[name], high), (low, met[name])):
            made = attempt({**tight, name: wider})
            if _helps(made, failed):
                tight[name], best = wider, made
                break
    if not any(map(_is_open, tight.values())):
        raise failed
    return tight, best


def _taken(failed: NotOpen, name: str, bounds: Bounds, met: Mapping[str, int]) -> tuple[int, int]:
    """The least and the most of a size that the op which failed takes, where others are those that
    were met; the bounds of the size if it does not take what was met."""

    def takes(extent: int) -> bool:
        return failed.takes({**met, name: extent})

    (low, high), known = bounds[name], met[name]
    if not takes(known):
        return low, high
    return _last(takes, known, low), _last(takes, known, high)


def _last(takes: Callable[[int], bool], known: int, end: int) -> int:
    """The size nearest to an end that is taken, as `known` is and all between the two are."""
    if takes(end):
        return end
    while abs(end - known) > 1:
        middle = (known + end) // 2
        known, end = (middle, end) if takes(middle) else (known, middle)
    return known


def _helps(made: Graph | NotOpen, failed: NotOpen) -> bool:
    return isinstance(made, Graph) or made.where != failed.where


def _is_open(bounds: tuple[int, int]) -> bool:
    return bounds[0] < bounds[1]
