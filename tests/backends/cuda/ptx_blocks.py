"""Blocks of kernels in the PTX machine and in the simulator of their text: the same results?

    python tests/backends/cuda/ptx_blocks.py MODEL.onnx ... [--arch sm_80,sm_90a]
        [--precision f32,tf32,f16,bf16,int8] [--dim batch=1 ...] [--blocks 1] [--results FILE]

Of every kernel of a model the first and the last blocks are run by both, on random numbers, and
what they write is compared. So the kernels of large models are checked in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.ptx import PtxKernels
from graphc.backends.cuda.ptx.run import PtxRun
from graphc.backends.cuda.simulator.build import Run, compiled
from graphc.backends.cuda.simulator.sites import Numbering
from graphc.backends.cuda.simulator.translate import translate
from graphc.backends.cuda.steps import LaunchStep
from graphc.ir.program import Slot

FIRST, LAST = 0, 1  # orders of blocks, ascending and descending
SEQUENCE = 64  # tokens, where a model does not say how many
TOLERANCE = 1e-2  # of the range of what is written
KEY = ("model", "arch", "precision")


@dataclass(frozen=True)
class Compared:
    """A kernel, the largest difference of what its blocks write, relative to the range of that, and
    how many blocks of how many were run."""

    kernel: str
    error: float
    blocks: int
    grid: int


def compared(
    source: CudaSource, arch: str, blocks: int = 1, ptx: str | None = None
) -> Iterator[Compared]:
    """Compares the first and the last blocks of every kernel. Sizes must be constant."""
    numbering = Numbering()
    library = compiled(translate(source.text, numbering.mark), ["profile"])
    kernels = PtxKernels(machine_code(source.text, arch, "ptx").decode() if ptx is None else ptx)
    inputs = [np.zeros(t.static_shape, t.dtype.np) for _, t in source.program.inputs]
    runs = [Run(source, library, inputs, 0), PtxRun(source, kernels, inputs, 0)]
    for run in runs:
        run.memory = {place: array.copy() for place, array in run.memory.items()}
        for marks in run.defined.values():
            marks.fill(1)
    done: set[str] = set()
    for step in source.steps:
        if step.function in done or not step.grid:
            continue
        done.add(step.function)
        chosen = sorted(
            {*range(min(blocks, step.grid)), *range(max(step.grid - blocks, 0), step.grid)}
        )
        _fill(step, runs)
        for order in (FIRST, LAST):
            library.begin_profile(len(numbering.sites), blocks)
            runs[0].order = order
            runs[0].start(step)
        runs[1].blocks = chosen
        runs[1].start(step)
        errors = [_error(slot, *runs) for slot, how in zip(step.slots, step.access) if how != "in"]
        yield Compared(step.function, max(errors, default=0.0), len(chosen), step.grid)


def _fill(step: LaunchStep, runs: list[Run]) -> None:
    """Random numbers in what a launch reads, and zeros in what it writes."""
    random = np.random.default_rng(0)
    for slot, access in sorted(zip(step.slots, step.access), key=lambda pair: pair[1] != "out"):
        for run in runs:
            values = _values(run, slot)
            if access == "out":
                values[...] = 0
            elif slot.dtype.np.kind in "iub":
                values[...] = random.integers(0, 2, values.shape) if run is runs[0] else 0
            else:
                values[...] = random.uniform(-1, 1, values.shape) if run is runs[0] else 0
        if access != "out":
            _values(runs[1], slot)[...] = _values(runs[0], slot)


def _values(run: Run, slot: Slot) -> np.ndarray:
    data = run.memory[slot.space, slot.index].reshape(-1).view(np.uint8)
    return data[slot.offset : slot.offset + slot.elements * slot.dtype.size].view(slot.dtype.np)


def _error(slot: Slot, first: Run, second: Run) -> float:
    a, b = (np.asarray(_values(run, slot), np.float64) for run in (first, second))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    finite = a[np.isfinite(a)]
    return float(np.abs(a - b)[~same].max() / (np.ptp(finite) if finite.size else 1.0))


def source_of(path: str, arch: str, precision: str, dims: Mapping[str, int]) -> CudaSource:
    """The kernels of a model. `precision` int8: quantised by one random sample, as which kernels
    there are does not depend on scales. What `dims` does not say is 1, or 64 along a sequence."""
    import graphc
    from graphc.driver import program_for
    from graphc.frontend.onnx_import import import_onnx
    from graphc.passes.specialise import pin, specialise
    from graphc.runtime.feeds import random_feeds

    graph = import_onnx(path)
    extents = {name: dims.get(name, SEQUENCE if "seq" in name else 1) for name in graph.symbols}
    graph = specialise(pin(graph, dims=extents))
    if precision == "int8":
        sample = [random_feeds(graph)]
        graph = graphc.quantise(graph, sample, calibration="minmax", equalise=False).graph
        precision = "f32"
    return emit(program_for(graph, "cuda", precision=precision, arch=arch))


def checked(path: str, arch: str, precision: str, dims: Mapping[str, int], blocks: int) -> dict:
    """How many kernels agree, and which do not, or why the model was not compared."""
    start = time.process_time() + sum(os.times()[2:4])
    row: dict[str, Any] = {"model": Path(path).stem, "arch": arch, "precision": precision}
    try:
        kernels = [*compared(source_of(path, arch, precision, dims), arch, blocks)]
    except Exception as error:
        row["problem"] = f"{type(error).__name__}: {error}"[:600]
    else:
        row |= {"kernels": len(kernels), "blocks": sum(k.blocks for k in kernels)}
        row["error"] = float(f"{max((k.error for k in kernels), default=0.0):.3g}")
        row["apart"] = [f"{k.kernel}: {k.error:.2g}" for k in kernels if k.error > TOLERANCE]
    row["seconds"] = round(time.process_time() + sum(os.times()[2:4]) - start)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--arch", default="sm_80", help="sm_80,sm_90a")
    parser.add_argument("--precision", default="f32", help="f32,tf32,f16,bf16,int8")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument(
        "--results", type=Path, help="a file of lines that a later run goes on from"
    )
    given = parser.parse_args()
    dims = {name: int(size) for name, size in (option.split("=") for option in given.dim)}
    kept = (
        given.results.read_text().splitlines() if given.results and given.results.exists() else []
    )
    known = {tuple(json.loads(line)[key] for key in KEY) for line in kept}
    fails = False
    for precision, path, arch in product(
        given.precision.split(","), given.models, given.arch.split(",")
    ):
        if (Path(path).stem, arch, precision) in known:
            continue
        row = checked(path, arch, precision, dims, given.blocks)
        fails |= bool(row.get("problem") or row["apart"])
        print(json.dumps(row), flush=True)
        if given.results:
            with given.results.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
