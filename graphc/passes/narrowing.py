"""Bounds within which a graph has a type for all sizes.

An op can ask more of sizes than a model says: that a window fits, that channels are as many as a
constant weight has. Then bounds are narrowed about sizes that have been met, by as little as does:
a size is no less than the least that the op takes, found by bisection; or no less than what was
met, or no more, or just that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from graphc.ir.graph import Graph
from graphc.passes.fold import FoldPolicy
from graphc.passes.general import Bounds, Further, NotOpen, general
from graphc.passes.specialise import pin


@dataclass(frozen=True)
class Opened:
    """A graph typed for all sizes within bounds, and why these are narrower than was asked for, if
    they are."""

    graph: Graph
    bounds: Bounds
    why: str


def open_within(
    graph: Graph,
    bounds: Bounds,
    met: Mapping[str, int],
    policy: FoldPolicy | None = None,
    contents: Mapping[str, np.ndarray] | None = None,
    further: Further | None = None,
) -> Opened:
    """A graph typed for all sizes within bounds, or within narrower ones about sizes that were met;
    `contents` and `further` are those of `general`.

    Raises what `general` raises: NotOpen if no size can stay open, or nothing was met.
    """

    def attempt(bounds: Bounds) -> Graph | NotOpen:
        try:
            return general(pin(graph, dims=bounds), policy, contents, further, met)
        except NotOpen as error:
            return error

    made, why = attempt(bounds), ""
    while isinstance(made, NotOpen):
        why = why or str(made)
        bounds, made = _narrowed(made, bounds, met, attempt)
    return Opened(made, bounds, why)


def _narrowed(
    failed: NotOpen,
    bounds: Bounds,
    met: Mapping[str, int],
    attempt: Callable[[Bounds], Graph | NotOpen],
) -> tuple[Bounds, Graph | NotOpen]:
    """Narrower bounds that the op which failed takes, and what comes of them: with higher lower
    ends, or all its sizes fixed, then one after the other as wide as it takes. The error is raised
    if there are none."""
    names = [name for name in failed.sizes if name in met and _is_open(bounds[name])]
    raised = {**bounds, **{n: (_least(failed, n, bounds, met), bounds[n][1]) for n in names}}
    best = attempt(raised) if raised != bounds else failed
    if _helps(best, failed):
        return raised, best
    bounds = raised
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


def _least(failed: NotOpen, name: str, bounds: Bounds, met: Mapping[str, int]) -> int:
    """The least size that the op which failed takes, where others are those that were met."""

    def takes(extent: int) -> bool:
        return failed.takes({**met, name: extent})

    low, least = bounds[name][0], met[name]
    if takes(low) or not takes(least):
        return low
    while least - low > 1:
        middle = (low + least) // 2
        low, least = (low, middle) if takes(middle) else (middle, least)
    return least


def _helps(made: Graph | NotOpen, failed: NotOpen) -> bool:
    return isinstance(made, Graph) or made.where != failed.where


def _is_open(bounds: tuple[int, int]) -> bool:
    return bounds[0] < bounds[1]
