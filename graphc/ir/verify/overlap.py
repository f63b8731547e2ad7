"""Judge of outputs that overlap an input of the same kernel: every access is played through.

A clock counts statements as they run. For each element of the input, the last time that it is
loaded is found, and the first time that the output is stored over it, by listing all values of the
loops around every load and store. Nothing may be loaded after it has been stored over. What a
select or branch might skip counts as done, and a load in an instruction may read anything from its
position on.

Shares no code with the analysis that memory planning relies on (passes/kernel/overlap.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field

import numpy as np

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Load, loads, walk
from graphc.ir.kernel import (
    Body,
    Buffer,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
    bodies,
    exprs,
    walk_stmts,
)
from graphc.ir.simplify import bounds, simplify
from graphc.records import dataclass

MOST = 1 << 24  # values of the loops around one access; more are not played through
IN_ORDER = ("serial", "unroll", "vector")
NEVER = np.iinfo(np.int64).max
OPERATIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "floordiv": np.floor_divide, "mod": np.mod, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "neg": np.negative, "not": np.logical_not,
}  # fmt: skip

Values = np.ndarray  # one value for all combinations of the loops around, by broadcasting


class NotPlayed(Exception):
    """Positions are not known before the kernel runs, or there are too many."""


def overwrites(kernel: Kernel, output: Buffer, source: Buffer, distance: int) -> str:
    """Why `output` may not start `distance` bytes after `source`; empty if it may."""
    unit = math.gcd(output.dtype.size, source.dtype.size, distance)
    units = source.size * source.dtype.size // unit
    loaded, stored = np.full(units, -1, np.int64), np.full(units, NEVER)
    try:
        for access in _accesses(kernel.body, _Clock(), {output.name, source.name}):
            if access.buffer == source.name:
                _last(loaded, access, source.dtype.size // unit)
            elif not access.is_store:
                raise NotPlayed(f"{output.name} is read, or written by an instruction")
            else:
                size = output.dtype.size // unit
                for part in range(size):
                    at, times = access.inside(size, part + distance // unit, units)
                    np.minimum.at(stored, at, times)
    except NotPlayed as reason:
        return str(reason)
    lost = np.flatnonzero(loaded > stored)
    where = f"byte {lost[0] * unit} of {source.name}" if lost.size else ""
    return f"{where} is read after {output.name} is written over it" if where else ""


def can_judge(kernel: Kernel) -> bool:
    """Whether no nest of loops has more turns than are played through, or too many to tell, and
    positions that are named are known before."""
    lets = (s for s in walk_stmts(kernel.body) if isinstance(s, Let) and s.ref.dtype is i64)
    try:
        return _turns(kernel.body) <= MOST and all(_is_known(stmt.value) for stmt in lets)
    except NotPlayed:
        return False


def unknown(kernel: Kernel) -> set[str]:
    """The buffers that are accessed at positions which depend on data."""
    buffers = set()
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, Store) and not all(map(_is_known, stmt.index)):
            buffers.add(stmt.buffer)
        for root in exprs(stmt):
            for node in walk(root):
                if isinstance(node, Load) and not all(map(_is_known, node.index)):
                    buffers.add(node.source)
    return buffers


def _is_known(position: Expr) -> bool:
    """Whether a position follows from loops and constants."""
    return not loads(position)


def _turns(body: Body) -> int:
    """The most turns of a nest of loops among statements."""
    most = 1
    for stmt in body:
        times = _longest(stmt) if isinstance(stmt, For) else 1
        most = max([most, *(times * _turns(inner) for inner in bodies(stmt))])
    return most


def _last(loaded: np.ndarray, access: _Access, size: int) -> None:
    """Notes the times of a load."""
    times = np.full(loaded.shape, -1, np.int64) if access.is_open else loaded
    for part in range(size):
        at, when = access.inside(size, part, loaded.size)
        np.maximum.at(times, at, when)
    if access.is_open:
        np.maximum(loaded, np.maximum.accumulate(times), out=loaded)


@dataclass(frozen=True)
class _Access:
    """Positions that a load or store touches, and when."""

    buffer: str
    positions: Values
    times: Values
    is_store: bool = False
    is_open: bool = False

    def inside(self, scale: int, shift: int, units: int) -> tuple[np.ndarray, np.ndarray]:
        """(positions * scale + shift within 0 .. units - 1, their times)."""
        at = self.positions * scale + shift
        keep = (at >= 0) & (at < units)
        return at[keep], self.times[keep]


@dataclass(frozen=True)
class _Clock:
    """The time at which a statement runs, for all values of the loops around it, and what is known
    there: those loops with their values, lets, and where the loops do run."""

    time: Values = field(default_factory=lambda: np.zeros((), np.int64))
    names: dict[Expr, Values] = field(default_factory=dict)
    runs: Values = field(default_factory=lambda: np.ones((), bool))

    def later(self, ticks: int) -> _Clock:
        return _Clock(self.time + ticks, self.names, self.runs)

    def known(self, name: Expr, values: Values) -> _Clock:
        return _Clock(self.time, {**self.names, name: values}, self.runs)

    def entered(self, loop: For) -> _Clock:
        """The clock in a loop: there is one more dimension of values."""
        count = _longest(loop)
        if count * self.time.size > MOST:
            raise NotPlayed(f"more than {MOST} accesses")
        turn = np.arange(count, dtype=np.int64)
        wide = {name: values[..., None] for name, values in self.names.items()}
        extent = self.value(loop.extent)[..., None] if isinstance(loop.extent, Expr) else count
        runs = self.runs[..., None] & (turn < extent)
        time = self.time[..., None] + turn * _duration(loop.body)
        return _Clock(time, {**wide, loop.var: turn}, runs)

    def value(self, node: Expr) -> Values:
        """The values of a position or condition."""
        if node in self.names:
            return self.names[node]
        if isinstance(node, Const):
            return np.asarray(node.value)
        if isinstance(node, Call) and node.op.name == "select":
            return np.where(*(self.value(x) for x in node.args))
        if isinstance(node, Call) and node.op.name in OPERATIONS:
            return OPERATIONS[node.op.name](*(self.value(x) for x in node.args))
        raise NotPlayed(f"`{node}` is not known before")

    def access(self, load: Load | Store, **kind: bool) -> _Access:
        """What a load or store touches."""
        name = load.source if isinstance(load, Load) else load.buffer
        if len(load.index) != 1:
            raise NotPlayed(f"{name} has more dimensions than one")
        full = np.broadcast_shapes(self.time.shape, self.runs.shape)
        positions, times, runs = (
            np.broadcast_to(x, full) for x in (self.value(load.index[0]), self.time, self.runs)
        )
        return _Access(name, positions[runs], times[runs], **kind)


def _longest(loop: For) -> int:
    """The most turns of a loop."""
    high = loop.extent if isinstance(loop.extent, int) else bounds(simplify(loop.extent))[1]
    if not math.isfinite(high):
        raise NotPlayed(f"the extent `{loop.extent}` has no bound")
    return max(int(high), 0)


def _duration(body: Body) -> int:
    """Ticks that statements take at most."""
    return sum(map(_ticks, body))


def _ticks(stmt: Stmt) -> int:
    if isinstance(stmt, For):
        return max(_longest(stmt), 1) * _duration(stmt.body)
    return 1 + _duration(stmt.then) + _duration(stmt.orelse) if isinstance(stmt, If) else 1


def _accesses(body: Body, clock: _Clock, wanted: set[str]) -> Iterator[_Access]:
    """All accesses of statements to some buffers, each for all values of the loops around it."""
    for stmt in body:
        for root in exprs(stmt):
            for node in walk(root):
                if isinstance(node, Load) and node.source in wanted:
                    yield clock.access(node, is_open=isinstance(stmt, Intrin))
        if isinstance(stmt, Store) and stmt.buffer in wanted:
            yield clock.access(stmt, is_store=True)
        yield from _inner(stmt, clock, wanted)
        if isinstance(stmt, Let) and stmt.ref.dtype is i64:
            clock = clock.known(stmt.ref, clock.value(stmt.value))
        clock = clock.later(_ticks(stmt))


def _inner(stmt: Stmt, clock: _Clock, wanted: set[str]) -> Iterator[_Access]:
    """The accesses of the statements within a statement."""
    if isinstance(stmt, While) or isinstance(stmt, For) and stmt.kind not in IN_ORDER:
        raise NotPlayed(f"the order of `{type(stmt).__name__}` is not known")
    if isinstance(stmt, For):
        yield from _accesses(stmt.body, clock.entered(stmt), wanted)
    elif isinstance(stmt, If):
        yield from _accesses(stmt.then, clock.later(1), wanted)
        yield from _accesses(stmt.orelse, clock.later(1 + _duration(stmt.then)), wanted)
