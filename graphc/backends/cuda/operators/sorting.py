"""The first items in some order, by many threads.

A block sorts a part of a line in shared memory, by the bitonic network whose comparisons all go one
way (K. E. Batcher, Sorting Networks and Their Applications, 1968), and keeps as many of the part's
first items as are wanted. If these are few, they are items of shorter lines, for which the same is
done again. If they are many, runs are merged two by two: an item's place is its place in its own
run plus the number of items of the other one that come before, which a binary search finds. Items
are compared by value and position, so that no two are equal and every order gives one result.
Where a part ends beyond the line, items that come after all others take the places.

The lower slots of neighbouring pairs have half of the banks of shared memory, and the higher ones
the other half. So one half of a warp accesses lower slots while the other accesses higher ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.operators.grids import Grid, grid, known, parts_of, scratch, within
from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Index, as_expr, cast, loads, select
from graphc.ir.imperative.collectives import Collectives, Leaders, Place
from graphc.ir.kernel import Barrier, Buffer
from graphc.ir.simplify import simplify

LEAST = 16  # items of a line that are worth several threads
SLOTS = 2048  # items that a block sorts of one line
SHORT_SLOTS = 1024  # the same of several lines
THREADS = 512  # of a block
BANKS = 5  # slots that are less than 2 ** 5 apart share banks with those of other threads
HALF = 4  # the bit of a thread's number that tells the halves of a warp apart
MANY_BLOCKS = 256  # from which blocks take several lines each

Item = tuple[Expr, Expr]
Read = Callable[[Place, Expr], Item]
Put = Callable[[Place, Expr, Expr, Item], None]


def is_worth_it(what: Leaders) -> bool:
    """Whether one thread for each line would take long."""
    return LEAST <= what.count <= i32.max and math.prod(what.lines) > 0


def leaders(k: Collectives, what: Leaders) -> None:
    """Parts are sorted until one block can sort what they leave, or runs of many are merged."""

    def first(line: Place, j: Expr) -> Item:
        return what.item(line, j), cast(j, i32)

    def output(line: Place, part: Expr, slot: Expr, item: Item) -> None:
        for buffer, value in zip(what.outputs, item):
            k.store(buffer, what.at(line, slot), cast(value, buffer.dtype))

    read, count = first, what.count
    while count > SLOTS:
        keep = min(what.wanted, SLOTS)
        parts, many = parts_of(count, SLOTS), keep > SLOTS // 2
        runs = _Runs.of(k, what, parts, keep, _most(what, parts, keep) if many else 0)
        _sort(k, what, read, count, runs.number, keep, runs.put(k))
        if many:
            _merge(k, what, runs, output)
            return
        read, count = runs.read, runs.number * keep
    _sort(k, what, read, count, 1, what.wanted, output)


@dataclass(frozen=True)
class _Runs:
    """Items of each line in flat scratch memory: so many runs of some length, each in order."""

    values: Buffer
    positions: Buffer
    shape: tuple[int, ...]

    @staticmethod
    def of(k: Collectives, what: Leaders, number: int, length: int, size: int = 0) -> _Runs:
        """Runs in memory of their own, for so many items, if they are more."""
        shape = (*what.lines, number, length)
        flat = (max(math.prod(shape), size),)
        return _Runs(scratch(k, what.worst.dtype, flat), scratch(k, i32, flat), shape)

    def resized(self, number: int, length: int) -> _Runs:
        """Others in the same memory."""
        return replace(self, shape=(*self.shape[:-2], number, length))

    @property
    def number(self) -> int:
        return self.shape[-2]

    @property
    def length(self) -> int:
        return self.shape[-1]

    def at(self, line: Place, run: Expr, slot: Expr) -> Item:
        place = flatten_index((*line, run, slot), self.shape)
        return self.values[place], self.positions[place]

    def read(self, line: Place, j: Expr) -> Item:
        """Item j of all runs one after the other."""
        return self.at(line, *unflatten_index(j, (self.number, self.length)))

    def put(self, k: Collectives) -> Put:
        def store(line: Place, run: Expr, slot: Expr, item: Item) -> None:
            place = flatten_index((*line, run, slot), self.shape)
            for buffer, value in zip((self.values, self.positions), item):
                k.store(buffer, place, value)

        return store


def _last(what: Leaders) -> Item:
    """An item that comes after all others."""
    return what.worst, Const(i32.max, i32)


# ---------------------------------------------------------------- a part in a block


class _Block:
    """What a block sorts: `size` slots for each of so many lines `together`, in shared memory."""

    def __init__(self, count: int, lines: int):
        size = max(WARP, 1 << (min(count, SLOTS) - 1).bit_length())
        most = max(1, min(SHORT_SLOTS // size, lines // MANY_BLOCKS))
        self.size, self.together = size, 1 << (most.bit_length() - 1)
        self.slots = size * self.together
        self.threads = min(THREADS, max(WARP, self.slots // 2))


def _sort(
    k: Collectives, what: Leaders, read: Read, count: int, parts: int, keep: int, put: Put
) -> None:
    """Sorts every part of every line, and hands on as many items of it as are to be kept."""
    lines = math.prod(what.lines)
    block = _Block(count, 1 if parts > 1 else lines)
    across = _lies_across(k, what, read, count)
    with grid(k, parts_of(lines, block.together) * parts, block.threads) as g:
        first, part = unflatten_index(g.block, (parts_of(lines, block.together), parts))
        held = g.shared(what.worst.dtype, block.slots), g.shared(i32, block.slots)

        def over_items(extent: int, use: Callable[[Place, Expr, Expr], None]) -> None:
            """All of so many items of the lines; what are neighbours in memory, together."""
            _over_items(g, block, extent, across, lambda own, n: within_lines(own, n, use))

        def within_lines(own: Expr, n: Expr, use: Callable[[Place, Expr, Expr], None]) -> None:
            with within(k, first * block.together + own, lines) as line:
                use(unflatten_index(line, what.lines), n, simplify(own * block.size + n))

        def load(line: Place, n: Expr, slot: Expr) -> None:
            with within(k, part * block.size + n, count) as j:
                for buffer, value in zip(held, read(line, j)):
                    k.store(buffer, slot, value)

        _fill(k, g, block, held, _last(what))
        if across:  # else a thread loads the slots that it has filled
            k.emit(Barrier())
        over_items(block.size, load)
        k.emit(Barrier())
        _network(k, g, block, held, what)
        over_items(keep, lambda line, n, slot: put(line, part, n, (held[0][slot], held[1][slot])))


def _fill(k: Collectives, g: Grid, block: _Block, held: tuple[Buffer, ...], item: Item) -> None:
    with g.shares(block.slots, "unroll") as slot:
        for buffer, value in zip(held, item):
            k.store(buffer, slot, value)


def _over_items(
    g: Grid, block: _Block, extent: int, across: bool, use: Callable[[Expr, Expr], None]
) -> None:
    """Every line of a block and every item below an extent, threads next to one another at what
    lies next to one another."""
    with g.shares(block.together * extent, "unroll") as at:
        if across:
            n, own = unflatten_index(at, (extent, block.together))
        else:
            own, n = unflatten_index(at, (block.together, extent))
        use(own, n)


def _lies_across(k: Collectives, what: Leaders, read: Read, count: int) -> bool:
    """Whether neighbouring items of a line are apart in memory."""
    j = Index("position", count)
    line = tuple(Index(f"line{n}", extent) for n, extent in enumerate(what.lines))
    with k.block():
        read_at = [x.index[-1] for x in loads(read(line, j)[0]) if x.index]
    return bool(read_at) and all(is_affine_in(simplify(x), j) != 1 for x in read_at)


def _network(
    k: Collectives, g: Grid, block: _Block, held: tuple[Buffer, ...], what: Leaders
) -> None:
    """Brings the slots of every line into order: runs of twice the length in every stage."""
    one = Const(1, i32)

    def step(shift: Expr, mirrored: bool) -> None:
        """Compares slots that are 2 ** shift apart, or as far from the middle of their run."""
        with g.shares(block.slots // 2, "unroll") as pair:
            pair = cast(pair, i32)
            mask = (one << shift) - 1
            start, inside = (pair >> shift) << (shift + 1), pair & mask
            end = start + mask + one + (mask - inside if mirrored else inside)
            turned = k.let((shift < BANKS) & ((pair >> HALF) & one).eq(1))
            low, high = (known(k, x, block.slots) for x in (start + inside, end))
            slots = select(turned, high, low), select(turned, low, high)
            first, second = (known(k, x, block.slots) for x in slots)
            _exchange(k, held, first, second, turned, what)
        k.emit(Barrier())

    with k.loop(block.size.bit_length() - 1) as stage:
        step(cast(stage, i32), mirrored=True)
        with k.loop(stage) as below:
            step(k.let(cast(stage - 1 - below, i32)), mirrored=False)


def _exchange(
    k: Collectives, held: tuple[Buffer, ...], first: Expr, second: Expr, turned: Expr, what: Leaders
) -> None:
    """Puts two slots into order, the first of which is the higher one where they are turned."""
    a, b = ((k.let(held[0][x]), k.let(held[1][x])) for x in (first, second))
    with k.when(what.precedes(b, a) ^ turned):
        for buffer, left, right in zip(held, b, a):
            k.store(buffer, first, left)
            k.store(buffer, second, right)


# ---------------------------------------------------------------- runs


def _merge(k: Collectives, what: Leaders, runs: _Runs, output: Put) -> None:
    """Merges runs two by two until there is one, as far as it is wanted, to and fro between two
    pieces of memory."""
    spare = _Runs.of(k, what, runs.number, runs.length, _most(what, runs.number, runs.length))
    while runs.number > 1:
        length = min(2 * runs.length, what.wanted)
        merged = spare.resized(parts_of(runs.number, 2), length)
        put = output if runs.number == 2 else merged.put(k)
        with k.loops(*runs.shape, kind="parallel") as (*line, run, slot):
            _place(k, what, runs, (tuple(line), run, slot), length, put)
        runs, spare = merged, runs


def _most(what: Leaders, number: int, length: int) -> int:
    """The most items that runs have at once, while they are merged."""
    sizes = [0]
    while number > 1:
        sizes.append(math.prod(what.lines) * number * length)
        number, length = parts_of(number, 2), min(2 * length, what.wanted)
    return max(sizes)


def _place(
    k: Collectives, what: Leaders, runs: _Runs, at: tuple[Place, Expr, Expr], length: int, put: Put
) -> None:
    """Stores one item where it belongs among those of its run and of the one it is merged with."""
    line, run, slot = at
    item = k.let(runs.at(*at)[0]), k.let(runs.at(*at)[1])
    into = simplify(run // 2)
    other = k.let(run + 1 - (run % 2) * 2)

    def comes_first(j: Expr) -> Expr:
        theirs = k.let(runs.at(line, other, j)[0]), k.let(runs.at(line, other, j)[1])
        ties = ~what.precedes(item, theirs) & (run % 2).eq(1)
        return what.precedes(theirs, item) | ties

    theirs = select(other < runs.number, runs.length, as_expr(0, i64))
    place = k.let(slot + k.search(theirs, runs.length, comes_first))
    with k.when(place < length):
        put(line, into, place, item)
    with k.when((other >= runs.number) & (slot + runs.length < length)):
        put(line, into, k.let(slot + runs.length), _last(what))
