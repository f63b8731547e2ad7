"""Quantised models next to those of ONNX Runtime's quantiser: SQNR of the outputs, on both engines.

    python benchmarks/bench_quantise.py MODEL.onnx... [--samples 16] [--json results.json]

Both calibrate on the same samples and are judged on others, against the float model. Samples are
drawn from a standard normal distribution, or, if an int8 model lies beside (NAME_int8_qdq.onnx for
NAME_f32.onnx), from a normal one that fits the range of its input; token numbers are uniform. ONNX
Runtime's is its best result over min-max, percentile and entropy ranges, int8 and uint8
activations, in QDQ format with a scale per channel, after its own preprocessing; for models with an
LSTM, which that leaves float, also of its dynamic quantiser, over int8 and uint8 weights, a scale
per channel or not, of all operators or of the LSTM alone. Its models run in ONNX Runtime; graphc's
in ONNX Runtime and graphc. Where ONNX Runtime's sums of products of bytes saturate
(tests/saturation.py), its sessions are those in which they do not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import graphc
from graphc.quantisation.measuring import Comparison

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from saturation import exact_session  # noqa: E402

METHODS = ("MinMax", "Percentile", "Entropy")
TYPES = ("QInt8", "QUInt8")


def middle_and_spread(path: str) -> tuple[float, float]:
    """Mean and standard deviation of inputs."""
    beside = Path(path.replace("_f32.onnx", "_int8_qdq.onnx"))
    if str(beside) == path or not beside.exists():
        return 0.0, 1.0
    model = onnx.load(beside)
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = {model.graph.input[0].name}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in names:
            scale, zero = (float(known[name].reshape(-1)[0]) for name in node.input[1:])
            return (-0.5 - zero) * scale, 255 * scale / 6
        if node.input[0] in names:
            names.update(node.output)  # a move
    return 0.0, 1.0


def samples(path: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """Samples for all inputs, by name."""
    model = onnx.load(path, load_external_data=False)
    rng, arrays = np.random.default_rng(seed), {}
    middle, spread = middle_and_spread(path)
    most = np.inf if spread == 1 else 3
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [count, *(dim.dim_value or 1 for dim in tensor.shape.dim[1:])]
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            normal = np.clip(rng.standard_normal(shape, np.float32), -most, most)
            arrays[value.name] = (normal * spread + middle).astype(np.float32)
        else:
            top = 2 if "mask" in value.name else 1000
            low = 1 if "mask" in value.name else 0
            arrays[value.name] = rng.integers(low, top, shape)
    return arrays


def rows(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """One sample after the other."""
    count = len(next(iter(arrays.values())))
    return [{name: a[n : n + 1] for name, a in arrays.items()} for n in range(count)]


def session(model: Any) -> ort.InferenceSession:
    """A session of ONNX Runtime without its remarks."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def judged(path: str, run: Any, feeds: list[dict[str, np.ndarray]]) -> Comparison:
    """A run against the float model in ONNX Runtime."""
    reference, comparison = session(path), Comparison()
    names = [output.name for output in reference.get_outputs()]
    for sample in feeds:
        expected = dict(zip(names, reference.run(None, sample)))
        comparison.add(expected, dict(zip(names, run(sample))))
    return comparison


def baseline(path: str, calibrating: list[dict], judging: list[dict]) -> dict[str, float]:
    """ONNX Runtime's quantiser with each of its settings: dB by setting."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.samples = iter(calibrating)

        def get_next(self) -> dict | None:
            return next(self.samples, None)

    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        ready = f"{folder}/ready.onnx"
        try:
            quant_pre_process(path, ready, skip_symbolic_shape=True)
        except Exception:
            ready = path
        for method in METHODS:
            for type in TYPES:
                out = f"{folder}/q.onnx"
                try:
                    quantize_static(
                        ready, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
                        calibrate_method=getattr(CalibrationMethod, method),
                        activation_type=getattr(QuantType, type), weight_type=QuantType.QInt8,
                    )  # fmt: skip
                    ratios[f"{method} {type}"] = judged_model(path, out, judging)
                except Exception as error:
                    print(f"  {method} {type}: {str(error)[:100]}")
        if any(node.op_type == "LSTM" for node in onnx.load(ready).graph.node):
            ratios |= dynamic(path, ready, judging)
    return ratios


def judged_model(path: str, quantised: str, judging: list[dict]) -> float:
    """A quantised model in ONNX Runtime against the float one, in dB."""
    made = exact_session(onnx.load(quantised))
    return judged(path, lambda x: made.run(None, x), judging).decibels()


def dynamic(path: str, ready: str, judging: list[dict]) -> dict[str, float]:
    """ONNX Runtime's dynamic quantiser with each of its settings: dB by setting."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/q.onnx"
        for types in (None, ["LSTM"]):
            for weights in TYPES:
                for per_channel in (False, True):
                    quantize_dynamic(
                        ready, out, op_types_to_quantize=types, per_channel=per_channel,
                        weight_type=getattr(QuantType, weights),
                    )  # fmt: skip
                    made = {node.op_type for node in onnx.load(out).graph.node}
                    if "DynamicQuantizeLSTM" not in made:
                        continue  # the recurrent layers stay float
                    setting = f"dynamic {types or 'all'} {weights} {per_channel}"
                    ratios[setting] = judged_model(path, out, judging)
    return ratios


def measure(path: str, args: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """One model: the baseline, unless it is known, and graphc."""
    calibrating, judging = samples(path, args.samples, 1), rows(samples(path, args.judged, 99))
    row = dict(known)
    if "onnxruntime" not in row:
        with contextlib.redirect_stdout(io.StringIO()):
            ratios = baseline(path, rows(calibrating), judging)
        row["setting"] = max(ratios, key=lambda name: ratios[name])
        row["onnxruntime"] = ratios[row["setting"]]
    start = time.process_time()
    quantised = graphc.quantise(path, calibrating, **json.loads(args.options))
    row["seconds"] = time.process_time() - start
    made = exact_session(quantised.to_onnx())
    row["theirs"] = judged(path, lambda x: made.run(None, x), judging).decibels()
    compiled = graphc.compile(quantised.graph)
    row["own"] = judged(path, compiled.run, judging).decibels()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--samples", type=int, default=16, help="to calibrate on")
    parser.add_argument("--judged", type=int, default=8, help="other samples to judge by")
    parser.add_argument("--options", default="{}", help="of graphc.quantise, as JSON")
    parser.add_argument("--json", help="results; baselines that it holds are not measured again")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    kept = json.loads(Path(args.json).read_text()) if args.json and Path(args.json).exists() else {}
    print(f"{'model':26} {'ONNX Runtime best':>30} {'on ORT':>8} {'on graphc':>9} {'CPU s':>6}")
    gains = []
    for path in args.models:
        name = Path(path).stem
        known = {k: v for k, v in kept.get(name, {}).items() if k in ("setting", "onnxruntime")}
        row = kept[name] = measure(path, args, known)
        theirs = f"{row['onnxruntime']:.2f} dB ({row['setting']})"
        figures = f"{row['theirs']:8.2f} {row['own']:9.2f} {row['seconds']:6.1f}"
        print(f"{name:26} {theirs:>30} {figures}", flush=True)
        gains.append(min(row["theirs"], row["own"]) - row["onnxruntime"])
        if args.json:
            Path(args.json).write_text(json.dumps(kept, indent=1))
    finite = [g for g in gains if math.isfinite(g)]
    print(f"least gain {min(finite):.2f} dB, mean {sum(finite) / len(finite):.2f} dB")


if __name__ == "__main__":
    main()
