"""Control flow: If, Loop, Scan and SequenceMap, whose bodies are regions.

Operands are those ONNX declares, then one per captured outer value; each region has the parameters
ONNX declares, then one per capture. `RUN` runs an op given a way to run a region; `REGION_INFER`
types its results where the shapes do not depend on data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError, NeedsValue
from graphc.ir.graph import Op
from graphc.ir.infer import infer_region
from graphc.ir.opdef import region_op
from graphc.ir.types import Type

IF = region_op("If")
LOOP = region_op("Loop", attrs={"captures": 0})
SCAN = region_op(
    "Scan",
    attrs={
        "num_scan_inputs": None,
        "scan_input_axes": None,
        "scan_input_directions": None,
        "scan_output_axes": None,
        "scan_output_directions": None,
        "captures": 0,
    },
)
SEQUENCE_MAP = region_op("SequenceMap", attrs={"captures": 0})

MAX_TRIPS = 1 << 31  # a Loop without a trip count stops on its condition


def _split_captures(op: Op, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    count = op.attrs.get("captures", 0)
    cut = len(arguments) - count
    return list(arguments[:cut]), list(arguments[cut:])


def _run_if(op: Op, arguments: Sequence[Any], run: Callable) -> list[Any]:
    branch = op.regions[0 if bool(np.asarray(arguments[0]).reshape(-1)[0]) else 1]
    return run(branch, list(arguments[1:]))


def _run_loop(op: Op, arguments: Sequence[Any], run: Callable) -> list[Any]:
    own, captures = _split_captures(op, arguments)
    limit, condition, *state = own
    trips = MAX_TRIPS if limit is None else int(np.asarray(limit).reshape(-1)[0])
    going = True if condition is None else bool(np.asarray(condition).reshape(-1)[0])
    scans: list[list[Any]] = [[] for _ in range(len(op.outputs) - len(state))]
    trip = 0
    while going and trip < trips:
        results = run(op.regions[0], [np.int64(trip).reshape(()), np.bool_(going).reshape(()),
                                      *state, *captures])  # fmt: skip
        going = bool(np.asarray(results[0]).reshape(-1)[0])
        state = results[1 : 1 + len(state)]
        for collected, value in zip(scans, results[1 + len(state) :]):
            collected.append(value)
        trip += 1
    return [*state, *(_stack(s, op, len(state) + n) for n, s in enumerate(scans))]


def _stack(collected: list[Any], op: Op, output: int) -> np.ndarray:
    if collected:
        return np.stack(collected)
    body_type = op.regions[0].results[1 + output].type
    shape = getattr(body_type, "shape", None) or ()
    dims = tuple(d if isinstance(d, int) else 0 for d in shape)
    dtype = body_type.dtype.np if body_type is not None else np.float32  # type: ignore[union-attr]
    return np.zeros((0, *dims), dtype)


def _run_scan(op: Op, arguments: Sequence[Any], run: Callable) -> list[Any]:
    own, captures = _split_captures(op, arguments)
    scanned = op.attrs["num_scan_inputs"]
    state, inputs = own[: len(own) - scanned], own[len(own) - scanned :]
    in_axes = op.attrs.get("scan_input_axes") or (0,) * scanned
    in_back = op.attrs.get("scan_input_directions") or (0,) * scanned
    outs = len(op.outputs) - len(state)
    out_axes = op.attrs.get("scan_output_axes") or (0,) * outs
    out_back = op.attrs.get("scan_output_directions") or (0,) * outs
    moved = [np.moveaxis(x, axis, 0) for x, axis in zip(inputs, in_axes)]
    moved = [x[::-1] if back else x for x, back in zip(moved, in_back)]
    lengths = {len(x) for x in moved}
    if len(lengths) > 1:
        raise ModelError(f"{op.where()}: scan inputs have different lengths {sorted(lengths)}")
    scans: list[list[Any]] = [[] for _ in range(outs)]
    for trip in range(lengths.pop() if lengths else 0):
        results = run(op.regions[0], [*state, *(x[trip] for x in moved), *captures])
        state = results[: len(state)]
        for collected, value in zip(scans, results[len(state) :]):
            collected.append(value)
    finished = []
    for n, collected in enumerate(scans):
        stacked = _stack(collected[::-1] if out_back[n] else collected, op, len(state) + n - 1)
        finished.append(np.moveaxis(stacked, 0, out_axes[n]))
    return [*state, *finished]


def _run_sequence_map(op: Op, arguments: Sequence[Any], run: Callable) -> list[Any]:
    own, captures = _split_captures(op, arguments)
    first = own[0]
    results = []
    for n in range(len(first)):
        items = [x[n] if isinstance(x, list) else x for x in own]
        results.append(run(op.regions[0], [*items, *captures]))
    return [[r[k] for r in results] for k in range(len(op.outputs))]


RUN: dict[str, Callable] = {
    "If": _run_if,
    "Loop": _run_loop,
    "Scan": _run_scan,
    "SequenceMap": _run_sequence_map,
}


def _infer_if(op: Op) -> list[Type]:
    for region in op.regions:
        for param, value in zip(region.params, op.inputs[1:]):
            param.type = value.type  # type: ignore[union-attr]
        infer_region(region)
    then, orelse = ([v.type for v in r.results] for r in op.regions)
    if then != orelse:
        raise NeedsValue(f"branches have types {then} and {orelse}", 0)
    return then  # type: ignore[return-value]


def _infer_unknown(op: Op) -> list[Type]:
    raise NeedsValue("its output shapes depend on how often it runs", None)


REGION_INFER: dict[str, Callable[[Op], list[Type]]] = {
    "If": _infer_if,
    "Loop": _infer_unknown,
    "Scan": _infer_unknown,
    "SequenceMap": _infer_unknown,
}
