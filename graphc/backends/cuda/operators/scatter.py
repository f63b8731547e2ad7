"""Scatter on GPUs: updates of places that the data names, by many threads.

Where few updates could meet at one place, a thread does these in turn, for each element that they
change. Otherwise, if the last update of a place is to stay, each update marks its place with its
number. The largest number stays whatever the order of threads, and the updates that find their own
are done. Updates that are combined are sorted by place. Then a thread takes all of one place, in
their order, so that sums of floats have the same bits every time.
"""

from __future__ import annotations

import math

from graphc.backends.cuda.machines import FULL
from graphc.backends.cuda.operators.grids import known, scratch
from graphc.ir.addresses import flatten_index, unflatten_index
from graphc.ir.dtypes import boolean, i32, i64
from graphc.ir.expr import Const, Expr, cast, maximum, select
from graphc.ir.imperative.collectives import Collectives, Leaders, Place, Scattered
from graphc.ir.kernel import Buffer, Intrin

FEW = 16  # updates that one thread does in turn
TURN = 1000  # nanoseconds of an update after another one
LAUNCH = 4000  # of a launch
SORTED = 0.001  # of an item in a step of sorting, by a full GPU


def is_worth_it(what: Scattered) -> bool:
    """Whether one thread would take long, and numbers of updates and places fit into 32 bits."""
    updates = math.prod(what.extents)
    return updates * math.prod(what.rest) > 1 and max(updates, _places(what)) < i32.max


def scattered(k: Collectives, what: Scattered) -> None:
    """In the way that should be fastest, of those described above."""
    turns = math.prod(what.extents[d] for d in _others(what))
    if turns <= FEW:
        _in_turns(k, what)
    elif what.combined is None:
        _last_stays(k, what)
    elif turns * TURN * _rounds(what) < _sorting_time(what, turns):
        _in_turns(k, what)
    else:
        _by_place(k, what)


def _others(what: Scattered) -> list[int]:
    """The dims of updates that may meet."""
    return [d for d in range(len(what.extents)) if d not in what.apart]


def _lines(what: Scattered) -> tuple[int, ...]:
    return tuple(what.extents[d] for d in what.apart)


def _leading(what: Scattered) -> tuple[int, ...]:
    """The dims of the target that places are of."""
    return what.target.shape[: what.target.rank - len(what.rest)]


def _places(what: Scattered) -> int:
    return math.prod(_leading(what))


def _rounds(what: Scattered) -> float:
    """How often the updates that do not meet fill a GPU, at least once."""
    return max(1.0, math.prod(_lines(what)) * math.prod(what.rest) / FULL)


def _sorting_time(what: Scattered, turns: int) -> float:
    """Roughly, in nanoseconds."""
    steps = turns.bit_length()
    return steps * (LAUNCH + SORTED * steps * turns * math.prod(_lines(what)))


def _where(what: Scattered, line: Place, others: Place) -> Place:
    """The update of a line, which the dims that are apart number, and the other dims."""
    by_dim = dict(zip((*what.apart, *_others(what)), (*line, *others)))
    return tuple(by_dim[d] for d in range(len(what.extents)))


def _in_turns(k: Collectives, what: Scattered) -> None:
    """Updates that may meet are done by one thread, for each element that they change."""
    lines = _lines(what)
    with (
        k.loops(*lines, *what.rest, kind="parallel") as lane,
        k.loops(*(what.extents[d] for d in _others(what))) as others,
    ):
        where = _where(what, lane[: len(lines)], others)
        at, inside = what.place(where)
        with k.when(inside):
            what.update(k, at, where, lane[len(lines) :])


def _last_stays(k: Collectives, what: Scattered) -> None:
    """The largest number that marks a place is that of the update that is done."""
    last = scratch(k, i32, _leading(what))
    with k.loops(*last.shape, kind="parallel") as at:
        k.store(last, at, Const(-1, i32))
    with k.loops(*what.extents, kind="parallel") as where:
        at, inside = what.place(where)
        with k.when(inside):
            k.emit(Intrin("keep_largest", (last[at], _number(what, where))))
    with k.loops(*what.extents, *what.rest, kind="parallel") as index:
        where, inner = index[: len(what.extents)], index[len(what.extents) :]
        at, inside = what.place(where)
        with k.when(inside), k.when(last[at].eq(_number(what, where))):
            what.update(k, at, where, inner)


def _number(what: Scattered, where: Place) -> Expr:
    return cast(flatten_index(where, what.extents), i32)


def _by_place(k: Collectives, what: Scattered) -> None:
    """Updates in the order of their places, those of one place by one thread."""
    lines, others = _lines(what), tuple(what.extents[d] for d in _others(what))
    turns, nowhere = math.prod(others), Const(i32.max, i32)

    def key(line: Place, j: Expr) -> Expr:
        at, inside = what.place(_where(what, line, unflatten_index(j, others)))
        return select(inside, cast(flatten_index(at, _leading(what)), i32), nowhere)

    keys, order = scratch(k, i32, (*lines, turns)), scratch(k, i64, (*lines, turns))
    k.leaders(Leaders(
        lines, turns, turns, key, lambda a, b: a < b, nowhere, (keys, order),
        lambda line, slot: (*line, slot),
    ))  # fmt: skip
    with k.loops(*keys.shape, *what.rest, kind="parallel") as index:
        line, first, inner = index[: len(lines)], index[len(lines)], index[len(lines) + 1 :]

        def at_turn(buffer: Buffer, turn: Expr) -> Expr:
            place = (*line, turn)
            return buffer[place]

        own = k.let(at_turn(keys, first))
        starts = first.eq(0) | at_turn(keys, maximum(first - 1, 0)).ne(own)
        with k.when(own.ne(nowhere) & starts):
            at = unflatten_index(known(k, own, _places(what)), _leading(what))
            turn, going = k.var(i64, first), k.var(boolean, True)
            with k.repeat(going[()]):
                number = known(k, at_turn(order, turn[()]), turns)
                where = _where(what, line, unflatten_index(number, others))
                what.update(k, at, where, inner)
                k.store(turn, (), turn[()] + 1)
                k.store(going, (), turn[()] < turns)
                with k.when(going[()]):
                    k.store(going, (), at_turn(keys, turn[()]).eq(own))
