"""Sliding windows: which computations are one.

A summed axis `slides` with an output index if moving the one by some steps and the other by some
steps back leaves the factor as it is, and outputs have elements in common. Other summed axes (the
channels of a group) do not slide.
"""

from __future__ import annotations

import math

from graphc.ir.addresses import flatten_loads, is_affine_in, stride_in
from graphc.ir.expr import Call, Expr, Index, Reduce, free_indices, loads, substitute
from graphc.ir.extents import most
from graphc.ir.simplify import simplify, to_poly
from graphc.passes.analysis.computation import Computation, memoised
from graphc.passes.analysis.core import Core, Role, core_of
from graphc.records import dataclass

MOST_TAPS = 1024  # of a slide: positions are listed to estimate the time
WIDE_GROUP = 16  # output channels of a group that fill a tile of a matrix product


@dataclass(frozen=True)
class Slide:
    """An output index and a summed axis that move along one dimension of the input: by `stride` and
    by `dilation` of the same steps."""

    index: Index
    axis: Index
    stride: int
    dilation: int

    def meetings(self, patch: int) -> list[list[tuple[int, int]]]:
        """For each input position that a patch of outputs needs: the (output, tap) that meet."""
        taps: dict[int, list[tuple[int, int]]] = {}
        for output in range(patch):
            for tap in range(self.axis.count):
                at = output * self.stride + tap * self.dilation
                taps.setdefault(at, []).append((output, tap))
        return [taps[at] for at in sorted(taps)]


@dataclass
class Windows(Core):
    """A matched computation: reduction `hole` of `a` (times `b`, which does not slide) in `exprs`,
    stored at `offset`; `indices` end with the channels; `rest` are the axes that do not slide. The
    loads of `a` are flat."""

    slides: list[Slide]
    rest: list[Index]

    def role(self, index: Index) -> Role:
        """As of any core; of indices that slide, which of the two they are."""
        if any(index is s.index for s in self.slides):
            return Role.POSITION
        return Role.TAP if any(index is s.axis for s in self.slides) else super().role(index)

    @property
    def channels(self) -> Index:
        return self.indices[-1]


@memoised
def match_windows(computation: Computation) -> Windows | str:
    """The sliding window that a computation is, or why it is none."""
    core = core_of(computation, "window", unit_axes=False)
    if isinstance(core, str):
        return core
    if not core.indices or any(x.extent == 0 for x in (*core.indices, *core.hole.axes)):
        return "window: it must have outputs and taps, found none"
    if not all(isinstance(x.extent, int) for x in (core.indices[-1], *core.hole.axes)):
        return "window: channels and taps must be of constant number, found an open one"
    return _classify(core)


def _classify(core: Core) -> Windows | str:
    hole, factors = core.hole, _factors(core.hole)
    for a, b in (factors, factors[::-1]) if len(factors) == 2 else ((hole.term, None),):
        core.a, core.b = simplify(flatten_loads(a, core.shapes)), b
        slides = slides_of(core)
        if not slides or not loads(core.a):
            continue
        taps = max(s.axis.count for s in slides)
        if taps > MOST_TAPS:
            return f"window: an axis may have {MOST_TAPS} taps, found {taps}"
        rest = [k for k in hole.axes if all(k is not s.axis for s in slides)]
        windows = Windows(**vars(core), slides=slides, rest=rest)
        return _unsuitable(windows) or windows
    return "window: a summed axis must slide with an output index, found none that does"


def _factors(hole: Reduce) -> tuple[Expr, ...]:
    term = hole.term
    if hole.op == "sum" and isinstance(term, Call) and term.op.name == "mul":
        return term.args
    return (term,)


def slides_of(core: Core) -> list[Slide]:
    """The pairs of indices that slide, in the order of the output's indices. The loads of `a` must
    be flat."""
    fixed = free_indices(core.b) if core.b is not None else frozenset()
    left, slides = list(core.hole.axes), []
    for index in core.indices[:-1]:
        if index in fixed:
            continue
        slide = next((s for s in (_slide(core.a, index, k) for k in left) if s), None)
        if slide is not None:
            left.remove(slide.axis)
            slides.append(slide)
    return slides


def _slide(a: Expr, index: Index, axis: Index) -> Slide | None:
    place = next((x.index[0] for x in loads(a) if {index, axis} <= free_indices(x)), None)
    if place is None or not isinstance(axis.extent, int):
        return None
    along, across = _steps(place, index, axis)
    if along <= 0 or across <= 0:
        return None
    unit = math.gcd(along, across)
    slide = Slide(index, axis, along // unit, across // unit)
    if slide.stride >= axis.count or slide.dilation >= most(index.extent):
        return None  # no two outputs have an element in common
    moved = substitute(a, {index: index + slide.dilation, axis: axis - slide.stride})
    return slide if simplify(moved) is simplify(a) else None


def _steps(place: Expr, index: Index, axis: Index) -> tuple[int, int]:
    """By how much a place moves with an index and with an axis, in a unit that may depend on sizes;
    zeros if that is not known."""
    steps = [stride_in(place, x) for x in (index, axis)]
    along, across = ({} if step is None else to_poly(step) for step in steps)
    if len(along) != 1 or along.keys() != across.keys():
        return 0, 0
    (unit,) = along
    return along[unit], across[unit]


def _unsuitable(windows: Windows) -> str:
    channels = windows.channels
    if channels not in free_indices(windows.hole):
        return "window: each channel must have its own, found one for all channels"
    steps = {is_affine_in(x.index[0], channels) for x in loads(windows.a)}
    if not steps <= {0, 1}:
        return f"window: channels must be neighbours in memory, found steps of {_listed(steps)}"
    if windows.b is None or channels in free_indices(windows.a):
        return ""
    shared = free_indices(windows.a) & free_indices(windows.b) - set(windows.hole.axes)
    if not shared:
        return "window: products must be in several groups, found one: a contraction"
    if channels.count < WIDE_GROUP:
        return ""
    return (
        f"window: groups must have fewer than {WIDE_GROUP} output channels, found "
        f"{channels.count}, which fill tiles of a matrix product"
    )


def _listed(steps: set[int | None]) -> str:
    """Steps in memory, in order; those that are not affine last."""
    known = sorted(step for step in steps if step is not None)
    return ", ".join([*map(str, known), *(["another form"] if None in steps else [])])
