"""Builds kernels of operators for a processor with vectors.

Items are picked (lane_picking.py) and sorted (lane_sorting.py) in vectors. In a search for the few
best items of a line, a vector without a better item is skipped. Elements that are kept by a
condition are found by the bits of masks. What takes elements from all channels of an image at the
same positions has the channels lie side by side first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.backends.llvm_cpu.any_lane import any_lane
from graphc.backends.llvm_cpu.lane_choosing import chooses, chosen_leaders
from graphc.backends.llvm_cpu.lane_picking import LanePicking
from graphc.backends.llvm_cpu.lane_sorting import sorted_leaders, sorts
from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Expr, Index, Load, as_expr, free_indices, minimum
from graphc.ir.extents import least
from graphc.ir.imperative.collectives import Collectives, Kept, Leaders
from graphc.ir.imperative.picking import Picked, Place
from graphc.ir.imperative.sampling import Sampled
from graphc.ir.instructions import MASK_BITS, lowest, mask
from graphc.ir.kernel import Buffer
from graphc.ir.types import Dim
from graphc.records import dataclass

READ = 16  # elements of each channel that a place reads, about


@dataclass
class LaneBuilder(Collectives):
    """Collectives in vectors of so many bytes."""

    vector_bytes: int = 16

    def leaders(self, what: Leaders) -> None:
        if not _is_known(what.count, what.wanted, *what.lines):
            super().leaders(what)
        elif chooses(self, what):
            chosen_leaders(self, what, self.vector_bytes)
        elif what.wanted * 2 >= what.count and sorts(self, what):
            sorted_leaders(self, what)
        else:
            super().leaders(what)

    def offered(
        self, what: Leaders, line: Place, last: Callable[[], Expr], offer: Callable[[Expr], None]
    ) -> None:
        """A vector of items at a time, of which most have none that is better."""
        lanes, rest = self.vector_bytes // what.worst.dtype.size, what.count - what.wanted
        if not _is_known(rest):
            super().offered(what, line, last, offer)
            return
        if not rest // lanes or not _lies_along(self, what, line):
            super().offered(what, line, last, offer)
            return
        with self.loop(rest // lanes) as part:
            start, worst = self.let(part * lanes + what.wanted), self.let(last())

            def leads(lane: Expr) -> Expr:
                return what.better(self.let(what.item(line, start + lane)), worst)

            with self.when(any_lane(self, lanes, 1, leads)), self.loop(lanes) as j:
                offer(self.let(start + j))
        with self.loop(rest % lanes) as j:
            offer(self.let(j + (what.count - rest % lanes)))

    def kept(self, what: Kept) -> None:
        """Looks at the elements of a line in masks, if it has so many."""
        if not what.extents:
            super().kept(what)
            return
        *outer, last = what.extents
        kept, few = self.var(i64, 0), min(least(last), MASK_BITS)
        with self.loops(*outer) as line:
            if _is_known(last) or few == MASK_BITS:
                self.kept_in_masks(what, line, 1 << max(few, 1).bit_length() - 1, kept)
            else:
                with self.when(as_expr(last, i64) >= MASK_BITS):
                    self.kept_in_masks(what, line, MASK_BITS, kept)
                with self.otherwise():
                    self.kept_in_line(what, line, kept)
        what.finish(kept[()])

    def kept_in_line(self, what: Kept, line: Place, kept: Buffer) -> None:
        """Takes the elements of a line, one after the other."""
        with self.loop(what.extents[-1]) as j:
            where = (*line, j)
            with self.when(what.holds(where)):
                self.keep(what, where, kept)

    def kept_in_masks(self, what: Kept, line: Place, lanes: int, kept: Buffer) -> None:
        """Takes the elements of a line that has so many, a power of two, at the least: those whose
        bits are set in masks of what holds. The last mask overlaps the one before, less the bits
        that have been taken."""
        if lanes == 1:
            self.kept_in_line(what, line, kept)
            return
        last = what.extents[-1]
        bits, place = self.alloc(i64, (1,)), self.alloc(i64, (1,))
        with self.loop((last + lanes - 1) // lanes) as part:
            begin = self.let(part * lanes)
            start = self.let(minimum(begin, as_expr(last, i64) - lanes))
            held = self.alloc(boolean, (lanes,), "reg")
            with self.loop(lanes, "vector", width=lanes) as lane:
                self.store(held, lane, what.holds((*line, start + lane)))
            self.emit(mask(bits, held))
            taken = self.let(begin - start)
            self.store(bits, 0, (bits[0] >> taken) << taken)
            with self.repeat(bits[0].ne(0)):
                self.emit(lowest(place, bits))
                self.keep(what, (*line, self.let(start + place[0])), kept)

    def sampled(self, what: Sampled) -> None:
        lanes = self.vector_bytes // what.x.dtype.size
        if _is_known(*what.x.shape, *what.places) and _is_worth_it(what, lanes):
            sample_side_by_side(self, what, lanes)
        else:
            super().sampled(what)

    def picked(self, what: Picked) -> None:
        LanePicking(self, what, self.vector_bytes).run()


def _is_known(*extents: Dim) -> bool:
    return all(isinstance(extent, int) for extent in extents)


def _lies_along(k: Collectives, what: Leaders, line: Place) -> bool:
    """Whether the items of a line are neighbours in memory."""
    j = Index(k.fresh("item"), what.count)
    with k.block():
        item = what.item(line, j)
    if not isinstance(item, Load):
        return False
    *outer, last = item.index
    return is_affine_in(last, j) == 1 and not any(j in free_indices(x) for x in outer)


def _is_worth_it(what: Sampled, lanes: int) -> bool:
    """Whether more is read than the images have, and whole vectors of channels are."""
    images, channels, *extents = what.x.shape
    pixels = images * math.prod(extents)
    return channels >= lanes and math.prod(what.places) * READ >= pixels > 0


def sample_side_by_side(k: Collectives, what: Sampled, lanes: int) -> None:
    """All channels of a place at a time, in a copy of the images whose last dim they are."""
    x = _with_channels_last(k, what.x, lanes)
    with k.loop(what.places[0], "parallel") as first:
        _sample_all(k, what, x, first)


def _with_channels_last(k: Collectives, x: Buffer, lanes: int) -> Buffer:
    """The images [N, H, W, C]. As many channels at a time as a vector holds: what is read for an
    element is in the cache for those that follow it in its row."""
    images, channels, height, width = x.shape
    copy = k.alloc(x.dtype, (images, height, width, channels), "scratch", "pixels")
    with k.loops(images, height, kind="parallel") as (image, row):
        with k.loop(channels // lanes) as part:
            _copy_lanes(k, x, copy, (image, row), part * lanes, lanes)
        if channels % lanes:
            _copy_lanes(k, x, copy, (image, row), channels // lanes * lanes, channels % lanes)
    return copy


def _copy_lanes(
    k: Collectives, x: Buffer, copy: Buffer, where: Place, start: Expr | int, lanes: int
) -> None:
    """So many channels of a row."""
    image, row = where
    with k.loop(x.shape[-1]) as column, k.loop(lanes, "vector", width=lanes) as lane:
        channel = start + lane
        k.store(copy, (image, row, column, channel), x[image, channel, row, column])


def _sample_all(k: Collectives, what: Sampled, x: Buffer, first: Expr) -> None:
    """All places with this first index; `values` are those of a place's channels."""
    values = k.alloc(what.wide, (what.channels,))
    with k.loops(*what.places[1:]) as others:
        place = (first, *others)
        made = what.bin(place)
        with k.loop(what.channels, "parallel") as channel:
            k.store(values, channel, made.start)
        with k.loops(*made.samples) as sample:
            taps = made.taps(sample)
            with k.loop(what.channels, "parallel") as channel:
                places = [(t.image, *t.position, channel) for t in taps]
                read = [k.let(t.value(x[at], what.wide)) for t, at in zip(taps, places)]
                k.store(values, channel, made.combined(values[channel], read, sample))
        with k.loop(what.channels, "parallel") as channel:
            k.store(values, channel, made.finish(values[channel]))
        with k.loop(what.channels) as channel:
            what.put(k, place, channel, values[channel])
