"""Training steps of graphc next to PyTorch's: time, and peak memory.

    python benchmarks/bench_train.py --directory MODELS [--threads 1 2] [--seconds 10] [NAME ...]
    python benchmarks/bench_train.py --directory MODELS --compiled       # torch.compile as well
    python benchmarks/bench_train.py --directory MODELS --cpu-time       # on a busy machine
    python benchmarks/bench_train.py --directory MODELS --memory         # peaks instead of times

A step is forward, backward and AdamW, on one batch. All run in turn in one process, from the same
weights; PyTorch has its fused AdamW. One JSON line per model and number of threads; `eager_x` and
`compiled_x` are the median over rounds of PyTorch's time by graphc's, `loss_apart` how far the
losses of the first step are apart, by their size. `--cpu-time` counts the time of the process on
processors, of all threads, instead of the time that passes. With `--memory` each contender runs in
a process of its own, and `peak_mb` is the most memory that it held during steps, after what it
takes to compile. Models are those of `BATCHES`; their ONNX files are of batch 1 and get other
shapes here.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import training_batches

import models
from graphc import dsl, train
from graphc.bench import measure
from graphc.errors import GraphcError

BATCHES = {
    "mlp_mnist": 64,
    "lstm_tagger": 4,
    "resnet18": 8,
    "mobilenet_v2": 8,
    "bert_base": 4,
    "gpt2": 2,
    "vit_b16": 4,
}
NUMBERS = {"bert_base"}  # whose results are no scores: trained by squared differences
RATE = 1e-4


class Case:
    """A model, and a batch to train it on, which a file may hold."""

    def __init__(self, path: Path, batch: str | None = None):
        self.name = path.stem
        self.model = training_batches.prepared(path, BATCHES[path.stem])
        self.labels = path.stem not in NUMBERS
        if batch is not None:
            with np.load(batch) as file:
                self.batch = list(file.values())
            return
        import torch_step  # which takes memory

        given = training_batches.batch_of(self.model, (1, 1), False)[:-1]
        shape = torch_step.output_shape(self.model, given)
        self.batch = training_batches.batch_of(self.model, shape, self.labels)

    def graphc(self, threads: int) -> train.Step:
        loss = cross_entropy if self.labels else "mse"
        return train.Step(
            self.model,
            loss=loss,
            optimizer=train.AdamW(RATE),
            train_mode=False,
            threads=threads,
            gradient_norm=False,
        )

    def torch(self, names: Sequence[str], compiled: bool) -> Callable[[], float]:
        import torch_step

        return torch_step.step(self.model, names, self.batch, self.labels, RATE, compiled)


def cross_entropy(scores: dsl.Tensor, labels: dsl.Tensor) -> dsl.Tensor:
    """The mean over all labels, which stand for rows of scores."""
    rows = dsl.Reshape(scores, np.array([-1, scores.shape[-1]]))  # type: ignore[list-item]
    return train.LOSSES["cross_entropy"](rows, dsl.Reshape(labels, np.array([-1])))


def bench(path: Path, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    import torch

    torch.set_num_threads(threads)
    case = Case(path)
    ours = case.graphc(threads)
    start = time.perf_counter()
    first = ours(case.batch)
    ready = time.perf_counter() - start
    contenders: dict[str, Callable[[], object]] = {"graphc": lambda: ours(case.batch)}
    contenders["eager"] = eager = case.torch(list(ours.recipe.chosen), False)
    losses = [eager()]
    failed = ""
    if args.compiled:
        contenders["compiled"] = made = case.torch(list(ours.recipe.chosen), True)
        try:
            losses.append(made())
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"[:200]
            del contenders["compiled"]
    clock = time.process_time if args.cpu_time else time.perf_counter
    times = measure(contenders, args.seconds, clock)
    row: dict[str, Any] = {"model": case.name, "threads": threads, "compile_s": ready}
    row.update({f"{name}_ms": t.median * 1e3 for name, t in times.items()})
    for name in contenders:
        if name != "graphc":
            row[f"{name}_x"] = times["graphc"].ratio(times[name])
    row["loss_apart"] = max(abs(x - first.loss) / abs(x) for x in losses)
    row["rounds"] = len(times["graphc"].seconds)
    return {**row, "failed": failed} if failed else row


# ---------------------------------------------------------------- memory


def peak_of(contender: str, path: Path, batch_file: str, threads: int) -> float:
    """The most memory of this process during three steps, in MB, after one step."""
    case = Case(path, batch_file)
    ours = case.graphc(threads)
    batch, names = case.batch, list(ours.recipe.chosen)
    if contender == "graphc":
        run: Callable[[], object] = lambda: ours(batch)  # noqa: E731
    else:
        import torch

        torch.set_num_threads(threads)
        del ours
        run = case.torch(names, contender == "compiled")
    case.model = onnx.ModelProto()
    run()
    gc.collect()
    with contextlib.suppress(OSError):
        __import__("ctypes").CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        run()
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM")) / 1024


def memory(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The peak of each contender, in a process of its own, where graphc's imports no PyTorch;
    graphc's after it was compiled there or found in the cache."""
    row: dict[str, Any] = {"model": path.stem}
    batch = Path(tempfile.mkdtemp()) / "batch.npz"
    np.savez(batch, *Case(path).batch)
    for contender in ["graphc", "eager", *(["compiled"] if args.compiled else [])]:
        command = [sys.executable, __file__, "--directory", args.directory, path.stem]
        command += ["--threads", str(args.threads[0]), "--peak", contender, "--batch", str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        row[f"{contender}_mb"] = float(done.stdout) if not done.returncode else None
        if done.returncode:
            row["failed"] = f"{contender}: {(done.stderr.strip().splitlines() or [''])[-1]}"[:200]
    batch.unlink()
    for other in ("eager", "compiled"):
        if row.get(f"{other}_mb") and row["graphc_mb"]:
            row[f"of_{other}"] = row["graphc_mb"] / row[f"{other}_mb"]
    return row


# ---------------------------------------------------------------- the command


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """The geometric means, and the lowest."""
    parts = []
    for key in ("eager_x", "compiled_x", "of_eager", "of_compiled"):
        values = [row[key] for row in rows if row.get(key)]
        if values:
            mean = float(np.exp(np.mean(np.log(values))))
            parts.append(f"{key}: mean {mean:.3f} of {len(values)}, least {min(values):.3f}")
    return "; ".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows and their means; 1 if a model failed."""
    parser = models.arguments("training steps of graphc next to PyTorch's")
    parser.add_argument("--seconds", type=float, default=10.0, help="per model")
    parser.add_argument("--cpu-time", action="store_true", help="count time on processors")
    parser.add_argument("--compiled", action="store_true", help="measure torch.compile as well")
    parser.add_argument("--memory", action="store_true", help="measure peaks of memory, not times")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    paths = [p for p in models.paths(args) if p.stem in BATCHES]
    if args.peak:
        print(peak_of(args.peak, paths[0], args.batch, args.threads[0]))
        return 0
    failed = False
    for threads in args.threads[:1] if args.memory else args.threads:
        rows = []
        for path in paths:
            try:
                row = memory(path, args) if args.memory else bench(path, threads, args)
            except GraphcError as error:
                row, failed = {"model": path.stem, "threads": threads, "error": str(error)}, True
            rows.append(row)
            print(json.dumps(rounded(row)), flush=True)
        print(f"threads {threads}: {summary(rows)}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"bench_train: {error}")
