"""Sweeps: how threads go over the elements of a row, and which of them stay in registers.

    element of step s, lane l, neighbour n = (s * threads + l) * vector + n

A thread reads and writes `vector` neighbours at once, and neighbouring threads neighbouring
vectors, so accesses are coalesced. Where a thread has few elements, all steps are unrolled.
Whatever they read, or compute at a cost, stays in registers for later passes over the row, so
memory is read once. Longer rows take a few steps at a time. Either way all loads of such steps are
issued before the first value is used (prefetch), which keeps memory busy. Long rows that do not
start at a multiple of 16 bytes are swept by the 16-byte words inside them, then element by element
at their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from graphc.backends.cuda.strategies.vectors import are_neighbours, each_neighbour, unconditional
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    free_indices,
    select,
    substitute,
    walk,
)
from graphc.ir.extents import ceil_divided, most
from graphc.ir.kernel import Buffer, For, Intrin, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.passes.lower.strategies.nest import RECOMPUTE_COST

HELD = 32  # elements of a row that a thread keeps
AHEAD = 4  # steps whose elements are read before the first is used, where a row is longer
LEAST_AHEAD = 16  # elements of these steps
ZERO = Const(0, i64)

Make = Callable[[Expr], list[Expr]]
Elements = Callable[[], AbstractContextManager[list[Expr]]]


@dataclass(frozen=True)
class Sweep:
    """How `threads` go over the elements from `start` on, `vector` neighbours at a time, in so many
    `steps`; `lane` is the thread. There are `extent` elements; if they are no multiple of the
    neighbours, those that are left are not swept. An extent may be known at run time; if a thread
    can keep the most that there are, `steps` are those of the largest extent."""

    extent: Dim
    threads: int
    vector: int
    lane: Expr
    steps: Dim
    start: Expr = ZERO

    @property
    def is_held(self) -> bool:
        """Whether a thread has few enough elements to keep them."""
        return isinstance(self.steps, int) and self.steps * self.vector <= HELD

    @property
    def unrolled(self) -> int:
        """Steps that are unrolled."""
        if isinstance(self.steps, int) and self.is_held:
            return self.steps
        return max(AHEAD, LEAST_AHEAD // self.vector)

    @property
    def step(self) -> Expr:
        return Index(f"step{self.unrolled}", self.unrolled) if self.unrolled > 1 else ZERO

    @property
    def neighbour(self) -> Expr:
        return Index(f"next{self.vector}", self.vector) if self.vector > 1 else ZERO

    @property
    def loops(self) -> frozenset[Index]:
        """The loops over what is unrolled."""
        return frozenset(x for x in (self.step, self.neighbour) if isinstance(x, Index))

    def first(self, chunk: Expr) -> Expr:
        """The first neighbour of a step."""
        step = chunk * self.unrolled + self.step
        return simplify(self.start + (step * self.threads + self.lane) * self.vector)

    def at(self, chunk: Expr) -> Expr:
        """The element."""
        return simplify(self.first(chunk) + self.neighbour)

    @property
    def per_step(self) -> int:
        """Elements of a row that a thread takes in a step."""
        return self.vector

    @property
    def steps_of_lane(self) -> Expr:
        """The steps in which a thread has elements, from the first on."""
        per_round = self.threads * self.per_step
        if self.start is ZERO and isinstance(self.extent, int) and self.extent % per_round == 0:
            return as_expr(self.steps, i64)
        left = self.extent - self.start - self.lane * self.per_step
        return simplify((left + per_round - 1) // per_round)

    def has(self, chunk: Expr) -> Expr:
        """Whether there are elements in a step."""
        first = self.first(chunk)
        last = first if self.start is ZERO else first + (self.vector - 1)
        return simplify(last < self.extent)

    def cell(self, neighbour: Expr) -> Expr:
        """Which of a thread's registers has an element."""
        return simplify(self.step * self.vector + neighbour)


class Columns(Sweep):
    """How threads go over the elements of `vector` rows next to one another, one step to a row."""

    def first(self, chunk: Expr) -> Expr:
        """The element, which is that of the same step of all rows."""
        step = chunk * self.unrolled + self.step
        return simplify(self.start + step * self.threads + self.lane)

    def at(self, chunk: Expr) -> Expr:
        """The element."""
        return self.first(chunk)

    @property
    def per_step(self) -> int:
        """Elements of a row that a thread takes in a step."""
        return 1


@dataclass(frozen=True)
class Ends(Sweep):
    """The elements before `start` and those after the last word, one for each of the first threads;
    they are fewer than those of two words."""

    word: int = 1

    def first(self, chunk: Expr) -> Expr:
        """The element."""
        words = (self.extent - self.start) // self.word * self.word
        return self.lane + select(self.lane < self.start, 0, simplify(words))


def over(extent: Dim, threads: int, vector: int, lane: Expr) -> Sweep:
    """How the threads of a row go over all of it."""
    return Sweep(extent, threads, vector, lane, steps_over(extent, threads * vector, vector))


def steps_over(extent: Dim, at_once: int, vector: int) -> Dim:
    """The steps in which threads go over so many elements; the most, if these can be kept."""
    steps = ceil_divided(most(extent), at_once)
    return steps if steps * vector <= HELD else ceil_divided(extent, at_once)


@dataclass
class Sweeper:
    """Emits passes over the elements of rows, which read `inputs`. Registers have the values at an
    element that are `held`, for each sweep over `rows`, and what is `constant` for all elements."""

    k: KernelBuilder
    inputs: frozenset[str]
    rows: dict[Sweep, dict[Expr, Buffer]] = field(default_factory=dict)
    constant: dict[Expr, Expr] = field(default_factory=dict)
    held: dict[Expr, Buffer] = field(default_factory=dict)

    @contextmanager
    def elements(
        self, sweep: Sweep, make: Make, later: Make
    ) -> Iterator[tuple[Expr, list[Expr], frozenset[Index]]]:
        """Loops over all steps of a row: yields the position of an element, what `make` gives for
        it, in terms of registers, and the loops around it. The loop over neighbours is the
        caller's. What `later` gives for the element is computed in other passes."""
        if sweep.is_held:
            self.held = self.rows.setdefault(sweep, {})
            exprs, others = self._prepared(sweep, ZERO, make), self._prepared(sweep, ZERO, later)
            with self._steps(sweep, ZERO, exprs, self._shared(sweep, exprs, others)) as loaded:
                yield sweep.at(ZERO), loaded, sweep.loops
            return
        with self.chunks(sweep, make) as (chunk, elements), elements() as loaded:
            yield sweep.at(chunk), loaded, sweep.loops | {chunk}

    @contextmanager
    def chunks(self, sweep: Sweep, make: Make) -> Iterator[tuple[Index, Elements]]:
        """A loop over as many steps as are unrolled together: yields it, and what makes loops over
        these steps, which give what `make` gives for an element, in terms of registers."""
        self.held = {}
        chunk = Index(self.k.fresh("chunk"), ceil_divided(sweep.steps, sweep.unrolled))
        exprs = self._prepared(sweep, chunk, make)

        @contextmanager
        def elements() -> Iterator[list[Expr]]:
            with self._unrolled_steps(sweep, chunk):
                yield [substitute(x, self._registers(sweep)) for x in exprs]

        with self.k.block() as body:
            self._read(sweep, chunk, exprs)
            yield chunk, elements
        self.k.emit(For(chunk, tuple(body)))

    def _prepared(self, sweep: Sweep, chunk: Expr, make: Make) -> list[Expr]:
        """Values at an element, less what is the same for all, which is computed first."""
        exprs = make(sweep.at(chunk))
        loops = sweep.loops | free_indices(chunk)
        if isinstance(sweep, Columns):
            loops -= free_indices(sweep.neighbour)
        for value in _largest(exprs, lambda n: self._is_constant(n, loops)):
            if value not in self.constant:
                self.constant[value] = self._computed(value, sweep.neighbour)
        return [substitute(x, self.constant) for x in exprs]

    def _is_constant(self, node: Expr, loops: frozenset) -> bool:
        """Whether a float is computed of what does not change in loops."""
        if not (isinstance(node, Call) and node.dtype.is_float) or free_indices(node) & loops:
            return False
        return not any(
            isinstance(n, Reduce) or isinstance(n, Load) and n.source in self.inputs
            for n in walk(node)
        )

    def _computed(self, value: Expr, n: Expr) -> Expr:
        """A value by a name, or in registers if there is one for each neighbour."""
        if not isinstance(n, Index) or n not in free_indices(value):
            return self.k.let(value)
        cells = self.k.alloc(value.dtype, (n.count,), "reg")
        with each_neighbour(self.k, n):
            self.k.store(cells, n, value)
        return cells[n]

    def _shared(self, sweep: Sweep, exprs: Sequence[Expr], others: Sequence[Expr]) -> list[Expr]:
        """The largest parts of values at an element that others have too, and that are worth a
        register: those that cost something, or take more than one to compute again."""
        nodes = {n for x in others for n in walk(x)}

        def is_kept(node: Expr) -> bool:
            return node in nodes and self._is_worth_keeping(node, sweep.loops)

        return _largest(exprs, is_kept)

    def _is_worth_keeping(self, node: Expr, loops: frozenset) -> bool:
        if not isinstance(node, Call) or not free_indices(node) & loops or node.dtype.bits < 8:
            return False
        varying = [n for n in walk(node) if free_indices(n) & loops]
        read = sum(isinstance(n, Load) and n.source in self.inputs for n in varying)
        spent = sum(n.op.cost for n in varying if isinstance(n, Call) and n.dtype is not i64)
        return read > 1 or spent >= RECOMPUTE_COST

    @contextmanager
    def _steps(
        self, sweep: Sweep, chunk: Expr, exprs: list[Expr], kept: list[Expr]
    ) -> Iterator[list[Expr]]:
        """What is read, then what is kept, then the elements of the steps that are unrolled."""
        self._read(sweep, chunk, exprs)
        for value in kept:
            cells = self.k.alloc(value.dtype, (sweep.unrolled * sweep.vector,), "reg")
            with self._unrolled_steps(sweep, chunk), each_neighbour(self.k, sweep.neighbour):
                place = sweep.cell(sweep.neighbour)
                self.k.store(cells, place, substitute(value, self._registers(sweep)))
            self.held[value] = cells
        with self._unrolled_steps(sweep, chunk):
            yield [substitute(x, self._registers(sweep)) for x in exprs]

    def _registers(self, sweep: Sweep) -> dict[Expr, Expr]:
        place = sweep.cell(sweep.neighbour)
        return {value: cells[place] for value, cells in self.held.items()}

    def _read(self, sweep: Sweep, chunk: Expr, exprs: Sequence[Expr]) -> None:
        """Puts what is read at every element into registers, for all steps at once."""
        known = [substitute(x, self._registers(sweep)) for x in exprs]
        inner = {a for x in known for r in walk(x) if isinstance(r, Reduce) for a in r.axes}
        for load in unconditional(known):
            free = free_indices(load)
            if load.source not in self.inputs or load.dtype.bits < 8 or free & inner:
                continue
            if not load.index or sweep.loops and not free & sweep.loops or _is_indirect(load):
                continue
            cells = self.k.alloc(load.dtype, (sweep.unrolled * sweep.vector,), "reg")
            with self._unrolled_steps(sweep, chunk):
                self._fill(sweep, cells, load)
            self.held[load] = cells

    def _fill(self, sweep: Sweep, cells: Buffer, load: Load) -> None:
        """What is read at all neighbours of a step."""
        numbers = [Const(m, i64) for m in range(sweep.vector)]
        at = [simplify(load.index[0], {sweep.neighbour: m}) for m in numbers]
        if are_neighbours(load.dtype, at):
            first = Load(load.source, (at[0],), load.dtype)
            places = [cells[sweep.cell(m)] for m in numbers]
            self.k.emit(Intrin("load_vector", (first, *places)))
            return
        same = Load(load.source, (at[0],), load.dtype) if len({*at}) == 1 else load
        with each_neighbour(self.k, sweep.neighbour):
            self.k.store(cells, sweep.cell(sweep.neighbour), same)

    @contextmanager
    def _unrolled_steps(self, sweep: Sweep, chunk: Expr) -> Iterator[None]:
        """The steps that are unrolled, as far as there are elements."""
        inside = sweep.has(chunk)
        with each_neighbour(self.k, sweep.step), self.k.where(inside):
            yield


def placed(exprs: Sequence[Expr], indices: Sequence[Index]) -> Callable[[Expr], list[Expr]]:
    """Values as functions of one position in place of several indices."""
    extents = tuple(x.extent for x in indices)

    def at(position: Expr) -> list[Expr]:
        mapping: dict[Expr, Expr] = dict(zip(indices, unflatten_index(position, extents)))
        return [simplify(x, mapping) for x in exprs]

    return at


def _largest(exprs: Sequence[Expr], wanted: Callable[[Expr], bool]) -> list[Expr]:
    """The wanted nodes that are not inside of others, nor of reductions."""
    nodes: dict[Expr, None] = {}
    left, seen = list(reversed(exprs)), set()
    while left:
        node = left.pop()
        if node in seen or isinstance(node, Reduce):
            continue
        seen.add(node)
        if wanted(node):
            nodes[node] = None
        else:
            left += reversed(node.children)
    return list(nodes)


def _is_indirect(load: Load) -> bool:
    """Whether the place depends on what is read elsewhere."""
    return any(isinstance(n, Load) for n in walk(load.index[0]))
