"""Convolutions of images: products with weights, whose rows slide over taps in two dimensions."""

from __future__ import annotations

from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.dtypes import f32
from graphc.ir.expr import Index, loads
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.contraction import Match, match_contraction
from graphc.passes.analysis.windows import Slide, slides_of
from graphc.records import dataclass


@dataclass
class Convolution:
    """A matched convolution: rows slide `down` and `right` over the taps, `others` do not;
    `channels` are summed. The loads of `match.a` are flat."""

    match: Match
    down: Slide
    right: Slide
    channels: Index
    others: list[Index]

    @property
    def slides(self) -> tuple[Slide, Slide]:
        return self.down, self.right

    @property
    def changes(self) -> bool:
        """Whether weights change from run to run, as those do that are trained."""
        return not self.match.is_constant(self.match.b)

    @property
    def columns(self) -> Dim:
        """How many output channels there are."""
        return elements_of(x.extent for x in self.match.cols)


def match_convolution(computation: Computation) -> Convolution | str:
    """The convolution in float32 that a computation is, all channels summed and neighbours in
    memory, or why it is none."""
    match = match_contraction(computation, types=(f32,))
    if isinstance(match, str):
        return match.replace("contraction", "convolution", 1)
    if match.outer:
        return "convolution: all channels must be summed, found groups"
    match.a = simplify(flatten_loads(match.a, match.shapes))
    slides = slides_of(match)
    if len(slides) != 2 or any(s.index not in match.rows for s in slides):
        return f"convolution: windows must slide in two dimensions, found {len(slides)}"
    rest = [x for x in match.depth if all(x is not s.axis for s in slides)]
    if len(rest) != 1 or not isinstance(rest[0].extent, int):
        return (
            "convolution: one dimension of channels, of constant extent, must be summed, found "
            f"{len(rest)} dimensions"
        )
    steps = [is_affine_in(x.index[0], rest[0]) for x in loads(match.a)]
    if 1 not in steps or not set(steps) <= {0, 1}:
        return "convolution: channels must be neighbours in memory, found them apart"
    others = [x for x in match.rows if all(x is not s.index for s in slides)]
    down, right = slides
    return Convolution(match, down, right, rest[0], others)
