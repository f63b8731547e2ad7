"""What a memory plan is asked for, and what it answers.

Two ways to ask.  A `Problem` lists `Buffer`s whose lifetimes are already known.  A schedule
(`Step`s and `Request`s) says who reads and writes what; `liveness.py` turns it into a `Problem`.

Units and conventions, everywhere in this package:

* sizes and offsets are bytes; an offset is relative to the start of its pool;
* time is a step number; lifetimes `[first, last]` are inclusive at both ends, so the output of a
  step and its inputs are live together in that step;
* for schedules of n steps, time -1 is "the caller writes the inputs" and time n is "the caller
  reads the outputs";
* two buffers of one pool may share bytes only if their lifetimes are disjoint, one of them is
  empty, or an allowance (`Overlap`, `Step.inplace`, `Step.overlaps`) says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from graphc.records import dataclass

DEFAULT_POOL = "arena"


class ProblemError(ValueError):
    """The question itself is malformed (unknown names, negative sizes, reads before writes...)."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes, live during steps `first..last`, at an offset that is a multiple of `align`."""

    name: str
    size: int
    first: int
    last: int
    align: int = 64
    pool: str = DEFAULT_POOL


@dataclass(frozen=True, slots=True)
class Overlap:
    """`a` and `b` may share bytes while `low <= offset[b] - offset[a] <= high` (bytes).

    The caller vouches for it whatever the lifetimes.  `low == high == 0` is "same place"; a range
    expresses, say, a row-by-row kernel whose output may trail its input by at least k bytes.
    """

    a: str
    b: str
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Problem:
    """Buffers to place, and the pairs that may overlap although both are live."""

    buffers: tuple[Buffer, ...]
    overlaps: tuple[Overlap, ...] = ()

    def __post_init__(self) -> None:
        names: dict[str, Buffer] = {}
        for buffer in self.buffers:
            _check_buffer(buffer)
            if buffer.name in names:
                raise ProblemError(f'buffer "{buffer.name}" is declared twice')
            names[buffer.name] = buffer
        for overlap in self.overlaps:
            _check_pair(names, overlap.a, overlap.b)
            if overlap.low > overlap.high:
                raise ProblemError(f"{overlap}: low is above high")

    def pools(self) -> tuple[str, ...]:
        """Pool names in order of first appearance."""
        return tuple(dict.fromkeys(buffer.pool for buffer in self.buffers))


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of execution.

    `inplace`: (output, input) pairs it can compute in place.  `overlaps`: (output, input, most):
    the output may start `most` bytes after the input does (before, if negative) or lower, since it
    then overwrites only what is not read any more.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    inplace: tuple[tuple[str, str], ...] = ()
    overlaps: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """Storage a schedule needs under `name`.

    * `live_in`: holds data before the first step; `live_out`: is read after the last one.
    * `persistent`: both, and never given up in between (weights, state).
    * `alias_of=(root, byte_offset)`: a view, the bytes of `root` from `byte_offset` on.  Its
      lifetime and flags count for the root; its own `align` and `pool` are ignored.
    """

    name: str
    size: int
    align: int = 64
    pool: str = DEFAULT_POOL
    persistent: bool = False
    live_in: bool = False
    live_out: bool = False
    alias_of: tuple[str, int] | None = None


@dataclass(frozen=True)
class Plan:
    """Where everything goes.

    * `offsets`: bytes from the start of the pool, for every buffer (or every request, views too);
    * `peaks`: bytes each pool needs; `lower_bounds`: bytes no plan for the same problem can go
      below;
    * `order`: for schedules, the indices of the given steps in execution order;
    * `notes`: how each pool was solved and why the search stopped.

    Both peak and bound count each size rounded up to the least alignment in the pool.
    """

    offsets: Mapping[str, int]
    peaks: Mapping[str, int]
    lower_bounds: Mapping[str, int]
    order: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def peak(self) -> int:
        """Bytes over all pools."""
        return sum(self.peaks.values())

    @property
    def lower_bound(self) -> int:
        """Proven lower bound in bytes over all pools."""
        return sum(self.lower_bounds.values())

    @property
    def optimal(self) -> bool:
        """True where every pool meets its proven bound."""
        return self.peak == self.lower_bound


def check_size(name: str, size: int, align: int) -> None:
    """Raise `ProblemError` unless size >= 0 and align is a power of two."""
    if size < 0:
        raise ProblemError(f'"{name}": size {size} is negative')
    if align < 1 or align & (align - 1):
        raise ProblemError(f'"{name}": alignment {align} is not a power of two')


def _check_buffer(buffer: Buffer) -> None:
    check_size(buffer.name, buffer.size, buffer.align)
    if buffer.first > buffer.last:
        raise ProblemError(
            f'buffer "{buffer.name}": lifetime [{buffer.first}, {buffer.last}] is empty'
        )


def _check_pair(names: Mapping[str, Buffer], a: str, b: str) -> None:
    for name in (a, b):
        if name not in names:
            raise ProblemError(f'overlap of "{a}" and "{b}": no buffer is called "{name}"')
    if a == b:
        raise ProblemError(f'buffer "{a}" cannot overlap itself')
    if names[a].pool != names[b].pool:
        raise ProblemError(
            f'overlap of "{a}" and "{b}": pools "{names[a].pool}" and "{names[b].pool}" differ'
        )
