"""Lines of an image with their padding, copied to the stack before the sums that read them.

For each position of the outer indices, all that a row of sums reads is copied: the positions along
the row once each, with the zero point where padding is. Then no sum hangs over an edge, and all
rows are in tiles of the same code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from graphc.backends.micro_c.strategies.helium.copies import Copies
from graphc.backends.micro_c.strategies.helium.matching import unguarded
from graphc.backends.micro_c.strategies.helium.sum_loops import Level
from graphc.ir.addresses import element_after, flatten_index, is_affine_in
from graphc.ir.dtypes import i8, i32, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, free_indices, substitute
from graphc.ir.simplify import simplify
from graphc.passes.analysis.core import Role, stride
from graphc.passes.analysis.factors import centred_byte
from graphc.passes.analysis.weighted import ProductMatch

MOST_BYTES = 6144  # of the lines
LEAST_ROWS = 3  # of sums that share lines


@dataclass(frozen=True)
class Lines:
    """The lines of a match, whose `along` is the summed index that moves along its row: a row is
    `step` positions from the next. `first` and `end` bound the positions that are in the image."""

    match: ProductMatch
    read: Load
    centre: int
    along: Index
    step: int
    first: int
    end: int

    @property
    def positions(self) -> int:
        """How many there are along a row, with padding."""
        assert self.match.row is not None
        return (self.match.row.count - 1) * self.step + self.along.count

    @property
    def shape(self) -> tuple[int, ...]:
        """The summed indices in order, the positions in place of `along`; then the column, if each
        reads elements of its own."""
        match = self.match
        depth = (self.positions if k is self.along else k.count for k in match.depth)
        return (*depth, match.column.count) if self._by_column else (*depth,)  # type: ignore

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def _by_column(self) -> bool:
        return self.match.column_alone

    def load(self, name: str) -> Load:
        """The element that a sum reads, of an array of that name."""
        match = self.match
        assert match.row is not None and match.column is not None
        place = [k + match.row * self.step if k is self.along else k for k in match.depth]
        place += [match.column] if self._by_column else []
        return Load(name, (simplify(flatten_index(tuple(place), self.shape)),), i8)

    def clear(self, copies: Copies, name: str) -> None:
        """Zero points everywhere, once: they stay where padding is."""
        copies.run(self.size, self._zero, Load(name, (Const(0, i64),), i8))

    def fill(self, copies: Copies, name: str, at: dict) -> None:
        """Copies the lines for a position of the outer indices."""
        match = self.match
        assert match.row is not None and match.column is not None
        start: dict[Expr, Expr] = {**at, match.row: Const(0, i64), match.column: Const(0, i64)}
        start.update({k: Const(0, i64) for k in match.depth})
        there = simplify(self.read.index[0], start)
        read = Load(self.read.source, (there,), self.read.dtype)
        to = Load(name, (Const(0, i64),), i8)
        self._fill(copies, self._levels(at), read, to)

    def _levels(self, at: dict) -> list[Level]:
        match, shape = self.match, self.shape
        axes = [*match.depth, *([match.column] if self._by_column else [])]
        levels = []
        for n, (axis, count) in enumerate(zip(axes, shape)):
            step = stride(self.read, axis)  # type: ignore[arg-type]
            guards = [a for a in match.guards if axis in free_indices(a) and axis is not self.along]
            held = tuple(substitute(a, at) for a in guards)
            levels.append(Level(axis, count, step or 0, math.prod(shape[n + 1 :]), held))  # type: ignore
        return levels

    def _fill(self, copies: Copies, levels: list[Level], read: Load, to: Load) -> None:
        level, *inner = levels
        if level.axis is self.along:
            self._line(copies, level, inner, read, to)
            return
        k = copies.k
        with k.loop(level.count) if level.count > 1 else nullcontext(Const(0, i64)) as x:
            guard = level.guard(x)
            with k.when(guard) if guard is not None else nullcontext():
                there, here = (
                    element_after(read, x * level.step),
                    element_after(to, x * level.weight),
                )
                self._fill(copies, inner, there, here)
            if guard is not None:
                with k.otherwise():
                    copies.run(level.weight, self._zero, element_after(to, x * level.weight))

    def _line(self, copies: Copies, level: Level, inner: list[Level], read: Load, to: Load) -> None:
        """The positions along a row that are in the image: the others are zero points still."""
        if self.end > self.first:
            first = Const(self.first, i64)
            there, here = (
                element_after(read, first * level.step),
                element_after(to, first * level.weight),
            )
            levels = [replace(level, count=self.end - self.first), *inner]
            copies.nested(levels, there, here, self._zero)

    @property
    def _zero(self) -> Const:
        return Const(self.centre, i8)


def padded_lines(match: ProductMatch) -> Lines | None:
    """The smallest lines that serve a row of sums with padding, along the innermost index of those
    alike; None if there are none."""
    return min(_candidates(match), key=lambda lines: lines.size, default=None)


def _candidates(match: ProductMatch) -> Iterator[Lines]:
    byte = centred_byte(unguarded(match)) if match.hole.dtype is i32 else None
    if byte is None or byte[0].dtype is not i8 or not match.guards or match.column is None:
        return
    read, centre = byte
    if not i8.min <= centre <= i8.max:
        return
    for row in reversed(match.indices):
        if match.role(row) is not Role.ROW or row.count < LEAST_ROWS:
            continue
        for along in match.depth:
            lines = _lines(match, read, centre, row, along)
            if lines is not None and lines.size <= MOST_BYTES:
                yield lines


def _lines(match: ProductMatch, read: Load, centre: int, row: Index, along: Index) -> Lines | None:
    """The lines along a row, if the summed index moves along it too."""
    far, near = stride(read, row), stride(read, along)
    if not far or not near or far % near or far // near < 1:
        return None
    step = far // near
    of_line = [a for a in match.guards if along in free_indices(a)]
    if any(not _is_of_position(a, row, along, step) for a in of_line):
        return None
    if any(row in free_indices(a) for a in match.guards if a not in of_line):
        return None
    guarded = {k for a in match.guards for k in free_indices(a)}
    outer = [k for k in match.depth if k in guarded and k is not along]
    inner = [k for k in match.depth if k not in guarded and k is not along]
    own = replace(match, row=row, depth=[*outer, along, *inner])
    positions = (row.count - 1) * step + along.count
    inside = [p for p in range(positions) if all(_holds(a, row, along, p) for a in of_line)]
    first, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    if len(inside) != end - first:
        return None
    return Lines(own, read, centre, along, step, first, end)


def _is_of_position(atom: Expr, row: Index, along: Index, step: int) -> bool:
    """Whether a guard asks for the position along + row * step, and nothing else."""
    if not isinstance(atom, Call) or free_indices(atom) - {row, along}:
        return False
    strides = [(is_affine_in(x, row), is_affine_in(x, along)) for x in atom.args]
    return all(k is not None and r == step * k for r, k in strides)


def _holds(atom: Expr, row: Index, along: Index, position: int) -> bool:
    decided = simplify(atom, {row: Const(0, i64), along: Const(position, i64)})
    return isinstance(decided, Const) and bool(decided.value)
