"""Latency of graphc next to ONNX Runtime over a directory of models, and next to the roofline.

    python benchmarks/bench_zoo.py --directory MODELS [--threads 1 2] [--seconds 5] [NAME ...]

One JSON line per model and number of threads. The two run in turn in one process on the same
inputs; `speedup` is the median over rounds of ONNX Runtime's time by graphc's. `gflops` and
`gbytes` are per second, and `of_roofline` is the least time the machine could take (its peaks are
measured first; see graphc.analysis.roofline) by the time taken.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import graphc
import models
from graphc.analysis import roofline
from graphc.analysis.cost import Cost, op_cost
from graphc.backends.llvm_cpu.machine import host_machine
from graphc.bench import measure
from graphc.errors import GraphcError
from graphc.ir.compare import agreements
from graphc.ir.graph import Graph
from graphc.ir.machine import Peaks
from graphc.verify import onnxruntime


def bench(path: Path, threads: int, seconds: float, peaks: Peaks) -> dict[str, Any]:
    """One row: times in milliseconds, error relative to the range of the outputs."""
    model, graph, feeds = models.load(path)
    start = time.perf_counter()
    compiled = graphc.compile(graph, threads=threads)
    outputs = compiled.run(feeds)
    ready = time.perf_counter() - start
    peer = onnxruntime(model.SerializeToString(), threads)
    compared = agreements(graph.output_names, outputs, peer(feeds))
    contenders = {"graphc": partial(compiled.run, feeds), "onnxruntime": partial(peer, feeds)}
    times = measure(contenders, seconds)
    taken = times["graphc"].median
    cost = sum((op_cost(op) for op in graph.ops), Cost())
    return {
        "model": path.stem,
        "threads": threads,
        "compile_s": ready,
        "graphc_ms": taken * 1e3,
        "onnxruntime_ms": times["onnxruntime"].median * 1e3,
        "speedup": times["graphc"].ratio(times["onnxruntime"]),
        "error": max((output.error for output in compared), default=0.0),
        "gflops": cost.flops / taken / 1e9,
        "gbytes": cost.nbytes / taken / 1e9,
        "of_roofline": least_seconds(graph, peaks) / taken,
        "rounds": len(times["graphc"].seconds),
    }


def least_seconds(graph: Graph, peaks: Peaks) -> float:
    """The time the machine needs if every product and window is a step of its own, and everything
    else is fused into them at no cost."""
    steps = [op_cost(op) for op in graph.ops]
    heavy = [cost for cost in steps if cost.flops >= sum(c.flops for c in steps) / 1000]
    return sum(roofline.seconds(peaks, cost) for cost in heavy)


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows, and the geometric mean of each number of threads; 1 if a model failed."""
    parser = models.arguments("latency of graphc next to ONNX Runtime")
    parser.add_argument("--seconds", type=float, default=5.0, help="per model")
    args = parser.parse_args(argv)
    failed = False
    for threads in args.threads:
        peaks, speedups = host_machine().peaks(threads), []
        for path in models.paths(args):
            try:
                row = bench(path, threads, args.seconds, peaks)
                speedups.append(row["speedup"])
            except GraphcError as error:
                row, failed = {"model": path.stem, "threads": threads, "error": str(error)}, True
            print(json.dumps(rounded(row)), flush=True)
        if speedups:
            mean = float(np.exp(np.mean(np.log(speedups))))
            print(
                f"threads {threads}: geometric mean x{mean:.3f} of {len(speedups)} models, "
                f"lowest x{min(speedups):.3f}; machine {peaks.flops / 1e9:.0f} GFLOP/s, "
                f"{peaks.bandwidth / 1e9:.1f} GB/s",
                file=sys.stderr,
            )
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"bench_zoo: {error}")
