"""What models come to on GPUs, without one: launches, memory, and code for each architecture.

    python benchmarks/report_cuda.py --directory MODELS [--arch sm_80,sm_90] [NAME ...]

One JSON line per model: ONNX nodes, launches per inference, kernels, streams, bytes of the arena
and the least that is possible, of weights, and of machine code (where nvcc or NVRTC is found).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
from graphc.backends.cuda import emit
from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.machine_code import architectures, machine_code
from graphc.driver import program_for
from graphc.errors import GraphcError


def report(path: Path, archs: Sequence[str], precision: str) -> dict[str, Any]:
    """One row: kernels planned for the first architecture, with what all have (see machines.py)."""
    model, graph, _ = models.load(path)
    program = program_for(graph, "cuda", precision=precision, arch=",".join(archs))
    source = emit(program)
    plan, weights = launch_plan(source)
    row = {
        "model": path.stem,
        "nodes": len(model.graph.node),
        "launches": len(plan["launches"]),
        "kernels": len({launch["function"] for launch in plan["launches"]}),
        "streams": plan["streams"],
        "arena_bytes": program.arena_bytes,
        "arena_least": program.arena_lower_bound,
        "weights_bytes": len(weights),
    }
    return {**row, **{f"{arch}_bytes": len(machine_code(source.text, arch)) for arch in archs}}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows; 1 if a model failed."""
    parser = models.arguments("what models come to on GPUs")
    parser.add_argument("--arch", default="sm_80,sm_90", help="default: %(default)s")
    parser.add_argument("--precision", default="f32", help="of contractions")
    args = parser.parse_args(argv)
    archs = [arch for arch in args.arch.split(",") if arch in architectures()]
    failed = False
    for path in models.paths(args):
        try:
            row = report(path, archs, args.precision)
        except GraphcError as error:
            row, failed = {"model": path.stem, "failed": str(error)[:500]}, True
        print(json.dumps(row), flush=True)
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"report_cuda: {error}")
