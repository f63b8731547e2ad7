"""Scans on GPUs: running sums and products by many threads, by reduce-then-scan.

A line is cut into parts. One launch computes the total of each part, one the totals before each
part (this again), one the results, so elements are read twice and results are written once (D.
Merrill and A. Grimshaw, Parallel Scan for Stream Architectures, 2009). A line of one part is one
launch. Where positions of a line are neighbours in memory, a part is a tile of a block: it reads
the tile in order into shared memory, every thread adds a few neighbours of it, warp shuffles add
threads, and the results go back the same way. Where lines are neighbours, a part belongs to one
thread, and the threads of a warp to as many lines. Sums are taken in the same order every time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphc.backends.cuda.machines import FULL, WARP
from graphc.backends.cuda.operators.grids import ZERO, Grid, grid, parts_of, scratch, within
from graphc.ir.addresses import is_affine_in, unflatten_index
from graphc.ir.expr import Expr, Index, loads
from graphc.ir.imperative.collectives import Collectives, Place, Running
from graphc.ir.kernel import Barrier, Buffer, Intrin
from graphc.ir.simplify import simplify

LEAST = 64  # positions of a line that are worth several threads
THREADS = 256  # of a block
MOST_OWN = 9  # neighbours that a thread adds up; an odd number avoids bank conflicts
MOST_THREADS = 1024  # of the block of a line that has no other
ALONE_OWN = 5
LEAST_PART = 16  # positions that a thread takes of one of several lines


def is_worth_it(what: Running) -> bool:
    """Whether one thread for each line would take long."""
    return what.length >= LEAST and math.prod(what.lines) > 0


def running(k: Collectives, what: Running) -> None:
    """By tiles where lines lie along memory, else by parts."""
    if _lies_along(what):
        _by_tiles(k, what)
    else:
        _by_parts(k, what)


def _lies_along(what: Running) -> bool:
    """Whether neighbouring positions of a line are neighbours in memory, as far as they are read,
    or at least lines are not."""
    if math.prod(what.lines) == 1:
        return True
    j = Index("position", what.length)
    line = tuple(Index(f"line{n}", extent) for n, extent in enumerate(what.lines))
    steps = [
        is_affine_in(simplify(x.index[-1]), j) for x in loads(what.element(line, j)) if x.index
    ]
    return any(step in (1, -1) for step in steps)


# ---------------------------------------------------------------- a thread to a part


def _by_parts(k: Collectives, what: Running) -> None:
    """Every thread goes along a part of a line."""
    lines = math.prod(what.lines)
    length = max(LEAST_PART, parts_of(what.length * lines, FULL))
    number = parts_of(what.length, length)
    if number == 1:
        Collectives.running(k, what)
        return
    totals = scratch(k, what.dtype, (number, *what.lines))

    def sweep(line: Place, part: Expr, start: Expr, puts: bool) -> Buffer:
        value = k.var(what.dtype, start)
        with k.loop(length) as i, within(k, part * length + i, what.length) as j:
            if puts and what.exclusive:
                what.put(line, j, value[()])
            k.store(value, (), what.combined(value[()], what.element(line, j)))
            if puts and not what.exclusive:
                what.put(line, j, value[()])
        return value

    with k.loops(*totals.shape, kind="parallel") as place:
        total = sweep(place[1:], place[0], what.start, False)
        k.store(totals, place, total[()])
    before = _before(k, what, number, totals, first=True)
    with k.loops(*totals.shape, kind="parallel") as place:
        sweep(place[1:], place[0], before[place], True)


def _before(k: Collectives, what: Running, number: int, totals: Buffer, first: bool) -> Buffer:
    """What the parts before each one add up to; `first`: parts are the first dimension."""
    before = scratch(k, what.dtype, totals.shape)

    def at(line: Place, part: Expr) -> Place:
        return (part, *line) if first else (*line, part)

    k.running(replace(
        what, length=number, exclusive=True,
        element=lambda line, part: totals[at(line, part)],
        put=lambda line, part, value: k.store(before, at(line, part), value),
    ))  # fmt: skip
    return before


# ---------------------------------------------------------------- a block to a part


def _by_tiles(k: Collectives, what: Running) -> None:
    """Blocks take tiles of lines."""
    tile = _Tile.of(what.length)
    number = parts_of(what.length, tile.size)
    before = None
    if number > 1:
        totals = scratch(k, what.dtype, (*what.lines, number))
        with grid(k, math.prod(totals.shape), tile.threads) as g:
            _store_total(k, g, what, tile, totals, unflatten_index(g.block, totals.shape))
        before = _before(k, what, number, totals, first=False)
    extents = (*what.lines, number)
    with grid(k, math.prod(extents), tile.threads) as g:
        place = unflatten_index(g.block, extents)
        start = what.start if before is None else before[place]
        _run_tile(k, g, what, tile, place[:-1], place[-1], start)


class _Tile:
    """What a block takes of a line: `own` neighbours for each of its threads."""

    def __init__(self, threads: int, own: int):
        self.threads, self.own, self.size = threads, own, threads * own

    @staticmethod
    def of(length: int) -> _Tile:
        fits = length <= MOST_THREADS * ALONE_OWN
        threads = min(MOST_THREADS if fits else THREADS, parts_of(length, WARP) * WARP)
        own = min(MOST_OWN, parts_of(length, threads))
        return _Tile(threads, own | 1)


def _store_total(
    k: Collectives, g: Grid, what: Running, tile: _Tile, totals: Buffer, place: Place
) -> None:
    *line, part = place
    value = k.var(what.dtype, what.start)
    with k.loop(tile.own, "unroll") as s:
        at = part * tile.size + s * tile.threads + g.thread
        with within(k, at, what.length) as j:
            k.store(value, (), what.combined(value[()], what.element(tuple(line), j)))
    k.emit(Intrin(f"warp_{what.reduction}", (value[()],)))
    sums = g.shared(what.dtype, tile.threads // WARP)
    with k.when((g.thread % WARP).eq(0)):
        k.store(sums, simplify(g.thread // WARP), value[()])
    k.emit(Barrier())
    with k.when(g.thread.eq(0)):
        whole = k.var(what.dtype, sums[ZERO])
        with k.loop(tile.threads // WARP - 1, "unroll") as warp:
            k.store(whole, (), what.combined(whole[()], sums[warp + 1]))
        k.store(totals, place, whole[()])


def _run_tile(
    k: Collectives, g: Grid, what: Running, tile: _Tile, line: Place, part: Expr, start: Expr
) -> None:
    """The running values of a tile: elements in order, a few for each thread, threads, and back."""
    held = g.shared(what.dtype, tile.size)
    with k.loop(tile.own, "unroll") as s:
        place = simplify(s * tile.threads + g.thread)
        k.store(held, place, what.start)
        with within(k, part * tile.size + place, what.length) as j:
            k.store(held, place, what.element(line, j))
    k.emit(Barrier())
    mine = simplify(g.thread * tile.own)
    total = k.var(what.dtype, what.start)
    with k.loop(tile.own, "unroll") as i:
        k.store(total, (), what.combined(total[()], held[simplify(mine + i)]))
    value = k.var(what.dtype, what.combined(start, _before_thread(k, g, what, total)))
    with k.loop(tile.own, "unroll") as i:
        place = simplify(mine + i)
        after = k.let(what.combined(value[()], held[place]))
        k.store(held, place, value[()] if what.exclusive else after)
        k.store(value, (), after)
    k.emit(Barrier())
    with k.loop(tile.own, "unroll") as s:
        place = simplify(s * tile.threads + g.thread)
        with within(k, part * tile.size + place, what.length) as j:
            what.put(line, j, held[place])


def _before_thread(k: Collectives, g: Grid, what: Running, total: Buffer) -> Expr:
    """What the threads of a block before each one have in all."""
    sums = g.shared(what.dtype, g.threads)
    k.emit(Intrin(f"running_{what.reduction}", (total[()],)))
    k.store(sums, g.thread, total[()])
    k.emit(Barrier())
    before = k.var(what.dtype, what.start)
    warp, lane = simplify(g.thread // WARP), simplify(g.thread % WARP)
    with k.loop(g.threads // WARP - 1, "unroll") as w, k.when(w < warp):
        last = simplify(w * WARP + WARP - 1)
        k.store(before, (), what.combined(before[()], sums[last]))
    with k.when(lane > 0):
        k.store(before, (), what.combined(before[()], sums[simplify(g.thread - 1)]))
    return before[()]
