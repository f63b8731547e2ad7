"""Builds kernels of operators for a processor with vectors.

Items are picked (lane_picking.py) and sorted (lane_sorting.py) in vectors. In a search for the few
best items of a line, a vector without a better item is skipped, and so is one of which nothing is
kept, where elements are picked by a condition. What takes elements from all channels of an image at
the same positions has the channels lie side by side first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphc.backends.llvm_cpu.any_lane import CHAINS, any_lane
from graphc.backends.llvm_cpu.lane_choosing import chooses, chosen_leaders
from graphc.backends.llvm_cpu.lane_picking import LanePicking
from graphc.backends.llvm_cpu.lane_sorting import sorted_leaders, sorts
from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Index, Load, cast, free_indices, loads
from graphc.ir.imperative.collectives import Collectives, Kept, Leaders
from graphc.ir.imperative.picking import Picked, Place
from graphc.ir.imperative.sampling import Sampled
from graphc.ir.kernel import Buffer
from graphc.ir.types import Dim

PARTS = 4  # of a vector, each of which is skipped if nothing in it is kept
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
        """Stores each element where the next that is kept belongs, and counts those that are kept:
        that takes no branch per element. Vectors of which none is kept are skipped, a few at a
        time, then each part of one. Where more goes with an element, the positions of a few vectors
        are stored like that, and then looped over."""
        if not what.extents or not (what.rest or what.ahead):
            super().kept(what)
            return
        *outer, last = what.extents
        lanes = _lanes_of(self, what)
        step, kept = CHAINS * lanes, self.var(i64, 0)
        with self.loops(*outer) as line:
            with self.loop(last // step) as part:
                start = self.let(part * step)

                def holds(lane: Expr) -> Expr:
                    return what.holds((*line, start + lane))

                with (
                    self.when(any_lane(self, lanes, CHAINS, holds)),
                    self.taken(what, line, step, kept) as take,
                ):
                    self.kept_in_parts(step, max(lanes // PARTS, 1), start, holds, take)
            with (
                self.taken(what, line, step, kept) as take,
                self.loop(last % step) as j,
            ):
                take(j + last // step * step)
        what.finish(kept[()])

    @contextmanager
    def taken(
        self, what: Kept, line: Place, most: int, kept: Buffer
    ) -> Iterator[Callable[[Expr], None]]:
        """Gives what takes a position of a line if it is kept, one after the other, at most so
        many; `kept` counts them."""
        found = self.alloc(i64, (most,)) if what.rest else None
        number = self.var(i64, 0) if what.rest else kept

        def take(j: Expr) -> None:
            place = self.let(number[()])
            if found is None:
                what.put((*line, j), place, ())
            else:
                self.store(found, place, j)
            self.store(number, (), place + cast(what.holds((*line, j)), i64))

        yield take
        if found is not None:
            before = self.let(kept[()])
            with self.loop(self.let(number[()])) as n:
                j = self.let(found[n])
                with self.loops(*what.rest, kind="parallel") as inner:
                    what.put((*line, j), before + n, inner)
            self.store(kept, (), before + number[()])

    def kept_in_parts(
        self, count: int, lanes: int, start: Expr, holds: Callable[[Expr], Expr],
        take: Callable[[Expr], None],
    ) -> None:  # fmt: skip
        """Offers `take` so many elements of a line, less parts of so many lanes of which none is
        kept."""
        with self.loop(count // lanes) as part:
            first = self.let(part * lanes)
            some = any_lane(self, lanes, 1, lambda lane: holds(first + lane))
            with self.when(some), self.loop(lanes) as j:
                take(self.let(start + first + j))

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


def _lanes_of(k: LaneBuilder, what: Kept) -> int:
    """How many of the elements that conditions read are in a vector."""
    at = [Index(k.fresh("at"), extent) for extent in what.extents]
    with k.block():
        read = loads(what.holds(tuple(at)))
    return k.vector_bytes // max((load.dtype.size for load in read), default=1)


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
