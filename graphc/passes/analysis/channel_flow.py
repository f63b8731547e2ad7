"""How channels go through a graph: which values have the same channels, and where they are summed.

An op whose result at one channel is made of its operands at that channel (pointwise ops, depthwise
convolutions, pooling, residual sums) ties their values into a *group*: a channel can only be left
out of all of them. A sum of products over the channels of an operand, times constants, ends the
group: what it reads of a channel is a term of its own. Whatever else reads or makes a value keeps
all channels of its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from graphc.ir.expr import Expr, Index, Load, Reduce, Ref, free_indices, loads, substitute
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.passes.analysis.channels import Channels
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.parts import dims_along
from graphc.passes.analysis.structure import has_body
from graphc.records import dataclass


@dataclass(frozen=True)
class Summing:
    """A sum over the channels of an operand: over `index` in `node`. `along` are the dims of other
    operands, constants, that have the same index."""

    op: Op
    operand: int
    axis: int
    node: Reduce
    index: Index
    along: Mapping[int, int]

    @property
    def source(self) -> Value:
        """The operand."""
        return self.op.operand(self.operand)

    def unused(self) -> np.ndarray:
        """The channels that are multiplied by zeros alone."""
        unused = np.zeros(self.index.count, bool)
        for n, dim in self.along.items():
            contents = self.op.operand(n).constant
            assert contents is not None
            others = tuple(d for d in range(contents.ndim) if d != dim)
            unused |= ~contents.any(others)
        return unused


@dataclass
class Flow:
    """The groups of the values in a region whose channels are known (channels.py)."""

    region: Region
    known: Mapping[Value, Channels]
    summings: list[Summing] = field(default_factory=list)
    whole: set[Value] = field(default_factory=set)
    _first: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in self.region.ops:
            self._follow(op)
        for value in self.region.results:
            self.keep(value)

    def group(self, value: Value) -> Value:
        """A value that stands for the group of another."""
        first = value
        while first in self._first:
            first = self._first[first]
        return first

    def keep(self, value: Value) -> None:
        """All channels of a value are needed."""
        self.whole.add(value)

    def keeps(self) -> set[Value]:
        """The groups of which all channels are needed."""
        return {self.group(value) for value in self.whole}

    def axis(self, value: Value | None) -> int | None:
        ranges = None if value is None else self.known.get(value)
        return None if ranges is None else ranges.axis

    def _follow(self, op: Op) -> None:
        variable = [n for n, v in enumerate(op.inputs) if self.axis(v) is not None]
        along = self._along(op)
        for result in op.outputs if along is None else ():
            self.keep(result)
        for n in variable:
            value = op.operand(n)
            if along is not None and along[n] == self.axis(value):
                self._join(value, op.output)
                continue
            summing = summed_over(op, n, self.known) if along is None or along[n] is None else None
            if summing is None:
                self.keep(value)
            else:
                self.summings.append(summing)
        for n, dim in enumerate(along or ()):
            other = op.inputs[n]
            if dim is not None and other is not None and other.constant is None:
                if self.axis(other) != dim:
                    self.keep(op.output)

    def _along(self, op: Op) -> list[int | None] | None:
        """The dims that run along the channels of the only result, if its channels are its own."""
        axis = self.axis(op.outputs[0]) if len(op.outputs) == 1 else None
        if axis is None or not has_body(op):
            return None
        sums = reductions_in([op_body(op)])
        return None if any(node.dtype.is_float for node in sums) else dims_along(op, axis)

    def _join(self, one: Value, other: Value) -> None:
        a, b = self.group(one), self.group(other)
        if a is not b:
            self._first[a] = b


def summed_over(op: Op, operand: int, known: Mapping[Value, Channels]) -> Summing | None:
    """What an op is if it is a sum of integers over the channels of an operand, times constants."""
    if len(op.outputs) != 1 or not has_body(op):
        return None
    axis = known[op.operand(operand)].axis
    assert axis is not None
    body = simplify(op_body(op))
    places = {x.index[axis] for x in loads(body) if x.source == str(operand)}
    nodes = [node for node in reductions_in([body]) if places & {*node.axes}]
    if len(places) != 1 or nodes != [body]:
        return None
    (index,), (node,) = places, nodes
    if not isinstance(index, Index) or node.op != "sum" or not node.dtype.is_integer:
        return None
    along = _dims_of_constants(op, operand, axis, node, index)
    return None if along is None else Summing(op, operand, axis, node, index, along)


def _dims_of_constants(
    op: Op, operand: int, axis: int, node: Reduce, index: Index
) -> dict[int, int] | None:
    """The dims of constants with an index that serves nothing but to pick elements; None if others
    have it too."""
    along: dict[int, int] = {}
    read: dict[Expr, Expr] = {}
    for load in loads(node.body):
        if index not in free_indices(load):
            continue
        read[load] = Ref("element", load.dtype)
        n, dims = int(load.source), _dims_at(load, index)
        if dims is None or along.setdefault(n, dims) != dims:
            return None
        value = op.inputs[n]
        if n != operand and (value is None or value.constant is None):
            return None
    if index in free_indices(substitute(node.body, read)) or along.pop(operand, None) != axis:
        return None
    return along


def _dims_at(load: Load, index: Index) -> int | None:
    """The one dim that an index picks the place of, by itself."""
    dims = [d for d, place in enumerate(load.index) if index in free_indices(place)]
    return dims[0] if len(dims) == 1 and load.index[dims[0]] is index else None
