"""graphc verify: compares the outputs of a model with those of a reference."""

from __future__ import annotations

import argparse
from typing import Any

from graphc.cli.options import (
    INTERPRETER,
    add_feeds,
    add_model,
    add_target,
    add_tolerance,
    command,
    examples,
    target_options,
)

SUMMARY = """\
Compares a model's outputs with a reference's. Both run on the same inputs; the error of an output
is its largest difference, relative to the range of the reference's output. The exit code is 0 if
every output is within --rtol, 1 if not."""

EPILOG = examples(
    ("graphc verify model.onnx", "compiled for the CPU against ONNX Runtime"),
    ("graphc verify model.onnx --dim batch=4 --seed 7", "other shapes, other inputs"),
    ("graphc verify model.onnx --against interpreter", "against graphc's own interpreter"),
    ("graphc verify model.onnx --target interpreter", "the interpreter against ONNX Runtime"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "verify", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser, INTERPRETER)
    parser.add_argument("--against", choices=("onnxruntime", INTERPRETER), default="onnxruntime",
                        help="the reference (default: %(default)s)")  # fmt: skip
    add_tolerance(parser)
    add_feeds(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.analysis.text import table
    from graphc.cli.models import open_model
    from graphc.cli.runs import contender
    from graphc.ir.compare import agreements

    model = open_model(args)
    feeds = model.feeds(args.seed)
    expected = contender(model, args.against, **target_options(args))(feeds)
    found = contender(model, args.target, **target_options(args))(feeds)
    results = agreements(model.graph.output_names, found, expected)
    rows = [("output", "error", "")]
    for each in results:
        verdict = "ok" if each.within(args.rtol) else f"differs {each.problem}".strip()
        rows.append((each.name, f"{each.error:.2g}", verdict))
    print(table(rows))
    failed = [each.name for each in results if not each.within(args.rtol)]
    summary = f"{args.target} against {args.against}, rtol {args.rtol:g}"
    if failed:
        print(f"FAILED: {summary}: {len(failed)} of {len(results)} outputs differ")
        return 1
    print(f"passed: {summary}: {len(results)} outputs agree")
    return 0
