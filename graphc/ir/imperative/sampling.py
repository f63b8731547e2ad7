"""Sampling: results made of a few elements of each channel of images, at positions that channels
share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.ir.dtypes import DType
from graphc.ir.expr import Const, Expr, cast
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.records import dataclass

Place = tuple[Expr, ...]


@dataclass(frozen=True)
class Tap:
    """An element that is read: its image, its position there, and its factor, if it has one."""

    image: Expr
    position: Place
    factor: Expr | None = None

    def value(self, element: Expr, dtype: DType) -> Expr:
        wide = cast(element, dtype)
        return wide if self.factor is None else wide * self.factor


@dataclass(frozen=True)
class Bin:
    """How one place is computed: `start` is `combined` with the values of the taps of sample after
    sample, of which there are so many along each axis; `finish` gets the last result. Those get the
    position of the sample too."""

    samples: tuple[Expr, Expr]
    taps: Callable[[Place], Sequence[Tap]]
    start: Const
    combined: Callable[[Expr, Sequence[Expr], Place], Expr]
    finish: Callable[[Expr], Expr]


@dataclass(frozen=True)
class Sampled:
    """All channels, the second dim of x [N, C, H, W], at `places`, whose first dim comes before the
    channels in y, and the others after them. `bin` emits what the channels of a place share; what
    it computes is `wide`."""

    x: Buffer
    y: Buffer
    wide: DType
    bin: Callable[[Place], Bin]

    @property
    def places(self) -> tuple[int, ...]:
        return (self.y.shape[0], *self.y.shape[2:])

    @property
    def channels(self) -> int:
        return self.x.shape[1]

    def put(self, k: KernelBuilder, place: Place, channel: Expr, value: Expr) -> None:
        k.store(self.y, (place[0], channel, *place[1:]), cast(value, self.y.dtype))


def sample_each(k: KernelBuilder, what: Sampled) -> None:
    """Each element of the result by itself."""
    with k.loops(*what.y.shape, kind="parallel") as (first, channel, *others):
        place = (first, *others)
        made = what.bin(place)
        value = k.var(what.wide, made.start)
        with k.loops(*made.samples) as sample:
            taps = made.taps(sample)
            places = [(t.image, channel, *t.position) for t in taps]
            values = [k.let(t.value(what.x[at], what.wide)) for t, at in zip(taps, places)]
            k.store(value, (), made.combined(value[()], values, sample))
        what.put(k, place, channel, made.finish(value[()]))
