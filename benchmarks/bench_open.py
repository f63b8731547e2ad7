"""Models of open size: answers against ONNX Runtime, and the general program against exact ones.

    python benchmarks/bench_open.py --directory MODELS [--sizes 20] [--exact 3] [NAME ...]

Each model of the table below is opened (`opened_models.py`; a file that is open already stays as it
is), compiled once with `specialise="any"`, and run at random sizes. Some of these are compiled
exactly too. The two programs then run in turn in one process, by CPU time of one thread.

One JSON line per model: the largest error relative to the range of an output, CPU seconds of
compiling, and per size the median ratio of the exact program's time to the general one's.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from opened_models import opened

import graphc
import models
from graphc.errors import GraphcError
from graphc.ir.compare import agreements
from graphc.verify import onnxruntime

Bounds = tuple[int, int, int]

BATCH: Bounds = (1, 8, 1)
PIXELS: Bounds = (64, 256, 32)
IMAGES = {"image": {0: "N"}}
OPEN: dict[str, tuple[dict[str, dict[int, str]], dict[str, Bounds]]] = {
    "bert_base": ({"input_ids": {1: "S"}, "attention_mask": {1: "S"}}, {"S": (1, 128, 1)}),
    "distilbert_dyn": ({}, {"batch": (1, 4, 1), "seq": (1, 128, 1)}),
    "unet_small": ({"image": {2: "H", 3: "W"}}, {"H": (32, 256, 8), "W": (32, 256, 8)}),
    "segformer_b0": ({"image": {2: "H", 3: "W"}}, {"H": PIXELS, "W": PIXELS}),
    "gpt2": ({"input_ids": {1: "S"}}, {"S": (1, 64, 1)}),
    "llama_tiny": ({"input_ids": {1: "S"}}, {"S": (1, 64, 1)}),
    "lstm_tagger": ({"tokens": {0: "N"}}, {"N": BATCH}),
    "mlp_mnist": ({"x": {0: "N"}}, {"N": (1, 32, 1)}),
    "whisper_tiny_enc": ({"mel": {0: "N"}}, {"N": (1, 2, 1)}),
    **{
        name: (IMAGES, {"N": BATCH})
        for name in (
            "mobilenet_v1", "mobilenet_v2", "efficientnet_b0", "resnet18", "resnet50",
            "convnext_tiny", "vit_b16",
        )
    },
}  # fmt: skip
"""By model: the symbols of dimensions of inputs, by input and axis, and for each symbol the least
and the largest size, and what sizes are multiples of."""


def open_model(path: Path) -> onnx.ModelProto:
    """A model of the table, opened. What is opened is followed from the size of the file to
    another: a smaller one, or three for a batch of one."""
    model = models.filled(onnx.load(path))
    axes, bounds = OPEN[path.stem]
    if not axes:
        return model
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    # sizes of other parity for each symbol, so that they are told apart
    others = {name: n for n, name in enumerate(sorted(bounds))}
    return opened(
        model,
        {
            name: {
                axis: (symbol, _other(sizes[name][axis], bounds[symbol][2], others[symbol]))
                for axis, symbol in by_axis.items()
            }
            for name, by_axis in axes.items()
        },
    )


def _other(size: int, step: int, number: int) -> int:
    return 3 + number if size == 1 else size - step * (3 + 2 * number)


def draw(bounds: Mapping[str, Bounds], dice: random.Random) -> dict[str, int]:
    """Sizes within bounds."""
    return {n: dice.randrange(lo, hi + 1, step) for n, (lo, hi, step) in bounds.items()}


def feeds_of(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Inputs of these sizes: token ids, masks that hide a tail, noise."""
    rng = np.random.default_rng(sum(sizes.values()))
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if "mask" in value.name:
            kept = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
            feeds[value.name] = (np.arange(shape[-1]) < kept).astype(dtype)
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = rng.integers(0, 1000, shape).astype(dtype)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def bench(path: Path, count: int, exact: int, seconds: float) -> dict[str, Any]:
    """One row."""
    model = open_model(path)
    source, bounds = model.SerializeToString(), OPEN[path.stem][1]
    limits = {name: (lo, hi) for name, (lo, hi, _) in bounds.items()}
    begin = time.process_time()
    compiled = graphc.compile(source, dims=limits, threads=1, specialise="any")
    row: dict[str, Any] = {"model": path.stem, "compile_s": time.process_time() - begin}
    if compiled.why_exact:
        return {**row, "why_exact": compiled.why_exact}
    peer, dice = onnxruntime(source, 1), random.Random(path.stem)
    largest = {name: hi // step * step for name, (_, hi, step) in bounds.items()}
    cases = [largest, *(draw(bounds, dice) for _ in range(count - 1))]
    names = [output.name for output in model.graph.output]
    errors = []
    for sizes in cases:
        feeds = feeds_of(model, sizes)
        errors += [a.error for a in agreements(names, compiled.run(feeds), peer(feeds))]
    row["error"] = max(errors)
    row["sizes"] = len(cases)
    row["why_exact"] = compiled.why_exact
    row["ratios"] = {}
    for sizes in cases[:exact]:
        feeds = feeds_of(model, sizes)
        own = graphc.compile(source, dims=sizes, threads=1)
        ratio = compared(partial(own.run, feeds), partial(compiled.run, feeds), seconds)
        row["ratios"][",".join(f"{n}={v}" for n, v in sizes.items())] = ratio
    return row


def compared(one: Callable[[], object], other: Callable[[], object], seconds: float) -> float:
    """The median over rounds of one's CPU time by the other's; which is first alternates."""
    ratios: list[float] = []
    until = time.perf_counter() + seconds
    one(), other()
    while time.perf_counter() < until or len(ratios) < 5:
        times: dict[int, float] = {}
        order = (one, other) if len(ratios) % 2 else (other, one)
        for run in order:
            begin = time.process_time()
            run()
            times[id(run)] = time.process_time() - begin
        ratios.append(times[id(one)] / times[id(other)])
    return float(np.median(ratios))


def rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        return float(f"{value:.3g}") if isinstance(value, float) else value

    return {
        key: {k: short(v) for k, v in value.items()} if isinstance(value, dict) else short(value)
        for key, value in row.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows, and the geometric mean of the ratios; 1 if a model failed, has no general
    program, or is off by more than 1e-4."""
    parser = models.arguments("programs of open size next to exact ones")
    parser.add_argument("--sizes", type=int, default=20, help="random sizes per model")
    parser.add_argument("--exact", type=int, default=3, help="sizes timed against exact programs")
    parser.add_argument("--seconds", type=float, default=3.0, help="per size that is timed")
    args = parser.parse_args(argv)
    means, failed = [], False
    for path in models.paths(args):
        if path.stem not in OPEN:
            continue
        try:
            row = bench(path, args.sizes, args.exact, args.seconds)
        except GraphcError as error:
            row = {"model": path.stem, "problem": str(error)}
        failed |= "error" not in row or row["error"] > 1e-4 or bool(row["why_exact"])
        if row.get("ratios"):
            row["mean"] = float(np.exp(np.mean(np.log(list(row["ratios"].values())))))
            means.append(row["mean"])
        print(json.dumps(rounded(row)), flush=True)
    if means:
        mean = float(np.exp(np.mean(np.log(means))))
        print(f"geometric mean x{mean:.3f} of {len(means)} models, lowest x{min(means):.3f}",
              file=sys.stderr)  # fmt: skip
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"bench_open: {error}")
