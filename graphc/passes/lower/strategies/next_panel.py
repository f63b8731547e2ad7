"""Prefetches of the panel that is next, while tiles of rows pass over one.

Where the second level of cache does not hold all panels, the first tile that multiplies a panel
would wait for it. Each tile before asks for a share of its lines instead, a line at most in a step
of the depth, so that what is read comes beside the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphc.ir.expr import Expr, Load, maximum
from graphc.ir.instructions import LINE, prefetch
from graphc.ir.kernel import KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.records import dataclass

FEWEST = 2  # tiles that share a panel


@dataclass(frozen=True)
class Turn:
    """Which of so many tiles, which pass over a panel in turn, a tile is."""

    number: Expr | int
    tiles: Dim


class NextPanel:
    """Emits the prefetches of one tile at a time."""

    def __init__(self, k: KernelBuilder):
        self.k = k
        self.share: Load | None = None  # of the tile at hand: where it begins
        self.stride: Expr | int = 0  # elements of it for a step
        self.lines = 0  # that these lie on

    @contextmanager
    def shared(self, after: Load | None, steps: int, row: int, turn: Turn | None) -> Iterator[None]:
        """A tile that asks for its share of a panel, of so many steps with a row of so many
        elements each. None asks for none, nor does a tile alone: it reads ahead as it goes. Where
        it is known at run time only how many tiles there are, one alone asks as one of two."""
        if after is None or turn is None or turn.tiles == 1:
            yield
            return
        self._share_row(row, turn.tiles, after.dtype.size)
        (first,) = after.index
        start = self.k.let(simplify(first + turn.number * (steps * self.stride)))
        self.share = Load(after.source, (start,), after.dtype)
        yield
        self.share = None

    def _share_row(self, row: int, tiles: Dim, size: int) -> None:
        """What falls to a step of one of so many tiles, of a row of elements of so many bytes."""
        fewest = tiles if isinstance(tiles, int) else FEWEST
        self.stride = widest = -(-row // fewest)
        self.lines = -(-widest * size // LINE)
        if not isinstance(tiles, int):
            there = maximum(tiles, FEWEST)
            self.stride = self.k.let(simplify((there + (row - 1)) // there))

    def step(self, number: Expr) -> None:
        """Asks for what falls to a step of the depth."""
        assert self.share is not None
        (start,) = self.share.index
        at = simplify(start + number * self.stride)
        self.k.emit(prefetch(Load(self.share.source, (at,), self.share.dtype), self.lines))
