"""The first items of lines in some order, by one thread for each line that has vectors.

Items are sorted in blocks, in which an item's place is the number of those that come before it, and
runs are merged two by two. A merge goes on at both ends at once, from the front to the middle and
from the back, so that no end of a run has to be looked for (the parity merge of S. van den Hoven's
quadsort). Merges are stable: equal items stay in the order of their positions.

Where few of many are wanted, items are chosen first (lane_choosing.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import DType, i32, i64
from graphc.ir.expr import Const, Expr, Index, cast, select
from graphc.ir.imperative.collectives import Collectives, Leaders, Place
from graphc.ir.kernel import Buffer
from graphc.records import dataclass

BLOCK = 16  # items of a block, at the most
ON_STACK = 1 << 14  # bytes of an array there
LARGEST = 1 << 24  # items of a line


def sorts(k: Collectives, what: Leaders) -> bool:
    """Whether items can be compared in vectors, and there are enough of them."""
    if what.worst.dtype.kind == "string" or not BLOCK < what.count < LARGEST:
        return False
    line = tuple(Index(k.fresh("line"), n) for n in what.lines)
    with k.block() as statements:
        one, two = (what.item(line, Index(k.fresh("item"), what.count)) for _ in range(2))
        what.better(one, two)
    return not statements


def sorted_leaders(k: Collectives, what: Leaders) -> None:
    """Sorts all items of each line."""
    shape = Shape.of(what.count)
    rooms = [Items.room(k, what, shape) for _ in range(2)]
    with k.loops(*what.lines, kind="parallel") as line:
        one, two = (room(line) for room in rooms)
        with k.loop(what.count) as j:
            one.put(k, j, k.let(what.item(line, j)), cast(j, i32))
        give(k, what, line, in_order(k, what, shape, one, two, Const(what.count, i64)))


def give(k: Collectives, what: Leaders, line: Place, items: Items) -> None:
    """Stores the first items in the outputs."""
    with k.loop(what.wanted) as slot:
        for buffer, value in zip(what.outputs, items.at(k, slot)):
            k.store(buffer, what.at(line, slot), cast(value, buffer.dtype))


# ---------------------------------------------------------------- where items are


@dataclass(frozen=True)
class Array:
    """Elements of a buffer from `start` on."""

    buffer: Buffer
    start: Expr

    def __getitem__(self, j: Expr) -> Expr:
        return self.buffer[self.start + j]

    def put(self, k: Collectives, j: Expr, value: Expr) -> None:
        k.store(self.buffer, self.start + j, value)


def array_room(k: Collectives, what: Leaders, dtype: DType, size: int) -> Callable[[Place], Array]:
    """Room for an array of each line, on the stack if it is small."""
    if size * dtype.size <= ON_STACK:
        return lambda line: Array(k.alloc(dtype, (size,)), Const(0, i64))
    buffer = k.alloc(dtype, (math.prod(what.lines) * size,), "scratch")
    return lambda line: Array(buffer, k.let(flatten_index(line, what.lines) * size))


@dataclass(frozen=True)
class Items:
    """Values and their positions in a line."""

    values: Array
    positions: Array

    @staticmethod
    def room(k: Collectives, what: Leaders, shape: Shape) -> Callable[[Place], Items]:
        """Room for the items of each line, and for a vector that starts at any of them."""
        size = shape.size + BLOCK
        values, positions = (array_room(k, what, d, size) for d in (what.worst.dtype, i32))
        return lambda line: Items(values(line), positions(line))

    def at(self, k: Collectives, j: Expr) -> tuple[Expr, Expr]:
        return k.let(self.values[j]), k.let(self.positions[j])

    def put(self, k: Collectives, j: Expr, value: Expr, position: Expr) -> None:
        self.values.put(k, j, value)
        self.positions.put(k, j, position)


# ---------------------------------------------------------------- sorting


@dataclass(frozen=True)
class Shape:
    """So many blocks, a power of two, of some length each."""

    blocks: int
    length: int

    @staticmethod
    def of(count: int) -> Shape:
        """Room for so many items, and hardly more."""
        blocks = 1
        while blocks * BLOCK < count:
            blocks *= 2
        return Shape(blocks, -(-count // blocks))

    @property
    def size(self) -> int:
        return self.blocks * self.length


def in_order(
    k: Collectives, what: Leaders, shape: Shape, one: Items, two: Items, count: Expr
) -> Items:
    """The first so many items of one place in order: in one of two places."""
    with k.loop(k.let(shape.size + BLOCK - count)) as j:
        one.put(k, count + j, what.worst, Const(0, i32))
    with k.loop(shape.blocks) as block:
        _sort_block(k, what, one, two, k.let(block * shape.length), shape.length)
    length = shape.length
    while length < shape.size:
        one, two = two, one
        with k.loop(shape.size // (2 * length)) as pair:
            _merge(k, what, one, two, k.let(pair * (2 * length)), length)
        length *= 2
    return two


def _sort_block(
    k: Collectives, what: Leaders, source: Items, target: Items, first: Expr, length: int
) -> None:
    """A vector of items is compared with each of them."""
    places = k.alloc(i32, (BLOCK,))
    with k.loop(BLOCK, "vector", width=BLOCK) as lane:
        mine, before = k.let(source.values[first + lane]), k.var(i32, 0)
        with k.loop(length, "unroll") as j:
            other = k.let(source.values[first + j])
            follows = select(j < lane, ~what.better(mine, other), what.better(other, mine))
            k.store(before, (), before[()] + cast(follows, i32))
        k.store(places, lane, before[()])
    with k.loop(length, "unroll") as j:
        place = k.let(cast(places[j], i64))
        target.put(k, first + place, *source.at(k, first + j))


def _merge(
    k: Collectives, what: Leaders, source: Items, target: Items, first: Expr, length: int
) -> None:
    """Two runs of some length, one after the other, in so few steps that nothing is read beyond the
    end of either."""
    left, right = k.var(i64, first), k.var(i64, first + length)
    last_left, last_right = k.var(i64, first + (length - 1)), k.var(i64, first + (2 * length - 1))
    with k.loop(length) as j:
        taken = _step(k, what.better, source, (left, right), target, k.let(first + j))
        k.store(left, (), left[()] + cast(~taken, i64))
        k.store(right, (), right[()] + cast(taken, i64))
        end = k.let(first + (2 * length - 1) - j)
        taken = _step(k, _swapped(what.better), source, (last_right, last_left), target, end)
        k.store(last_left, (), last_left[()] - cast(taken, i64))
        k.store(last_right, (), last_right[()] - cast(~taken, i64))


def _swapped(better: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: better(b, a)


def _step(
    k: Collectives, comes_first: Callable[[Expr, Expr], Expr], source: Items,
    places: tuple[Buffer, Buffer], target: Items, to: Expr,
) -> Expr:  # fmt: skip
    """Stores one of two items: the first unless the second comes first, which is what is given."""
    one, two = (k.let(place[()]) for place in places)
    a, b = (k.let(source.values[place]) for place in (one, two))
    taken = k.let(comes_first(b, a))
    position = k.let(source.positions[k.let(select(taken, two, one))])
    target.put(k, to, k.let(select(taken, b, a)), position)
    return taken
