"""Sums of products in vector registers, for the M-profile Vector Extension (Helium).

A computation matches as for register tiles (analysis/weighted.py), if the outputs that the constant
factor tells apart are neighbours. There are two ways to sum: sixteen products of bytes at a time
where bytes lie in a row along the innermost summed indices (dot_products.py), and four columns at a
time (column_lanes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphc.backends.micro_c.strategies.helium.column_lanes import Lanes, panel_vectors
from graphc.backends.micro_c.strategies.helium.dot_products import Dots, rows_of_dots
from graphc.backends.micro_c.strategies.helium.matching import has_byte_rows, problem
from graphc.backends.micro_c.strategies.helium.sums import HeliumOptions
from graphc.backends.micro_c.vectors import LANES
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.weighted import ProductMatch, match_product
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.schedule.steps import Schedule, Tile, Vector, misfit

MIN_DEPTH = 2  # products summed, below which a plain nest does as well
MOST_SUMS = 8  # vectors of a tile, in registers


@dataclass(frozen=True)
class HeliumTiles(Scheduled[ProductMatch]):
    """Sums of products in vectors.

    tile(rows, R)        sums of so many rows at a time
    vector(columns, 4)   four columns are a vector; without it, sixteen products of a sum are one
                         instruction
    tile(columns, C)     so many columns at a time, of vectors
    """

    options: HeliumOptions = HeliumOptions()
    name = "helium"
    takes = "a sum of products that vectors take"

    def match(self, computation: Computation) -> ProductMatch | str:
        match = match_product(computation, MIN_DEPTH)
        if isinstance(match, str):
            return match
        unknown = next((x.extent for x in match.indices if not isinstance(x.extent, int)), None)
        if unknown is not None:
            return f"helium: extents must be constant, found {unknown}"
        reason = problem(match)
        return f"helium: {reason}" if reason else match

    def proposals(self, match: ProductMatch) -> Iterator[Schedule]:
        """The usual tile, then smaller ones, those first that load least for their products."""
        o, alone = self.options, match.row is None
        if has_byte_rows(match):
            usual = 1 if alone else rows_of_dots(match, o)
            sizes = [usual, *(n for n in range(o.rows, 0, -1) if n != usual)]
            yield from (Schedule(self.name, (Tile("rows", n),)) for n in sizes[: 1 if alone else 3])
            return
        rows, columns = 1 if alone else o.lane_rows, panel_vectors(match, o)
        yield self._of_lanes(rows, columns)
        shapes = [(r, c) for r in range(1, rows + 1) for c in range(1, columns + 1)]
        for shape in sorted(shapes, key=lambda s: sum(s) / (s[0] * s[1])):
            if shape != (rows, columns):
                yield self._of_lanes(*shape)

    def _of_lanes(self, rows: int, columns: int) -> Schedule:
        width = Tile("columns", columns * LANES)
        return Schedule(self.name, (Vector("columns", LANES), Tile("rows", rows), width))

    def emitted(self, match: ProductMatch, schedule: Schedule) -> Lowered:
        rows, vector = schedule.the(Tile, "rows").size, schedule.get(Vector, "columns")
        if has_byte_rows(match):
            if vector is not None:
                raise misfit(schedule, "no step vector(...) for bytes", vector)
            if rows > self.options.rows:
                raise misfit(
                    schedule, f"a tile of at most {self.options.rows} rows", f"{rows} rows"
                )
            return Dots(match, replace(self.options, rows=rows)).lowered()
        if vector is None or vector.lanes != LANES:
            raise misfit(schedule, f"vector(columns, {LANES})", vector or "none")
        width = schedule.the(Tile, "columns").size
        if width % LANES or rows * (width // LANES) > MOST_SUMS:
            wanted = f"a tile of at most {MOST_SUMS} sums of {LANES} columns"
            raise misfit(schedule, wanted, f"{rows} rows of {width}")
        own = replace(self.options, lane_rows=rows, lane_vectors=width // LANES)
        return Lanes(match, own).lowered()
