"""Agreement of graphc with ONNX Runtime over a directory of models, and the arena by its bound.

    python benchmarks/verify_zoo.py --directory MODELS [--target cpu] [--rtol 1e-4] [NAME ...]

One JSON line per model: the largest error of an element relative to the range of its output, the
arena's bytes and the proven lower bound. The exit code is 1 if a model fails or disagrees.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import graphc
import models
from graphc.errors import GraphcError
from graphc.ir.compare import agreements
from graphc.ir.program import Program
from graphc.verify import onnxruntime


def verify(path: Path, target: str, threads: int) -> dict[str, Any]:
    """One row."""
    model, graph, feeds = models.load(path)
    programs: list[Program] = []
    compiled = graphc.compile(graph, target, threads=threads, observe=programs.append)
    expected = onnxruntime(model.SerializeToString(), threads)(feeds)
    compared = agreements(graph.output_names, compiled.run(feeds), expected)
    return {
        "model": path.stem,
        "error": float(f"{max((output.error for output in compared), default=0.0):.3g}"),
        "arena": sum(p.arena_bytes for p in programs),
        "bound": sum(p.arena_lower_bound for p in programs),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows; 1 if any model fails or is off by more than the tolerance."""
    parser = models.arguments("agreement of graphc with ONNX Runtime")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rtol", type=float, default=1e-4, help="of the range of an output")
    args = parser.parse_args(argv)
    failures = 0
    for path in models.paths(args):
        try:
            row = verify(path, args.target, args.threads[0])
            row["ok"] = row["error"] <= args.rtol
        except GraphcError as error:
            row = {"model": path.stem, "problem": str(error), "ok": False}
        failures += not row["ok"]
        print(json.dumps(row), flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"verify_zoo: {error}")
