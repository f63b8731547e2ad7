"""Control flow decided at compile time becomes straight-line code.

    inline_if            If with a constant condition: the branch taken
    unroll_loop          Loop whose conditions turn out constant: its body once per trip
    unroll_scan          Scan of static length: its body once per slice
    unroll_sequence_map  SequenceMap over SequenceConstruct: its body once per element
    sink_constants       captured constants become constants of the region

Each takes one op, rewrites it in place and tells whether it did; the reason for not doing it goes
to `skip`. Small integer and boolean values are evaluated while a body is copied, so that trip
numbers, the conditions that depend on them, and the positions that slices take are constants at
once; this is also what tells when a loop ends. A loop that cannot be unrolled after all is put back
as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError, NeedsValue
from graphc.ir import opdef
from graphc.ir.dtypes import boolean
from graphc.ir.expr import loads
from graphc.ir.graph import Op, Region, Value, clone_region, constant_op
from graphc.ir.imperative.lowering import is_bounded
from graphc.ir.infer import infer_op, op_body
from graphc.ir.interp import run_op
from graphc.ir.ops.control import ScanShape, split_captures, trips_of, truth
from graphc.ir.ops.long_recurrent import written_out
from graphc.ir.types import TensorType, Type

LIMIT = 4096  # ops that an unrolled loop may have
SMALL = 64  # elements of the integer values that are evaluated on the way
Skip = Callable[[str], bool]


def _silently(reason: str) -> bool:
    return False


# ---------------------------------------------------------------- copying bodies


class Inliner:
    """Puts ops before `anchor`, in its region, typing and evaluating them where possible."""

    def __init__(self, anchor: Op):
        assert anchor.region is not None
        self.anchor: Op = anchor
        self.region: Region = anchor.region
        self.made: list[Op] = []

    def copy(self, source: Region, operands: Sequence[Value | None]) -> list[Value]:
        """A copy of the ops of `source`, its parameters replaced by the operands; its results."""
        mapping: dict[Value, Value | None] = dict(zip(source.params, operands))
        for op in source.ops:
            inputs = [None if v is None else mapping[v] for v in op.inputs]
            new = Op(op.defn, inputs, op.attrs, len(op.outputs), _clones(op), op.loc)
            for value, old in zip(new.outputs, op.outputs):
                value.name, value.type = old.name, old.type
            mapping.update(zip(op.outputs, self.insert(new)))
        return [mapping[v] for v in source.results]  # type: ignore[misc]

    def emit(self, name: str, *inputs: Value | np.ndarray, **attrs: Any) -> Value:
        """A new op and its only output; arrays become constants."""
        values = [self.constant(v) if isinstance(v, np.ndarray) else v for v in inputs]
        new = Op(opdef.lookup(name), values, attrs, 1, (), self.anchor.loc)
        return self.insert(new)[0]

    def constant(self, array: np.ndarray) -> Value:
        return self._place(constant_op(array, loc=self.anchor.loc)).output

    def insert(self, op: Op) -> list[Value]:
        """Inserts an op, or constants if its results are small integers that are known."""
        if op.name != "Constant":
            _infer(op)
            known = _contents(op)
            if known is not None:
                op.drop_inputs()
                names = [v.name for v in op.outputs]
                return [
                    self._place(constant_op(array, name, op.loc)).output
                    for array, name in zip(known, names)
                ]
        return self._place(op).outputs

    def _place(self, op: Op) -> Op:
        self.region.insert_before(self.anchor, op)
        self.made.append(op)
        return op

    def undo(self) -> None:
        """Removes what was inserted."""
        for op in reversed(self.made):
            op.erase()
        self.made = []

    def finish(self, results: Sequence[Value]) -> bool:
        """Replaces the anchor by the results; always true."""
        for old, new in zip(self.anchor.outputs, results):
            if new.producer in self.made and not new.uses:
                new.name = old.name
            old.replace_uses(new)
        self.anchor.erase()
        return True


def _clones(op: Op) -> list[Region]:
    return [clone_region(region) for region in op.regions]


def _infer(op: Op) -> None:
    """Types an op anew if its operands allow it; otherwise it is left for type inference."""
    try:
        for value in op.inputs:
            if value is not None and value.producer is not None and is_bounded(value.producer):
                raise NeedsValue(f"the dims of %{value.name} are upper bounds", value)
        infer_op(op)
    except NeedsValue:
        for value in op.outputs:
            value.type = None


def _contents(op: Op) -> list[np.ndarray] | None:
    """The results of an op if they are small integers or booleans that follow from constants."""
    if op.defn.form not in ("elementwise", "indexed", "composite"):
        return None
    for value in op.outputs:
        type = value.type
        if not isinstance(type, TensorType) or not type.is_static or type.size > SMALL:
            return None
        if not type.dtype.is_integer and type.dtype.kind != "bool":
            return None
    if not all(_small(op.inputs[n]) for n in _operands_read(op)):
        return None
    try:
        return run_op(op, [_stand_in(v) for v in op.inputs])
    except ModelError:  # an index out of range: an error if it is reached
        return None


def _operands_read(op: Op) -> set[int]:
    """Numbers of the operands whose contents the results depend on (not their shapes)."""
    if op.defn.form == "composite":
        return {n for n, v in enumerate(op.inputs) if v is not None}
    bodies = [op_body(op, k) for k in range(len(op.outputs))]
    return {int(load.source) for body in bodies for load in loads(body)}


def _small(value: Value | None) -> bool:
    contents = None if value is None else value.constant
    return contents is not None and contents.size <= SMALL


def _stand_in(value: Value | None) -> np.ndarray | None:
    """The contents of a constant; for another value, zeros of its type (only its shape is read)."""
    if value is None:
        return None
    if value.constant is not None:
        return value.constant
    zero = np.zeros((), value.tensor.dtype.np)
    return np.broadcast_to(zero, value.tensor.static_shape)


# ---------------------------------------------------------------- If


def inline_if(op: Op, skip: Skip = _silently) -> bool:
    """If(true, a, b) == a; If(false, a, b) == b."""
    (condition,), captures = split_captures(op)
    if condition.constant is None:
        return skip("the condition is not constant")
    inliner = Inliner(op)
    return inliner.finish(inliner.copy(op.regions[0 if truth(condition.constant) else 1], captures))


# ---------------------------------------------------------------- Loop


def size_of(region: Region) -> int:
    """The ops that a copy of a region has, with those inside; of branches, the larger counts. A
    recurrent layer counts as its steps."""
    return sum(1 + written_out(op) + max(map(size_of, op.regions), default=0) for op in region.ops)


def never_runs(op: Op) -> bool:
    """Whether a Loop is known to have no trips: its body need not even fit its operands then, as
    where each trip takes a row of something that has none."""
    count, condition = (None if v is None else v.constant for v in op.inputs[:2])
    return (count is not None and trips_of(count) <= 0) or (
        condition is not None and not truth(condition)
    )


def surely_runs(op: Op) -> bool:
    """Whether the body of a loop is known to have a trip, so that it must fit its operands."""
    if op.name != "Loop":
        return True
    known = all(v is None or v.constant is not None for v in op.inputs[:2])
    return known and not never_runs(op)


def types_without_trips(op: Op) -> list[Type | None]:
    """The types of the results of a Loop's body as they must be if it has no trip: of the
    condition, of the state, and none of what is stacked."""
    own, _ = split_captures(op)
    state = [None if v is None else v.type for v in own[2:]]
    rows = len(op.outputs) - len(state)
    return [TensorType(boolean, ()), *state, *[None] * rows]


def unroll_loop(op: Op, limit: int = LIMIT, skip: Skip = _silently) -> bool:
    """One copy of the body per trip, as long as trip count and conditions are constants.

    Scan outputs are the Concat of what the trips yield. `limit` bounds the number of ops copied.
    """
    (count, condition, *state), captures = split_captures(op)
    trips = None if count is None else count.constant
    if count is not None and trips is None:
        return skip("the trip count is not constant")
    last = None if trips is None else trips_of(trips)
    body = op.regions[0]
    size = size_of(body)
    if last is not None and last * size > limit:
        return skip(f"{last} trips of {size} ops are more than {limit}")
    if condition is not None and condition.constant is None:
        return skip("the first condition is not constant")
    inliner = Inliner(op)
    rows: list[list[Value]] = [[] for _ in range(len(op.outputs) - len(state))]
    going, trip = condition is None or truth(condition.constant), 0
    while going and (last is None or trip < last):
        header = [inliner.constant(np.asarray(v)) for v in (np.int64(trip), np.True_)]
        asked, *results = inliner.copy(body, [*header, *state, *captures])
        if asked.constant is None or (trip + 1) * size > limit:
            inliner.undo()
            reason = "its body decides when it ends" if asked.constant is None else "it is too long"
            return skip(reason)
        going, state = truth(asked.constant), results[: len(state)]
        for collected, value in zip(rows, results[len(state) :]):
            collected.append(value)
        trip += 1
    return _finish(inliner, state, rows, (0,) * len(rows), skip)


def _finish(
    inliner: Inliner,
    state: list[Value],
    rows: list[list[Value]],
    axes: Sequence[int],
    skip: Skip,
) -> bool:
    """Replaces a loop by its last state and its stacked rows."""
    op, stacks = inliner.anchor, []
    for values, axis, output in zip(rows, axes, op.outputs[len(state) :]):
        stack = _stack(inliner, values, axis, output)
        if stack is None:
            inliner.undo()
            return skip("it never runs, and the shape of its scan outputs is not known")
        stacks.append(stack)
    return inliner.finish([*state, *stacks])


def _stack(inliner: Inliner, values: list[Value], axis: int, output: Value) -> Value | None:
    """The values joined along a new axis; without any, an empty tensor of the output's type."""
    if not values:
        type = output.type
        if not isinstance(type, TensorType) or not type.is_static or type.size:
            return None
        return inliner.constant(np.zeros(type.static_shape, type.dtype.np))
    where = np.array([axis], np.int64)
    parts = [inliner.emit("Unsqueeze", value, where) for value in values]
    return parts[0] if len(parts) == 1 else inliner.emit("Concat", *parts, axis=axis)


# ---------------------------------------------------------------- Scan


def unroll_scan(op: Op, limit: int = LIMIT, skip: Skip = _silently) -> bool:
    """One copy of the body per slice of the scan inputs. `limit` bounds the ops copied."""
    own, captures = split_captures(op)
    inputs = own[len(own) - op.attrs["num_scan_inputs"] :]
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in inputs):
        return skip("the shape of a scan input is not static")
    if any(not isinstance(v.type, TensorType) or v.type.shape is None for v in op.outputs):
        return skip("its outputs have no type yet")
    shape = ScanShape.of(op)
    carried = shape.state
    length = inputs[0].tensor.static_shape[shape.in_axes[0]]
    body = op.regions[0]
    size = size_of(body)
    if length * size > limit:
        return skip(f"{length} trips of {size} ops are more than {limit}")
    inliner = Inliner(op)
    state = own[:carried]
    rows: list[list[Value]] = [[] for _ in range(shape.outs)]
    for trip in range(length):
        slices = [
            _slice(inliner, value, axis, length - 1 - trip if back else trip)
            for value, axis, back in zip(inputs, shape.in_axes, shape.in_back)
        ]
        results = inliner.copy(body, [*state, *slices, *captures])
        state = results[:carried]
        for collected, value in zip(rows, results[carried:]):
            collected.append(value)
    ordered = [r[::-1] if back else r for r, back in zip(rows, shape.out_back)]
    return _finish(inliner, state, ordered, shape.out_axes, skip)


def _slice(inliner: Inliner, value: Value, axis: int, position: int) -> Value:
    """value[.., position, ..] along an axis, which goes away."""
    where = np.array([axis], np.int64)
    start = np.array([position], np.int64)
    part = inliner.emit("Slice", value, start, start + 1, where)
    return inliner.emit("Squeeze", part, where)


# ---------------------------------------------------------------- SequenceMap, captures


def unroll_sequence_map(op: Op, limit: int = LIMIT, skip: Skip = _silently) -> bool:
    """SequenceMap(f, [a, b]) == [f(a), f(b)]: a SequenceConstruct per output."""
    own, captures = split_captures(op)
    lists = [_elements(value) for value in own]
    first = lists[0]
    if first is None:
        return skip("its first sequence is not a SequenceConstruct")
    for value, items in zip(own, lists):
        if items is None and not isinstance(value.type, TensorType):
            return skip("a sequence is not a SequenceConstruct")
        if items is not None and len(items) < len(first):
            return skip("its sequences have different lengths")
    if not first or len(first) * size_of(op.regions[0]) > limit:
        return skip(f"it has {len(first)} elements")
    inliner = Inliner(op)
    results = []
    for n in range(len(first)):
        items = [value if members is None else members[n] for value, members in zip(own, lists)]
        results.append(inliner.copy(op.regions[0], [*items, *captures]))
    return inliner.finish(
        [
            inliner.emit("SequenceConstruct", *(r[k] for r in results))
            for k in range(len(op.outputs))
        ]
    )


def _elements(value: Value) -> list[Value] | None:
    producer = value.producer
    if producer is None or producer.name != "SequenceConstruct":
        return None
    return producer.inputs  # type: ignore[return-value]


def sink_constants(op: Op, skip: Skip = _silently) -> bool:
    """Captured constants are repeated inside the regions of an op, where they can be folded."""
    own, captures = split_captures(op)
    constant = [v.constant is not None for v in captures]
    if not any(constant):
        return skip("it captures no constants")
    for region in op.regions:
        first = len(region.params) - len(captures)
        params = region.params[first:]
        anchor = region.ops[0] if region.ops else None
        for param, value in zip(params, captures):
            if value.constant is not None:
                inner = constant_op(value.constant, value.name, value.producer.loc)
                region.insert_before(anchor, inner)
                param.replace_uses(inner.output)
        kept = [p for p, drop in zip(params, constant) if not drop]
        region.params = region.params[:first] + kept
        for index, param in enumerate(region.params):
            param.index = index
    op.set_inputs([*own, *(v for v, drop in zip(captures, constant) if not drop)])
    if "captures" in op.defn.attrs:
        op.attrs["captures"] = len(captures) - sum(constant)
    return True
