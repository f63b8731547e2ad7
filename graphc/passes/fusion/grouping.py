"""Groups of ops that become one kernel, chosen greedily in execution order.

A group grows from an anchor (a contraction, a window, a row reduction) or from a map:

* epilogue: an op that reads the group's values at its own index, over the same space, joins; so
  does a transposition that is a view, after which the space is that of the view, and, after rows,
  if the target asks for it, other dims in the same order;
* row group: a reduction over trailing dims (over any dims, if the target asks for it) joins the map
  it reads, and ops over the rows' values join after it (softmax, layer norm), whether they are per
  element or per row;
* prologue: a map whose values only the op reads joins the op's group where that repeats no work;
  pure data movement is cloned into every reader, even a contraction's, and so are, if the target
  asks for it, conversions of floats to a wider type.

Legality is about dependences (a group must not depend on itself through an outside op) and about
spaces (values that leave a group must share one shape, or the kernel would be computed twice).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from graphc.ir.expr import cost, loads
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.ops.in_range import EFFECT
from graphc.passes.analysis import structure
from graphc.passes.fusion.merge import results_of
from graphc.passes.fusion.movements import is_for_readers, is_only_read_by, is_scalar

CHEAP = 6  # cost per element up to which recomputing beats storing
LONGEST = 64  # ops in a row in one group: their bodies become one expression, that deep
LARGEST = 256  # ops in one group
WIDEST = 256  # values that one group reads or gives to others: parameters of a kernel
FEW = 16  # ops of a group of which any number may be stored
WINDED = 4  # times that an op of a larger group is computed on average
REPEATS = 2  # doublings of work in one group
CHOICES = 64  # groups that an op with many operands may join
FARTHEST = 4096  # ops looked at to tell whether a group depends on another; beyond, it may


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


class Grouping:
    """Builds the groups of one region. `widening`: conversions to wider floats are for readers.
    `columns`: rows need not be contiguous."""

    def __init__(self, region: Region, widening: bool = False, columns: bool = False):
        self.region, self.widening, self.columns = region, widening, columns
        self.results = set(region.results)
        self.group: dict[Op, Group] = {}
        self.depth: dict[Op, int] = {}  # ops of the group on the longest way to an op, and itself

    def run(self) -> list[Group]:
        """The groups of several ops, in the order of their first."""
        for op in self.region.ops:
            if op.name != "Constant":
                self.place(op)
        groups = dict.fromkeys(self.group[op] for op in self.region.ops if op in self.group)
        return [g for g in groups if len(g.ops) > 1]

    # ---------------------------------------------------------------- placing an op

    def place(self, op: Op) -> None:
        """Puts an op into the best group of its producers, or into one of its own."""
        if not structure.has_body(op) or any(0 in v.tensor.dims for v in op.outputs):
            self.open(op, "opaque")
            return
        for group in self.candidates(op) if EFFECT not in op.defn.traits else ():
            if self.widening and structure.is_widening(op):
                break
            if self.joins(op, group):
                self.add(op, group)
                self.absorb_maps(op)
                return
        self.open(op, self.anchor_of(op))
        self.absorb_maps(op)

    def anchor_of(self, op: Op) -> str:
        """What kind of loops an op asks for: map, row, window or contraction."""
        if not structure.reductions(op):
            return "map"
        if structure.is_contraction(op):
            return "contraction"
        return "row" if structure.row_operand(op, self.columns) else "window"

    def open(self, op: Op, anchor: str) -> Group:
        """A new group of one op."""
        space = space_of(op.outputs[0]) if anchor != "opaque" else ()
        group = Group([op], anchor, space, len(self.group))
        row = structure.row_operand(op, self.columns) if anchor == "row" else None
        if row is not None:
            operand, group.rows = row
            group.space = space_of(op.inputs[operand])  # type: ignore[arg-type]
        self.group[op], self.depth[op] = group, 1
        return group

    def add(self, op: Op, group: Group) -> None:
        """Makes an op a member of a group."""
        group.ops.append(op)
        self.depth[op] = self.depth_in(group, op)
        self.group[op] = group

    def depth_in(self, group: Group, op: Op) -> int:
        """The depth of an op as a member of a group."""
        members = [op.inputs[n].producer for n in self.read_operands(op, group)]  # type: ignore[union-attr]
        return 1 + max((self.depth[member] for member in members if member), default=0)

    def producers(self, op: Op) -> list[Group]:
        """The groups that make operands of an op."""
        found = [
            self.group[v.producer] for v in op.inputs if v is not None and v.producer in self.group
        ]
        return list(dict.fromkeys(found))

    def candidates(self, op: Op) -> list[Group]:
        """Groups of the producers; those that save most traffic first, then the latest."""
        rank = {"contraction": 3, "window": 2, "row": 1, "map": 0}
        groups = [g for g in self.producers(op) if g.anchor in rank]
        return sorted(groups, key=lambda g: (-rank[g.anchor], -g.number))[:CHOICES]

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
                each, _ = mine.popitem()
                new = [found for found in step(each) if found not in met]
                if not theirs.isdisjoint(new):
                    return True
                met.update(new)
                mine.update(dict.fromkeys(new))
                budget -= len(each.ops) + len(new)
                if budget < 0:
                    return True
                if not mine:
                    break
        return False

    def read_groups(self, group: Group) -> Iterable[Group]:
        """The groups whose values the ops of a group read, itself perhaps too."""
        read = (v.producer for op in group.ops for v in op.inputs if v is not None)
        return dict.fromkeys(self.group[p] for p in read if p in self.group)

    def reader_groups(self, group: Group) -> Iterable[Group]:
        """The groups that read the values of a group, itself perhaps too."""
        users = (user for op in group.ops for v in op.outputs for user, _ in v.uses)
        return dict.fromkeys(self.group[user] for user in users if user in self.group)

    def stays(self, value: Value, *groups: Group, reader: Op | None = None) -> bool:
        """Whether nobody reads a value but the ops of some groups, and one op besides."""
        return value not in self.results and all(
            user is reader or self.group.get(user) in groups for user, _ in value.uses
        )

    # ---------------------------------------------------------------- legality

    def joins(self, op: Op, group: Group) -> bool:
        """Whether `op` may become part of `group`, which is made ready for it: a map group becomes
        a row group, one of rows goes on with their results."""
        if not self.fits([*group.ops, op]) or self.depth_in(group, op) > LONGEST:
            return False
        is_leaving = not self.leaves_same_space(op, group)
        ends_rows = self.ends_rows(op, group)
        if is_leaving and not ends_rows or self.is_long_winded(op, group):
            return False
        if self.depends([other for other in self.producers(op) if other is not group], group):
            return False
        if structure.reductions(op):
            return not is_leaving and self.joins_as_reduction(op, group)
        if not is_leaving and self.joins_as_map(op, group):
            return True
        if ends_rows:
            group.anchor, group.space = "window", space_of(op.outputs[0])
        return ends_rows

    def read_operands(self, op: Op, group: Group) -> list[int]:
        """The positions of the operands that a group makes."""
        return [
            n for n, v in enumerate(op.inputs)
            if v is not None and v.producer in self.group and self.group[v.producer] is group
        ]  # fmt: skip

    def fits(self, ops: list[Op]) -> bool:
        """Whether a kernel may have so many ops and operands."""
        if len(ops) > LARGEST:
            return False
        if sum(len(op.inputs) + len(op.outputs) for op in ops) <= WIDEST:
            return True
        inside = set(ops)
        read = {
            v for op in ops for v in op.inputs
            if v is not None and v.producer not in inside and not is_scalar(v)
        }  # fmt: skip
        return len(read) + len(results_of(ops, self.results)) <= WIDEST

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

    def leaves_same_space(self, op: Op, group: Group) -> bool:
        """Values of the group that `op` reads are used nowhere else, or have the group's space."""
        for n in self.read_operands(op, group):
            value = op.inputs[n]
            assert value is not None
            if space_of(value) != group.space and not self.stays(value, group, reader=op):
                return False
        return True

    def joins_as_reduction(self, op: Op, group: Group) -> bool:
        """Whether an op reduces rows of a group, whose loops are over these rows from then on."""
        if group.anchor not in ("map", "row"):
            return False
        row = structure.row_operand(op, self.columns)
        operands = self.read_operands(op, group)
        if row is None or operands != [row[0]] or group.rows not in (frozenset(), row[1]):
            return False
        value = op.inputs[row[0]]
        assert value is not None
        if space_of(value) != group.space:
            return False
        if group.anchor == "map" and self.work(group) > 64:
            return False
        group.anchor, group.rows = "row", row[1]
        return True

    def work(self, group: Group) -> int:
        """What the bodies of a group cost, for one element of each."""
        return sum(cost(op_body(op, n)) for op in group.ops for n in range(len(op.outputs)))

    def joins_as_map(self, op: Op, group: Group) -> bool:
        """Whether an op computes each element where the group's loops are."""
        operands = self.read_operands(op, group)
        at_own_index = all(structure.pointwise(op, n) for n in operands)
        spaces = {space_of(v) for v in op.outputs}
        if at_own_index and spaces == {group.space}:
            return True
        if group.anchor == "row" and at_own_index:
            return all(self.is_row_shape(v, group) for v in op.outputs)
        return self.views(op, group) or self.extends_map(op, group, operands)

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

    def extends_map(self, op: Op, group: Group, operands: list[int]) -> bool:
        """A map of maps at other indices: only if nothing leaves and little is recomputed."""
        if group.anchor != "map" or len(op.outputs) != 1 or op.output.type is None:
            return False
        values = (value for member in group.ops for value in member.outputs)
        if not all(self.stays(value, group, reader=op) for value in values):
            return False
        grows = op.output.tensor.size > group.ops[-1].outputs[0].tensor.size
        if grows and self.work(group) > CHEAP:
            return False
        reads = [x for n in range(len(op.outputs)) for x in loads(op_body(op, n))]
        if len([x for x in reads if int(x.source) in operands]) > 1 and self.work(group) > CHEAP:
            return False
        group.space = space_of(op.output)
        return True

    # ---------------------------------------------------------------- prologues

    def absorb_maps(self, op: Op) -> None:
        """Draws producer groups that are maps used here alone into the op's group."""
        group = self.group[op]
        for other in self.producers(op):
            if other is group or other.anchor != "map" or not self.absorbs(op, group, other):
                continue
            for member in other.ops:
                self.group[member] = group
            repeated = other.repeats + self.is_read_elsewhere(op, group, other)
            group.repeats = max(group.repeats, repeated)
            group.ops = [*other.ops, *group.ops]
            group.number = min(group.number, other.number)
            self.depth[op] = max(self.depth[op], self.depth_in(group, op))

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

    def absorbs(self, op: Op, group: Group, other: Group) -> bool:
        """Whether a group may take in another that makes operands of its op."""
        if not self.fits([*other.ops, *group.ops]) or self.depth_in(other, op) > LONGEST:
            return False
        values = (value for member in other.ops for value in member.outputs)
        if not all(self.stays(value, other, group) for value in values):
            return False
        if other.repeats >= REPEATS and self.is_read_elsewhere(op, group, other):
            return False
        pure = all(is_for_readers(m, self.widening) for m in other.ops)
        if self.widening and structure.is_widening(op):
            return pure
        at_own_index = all(structure.pointwise(op, n) for n in self.read_operands(op, other))
        if group.anchor in ("contraction", "window"):
            reads_window = bool(structure.reductions(op))
            return pure or (not reads_window and at_own_index)
        if group.anchor == "row" and structure.reductions(op):
            return self.work(other) <= 64
        return pure or at_own_index or self.work(other) <= CHEAP


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
