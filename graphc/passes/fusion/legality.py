"""Which ops may share a kernel: predicates that return None for yes, or the reason why not.

Legality is about dependences (a group must not depend on itself through an outside op) and about
spaces (values that leave a group must share one shape, or the kernel would be computed twice).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphc.ir.expr import cost, loads
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.machine import Machine
from graphc.passes.analysis import structure
from graphc.passes.fusion.merge import results_of
from graphc.passes.fusion.movements import (
    is_converted_by_readers,
    is_for_readers,
    is_only_read_by,
    is_scalar,
)
from graphc.passes.reasons import Reason
from graphc.records import dataclass

LONGEST = 64  # ops in a row in one group: their bodies become one expression, that deep
LARGEST = 256  # ops in one group
FEW = 16  # ops of a group of which any number may be stored
WINDED = 4  # times that an op of a larger group is computed on average
REPEATS = 2  # doublings of work in one group
FARTHEST = 4096  # ops looked at to tell whether a group depends on another; beyond, it may

ANCHORS = {
    "map": "elementwise", "row": "a reduction over rows", "window": "a reduction over windows",
    "contraction": "a sum of products", "opaque": "not given by an expression per element",
}  # fmt: skip
TOO_MANY = Reason(f"the kernel would hold more than {LARGEST} operators")
TOO_DEEP = Reason(f"more than {LONGEST} operators in a row would become one expression")
WAITS = Reason("each would wait for the other")
WORDY = Reason("so many of the group's values are stored that each would be computed several times")


@dataclass(eq=False)
class Group:
    """Ops to be fused. `space` is the shape (and layout) of what it computes per element."""

    ops: list[Op]
    anchor: str  # map, row, window, contraction
    space: tuple
    number: int  # of its first op, in the order in which they are placed
    rows: frozenset[int] = frozenset()  # physical dims reduced, in a row group
    repeats: int = 0  # how often in a row what was absorbed is computed at several indices


def space_of(value: Value) -> tuple:
    """The shape and layout of what is computed per element."""
    return (value.tensor.dims, value.tensor.layout)


class Legality:
    """Judges groups of one region, for a machine. `widening`: its loads convert for nothing, so
    conversions to wider floats are for readers. `columns`: its threads go together, so rows need
    not be contiguous. Reasons tell all that they can if they are `asked` for."""

    asked = False

    def __init__(self, region: Region, machine: Machine):
        self.region, self.machine = region, machine
        self.widening, self.columns = machine.has("widening_loads"), machine.warp > 1
        self.results = set(region.results)
        self.again: set[Op] = set()  # what each reader computes, to keep less in memory
        self.group: dict[Op, Group] = {}
        self.depth: dict[Op, int] = {}  # ops of the group on the longest way to an op, and itself

    def is_for_readers(self, op: Op) -> bool:
        """Whether who reads what an op makes best computes it."""
        return op in self.again or is_for_readers(op, self.widening)

    def is_computed_by_readers(self, op: Op) -> bool:
        """Whether an op computes something, which its readers do: it joins no group before."""
        return op in self.again or is_converted_by_readers(op, self.widening)

    def depth_in(self, group: Group, op: Op) -> int:
        """The depth of an op as a member of a group."""
        members = [op.inputs[n].producer for n in self.read_operands(op, group)]  # type: ignore[union-attr]
        return 1 + max((self.depth[member] for member in members if member), default=0)

    def producers(self, op: Op) -> list[Group]:
        """The groups that make operands of an op."""
        made = (v.producer for v in op.inputs if v is not None)
        return list(dict.fromkeys(self.group[p] for p in made if p in self.group))

    def read_operands(self, op: Op, group: Group) -> list[int]:
        """The positions of the operands that a group makes."""
        return [
            n for n, v in enumerate(op.inputs)
            if v is not None and v.producer in self.group and self.group[v.producer] is group
        ]  # fmt: skip

    def work(self, group: Group) -> int:
        """What the bodies of a group cost, for one element of each."""
        return sum(cost(op_body(op, n)) for op in group.ops for n in range(len(op.outputs)))

    def stays(self, value: Value, *groups: Group, reader: Op | None = None) -> bool:
        """Whether nobody reads a value but the ops of some groups, and one op besides."""
        return value not in self.results and all(
            user is reader or self.group.get(user) in groups for user, _ in value.uses
        )

    def leaving(self, group: Group, *others: Group, reader: Op | None = None) -> Value | None:
        """A value of a group that is read outside of it and of some others; None if none is."""
        values = (v for member in group.ops for v in member.outputs)
        return next((v for v in values if not self.stays(v, group, *others, reader=reader)), None)

    # ---------------------------------------------------------------- dependences

    def depends(self, others: Iterable[Group], group: Group) -> bool:
        """Whether one of some groups depends on `group`.

        Searched for from both ends in turn, as one of them mostly ends soon: the operands of an op
        are new, or few ops read them yet. True too if it takes too long.
        """
        ends = (dict.fromkeys(others), {group: None})
        seen = tuple(map(set, ends))
        steps = (self.read_groups, self.reader_groups)
        budget = FARTHEST
        while ends[0] and ends[1]:
            for mine, met, theirs, step in zip(ends, seen, reversed(seen), steps):
                nearest, _ = mine.popitem()
                new = [other for other in step(nearest) if other not in met]
                if not theirs.isdisjoint(new):
                    return True
                met.update(new)
                mine.update(dict.fromkeys(new))
                budget -= len(nearest.ops) + len(new)
                if budget < 0:
                    return True
                if not mine:
                    break
        return False

    def read_groups(self, group: Group) -> Iterable[Group]:
        """The groups whose values the ops of a group read, itself perhaps too."""
        known = self.group
        read: dict[Group, None] = {}
        for op in group.ops:
            for value in op.inputs:
                if value is not None and value.producer in known:
                    read[known[value.producer]] = None
        return read

    def reader_groups(self, group: Group) -> Iterable[Group]:
        """The groups that read the values of a group, itself perhaps too."""
        known = self.group
        readers: dict[Group, None] = {}
        for op in group.ops:
            for value in op.outputs:
                for user, _ in value.uses:
                    if user in known:
                        readers[known[user]] = None
        return readers

    # ---------------------------------------------------------------- joining a group

    def why_not_join(self, op: Op, group: Group) -> Reason | None:
        """Why `op` cannot become part of `group`, which otherwise is made ready for it: a map group
        becomes a row group, one of rows goes on with their results."""
        reason = self.why_too_large([*group.ops, op])
        if reason or self.depth_in(group, op) > LONGEST:
            return reason or TOO_DEEP
        outside = self.why_other_space(op, group)
        ends_rows = self.ends_rows(op, group)
        if outside and not ends_rows:
            return outside
        if self.is_long_winded(op, group):
            return WORDY
        others = [other for other in self.producers(op) if other is not group]
        if self.depends(others, group):
            if not self.asked:
                return WAITS
            waiting = next((x for x in others[:FEW] if self.depends([x], group)), others[0])
            text = "{} also reads what {} gives, which waits for {}: each would wait for the other"
            return Reason(text, op, waiting.ops[-1], group.ops[-1])
        if structure.reductions(op):
            return outside or self.why_no_reduction(op, group)
        reason = outside or self.why_no_map(op, group)
        if reason and ends_rows:
            group.anchor, group.space = "window", space_of(op.outputs[0])
            return None
        return reason

    def why_too_large(self, ops: list[Op]) -> Reason | None:
        """Why a kernel may not have so many ops and operands."""
        if len(ops) > LARGEST:
            return TOO_MANY
        most = self.machine.operands
        if sum(len(op.inputs) + len(op.outputs) for op in ops) <= most:
            return None
        inside = set(ops)
        read = {
            v for op in ops for v in op.inputs
            if v is not None and v.producer not in inside and not is_scalar(v)
        }  # fmt: skip
        count = len(read) + len(results_of(ops, self.results))
        text = "the kernel would read and write {} tensors, more than the {} that one can take"
        return Reason(text, count, most) if count > most else None

    def is_long_winded(self, op: Op, group: Group) -> bool:
        """Whether so many values of the group are stored that computing each one from the start,
        as kernels do, takes several times the work of the group."""
        if len(group.ops) < FEW:
            return False
        depths = (
            self.depth[m] for m in group.ops
            if not all(self.stays(v, group, reader=op) for v in m.outputs)
        )  # fmt: skip
        return sum(depths) > WINDED * len(group.ops)

    def why_other_space(self, op: Op, group: Group) -> Reason | None:
        """A value of the group that `op` reads, others read too, and that is not of its space."""
        for n in self.read_operands(op, group):
            value = op.inputs[n]
            assert value is not None
            if space_of(value) != group.space and not self.stays(value, group, reader=op):
                return Reason(
                    "{} has to be stored, as others read it too, and the kernel's loops go over {}",
                    value, group.space[0],
                )  # fmt: skip
        return None

    def why_no_reduction(self, op: Op, group: Group) -> Reason | None:
        """Why an op cannot reduce rows of a group, whose loops are over these rows otherwise."""
        if group.anchor not in ("map", "row"):
            text = (
                "{} reduces the result of the kernel of {}; that kernel is {}, whose results are "
                "complete only when its loops end"
            )
            return Reason(text, op, group.ops[-1], ANCHORS[group.anchor])
        row = structure.row_operand(op, self.columns)
        if row is None:
            kind = "contraction" if structure.is_contraction(op) else "window"
            text = "{} is {}, whose kernel reads its operands from memory, many times each"
            return Reason(text, op, ANCHORS[kind])
        value = op.inputs[row[0]]
        assert value is not None
        if self.read_operands(op, group) != [row[0]]:
            return Reason("{} reads other values of the group than the rows it reduces", op)
        if group.rows not in (frozenset(), row[1]):
            return Reason("{} reduces other dims than the rest of the group", op)
        if space_of(value) != group.space:
            return Reason("{} reduces {}, the kernel's loops go over {}", op, value, group.space[0])
        if group.anchor == "map" and self.work(group) > self.machine.recomputed_in_rows:
            text = "an element of {} costs {} operations, and {} would compute it in each pass"
            return Reason(text, value, self.work(group), op)
        group.anchor, group.rows = "row", row[1]
        return None

    def why_no_map(self, op: Op, group: Group) -> Reason | None:
        """Why an op cannot compute each element where the group's loops are."""
        operands = self.read_operands(op, group)
        at_own_index = all(structure.pointwise(op, n) for n in operands)
        spaces = {space_of(v) for v in op.outputs}
        if at_own_index and spaces == {group.space}:
            return None
        if group.anchor == "row" and at_own_index:
            if all(self.is_row_shape(v, group) for v in op.outputs):
                return None
            text = "{} gives {}, neither an element nor a row of the kernel's loops over {}"
            return Reason(text, op, op.outputs[0], group.space[0])
        if self.views(op, group):
            return None
        return self.why_no_map_of_maps(op, group, operands)

    def views(self, op: Op, group: Group) -> bool:
        """A view of what the group computes, read by nobody else: the same memory, whose elements
        from now on go by other indices."""
        rows = self.viewed_rows(op, group)
        if rows is None:
            return False
        group.space, group.rows = space_of(op.output), rows
        return True

    def viewed_rows(self, op: Op, group: Group) -> frozenset[int] | None:
        """The rows of a group in a view of it; None if `op` is none that may join."""
        is_view = structure.is_view(op)
        if not is_view and not (self.columns and group.rows and structure.keeps_order(op)):
            return None
        _, value = structure.moved(op)
        if not is_only_read_by(op, value, self.region) or space_of(value) != group.space:
            return None
        before, after = value.tensor.dims, op.output.tensor.dims
        if (len(before) != len(after) or not is_view) and self.leaves(group, value):
            return None
        if is_view:
            return _viewed_rows(group.rows, len(before), len(after))
        return _rows_of_dims(group.rows, value.tensor.static_shape, op.output.tensor.static_shape)

    def leaves(self, group: Group, besides: Value) -> bool:
        """Whether another value of the group is read outside of it."""
        values = [v for member in group.ops for v in member.outputs if v is not besides]
        return any(not self.stays(v, group) for v in values)

    def is_row_shape(self, value: Value, group: Group) -> bool:
        """One element per row: the reduced dims are 1."""
        shape, layout = group.space
        order = layout.order if layout else tuple(range(len(shape)))
        reduced = {order[d] for d in group.rows if d < len(order)}
        wanted = tuple(1 if d in reduced else extent for d, extent in enumerate(shape))
        return value.tensor.dims == wanted and value not in self.results

    def ends_rows(self, op: Op, group: Group) -> bool:
        """Whether `op` computes something of nothing but the result of a row group, all the rest of
        which stays inside; for targets with columns."""
        operands = self.read_operands(op, group)
        values = {op.inputs[n] for n in operands}
        if not self.columns or group.anchor != "row" or len(values) != 1:
            return False
        spaces = {space_of(v) for v in (*values, *op.outputs) if v is not None}
        inside = (v for member in group.ops for v in member.outputs if v not in values)
        return (
            len(spaces) == 1
            and all(structure.pointwise(op, n) for n in operands)
            and all(self.stays(v, group) for v in inside)
        )

    def why_no_map_of_maps(self, op: Op, group: Group, operands: list[int]) -> Reason | None:
        """Why an op cannot be a map of maps at other indices: something leaves, or much would be
        recomputed."""
        read = [v for n in operands if (v := op.inputs[n]) is not None]
        if group.anchor != "map" or len(op.outputs) != 1 or op.output.type is None:
            text = "{} reads {} in another shape or order than its kernel computes, which is {}"
            return Reason(text, op, read, ANCHORS[group.anchor])
        outside = self.leaving(group, reader=op)
        if outside is not None:
            text = "{} reads {} in another shape or order than it is computed; others read {} too"
            return Reason(text, op, read, outside)
        grows = op.output.tensor.most > group.ops[-1].outputs[0].tensor.most
        places = [x for x in loads(op_body(op)) if int(x.source) in operands]
        if (grows or len(places) > 1) and self.work(group) > self.machine.recomputed:
            text = (
                "{} reads elements of {} several times; each costs {} operations, so it is stored"
            )
            return Reason(text, op, read, self.work(group))
        group.space = space_of(op.output)
        return None

    # ---------------------------------------------------------------- absorbing a group

    def is_read_elsewhere(self, op: Op, group: Group, other: Group) -> bool:
        """Whether `op` and another op of its group read a group, and some ops of the group read
        others not at their own index: then it is computed at more than one index."""
        readers = {
            user for m in other.ops for v in m.outputs for user, _ in v.uses
            if user is not op and self.group.get(user) is group
        }  # fmt: skip
        return bool(readers) and not all(
            structure.pointwise(m, n)
            for m in group.ops
            for n in (*self.read_operands(m, group), *self.read_operands(m, other))
        )

    def why_not_absorb(self, op: Op, group: Group, other: Group) -> Reason | None:
        """Why a group may not take in another that makes operands of its op."""
        if other.anchor != "map":
            text = "the kernel of {} is {}: its result is stored before others read it"
            return Reason(text, other.ops[-1], ANCHORS[other.anchor])
        reason = self.why_too_large([*other.ops, *group.ops])
        if reason or self.depth_in(other, op) > LONGEST:
            return reason or TOO_DEEP
        outside = self.leaving(other, group)
        if outside is not None and not self.is_alongside(group, other):
            readers = [r for r in outside.users if self.group.get(r) not in (group, other)]
            if not readers:
                return Reason("{} is an output of the model or read later: it is stored", outside)
            return Reason("{} is stored, as {} reads it too", outside, readers)
        if other.repeats >= REPEATS and self.is_read_elsewhere(op, group, other):
            return Reason("{} would be computed at several positions again", other.ops[-1])
        return self.why_repeated(op, group, other)

    def is_alongside(self, group: Group, other: Group) -> bool:
        """Whether two maps of one space may be one kernel whatever of them is stored: one reads the
        other at its own index alone, and nothing between them waits for either."""
        if group.anchor != "map" or group.space != other.space:
            return False
        members = [*other.ops, *group.ops]
        values = (v for m in members for v in m.outputs if not self.stays(v, group, other))
        if any(space_of(v) != group.space for v in values):
            return False
        reads = ((m, n) for m in group.ops for n in self.read_operands(m, other))
        if not all(structure.pointwise(m, n) for m, n in reads):
            return False
        for mine, its in ((group, other), (other, group)):
            made = (g for m in mine.ops for g in self.producers(m))
            if self.depends([g for g in made if g not in (group, other)], its):
                return False
        stored = [m for m in members if not all(self.stays(v, group, other) for v in m.outputs)]
        return sum(self.depth[m] for m in stored) <= WINDED * len(members)

    def reads_again(self, op: Op, other: Group) -> bool:
        """Whether an op reads an element of a group for more than one of its own."""
        read = self.read_operands(op, other)
        is_sum = bool(read and structure.reductions(op))
        return is_sum or not all(structure.pointwise(op, n) for n in read)

    def why_repeated(self, op: Op, group: Group, other: Group) -> Reason | None:
        """Why computing another group's values where they are read repeats too much work."""
        last = other.ops[-1]
        pure = all(map(self.is_for_readers, other.ops))
        if self.is_computed_by_readers(op):
            text = "{} is a conversion, which its readers do; {} is not, and is stored"
            return None if pure else Reason(text, op, last)
        at_own_index = all(structure.pointwise(op, n) for n in self.read_operands(op, other))
        if group.anchor in ("contraction", "window"):
            again = [m for m in dict.fromkeys((op, *group.ops)) if self.reads_again(m, other)]
            if pure or not again:
                return None
            text = "the kernel of {} is {}, which reads {} many times: it is computed once before"
            return Reason(text, again[0], ANCHORS[group.anchor], last.outputs)
        if group.anchor == "row" and structure.reductions(op):
            text = "an element of {} costs {} operations, more than passes over rows compute again"
            work, most = self.work(other), self.machine.recomputed_in_rows
            return None if work <= most else Reason(text, last, work)
        if pure or at_own_index or self.work(other) <= self.machine.recomputed:
            return None
        text = "{} reads {} in another order than its own; each costs {} operations: it is stored"
        return Reason(text, op, last, self.work(other))


def _viewed_rows(rows: frozenset[int], rank: int, new: int) -> frozenset[int]:
    """The dims of rows in a view of another rank: trailing ones stay so; others are none there."""
    trailing = rows == frozenset(range(rank - len(rows), rank))
    return frozenset(d + new - rank if trailing else new for d in rows)


def _rows_of_dims(
    rows: frozenset[int], before: tuple[int, ...], after: tuple[int, ...]
) -> frozenset[int] | None:
    """Rows in a view of other extents: trailing dims, or none if a dim is parts of several rows
    (channels of groups); None if rows are not contiguous, or not whole parts of a dim."""
    if rows != frozenset(range(len(before) - len(rows), len(before))):
        return None
    length, first = math.prod(before[d] for d in rows), len(after)
    while first and math.prod(after[first:]) < length:
        first -= 1
    inside = math.prod(after[first:])
    if inside == length:
        return frozenset(range(first, len(after)))
    part = math.prod(after[first + 1 :])
    return frozenset({len(after)}) if inside % length == length % part == 0 else None
