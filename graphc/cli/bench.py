"""graphc bench: latency of a model, next to ONNX Runtime."""

from __future__ import annotations

import argparse
from typing import Any

from graphc.cli.options import (
    add_feeds,
    add_limits,
    add_model,
    add_target,
    command,
    examples,
    nonnegative,
    reader,
    run_options,
    settings_options,
    target_of,
)

SUMMARY = """\
Times a model next to ONNX Runtime. The two run in turn, in one process and on the same inputs; the
speedup is the median over rounds of peer time / graphc time, which a drifting machine does not
bend."""

EPILOG = examples(
    ("graphc bench model.onnx --threads 1", "on one core, against ONNX Runtime on one core"),
    ("graphc bench model.onnx --dim batch=8 --seconds 20", "a batch of eight, measured longer"),
    ("graphc bench model.onnx --against none --json", "graphc alone, one line of JSON"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "bench", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser)
    parser.add_argument("--against", choices=("onnxruntime", "none"), default="onnxruntime",
                        help="the peer (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seconds", type=reader(nonnegative), default=5.0, metavar="S",
                        help="how long to measure (default: 5)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    add_feeds(parser)
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    import time
    from functools import partial

    from graphc.bench import measure
    from graphc.cli.models import open_model
    from graphc.cli.output import progress
    from graphc.cli.runs import contender
    from graphc.ir.compare import agreements

    model = open_model(args)
    model.check_sizes()
    feeds = model.feeds(args.seed)
    start = time.perf_counter()
    target = target_of(args)
    runs = {"graphc": contender(model, target, **run_options(args, target))}
    outputs = {"graphc": runs["graphc"](feeds)}
    ready = time.perf_counter() - start
    if args.against != "none":
        runs[args.against] = contender(model, args.against, **settings_options(args))
        outputs[args.against] = runs[args.against](feeds)
    with progress(f"timing {model.path.name}", args.seconds):
        times = measure({k: partial(f, feeds) for k, f in runs.items()}, args.seconds)
    result: dict[str, Any] = {"model": model.path.stem, "target": args.target,
                              "threads": args.threads, "compile_s": round(ready, 3)}  # fmt: skip
    for name, timing in times.items():
        result[f"{name}_ms"], result[f"{name}_best_ms"] = timing.median * 1e3, timing.best * 1e3
    if args.against != "none":
        result["speedup"] = times["graphc"].ratio(times[args.against])
        pairs = agreements(model.graph.output_names, outputs["graphc"], outputs[args.against])
        result["error"] = max((output.error for output in pairs), default=0.0)
    result["rounds"] = len(times["graphc"].seconds)
    _print(result, args)
    return 0


def _print(result: dict[str, Any], args: argparse.Namespace) -> None:
    import json

    from graphc.analysis.text import table

    if args.json:
        rounded = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in result.items()}
        print(json.dumps(rounded))
        return
    rows = [("", "median ms", "best ms")]
    for name in ("graphc", args.against):
        if f"{name}_ms" in result:
            rows.append((name, f"{result[f'{name}_ms']:.3f}", f"{result[f'{name}_best_ms']:.3f}"))
    print(table(rows))
    print(f"compiled and first run in {result['compile_s']:.2f} s; {result['rounds']} rounds")
    if "speedup" in result:
        print(f"speedup x{result['speedup']:.3f} against {args.against}, "
              f"largest relative error {result['error']:.2g}")  # fmt: skip
