"""Computing values of the forward pass again in the backward pass, instead of keeping them.

What a backward pass reads of the forward pass is kept from then on, unless it is computed again
from other values that are kept: by copies of the ops that made it, which stand before their first
reader (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Pointwise ops are
copied for each reader, as they may be fused with it. Where their operands are smaller than their
result, as the bytes are that are dequantised, these are kept instead; where such operands are
parameters, results are always computed again.

Which values are worth it follows from the operations and bytes of each (selection.py). The memory
itself is that of programs as they are compiled, with fusion and all, and planned: the fewest bytes
are dropped for which that keeps to a limit, as far as a few programs show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Value, clone_graph, copy_op
from graphc.ir.infer import op_body
from graphc.ir.opdef import lookup
from graphc.ir.operations import operations
from graphc.ir.types import TensorType
from graphc.passes.analysis.structure import has_body, is_view, reductions
from graphc.passes.dce import remove_dead
from graphc.train.selection import Candidate, Selection, cost, selected

GUESSES = 3  # of how many bytes to drop, a program each
MOST_FACTOR = 4.0  # by which a guess is more than the one before
PARTS = 8  # of the bytes that are kept: so many are dropped, one after the other, if guesses fail
SMALLEST = 8  # of the bytes that are too many, the part that is worth dropping by itself
MOST_PROGRAMS = 64  # that are made to choose values one by one
UNKNOWN = 16  # operations for each element of an op without a body

Measure = Callable[[Graph], int]
"""The bytes that the program of a graph takes; it may change the graph."""


@dataclass(frozen=True)
class Recomputed:
    """A graph in which some values are computed again: which, the operations that this takes, those
    that any values of as many bytes take at least, and the operations of the forward pass."""

    graph: Graph
    values: tuple[Value, ...] = ()
    operations: int = 0
    bound: int = 0
    forward: int = 0


def fitted(graph: Graph, loss: Value, limit: int, measure: Measure) -> Recomputed:
    """A typed graph of a training step that takes at most `limit` bytes; itself, if it does.

    `loss` is the last value of the forward pass. ModelError says how much is needed at least.
    """
    plan = _Plan(graph, loss)
    before = measure(clone_graph(graph))
    if before <= limit:
        return Recomputed(graph)
    best = _Search(plan, limit, before, measure).run()
    values = tuple(plan.values[n] for n in best.chosen)
    done = plan.applied(best.chosen)
    return Recomputed(done, values, best.cost, best.bound, plan.forward)


class _Search:
    """Looks for a choice that keeps to a limit, by few programs: how much smaller one gets for so
    many bytes that are dropped says how many to drop next. More is not always less, as what is
    computed again is long kept: where guesses fail, parts of all bytes are tried."""

    def __init__(self, plan: _Plan, limit: int, before: int, measure: Measure):
        self.plan, self.limit, self.before, self.measure = plan, limit, before, measure
        self.total = sum(value.tensor.most_bytes for value in plan.values)
        self.sizes: dict[tuple[int, ...], int] = {(): before}

    def run(self) -> Selection:
        """The choice; ModelError says how much is needed at least."""
        excess = self.before - self.limit
        low, wanted = 0, min(excess, self.total)
        for number in range(1, GUESSES + 1):
            made = self.tried(wanted)
            if self.fits(made):
                return self.finer(low, wanted, made) if number < GUESSES else made
            freed = self.before - self.sizes[made.chosen]
            factor = excess / freed if freed > 0 else MOST_FACTOR
            low, wanted = wanted, min(int(wanted * min(factor, MOST_FACTOR) * 1.05), self.total)
        for part in range(1, PARTS + 1):
            made = self.tried(self.total * part // PARTS)
            if self.fits(made):
                return made
        best = self.descent()
        if best is not None:
            return best
        raise ModelError(
            f"the temporaries of a training step take {self.before:,} bytes, and "
            f"{min(self.sizes.values()):,} if more is computed again; the limit leaves "
            f"{self.limit:,}"
        )

    def descent(self) -> Selection | None:
        """A choice made of values one by one, each the one with which the program gets smallest,
        and of equals the cheapest: bytes that are free elsewhere do not help where most are live.
        For small graphs alone, as it takes many programs; None if it finds none."""
        candidates = self.plan.candidates
        least = (self.before - self.limit) // SMALLEST
        known = [n for n, c in enumerate(candidates) if c.nbytes >= least]
        chosen: tuple[int, ...] = ()
        while self.sizes[chosen] > self.limit:
            left = [n for n in known if n not in chosen]
            if not left or len(self.sizes) + len(left) > MOST_PROGRAMS:
                return None
            _, _, best = min(self._judged(tuple(sorted((*chosen, n)))) for n in left)
            if self.sizes[best] >= self.sizes[chosen]:
                return None
            chosen = best
        price = cost(candidates, sum(1 << n for n in chosen))
        freed = sum(candidates[n].nbytes for n in chosen)
        return Selection(chosen, price, selected(candidates, freed).bound)

    def _judged(self, chosen: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """The bytes of the program of a choice, and its cost."""
        size = self.measured(chosen)
        return size, cost(self.plan.candidates, sum(1 << n for n in chosen)), chosen

    def tried(self, wanted: int) -> Selection:
        """The choice that frees so many bytes, whose program is measured."""
        made = selected(self.plan.candidates, wanted)
        self.measured(made.chosen)
        return made

    def measured(self, chosen: tuple[int, ...]) -> int:
        """The bytes of the program of a choice."""
        if chosen not in self.sizes:
            self.sizes[chosen] = self.measure(self.plan.applied(chosen))
        return self.sizes[chosen]

    def fits(self, made: Selection) -> bool:
        """Whether the program of a choice keeps to the limit."""
        return self.sizes[made.chosen] <= self.limit

    def finer(self, low: int, high: int, made: Selection) -> Selection:
        """A choice of fewer bytes, if that keeps to the limit too: the one where a line between the
        last that did not (`low` bytes) and this one (`high`) does, and a little more."""
        above = self.sizes[self.tried(low).chosen] if low else self.before
        share = (above - self.limit) / max(above - self.sizes[made.chosen], 1) + 0.15
        if share >= 0.9:
            return made
        other = self.tried(low + int((high - low) * share))
        return other if self.fits(other) else made


def kept(graph: Graph, loss: Value) -> list[Value]:
    """What the forward pass, whose last value is the loss, keeps for the backward pass."""
    return _Plan(graph, loss).values


class _Plan:
    """The values of a graph that may be computed again, by number."""

    def __init__(self, graph: Graph, loss: Value):
        self.graph = graph
        self.prices: dict[Op, int] = {}
        self.free: dict[Op, bool] = {}
        self.late: dict[Value, bool] = {}
        self.places = {op: n for n, op in enumerate(graph.ops)}
        assert loss.producer is not None
        self.boundary = self.places[loss.producer]
        values = [v for op in graph.ops for v in op.outputs if self._may(v)]
        self.of_given = {v for v in values if _is_of_given(v)}
        self.values = [v for v in values if v not in self.of_given]
        self.small = {v for value in self.values for v in _smaller_operands(value)}

    def _may(self, value: Value) -> bool:
        """Whether a value is kept for the backward pass, and could be computed there."""
        op = value.producer
        assert op is not None
        if op.name == "Constant" or not isinstance(value.type, TensorType) or self.is_free(op):
            return False
        if op.regions or value in self.graph.results:
            return False
        return self.places[op] < self.boundary and self._is_read_late(value)

    def is_free(self, op: Op) -> bool:
        """Whether a result is the memory of an operand."""
        if op not in self.free:
            self.free[op] = has_body(op) and len(op.outputs) == 1 and is_view(op)
        return self.free[op]

    def _is_read_late(self, value: Value) -> bool:
        """Whether the backward pass reads a value, or a view of it."""
        if value not in self.late:
            self.late[value] = any(
                self.places.get(user, -1) > self.boundary
                or self.is_free(user)
                and any(map(self._is_read_late, user.outputs))
                for user in value.users
            )
        return self.late[value]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The values, with what it takes to compute each."""
        numbers = {value: n for n, value in enumerate(self.values)}
        return [self._candidate(value, numbers) for value in self.values]

    def _candidate(self, value: Value, numbers: dict[Value, int]) -> Candidate:
        ops = self._chain(value, {value})
        read = {v for op in ops for v in op.inputs if v is not None}
        sources = {numbers[v] for v in self._behind_views(read) if v in numbers and v is not value}
        work = sum(map(self._price, ops))
        return Candidate(value.tensor.most_bytes, work, tuple(sorted(sources)))

    def _behind_views(self, values: set[Value]) -> set[Value]:
        """Values, and those that they are views of."""
        reached, pending = set(values), list(values)
        while pending:
            op = pending.pop().producer
            if op is not None and self.is_free(op):
                more = {v for v in op.inputs if v is not None} - reached
                reached |= more
                pending += more
        return reached

    @property
    def forward(self) -> int:
        """The operations of the forward pass."""
        return sum(map(self._price, self.graph.ops[: self.boundary + 1]))

    def _price(self, op: Op) -> int:
        """The operations of an op, counted once."""
        if op not in self.prices:
            self.prices[op] = _operations(op)
        return self.prices[op]

    def _chain(self, value: Value, dropped: set[Value]) -> set[Op]:
        """The ops that are copied to compute a value."""
        copied: set[Op] = set()
        pending = [value]
        while pending:
            op = pending.pop().producer
            if op is None or op in copied:
                continue
            copied.add(op)
            pending += [v for v in op.inputs if v is not None and not self._stays(v, dropped)]
        return copied

    def _stays(self, value: Value, dropped: set[Value]) -> bool:
        """Whether a value can be read in the backward pass as it is."""
        op = value.producer
        if op is None or op.name == "Constant":
            return True
        if self.is_free(op):
            return all(v is None or self._stays(v, dropped) for v in op.inputs)
        if value in dropped:
            return False
        late = self.places[op] > self.boundary
        return late or value in self.small or self._is_read_late(value) or bool(op.regions)

    def applied(self, chosen: Sequence[int]) -> Graph:
        """A copy of the graph in which these values are computed again."""
        copy = clone_graph(self.graph)
        assert len(copy.ops) == len(self.graph.ops)
        other = dict(zip(self.graph.values(), copy.values()))
        dropped = {self.values[n] for n in chosen} | self.of_given
        _Copying(self, copy, other, dropped).run()
        remove_dead(copy)
        return copy


class _Copying:
    """Copies the ops of dropped values before those that read them in the backward pass."""

    def __init__(self, plan: _Plan, graph: Graph, other: dict[Value, Value], dropped: set[Value]):
        self.plan, self.graph, self.other, self.dropped = plan, graph, other, dropped
        self.made: dict[Value, Value] = {}
        self.count = 0

    def run(self) -> None:
        """Gives each op of the backward pass its operands."""
        copies = list(self.graph.ops)
        for place, op in enumerate(self.plan.graph.ops):
            if place <= self.plan.boundary:
                continue
            for position, value in enumerate(op.inputs):
                if value is None or self.plan._stays(value, self.dropped):
                    continue
                copies[place].set_input(position, self.again(value, copies[place], {}))

    def again(self, value: Value, before: Op, near: dict[Value, Value]) -> Value:
        """A value computed again, before an op; pointwise ones are copied for that op alone."""
        if self.plan._stays(value, self.dropped):
            return self.behind(value, before)
        op = value.producer
        assert op is not None
        pointwise = _is_pointwise(op) or self.plan.is_free(op)
        known = near if pointwise else self.made
        if value not in known:
            mapping = {v: self.again(v, before, near) for v in op.inputs if v is not None}
            copy_op(op, self.graph, mapping, before)
            known.update((v, mapping[v]) for v in op.outputs)
        return known[value]

    def behind(self, value: Value, before: Op) -> Value:
        """A value that stays, for a copy: behind an op that keeps the copy apart from the original,
        with which it would else be merged again."""
        if value.producer is not None and value.producer.name == "Constant":
            return self.other[value]
        self.count += 1
        reader = {"reader": self.count}
        made = Op(lookup("Again", "graphc"), [self.other[value]], reader, 1, (), before.loc)
        made.output.type = value.type
        self.graph.insert_before(before, made)
        return made.output


def _smaller_operands(value: Value) -> list[Value]:
    """What a pointwise op computes a value from, if that is smaller."""
    op = value.producer
    assert op is not None
    given = [v for v in op.inputs if v is not None and v.constant is None]
    smaller = sum(v.tensor.most_bytes for v in given) < value.tensor.most_bytes
    return given if smaller and _is_pointwise(op) else []


def _is_of_given(value: Value) -> bool:
    """Whether a value is computed from smaller ones that are there anyway, as weights are that are
    kept as bytes: to drop it costs next to nothing, and frees nothing where readers convert."""
    smaller = _smaller_operands(value)
    return bool(smaller) and all(v.producer is None for v in smaller)


def _is_pointwise(op: Op) -> bool:
    """Whether an op can be computed where its result is read, for little."""
    return has_body(op) and len(op.outputs) == 1 and not reductions(op)


def _operations(op: Op) -> int:
    """The operations of an op, at least one for each element."""
    count = sum(v.tensor.most for v in op.outputs)
    if not has_body(op):
        return UNKNOWN * count
    return max(count, operations(op_body(op, n) for n in range(len(op.outputs))))
