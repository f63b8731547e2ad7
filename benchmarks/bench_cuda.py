"""What graphc's kernels reach on a GPU, next to PyTorch, torch.compile and JAX.

    python benchmarks/bench_cuda.py [--directory MODELS] [PART ...]
    python benchmarks/bench_cuda.py --dry-run --arch sm_90       # all but the GPU: builds, compiles

Parts: latency bandwidth gemm attention rows models. One JSON line per case, as soon as it is known:
milliseconds of each contender (medians, between CUDA events, on arrays of the device, in one
process, in turn, with a cold cache), then `ratio`, the fastest peer's time by graphc's, or
`of_copy`, a share of the measured copy bandwidth; `goal`, and whether it is `reached`. `error` is
the relative norm of the difference to PyTorch's result where both compute the same. JAX has no
events to offer: its time is that of many runs, by their number, with a warm cache. A peer that is
not installed, or fails, is named in `missing`. With --dry-run, machine code is kept in the disk
cache (GRAPHC_CACHE_DIR), which may be taken to where the GPU is.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cuda_cases
import cuda_peers
import numpy as np

from graphc.backends.cuda import emit
from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.gpu import GpuModel, open_gpu, with_own_features
from graphc.backends.cuda.machine_code import architectures, machine_code
from graphc.driver import program_for
from graphc.errors import GraphcError
from graphc.ir.graph import Graph

PARTS = ("latency", "bandwidth", "gemm", "attention", "rows", "models")
TYPES = {"f32": 4, "f16": 2}  # that kernels limited by memory are measured with, and their bytes
LENGTH = 8192  # elements of a row of tensors of 1 GiB whose elements are independent
ROUNDS, TURNS = 10, 5  # runs timed in one turn, and turns of each contender
WARM_SECONDS = 0.5  # of work before a case is measured: an idle GPU runs at a low clock
REPLAYS = 100  # of a small model, in a row
FLUSHED = 128 << 20  # bytes copied before a run: more than caches hold, and time to get ahead
REACHED = {  # least ratio, by part and kind
    "bandwidth": 0.85, "rows": 0.85, "gemm f16": 0.6, "gemm f32": 0.8, "models": 0.7,
}  # fmt: skip
LATENCY_MS = 0.015
COMPILED = ("torch_compile", "torch_compile_graphs")


@dataclass
class Case:
    """Something to measure. `graph` makes the graph; `peers` are made from its inputs (arrays of
    the host); `moved` bytes are what it must read and write."""

    part: str
    name: str
    graph: Callable[[], Graph]
    peers: dict[str, Callable[[Sequence[np.ndarray]], Callable[[], object]]] = field(
        default_factory=dict
    )
    precision: str = "f32"
    moved: int = 0
    flops: int = 0
    against: tuple[str, ...] = ()
    goal: float = 0.0
    same: bool = True  # peers compute the same numbers


# ---------------------------------------------------------------- cases


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Everything that the chosen parts measure."""
    makers = {
        "bandwidth": bandwidth, "rows": rows, "gemm": gemm, "attention": attention,
        "models": partial(models, args), "latency": partial(latency, args),
    }  # fmt: skip
    for part in args.parts:
        yield from makers[part]()


def bandwidth() -> Iterator[Case]:
    """Elementwise kernels on tensors of 1 GiB."""
    for type, size in TYPES.items():
        for name in cuda_cases.ELEMENTWISE:
            text = cuda_cases.elementwise(name, type, (1 << 30) // size // LENGTH, LENGTH)
            yield _moving("bandwidth", f"{name} {type}", text, cuda_peers.elementwise(name))


def rows() -> Iterator[Case]:
    """Reductions on tensors of 1 GiB, of short rows and long ones, and of columns."""
    lengths = {"rms_norm": (4096,), "column_sum": (4096,)}
    for type, size in TYPES.items():
        for name in cuda_cases.REDUCTIONS:
            for length in lengths.get(name, (256, 1024, 16384)):
                text = cuda_cases.reduction(name, type, (1 << 30) // size // length, length)
                case = f"{name} {type} of {length}"
                yield _moving("rows", case, text, cuda_peers.rows(name))


def _moving(part: str, name: str, text: str, peers: dict[str, cuda_peers.Maker]) -> Case:
    """A case whose time is that of moving its operands."""
    return Case(part, name, partial(cuda_cases.parsed, text), peers,
                moved=cuda_cases.moved(text), goal=REACHED[part])  # fmt: skip


def gemm() -> Iterator[Case]:
    """Square products, against the vendor's library through PyTorch."""
    size = 4096
    for type, precision in (("f32", "f32"), ("f32", "tf32"), ("f16", "f32"), ("bf16", "f32")):
        name = type if precision == "f32" else precision
        text = cuda_cases.product(size, type)
        yield Case("gemm", f"{name} {size}", partial(cuda_cases.parsed, text),
                   cuda_peers.product(name), precision, flops=2 * size**3,
                   against=("torch",),
                   goal=REACHED.get(f"gemm {name}", 0.0))  # fmt: skip


def attention() -> Iterator[Case]:
    """One layer's attention; its memory must grow with the sequence, not with its square."""
    for length in (512, 1024, 2048, 4096, 8192):
        text = cuda_cases.attention(length, "f16")
        yield Case("attention", f"{length}", partial(cuda_cases.parsed, text),
                   cuda_peers.attention(), flops=4 * 16 * length * length * 64)  # fmt: skip


def models(args: argparse.Namespace) -> Iterator[Case]:
    """Whole models at batch 1 and 32, in several precisions."""
    for precision in args.precision:
        for name in ("bert_base", "resnet50"):
            for batch in (1, 32):
                yield Case("models", f"{name} batch {batch} {precision}",
                           partial(cuda_cases.model, args.directory, name, batch),
                           cuda_peers.model(name, precision), precision, goal=REACHED["models"],
                           against=COMPILED, same=False)  # fmt: skip


def latency(args: argparse.Namespace) -> Iterator[Case]:
    """A small model, whose time is that of replaying its graph."""
    yield Case("latency", "mlp_mnist", partial(cuda_cases.model, args.directory, "mlp_mnist", 1))


# ---------------------------------------------------------------- measuring


def measure(case: Case, gpu: Any, copy: float, tune: bool = False) -> dict[str, Any]:
    """Times of graphc and all peers. `copy` is the bytes per second of a copy; `tune`: tiles are
    measured first."""
    graph = case.graph()
    inputs = cuda_cases.inputs_of(graph)
    arch = with_own_features(gpu.arch)
    settings = dict(precision=case.precision, arch=arch, device=gpu.ordinal, tune=tune)
    model = GpuModel(program_for(graph, "cuda", **settings), gpu).model
    resident = [model.to_device(array) for array in inputs]
    before = flusher(gpu, model)
    runs: dict[str, Callable[[], Sequence[float]]] = {
        "graphc": lambda: model.times(resident, ROUNDS, before=before)
    }
    row: dict[str, Any] = {}
    missing = {}
    cuda_peers.forget()
    for name, make in case.peers.items():
        try:
            peer = make(inputs)
            runs[name] = cuda_peers.timer(name, peer, ROUNDS, FLUSHED)
            if name == "torch" and case.same:
                row["error"] = cuda_peers.difference(peer(), model.run(resident)[0])
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:200]
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < end:
        runs["graphc"]()
    for _ in range(TURNS):
        for name, run in runs.items():
            times[name] += run()
    medians = {name: float(np.median(samples)) for name, samples in times.items()}
    row.update({f"{name}_ms": value for name, value in medians.items()})
    if case.part == "latency":
        row.update(latencies(model, inputs, resident))
    row.update(judged(case, medians, copy), **sizes(model.plan))
    return {**row, "missing": missing} if missing else row


def flusher(gpu: Any, model: Any) -> Callable[[Any], None]:
    """Work for a stream that leaves nothing useful in the caches of the GPU."""
    source, target = (model.to_device(np.zeros(FLUSHED, np.uint8)) for _ in range(2))
    return lambda stream: gpu.copy(target.pointer, source.pointer, FLUSHED, stream)


def latencies(model: Any, inputs: Sequence[Any], resident: Sequence[Any]) -> dict[str, float]:
    """Milliseconds of a run among many in a row, and of a call on arrays of the host, by the
    clock."""
    row = {"in_a_row_ms": float(np.median(model.times(resident, ROUNDS, batch=REPLAYS)))}
    calls = []
    for _ in range(REPLAYS):
        start = time.perf_counter()
        model.run(inputs)
        calls.append((time.perf_counter() - start) * 1e3)
    return {**row, "call_ms": float(np.median(calls))}


def judged(case: Case, times: dict[str, float], copy: float) -> dict[str, Any]:
    """What the times come to."""
    seconds = times["graphc"] / 1e3
    row: dict[str, Any] = {}
    ratio = None
    if case.moved:
        row["gbytes"] = case.moved / seconds / 1e9
        ratio = row["of_copy"] = case.moved / seconds / copy
    if case.flops:
        row["tflops"] = case.flops / seconds / 1e12
    peers = [times[name] for name in case.against if name in times]
    if peers:
        ratio = row["ratio"] = min(peers) / times["graphc"]
    if case.part == "latency":
        return {**row, "goal_ms": LATENCY_MS, "reached": times["graphc"] < LATENCY_MS}
    if case.goal and ratio is not None:
        row.update(goal=case.goal, reached=ratio >= case.goal)
    return row


def sizes(plan: dict[str, Any]) -> dict[str, int]:
    """Launches of a plan, and the memory it needs beside inputs and outputs."""
    return {"launches": len(plan["launches"]), "arena_bytes": plan["arena_bytes"]}


def copy_bandwidth(gpu: Any, size: int = 1 << 30) -> float:
    """Bytes read and written per second by a copy of so many bytes on the device."""
    with gpu.current():
        source, target = gpu.allocate(size), gpu.allocate(size)
        stream, start, end = gpu.stream(), gpu.event(timed=True), gpu.event(timed=True)
        times = []
        for _ in range(ROUNDS + 2):
            gpu.record(start, stream)
            gpu.copy(target, source, size, stream)
            gpu.record(end, stream)
            gpu.synchronize(stream)
            times.append(gpu.elapsed(start, end))
        gpu.free(source)
        gpu.free(target)
    return 2 * size / (float(np.median(times[2:])) / 1e3)


def rehearse(case: Case, arch: str) -> dict[str, Any]:
    """All but the GPU: kernels are made, and compiled if there is a compiler."""
    source = emit(program_for(case.graph(), "cuda", precision=case.precision, arch=arch))
    plan, weights = launch_plan(source)
    row: dict[str, Any] = {**sizes(plan), "weights_bytes": len(weights), "streams": plan["streams"]}
    if arch in architectures():
        row["code_bytes"] = len(machine_code(source.text, arch))
    return {**row, "peers": sorted(case.peers)}


def grows_linearly(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the arena of attention grows at most as its sequence does."""
    lengths = [int(row["case"]) for row in rows]
    arenas = [max(row["arena_bytes"], 1) for row in rows]
    order = math.log(arenas[-1] / arenas[0]) / math.log(lengths[-1] / lengths[0])
    return {"part": "attention", "case": "growth of the arena", "order": order,
            "goal": 1.0, "reached": order <= 1.01}  # fmt: skip


# ---------------------------------------------------------------- the command


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="graphc's kernels on a GPU, next to others'")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--directory", default=cuda_cases.MODELS, help="$GRAPHC_MODELS")
    parser.add_argument(
        "--precision", nargs="+", default=["f16", "f32"], help="of models (default: f16 f32)"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after so many, no further case is begun"
    )
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--tune", action="store_true", help="choose tiles by measuring them")
    parser.add_argument("--dry-run", action="store_true", help="all but the GPU")
    parser.add_argument("--arch", default="sm_90a", help="that --dry-run compiles for")
    return parser


def show(row: dict[str, Any]) -> None:
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(rounded), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows; 1 if a case failed or there is no GPU."""
    args = arguments().parse_args(argv)
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        raise GraphcError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    args.parts = args.parts or list(PARTS)
    gpu, copy = None, 0.0
    if not args.dry_run:
        gpu = open_gpu(args.device)
        copy = copy_bandwidth(gpu)
        show({"device": gpu.device, "arch": gpu.arch, "bindings": gpu.name,
              "copy_gbytes": copy / 1e9, "peers": cuda_peers.versions()})  # fmt: skip
    failed, grown = False, []
    end = time.monotonic() + args.seconds
    for case in cases(args):
        head = {"part": case.part, "case": case.name}
        if time.monotonic() > end:
            show({**head, "skipped": f"{args.seconds:.0f} seconds are over"})
            continue
        try:
            row = rehearse(case, args.arch) if gpu is None else measure(case, gpu, copy, args.tune)
            grown += [{**head, **row}] if case.part == "attention" else []
        except Exception as error:
            traceback.print_exc()
            row, failed = {"failed": f"{type(error).__name__}: {error}"[:500]}, True
        show({**head, **row})
    if len(grown) > 1:
        show(grows_linearly(grown))
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"bench_cuda: {error}")
