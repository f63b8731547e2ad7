"""Dead channel elimination: channels that have one number for every input are removed.

Ranges of all channels (analysis/channels.py) show which ones are constant, as those are that a
quantisation or a ReLU clamps wherever they may lie. A channel goes if every sum that reads it adds
a number for it, which the sums then get as a bias, and so does one that no sum that is needed
multiplies by anything but zero. Whole groups of values (analysis/channel_flow.py) lose it, from the
rows of the weights that make it to the columns of those that read it. A constant that differs from
the padding around it adds something else at borders, so there it stays. Results are equal to the
bit: sums of floats, whose order of addition would change, are left alone. Limits that are never
reached go as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.passes.analysis.channel_flow import Flow, Summing
from graphc.passes.analysis.channels import Channels, Grid, channels
from graphc.passes.analysis.facts import never_limits
from graphc.passes.analysis.parts import dims_along, is_resized
from graphc.passes.dce import remove_dead
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.rewriter import apply_rules, rules_of
from graphc.records import dataclass

RULE = "dead-channels"
LIMITS = "idle-limits"


@register_pass
@dataclass
class DeadChannels(Pass):
    """Removes channels that are the same number for every input, and limits never reached."""

    name = "dead-channels"
    requires = ("typed", "unfused")
    symbolic = True

    def run(self, graph: Graph, ctx: Context) -> bool:
        known = channels(graph)
        changed = _remove_limits(graph, known, ctx)
        if any(ranges.axis is not None and ranges.constant.any() for ranges in known.values()):
            changed |= _remove_channels(graph, known, ctx)
        if changed:
            remove_dead(graph)
            apply_rules(graph, rules_of("canonical"), ctx)
        return changed


def _remove_limits(graph: Graph, known: Mapping[Value, Channels], ctx: Context) -> bool:
    """Replaces what limits a value that keeps within them anyway by that value."""
    changed = False
    for op in list(graph.ops):
        source = op.inputs[0] if op.inputs else None
        ranges = None if source is None else known.get(source)
        if ranges is None or source is None or len(op.outputs) != 1:
            continue
        if source.type == op.output.type and never_limits(op, ranges.all()):
            if not ctx.spend(LIMITS, op):
                return changed
            op.output.replace_uses(source)
            changed = True
    return changed


# ---------------------------------------------------------------- which channels


def _remove_channels(graph: Graph, known: dict[Value, Channels], ctx: Context) -> bool:
    """Removes what can be, but for groups with an op that cannot be made of fewer channels."""
    flow = Flow(graph, known)
    terms = [_terms(summing, known) for summing in flow.summings]
    while True:
        kept = _kept(flow, terms)
        if not kept:
            return False
        sums: dict[Op, list[Terms]] = {}
        for term in terms:
            if flow.group(term.summing.source) in kept:
                sums.setdefault(term.summing.op, []).append(term)
        narrowing = Narrowing(flow, kept, sums)
        failed = narrowing.make()
        if failed is None and narrowing.replace(ctx):
            return True
        remove_dead(graph)  # what was made
        if failed is None:
            return False
        ctx.decline(RULE, failed, "its definition depends on the number of channels")
        for value in (*failed.outputs, *(v for v in failed.inputs if v is not None)):
            flow.keep(value)


@dataclass(frozen=True)
class Terms:
    """What channels that might go add to a sum: `numbers` by channel of the result and `places`;
    NaN where that depends on the input."""

    summing: Summing
    places: np.ndarray
    numbers: np.ndarray

    def needed(self, rows: np.ndarray | None) -> np.ndarray:
        """Which channels of the source are needed by these channels of the result."""
        needed = np.ones(self.summing.source.tensor.extent(self.summing.axis), bool)
        needed[self.places] = np.isnan(self._of(rows)).any(0)
        return needed

    def gone(self, kept: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """What channels that are not kept add to these channels of the result."""
        return self._of(rows)[:, ~np.isin(self.places, kept)].sum(1)

    def _of(self, rows: np.ndarray | None) -> np.ndarray:
        return self.numbers if rows is None or len(self.numbers) == 1 else self.numbers[rows]


def _terms(summing: Summing, known: Mapping[Value, Channels]) -> Terms:
    source, op = known[summing.source], summing.op
    places = np.flatnonzero(source.constant | summing.unused())
    if not places.size:
        return Terms(summing, places, np.zeros((1, 0)))
    axis = known[op.output].axis if op.output in known else None
    grid = Grid(op, simplify(op_body(op)), known, axis, {summing.index: places})
    return Terms(summing, places, grid.terms(summing.node, summing.index))


def _kept(flow: Flow, terms: list[Terms]) -> dict[Value, np.ndarray]:
    """The channels that are kept, of each group that loses some. A group has at least one."""
    needed: dict[Value, np.ndarray] = {}
    for value, ranges in flow.known.items():
        if ranges.axis is not None:
            extent = value.tensor.extent(ranges.axis)
            needed.setdefault(flow.group(value), np.zeros(extent, bool))
    for group in flow.keeps() & needed.keys():
        needed[group][:] = True
    while _spread(flow, terms, needed) or _started(needed):
        pass
    return {group: np.flatnonzero(mask) for group, mask in needed.items() if not mask.all()}


def _spread(flow: Flow, terms: list[Terms], needed: dict[Value, np.ndarray]) -> bool:
    """Asks for the channels that sums which are needed read; whether these are more than before."""
    changed = False
    for term in reversed(terms):
        rows = needed.get(flow.group(term.summing.op.output))
        mine = needed[flow.group(term.summing.source)]
        more = term.needed(rows) & ~mine
        if more.any() and (rows is None or rows.any()):
            mine |= more
            changed = True
    return changed


def _started(needed: dict[Value, np.ndarray]) -> bool:
    """Asks for a channel of groups of which none is needed."""
    empty = [mask for mask in needed.values() if not mask.any()]
    for mask in empty:
        mask[0] = True
    return bool(empty)


# ---------------------------------------------------------------- ops of fewer channels


@dataclass
class Narrowing:
    """Makes ops of the channels that are kept, beside those there are; `made` says for which."""

    flow: Flow
    kept: Mapping[Value, np.ndarray]
    sums: Mapping[Op, list[Terms]]
    made: dict[Value, Value] = field(default_factory=dict)

    def make(self) -> Op | None:
        """Adds the ops, or tells one that cannot be made of fewer channels."""
        for op in list(self.flow.region.ops):
            if (op in self.sums or self._own(op) is not None) and not self._narrow(op):
                return op
        return None

    def replace(self, ctx: Context) -> bool:
        """Has others read what was made; whether that happened."""
        makers = [(old.producer, new.producer) for old, new in self.made.items()]
        taken = [old for old, _ in makers if old is not None]
        if not ctx.spend(RULE, taken[0], taken, [new for _, new in makers if new is not None]):
            return False
        for old, new in self.made.items():
            new.name = old.name
            if old.type == new.type:
                old.replace_uses(new)
        return True

    def _kept(self, value: Value | None) -> np.ndarray | None:
        """The channels of a value that are kept, if these are not all."""
        return None if value is None else self.kept.get(self.flow.group(value))

    def _own(self, op: Op) -> np.ndarray | None:
        return self._kept(op.output) if len(op.outputs) == 1 else None

    def _narrow(self, op: Op) -> bool:
        """Makes an op of the channels that are kept, and adds what the others added to its sum."""
        own, terms = self._own(op), self.sums.get(op, [])
        builder = Builder(self.flow.region, op, op.loc)
        cuts = self._cuts(op)
        operands = [self._operand(builder, op, n, cuts) for n in range(len(op.inputs))]
        attrs = dict(op.attrs)
        if own is not None and attrs.get("group", 1) > 1:
            attrs["group"] = own.size
        try:
            new = builder.op(op.name, *operands, domain=op.defn.domain, **attrs)
        except ModelError:
            return False
        sizes = {t.summing.index: self.kept[self.flow.group(t.summing.source)].size for t in terms}
        if not is_resized(op, new.producer, sizes):
            return False
        self.made[op.output] = self._completed(builder, op, new)
        return True

    def _cuts(self, op: Op) -> dict[int, list[tuple[int, np.ndarray]]]:
        """By operand: dims, and what is kept along these."""
        cuts: dict[int, list[tuple[int, np.ndarray]]] = {}
        own, axis = self._own(op), self.flow.axis(op.output)
        if own is not None:
            assert axis is not None
            for n, dim in enumerate(dims_along(op, axis) or []):
                if dim is not None:
                    cuts.setdefault(n, []).append((dim, own))
        for term in self.sums.get(op, []):
            kept = self._kept(term.summing.source)
            assert kept is not None
            for n, dim in term.summing.along.items():
                cuts.setdefault(n, []).append((dim, kept))
        return cuts

    def _operand(self, builder: Builder, op: Op, n: int, cuts: Mapping) -> Value | None:
        value = op.inputs[n]
        if value is None or value.constant is None:
            return value if value is None else self.made.get(value, value)
        contents, own = value.constant, self._own(op)
        for dim, kept in cuts.get(n, []):
            contents = contents.take(kept, dim)
        if own is not None and n not in cuts and op.defn.params[n].accepts.known:
            contents = self._told(op, contents, own.size)
        return value if contents is value.constant else builder.constant(contents)

    def _told(self, op: Op, contents: np.ndarray, size: int) -> np.ndarray:
        """The dims of the result, as an operand tells them, with fewer channels."""
        axis, dims = self.flow.axis(op.output), op.output.tensor.dims
        if axis is None or contents.shape != (len(dims),) or contents[axis] != dims[axis]:
            return contents
        told = contents.copy()
        told[axis] = size
        return told

    def _completed(self, builder: Builder, op: Op, total: Value) -> Value:
        """A sum with what the channels that are gone added to it."""
        own, axis = self._own(op), self.flow.axis(op.output)
        more = np.zeros(1)
        for term in self.sums.get(op, []):
            kept = self._kept(term.summing.source)
            assert kept is not None
            more = more + term.gone(kept, own)
        if not more.any():
            return total
        shape = [1] * total.tensor.rank
        if axis is not None:
            shape[axis] = more.size
        constant = more.astype(np.int64).astype(total.tensor.dtype.np).reshape(shape)
        return builder.Add(total, builder.constant(constant))
