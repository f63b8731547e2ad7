"""Control flow: If, Loop, Scan and SequenceMap, whose bodies are regions.

Operands are those ONNX declares, then one per captured outer value; each region has the parameters
ONNX declares, then one per capture. An op runs given a way to run a region; its results are typed
where the shapes do not depend on data:

    If           one branch if the condition is constant; otherwise both must have equal types,
                 but for one that cannot be typed: then it must not be taken (ops/failing.py)
    Loop         loop-carried types must not change; scan outputs need a known number of trips, or
                 room for so many `rows`, of which those of the trips are there
    Scan         loop-carried types must not change; the trips are a dimension of the scan inputs
    SequenceMap  the elements of the sequences must have one type

Otherwise NeedsValue names the operand whose contents would settle it, or no value at all.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphc.errors import GraphcError, ModelError, NeedsValue
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Expr, maximum
from graphc.ir.graph import Op, Region, Value, clone_region
from graphc.ir.infer import infer_region
from graphc.ir.opdef import region_op
from graphc.ir.ops.failing import DEFERRED, failure
from graphc.ir.types import Dim, SequenceType, TensorType, Type, at, type_of

MAX_ITERATIONS = 10_000_000  # of a loop, with those of the loops inside it, unless at_most says


def split_captures(op: Op, operands: Sequence[object] | None = None) -> tuple[list, list]:
    """The operands that ONNX declares, and the captured ones (of `operands`, by default the op's).

    A Loop's trip count and condition are always there, None if omitted.
    """
    given = list(op.inputs if operands is None else operands)
    cut = 1 if op.name == "If" else len(given) - op.attrs.get("captures", 0)
    own, captures = given[:cut], given[cut:]
    if op.name == "Loop":
        own += [None] * (2 - len(own))
    return own, captures


# ---------------------------------------------------------------- running


def truth(value: object) -> bool:
    """A condition as a bool."""
    return bool(_element(value, "a condition"))


def trips_of(value: object) -> int:
    """A trip count as an int."""
    return int(_element(value, "a trip count"))


def known_trips(limit: Value) -> Dim | None:
    """The trips that a trip count asks for, none at the least, if they are known: a number, or an
    expression over sizes."""
    contents = limit.known
    if contents is None:
        return None
    asked = _element(contents, "a trip count")
    return at(maximum(asked, 0), {}) if isinstance(asked, Expr) else max(int(asked), 0)


def _element(value: Any, what: str) -> Any:
    """The only element of an array."""
    if np.size(value) != 1:
        raise ModelError(f"{what} holds one element, found shape {list(np.shape(value))}")
    return np.asarray(value).reshape(-1)[0]


class _Iterations(threading.local):
    """How often the bodies of an outermost loop, and of those inside it, have been run so far."""

    most, done, depth = MAX_ITERATIONS, 0, 0


_iterations = _Iterations()


@contextmanager
def at_most(iterations: int) -> Iterator[None]:
    """Bounds the iterations of each loop that this thread runs meanwhile, with those inside it."""
    before, _iterations.most = _iterations.most, iterations
    try:
        yield
    finally:
        _iterations.most = before


def run(op: Op, arguments: Sequence[object], run_region: Callable) -> list[Any]:
    """The results of an op on actual values, given what runs a region on actual values. ModelError
    if it iterates for longer than `at_most` allows."""
    assert op.defn.function is not None
    if op.name == "If":
        return op.defn.function(op, arguments, run_region)

    def counted(region: Region, values: list[Any]) -> list[Any]:
        _iterations.done += 1
        if _iterations.done > _iterations.most:
            raise ModelError(too_long(op.where(), _iterations.most))
        return run_region(region, values)

    if _iterations.depth == 0:
        _iterations.done = 0
    _iterations.depth += 1
    try:
        return op.defn.function(op, arguments, counted)
    finally:
        _iterations.depth -= 1


def too_long(where: str, most: int) -> str:
    """What to say of a loop that has more iterations than allowed."""
    return (
        f"{where}: has not ended after {most} iterations, with those of loops around it; "
        "max_iterations (--max-iterations) allows for more"
    )


def _run_if(op: Op, arguments: Sequence[object], run: Callable) -> list[Any]:
    branch = op.regions[0 if truth(arguments[0]) else 1]
    return run(branch, list(arguments[1:]))


def _run_loop(op: Op, arguments: Sequence[object], run: Callable) -> list[Any]:
    (limit, condition, *state), captures = split_captures(op, arguments)
    trips = math.inf if limit is None else trips_of(limit)
    going = True if condition is None else truth(condition)
    first = [np.asarray(0, np.int64), np.asarray(going), *state, *captures]
    carried = len(state)
    scans: list[list[Any]] = [[] for _ in range(len(op.outputs) - carried)]
    trip = 0
    while going and trip < trips:
        header = [np.asarray(trip, np.int64), np.asarray(going)]
        results = run(op.regions[0], [*header, *state, *captures])
        going = truth(results[0])
        state = results[1 : 1 + carried]
        for collected, value in zip(scans, results[1 + carried :]):
            collected.append(value)
        trip += 1
    if trip == 0 and scans:
        return [*state, *_no_rows(op.regions[0], first, len(scans))]
    return [*state, *map(np.stack, scans)]


def _no_rows(region: Region, arguments: Sequence[object], count: int) -> list[np.ndarray]:
    """The last `count` results of a body that never ran, stacked: arrays of length 0."""
    error = failure(region)
    if error is not None:
        raise error  # which tells why their shapes are not known
    typed = clone_region(region)
    types = [None if a is None else type_of(a) for a in arguments]
    _type_region(typed, types)
    rows = []
    for value in typed.results[len(typed.results) - count :]:
        rows.append(np.zeros((0, *value.tensor.static_shape), value.tensor.dtype.np))
    return rows


class ScanShape:
    """The attributes of a Scan with defaults filled in and axes counted from the front.

    `state` is the number of loop-carried values, `in_axes` and `out_axes` the scanned axes and
    `in_back`, `out_back` whether they are walked from the end. Ranks are those of whole tensors.
    """

    def __init__(self, op: Op, input_ranks: Sequence[int], output_ranks: Sequence[int]):
        self.scanned = op.attrs["num_scan_inputs"]
        own, _ = split_captures(op)
        self.state = len(own) - self.scanned
        self.outs = len(op.outputs) - self.state
        get = op.attrs.get
        self.in_axes = _axes(get("scan_input_axes") or (0,) * self.scanned, input_ranks)
        self.out_axes = _axes(get("scan_output_axes") or (0,) * self.outs, output_ranks)
        self.in_back = get("scan_input_directions") or (0,) * self.scanned
        self.out_back = get("scan_output_directions") or (0,) * self.outs

    @staticmethod
    def of(op: Op) -> ScanShape:
        """That of a typed Scan."""
        own, _ = split_captures(op)
        scanned = op.attrs["num_scan_inputs"]
        state = len(own) - scanned
        ranks = ([v.tensor.rank for v in values] for values in (own[state:], op.outputs[state:]))
        return ScanShape(op, *ranks)


def _axes(axes: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    for axis, rank in zip(axes, ranks):
        if not -rank <= axis < rank:
            raise ModelError(f"scan axis {axis} is out of range for rank {rank}")
    return tuple(axis % rank for axis, rank in zip(axes, ranks))


def _run_scan(op: Op, arguments: Sequence[object], run: Callable) -> list[Any]:
    own, captures = split_captures(op, arguments)
    scanned = op.attrs["num_scan_inputs"]
    state, inputs = own[: len(own) - scanned], own[len(own) - scanned :]
    shape = ScanShape(op, [x.ndim for x in inputs], ())
    moved = [np.moveaxis(x, axis, 0) for x, axis in zip(inputs, shape.in_axes)]
    moved = [x[::-1] if back else x for x, back in zip(moved, shape.in_back)]
    lengths = {len(x) for x in moved}
    if len(lengths) != 1:
        raise ModelError(f"{op.where()}: scan inputs have different lengths {sorted(lengths)}")
    scans: list[list[Any]] = [[] for _ in range(shape.outs)]
    for trip in range(length := lengths.pop()):
        results = run(op.regions[0], [*state, *(x[trip] for x in moved), *captures])
        state = results[: shape.state]
        for collected, value in zip(scans, results[shape.state :]):
            collected.append(value)
    if length:
        stacks = [np.stack(s[::-1] if back else s) for s, back in zip(scans, shape.out_back)]
    else:
        rows = [np.zeros(x.shape[1:], x.dtype) for x in moved]
        stacks = _no_rows(op.regions[0], [*state, *rows, *captures], shape.outs)
    axes = op.attrs.get("scan_output_axes") or (0,) * shape.outs
    return [*state, *(np.moveaxis(s, 0, axis) for s, axis in zip(stacks, axes))]


def _run_sequence_map(op: Op, arguments: Sequence[object], run: Callable) -> list[Any]:
    own, captures = split_captures(op, arguments)
    first = own[0]
    results = []
    for n in range(len(first)):
        items = [x[n] if isinstance(x, list) else x for x in own]
        results.append(run(op.regions[0], [*items, *captures]))
    return [[r[k] for r in results] for k in range(len(op.outputs))]


# ---------------------------------------------------------------- types


def _type_region(region: Region, types: Sequence[Type | None]) -> list[Type]:
    """Gives the parameters of a region these types and infers the rest; the result types."""
    for param, type in zip(region.params, types):
        param.type = type
    infer_region(region)
    return [v.type for v in region.results]  # type: ignore[misc]


def _type_body(op: Op, region: Region, types: Sequence[Type | None], first: int) -> list[Type]:
    """Types a region of `op` whose parameters from number `first` on are captures.

    A NeedsValue raised inside names the captured operand that is meant, or no value.
    """
    try:
        return _type_region(region, types)
    except NeedsValue as error:
        _, captures = split_captures(op)
        inside = error.value
        outer = dict(zip(region.params[first:], captures))
        error.value = outer.get(inside) if isinstance(inside, Value) else None
        raise


def _types(values: Sequence[Value | None]) -> list[Type | None]:
    return [None if v is None else v.type for v in values]


def _constant_truth(value: Value | None) -> bool | None:
    """A condition's constant value; None if it is not constant."""
    contents = None if value is None else value.constant
    return None if contents is None else truth(contents)


def _infer_if(op: Op) -> list[Type]:
    (condition,), captures = split_captures(op)
    chosen = _constant_truth(condition)
    if chosen is not None:
        return _type_body(op, op.regions[0 if chosen else 1], _types(captures), 0)
    then, orelse = (_type_branch(op, r, _types(captures)) for r in op.regions)
    if isinstance(then, GraphcError) and isinstance(orelse, GraphcError):
        raise then
    if isinstance(then, GraphcError) or isinstance(orelse, GraphcError):
        return orelse if isinstance(then, GraphcError) else then  # type: ignore[return-value]
    if then != orelse:
        shown = [", ".join(map(str, types)) for types in (then, orelse)]
        raise NeedsValue(f"its branches have types {shown[0]} and {shown[1]}", 0)
    return then


def _type_branch(
    op: Op, region: Region, captures: Sequence[Type | None]
) -> list[Type] | GraphcError:
    """The types of a branch, or the error that comes up if it is taken."""
    known = failure(region)
    if known is not None:
        return known
    try:
        return _type_body(op, region, captures, 0)
    except NeedsValue:
        raise
    except DEFERRED as error:
        return error


def goes_on(op: Op) -> bool:
    """Whether the body of a Loop never asks to stop: its condition is constantly true, or is the
    condition it was given."""
    region = op.regions[0]
    value: Value | None = region.results[0]
    while value is not None and value.producer is not None and value.producer.name == "Identity":
        value = value.producer.inputs[0]
    return value is region.params[1] or _constant_truth(value) is True


def trip_count(op: Op) -> Dim:
    """How often a Loop runs; NeedsValue names the operand that must be constant, if any decides."""
    (limit, condition, *_), _ = split_captures(op)
    if condition is not None and _constant_truth(condition) is None:
        raise NeedsValue("its first condition is not constant", 1)
    if condition is not None and not _constant_truth(condition):
        return 0
    if not goes_on(op):
        raise NeedsValue("its body decides when it ends", None)
    if limit is None:
        raise ModelError("has neither a trip count nor a condition, and never ends")
    trips = known_trips(limit)
    if trips is None:
        raise NeedsValue("its trip count is not constant", 0)
    return trips


def _room(op: Op) -> Dim:
    """How many rows of a Loop there is room for: as many as it has trips at most."""
    (limit, *_), _ = split_captures(op)
    most = None if limit is None else known_trips(limit)
    if most is None or op.attrs["rows"] != most:
        raise ModelError(f"has room for {op.attrs['rows']!r} rows, but {most} trips at most")
    return most


def _unchanged(before: Sequence[Type | None], after: Sequence[Type]) -> None:
    for old, new in zip(before, after):
        if old != new:
            raise NeedsValue(f"a loop-carried value changes its type from {old} to {new}", None)


def _infer_loop(op: Op) -> list[Type]:
    (_, _, *state), captures = split_captures(op)
    header: list[Type | None] = [TensorType(i64, ()), TensorType(boolean, ())]
    carried = _types(state)
    types = [*header, *carried, *_types(captures)]
    _, *results = _type_body(op, op.regions[0], types, 2 + len(state))
    _unchanged(carried, results)
    scans = results[len(state) :]
    if not scans:
        return results
    trips = trip_count(op) if op.attrs.get("rows") is None else _room(op)
    return [*results[: len(state)], *(_stacked(t, trips, 0) for t in scans)]


def _stacked(type: Type, length: Any, axis: int) -> TensorType:
    if not isinstance(type, TensorType):
        raise ModelError(f"a scan output must be a tensor, found {type}")
    return type.with_shape((*type.dims[:axis], length, *type.dims[axis:]))


def _infer_scan(op: Op) -> list[Type]:
    own, captures = split_captures(op)
    inputs = [v.tensor for v in own[len(own) - op.attrs["num_scan_inputs"] :]]
    shape = ScanShape(op, [t.rank for t in inputs], ())
    lengths = {t.dims[axis] for t, axis in zip(inputs, shape.in_axes)}
    if len(lengths) != 1:
        raise ModelError(f"scan inputs have different lengths {sorted(map(str, lengths))}")
    carried = _types(own[: shape.state])
    rows = [
        t.with_shape((*t.dims[:axis], *t.dims[axis + 1 :]))
        for t, axis in zip(inputs, shape.in_axes)
    ]
    types = [*carried, *rows, *_types(captures)]
    results = _type_body(op, op.regions[0], types, len(own))
    _unchanged(carried, results)
    outs = [v.tensor for v in op.regions[0].results[shape.state :]]
    axes = ScanShape(op, [t.rank for t in inputs], [t.rank + 1 for t in outs]).out_axes
    length = lengths.pop()
    return [*results[: shape.state], *(_stacked(t, length, a) for t, a in zip(outs, axes))]


def _infer_sequence_map(op: Op) -> list[Type]:
    own, captures = split_captures(op)
    types = []
    for value in own:
        type = value.type
        types.append(type.element if isinstance(type, SequenceType) else type)
        if isinstance(types[-1], TensorType) and types[-1].shape is None:
            raise NeedsValue("the elements of its sequences have no common shape", None)
    results = _type_body(op, op.regions[0], [*types, *_types(captures)], len(own))
    return [SequenceType(t) for t in results]


# ---------------------------------------------------------------- operators

region_op("If", run=_run_if, infer=_infer_if)
region_op("Loop", run=_run_loop, infer=_infer_loop, attrs={"captures": 0, "rows": None})
region_op(
    "Scan",
    run=_run_scan,
    infer=_infer_scan,
    attrs={
        "num_scan_inputs": None,
        "scan_input_axes": None,
        "scan_input_directions": None,
        "scan_output_axes": None,
        "scan_output_directions": None,
        "captures": 0,
    },
)
region_op("SequenceMap", run=_run_sequence_map, infer=_infer_sequence_map, attrs={"captures": 0})
