"""How quantised models agree with ONNX Runtime and with exact arithmetic, whole and per operator.

    python benchmarks/int8_exactness.py --directory MODELS [--samples 100] [--operators] [NAME ...]

One JSON line per model in which 8-bit values are dequantised and quantised:

whole       elements of the outputs equal to ONNX Runtime's, in percent, and the largest difference:
            of graphc, and of ONNX Runtime itself without optimisations and with its quantised
            kernels turned off, whose float kernels add up in other orders
operators   with ONNX Runtime's operands for every operator, how many 8-bit results differ between
            graphc, ONNX Runtime and exact arithmetic (what is within 1e-9 of halfway between two
            integers is exact either way), and by how much at most; each operator with --operators

ONNX Runtime's values are those of its optimised model, run once more with all of them as outputs,
which must not change the model's own. They are found among that model's values by comparing them
with those of the model as it is. Inputs are noise and smooth noise, or those of --inputs FILE.npz,
which holds one array per input with an axis of samples before the others.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import graphc
import models
from graphc import driver
from graphc.errors import GraphcError, ModelError
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.interp import run_op

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
# The operand that is the result's zero point, by operator.
ZERO_POINT = {
    "QuantizeLinear": 2, "QLinearConv": 7, "QLinearMatMul": 7, "QGemm": 8, "QLinearAdd": 7,
    "QLinearMul": 7, "QLinearAveragePool": 4, "QLinearGlobalAveragePool": 4, "QLinearSoftmax": 4,
    "QLinearSigmoid": 4, "QLinearLeakyRelu": 4, "QLinearConcat": 1,
}  # fmt: skip
MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Pad")
CHANNELS_FIRST = (0, 3, 1, 2)
ALIKE = 0.9  # of the elements differ by one at most if two values are the same one
TIE = 1e-9
Arrays = dict[str, np.ndarray]


# ---------------------------------------------------------------- ONNX Runtime


def session(model: onnx.ModelProto | Path, optimised: bool = True, **entries: str) -> Any:
    """A session on one thread; `save` is a file for the optimised model, the other `entries` are
    configuration entries of the session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = entries.pop("save", None)
    if path:
        options.optimized_model_filepath = path
    for name, value in entries.items():
        options.add_session_config_entry(f"session.{name}", value)
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def outputs(run: Any, feeds: Arrays) -> Arrays:
    """All outputs of a session by name."""
    return dict(zip((o.name for o in run.get_outputs()), run.run(None, feeds)))


def optimised(path: Path) -> onnx.ModelProto:
    """The model that ONNX Runtime makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/optimised.onnx"
        session(path, save=file)
        return onnx.load(file)


def exposed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all values of 8 bits as outputs."""
    graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in graph.input}
    types.update((t.name, t.data_type) for t in graph.initializer)
    known = {v.name for v in graph.output}
    for node in graph.node:
        place = 0 if node.op_type in MOVES else ZERO_POINT.get(node.op_type)
        kind = None if place is None else types.get(node.input[place])
        if kind in (TensorProto.INT8, TensorProto.UINT8):
            types[node.output[0]] = kind
            if node.output[0] not in known:
                graph.output.append(helper.make_tensor_value_info(node.output[0], kind, None))
    return model


class Reference:
    """ONNX Runtime: `values` gives the 8-bit values by the names that they have in the model."""

    def __init__(self, path: Path):
        self.default = session(path)
        self.plain = session(exposed(onnx.load(path)), optimised=False)
        self.inner = session(exposed(optimised(path)), optimised=False)
        self.floats = session(path, disable_quant_qdq="1")
        self.places: dict[str, tuple[str, tuple[int, ...] | None, int]] = {}

    def values(self, feeds: Arrays) -> Arrays:
        """All 8-bit values that ONNX Runtime computes, as int64."""
        inner = outputs(self.inner, feeds)
        for name, expected in outputs(self.default, feeds).items():
            if not np.array_equal(inner[name], expected):
                raise ModelError(f"{name} changes where other values are looked at")
        if not self.places:
            self.places = dict(self._matches(inner, outputs(self.plain, feeds)))
        return {
            name: arranged(inner[other], order) - less
            for name, (other, order, less) in self.places.items()
        }

    def _matches(self, inner: Arrays, plain: Arrays) -> Iterator[tuple[str, tuple]]:
        for name, wanted in plain.items():
            scores = []
            for (other, value), order in itertools.product(inner.items(), (None, CHANNELS_FIRST)):
                less = 128 if value.dtype != wanted.dtype else 0
                candidate = arranged(value, order)
                if candidate.shape == wanted.shape:
                    near = np.abs(candidate - less - wanted.astype(np.int64)) <= 1
                    scores.append((near.mean(), (other, order, less)))
            score, place = max(scores, key=lambda s: s[0], default=(0.0, ("", None, 0)))
            if score >= ALIKE:
                yield name, place


def arranged(value: np.ndarray, order: tuple[int, ...] | None) -> np.ndarray:
    """As int64, with the dims in this order if there are as many."""
    turned = value.transpose(order) if order is not None and value.ndim == len(order) else value
    return turned.astype(np.int64)


# ---------------------------------------------------------------- graphc, and exact arithmetic


def graphc_values(graph: Graph, feeds: Arrays, known: Arrays) -> Arrays:
    """What the integer operators of a graph give for operands that are known, by name."""
    values: dict[Value, Any] = {p: feeds[p.name] for p in graph.params}
    results = {}
    for op in graph.ops:
        for value, result in zip(op.outputs, _run(op, values)):
            values[value] = result
            if value.name in known and result.dtype in BYTES:
                results[value.name] = result.astype(np.int64)
                values[value] = known[value.name].astype(result.dtype)
    return results


@dataclass
class Exact:
    """Real numbers in units of a scale, computed in float64, to be rounded and limited."""

    real: np.ndarray
    zero: int
    limits: np.iinfo

    def agrees(self, found: np.ndarray) -> np.ndarray:
        """Whether integers are what these become; either neighbour of what is halfway is."""
        low, high = self.limits.min, self.limits.max
        ends = [np.clip(np.rint(self.real + e) + self.zero, low, high) for e in (-TIE, TIE)]
        return (found == ends[0]) | (found == ends[1])


def exact_values(graph: Graph, feeds: Arrays, known: Arrays) -> dict[str, Exact]:
    """What every QuantizeLinear rounds, given the operands that are known."""
    values: dict[Value, Any] = {p: feeds[p.name] for p in graph.params}
    exact: dict[str, Exact] = {}
    for op in graph.ops:
        if op.name == "DequantizeLinear":
            values[op.output] = _dequantised(op, values)
        elif op.name == "QuantizeLinear" and op.output.name in known:
            name, dtype = op.output.name, op.output.tensor.dtype.np
            scale, zero = (values[v].reshape(-1)[0] for v in op.inputs[1:] if v is not None)
            real = values[op.inputs[0]] / np.float64(scale)
            exact[name] = Exact(real, int(zero), np.iinfo(dtype))
            values[op.output] = known[name].astype(dtype)
        else:
            values.update(zip(op.outputs, _run(op, values)))
    return exact


def _run(op: Op, values: Mapping[Value, Any]) -> list[Any]:
    return run_op(op, [None if v is None else values[v] for v in op.inputs])


def _dequantised(op: Op, values: Mapping[Value, Any]) -> np.ndarray:
    x, scale, zero = (values[v].astype(np.float64) for v in op.inputs if v is not None)
    if scale.size > 1:
        shape = [1] * x.ndim
        shape[op.attrs.get("axis", 1)] = scale.size
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return (x - zero) * scale


# ---------------------------------------------------------------- comparison


@dataclass
class Operator:
    """Counts of 8-bit results, and of those that differ."""

    elements: int = 0
    differing: int = 0
    inexact: int = 0
    inexact_reference: int = 0
    largest: int = 0

    def add(self, found, expected, exact: np.ndarray, exact_reference: np.ndarray) -> None:
        """Counts the results for one sample."""
        difference = np.abs(found - expected)
        self.elements += found.size
        self.differing += int((difference != 0).sum())
        self.inexact += int((~exact).sum())
        self.inexact_reference += int((~exact_reference).sum())
        self.largest = max(self.largest, int(difference.max(initial=0)))

    def row(self) -> dict[str, int]:
        """For printing."""
        return {
            "elements": self.elements, "graphc != onnxruntime": self.differing,
            "graphc != exact": self.inexact, "onnxruntime != exact": self.inexact_reference,
            "largest": self.largest,
        }  # fmt: skip


@dataclass
class Whole:
    """Outputs of a model, compared with ONNX Runtime's."""

    equal: list[np.ndarray] = field(default_factory=list)
    largest: float = 0

    def add(self, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
        """Compares the outputs for one sample."""
        for one, other in zip(found, expected):
            difference = np.abs(one.astype(np.float64) - other)
            self.equal.append((difference == 0).reshape(-1))
            self.largest = max(self.largest, float(difference.max(initial=0)))

    def row(self) -> dict[str, float]:
        """For printing."""
        percent = 100 * float(np.concatenate(self.equal).mean())
        return {"equal": round(percent, 3), "largest": self.largest}


def compare_whole(path: Path, reference: Reference, feeds: Sequence[Arrays]) -> dict[str, Whole]:
    """A model as a whole, by who computes it."""
    names = [o.name for o in reference.default.get_outputs()]
    ways = {
        "graphc": graphc.compile(path, target="c").run,
        "onnxruntime, unoptimised": lambda f: reference.plain.run(names, f),
        "onnxruntime, float kernels": lambda f: reference.floats.run(None, f),
    }
    compared = {name: Whole() for name in ways}
    for sample in feeds:
        expected = reference.default.run(None, sample)
        for name, way in ways.items():
            compared[name].add(way(sample), expected)
    return compared


def compare_operators(
    path: Path, reference: Reference, feeds: Sequence[Arrays]
) -> dict[str, Operator]:
    """What comes before each QuantizeLinear of a model, by the name of its result."""
    typed = driver.typed(path)
    integers = driver.optimise(driver.typed(path), passes="integers, fold, dce")
    operators: dict[str, Operator] = {}
    for sample in feeds:
        known = reference.values(sample)
        found = graphc_values(integers, sample, known)
        for name, exact in exact_values(typed, sample, known).items():
            if name in found:
                agree = [exact.agrees(v) for v in (found[name], known[name])]
                operator = operators.setdefault(name, Operator())
                operator.add(found[name], known[name], *agree)
    return operators


def total(operators: dict[str, Operator]) -> Operator:
    """All operators together."""
    rows = operators.values()
    names = ("elements", "differing", "inexact", "inexact_reference")
    sums = {name: sum(getattr(o, name) for o in rows) for name in names}
    return Operator(**sums, largest=max((o.largest for o in rows), default=0))


# ---------------------------------------------------------------- samples


def samples(path: Path, count: int, seed: int = 7) -> list[Arrays]:
    """Noise, and every other time smooth noise, for the inputs of a model."""
    rng = np.random.default_rng(seed)
    inputs = session(path).get_inputs()
    return [{i.name: _noise(rng, i, smooth=bool(n % 2)) for i in inputs} for n in range(count)]


def _noise(rng: np.random.Generator, operand: Any, smooth: bool) -> np.ndarray:
    shape = [d if isinstance(d, int) else 1 for d in operand.shape]
    x = rng.standard_normal(shape) * 40
    if smooth:
        for axis in range(1, len(shape)):
            if shape[axis] > 4:
                x = (x + np.roll(x, 1, axis) + np.roll(x, 2, axis)) / 2
    if operand.type == "tensor(int8)":
        return x.round().clip(-128, 127).astype(np.int8)
    if operand.type == "tensor(uint8)":
        return (x + 128).round().clip(0, 255).astype(np.uint8)
    return (x / 40).astype(np.float32)


def given(file: str) -> list[Arrays]:
    """The samples of an .npz file."""
    arrays = dict(np.load(file))
    count = min(len(a) for a in arrays.values())
    return [{name: a[n] for name, a in arrays.items()} for n in range(count)]


def is_quantised(path: Path) -> bool:
    """Whether a model has QuantizeLinear between its values."""
    return any(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows."""
    parser = models.arguments("exactness of quantised models")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--inputs", help="an .npz file with the samples")
    parser.add_argument("--operators", action="store_true", help="one line for each, too")
    args = parser.parse_args(argv)
    for path in filter(is_quantised, models.paths(args)):
        reference = Reference(path)
        feeds = given(args.inputs) if args.inputs else samples(path, args.samples)
        whole = {n: part.row() for n, part in compare_whole(path, reference, feeds).items()}
        operators = compare_operators(path, reference, feeds)
        row = {"model": path.stem, "whole": whole, "operators": total(operators).row()}
        print(json.dumps(row), flush=True)
        for name, operator in operators.items() if args.operators else ():
            print(json.dumps({"operator": name, **operator.row()}), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"int8_exactness: {error}")
