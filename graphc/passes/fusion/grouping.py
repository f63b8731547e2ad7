"""Groups of ops that become one kernel, chosen greedily in execution order.

A group grows from an anchor (a contraction, a window, a row reduction) or from a map:

* epilogue: an op that reads the group's values at its own index, over the same space, joins; so
  does a transposition that is a view, after which the space is that of the view, and, after rows,
  if the target asks for it, other dims in the same order;
* row group: a reduction over trailing dims (over any dims, if the target asks for it) joins the map
  it reads, and ops over the rows' values join after it (softmax, layer norm), whether they are per
  element or per row;
* prologue: a map whose values only the op reads joins the op's group where that repeats no work,
  and so does a map over the same space whatever of it is stored;
  pure data movement is cloned into every reader, even a contraction's, and so are, if the target
  asks for it, conversions of floats to a wider type.

legality.py says what may join, and why not. Each pair of ops that stay apart has a reason.
"""

from __future__ import annotations

from graphc.ir.graph import Op
from graphc.ir.ops.generic import APART
from graphc.ir.ops.in_range import EFFECT
from graphc.passes.analysis import structure
from graphc.passes.fusion.legality import ANCHORS, Group, Legality, space_of
from graphc.passes.reasons import Reason

CHOICES = 64  # groups that an op with many operands may join
CHECKED = Reason("a check of data is a kernel of its own")
CONVERTED = Reason(
    "a conversion to wider floats is done by its readers, as masks are in little memory"
)
TOO_MANY_CHOICES = Reason(f"only the best {CHOICES} groups are tried")
AGAIN = Reason("what is computed again stays apart from what was computed before")


class Grouping(Legality):
    """Builds the groups of one region. `apart` tells why an op and the maker of an operand are not
    in one group, if that is `asked`."""

    def run(self) -> list[Group]:
        """The groups of several ops, in the order of their first."""
        self.apart: dict[tuple[Op, Op], Reason] = {}
        for op in self.region.ops:
            if op.name != "Constant":
                self.place(op)
        groups = dict.fromkeys(self.group[op] for op in self.region.ops if op in self.group)
        return [g for g in groups if len(g.ops) > 1]

    # ---------------------------------------------------------------- placing an op

    def place(self, op: Op) -> None:
        """Puts an op into the best group of its producers, or into one of its own."""
        refused: dict[Group, Reason] = {}
        if not structure.has_body(op) or any(0 in v.tensor.dims for v in op.outputs):
            self.open(op, "opaque")
            refused = dict.fromkeys(self.producers(op), Reason("{} is {}", op, ANCHORS["opaque"]))
        elif APART in op.defn.traits:
            self.open(op, self.anchor_of(op))
            refused = dict.fromkeys(self.producers(op), AGAIN)
        else:
            if not self.join(op, refused):
                self.open(op, self.anchor_of(op))
            self.absorb_maps(op, refused)
        if self.asked:
            self.note(op, refused)

    def join(self, op: Op, refused: dict[Group, Reason]) -> bool:
        """Puts an op into the first group that takes it; whether one does."""
        reason: Reason | None = CHECKED if EFFECT in op.defn.traits else None
        if self.is_computed_by_readers(op):
            reason = reason or CONVERTED
        for group in self.candidates(op):
            why_not = reason or self.why_not_join(op, group)
            if why_not is None:
                self.add(op, group)
                return True
            refused[group] = why_not
        return False

    def note(self, op: Op, refused: dict[Group, Reason]) -> None:
        """Keeps why the makers of operands are in other groups."""
        for maker in {v.producer: None for v in op.inputs if v is not None}:
            if maker in self.group and self.group[maker] is not self.group[op]:
                self.apart[op, maker] = refused.get(self.group[maker], TOO_MANY_CHOICES)

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

    def candidates(self, op: Op) -> list[Group]:
        """Groups of the producers; those that save most traffic first, then the latest."""
        rank = {"contraction": 3, "window": 2, "row": 1, "map": 0}
        groups = [g for g in self.producers(op) if g.anchor in rank]
        return sorted(groups, key=lambda g: (-rank[g.anchor], -g.number))[:CHOICES]

    # ---------------------------------------------------------------- prologues

    def absorb_maps(self, op: Op, refused: dict[Group, Reason]) -> None:
        """Draws producer groups that are maps used here alone into the op's group."""
        group = self.group[op]
        for other in self.producers(op):
            if other is group:
                continue
            reason = self.why_not_absorb(op, group, other)
            if reason is not None:
                if other.anchor == "map" or other not in refused:
                    refused[other] = reason
                continue
            for member in other.ops:
                self.group[member] = group
            repeated = other.repeats + self.is_read_elsewhere(op, group, other)
            group.repeats = max(group.repeats, repeated)
            group.ops = [*other.ops, *group.ops]
            group.number = min(group.number, other.number)
            self.depth[op] = max(self.depth[op], self.depth_in(group, op))
