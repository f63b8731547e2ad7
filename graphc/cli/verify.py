"""graphc verify: compares the outputs of a model with those of a reference."""

from __future__ import annotations

import argparse
from typing import Any

from graphc.cli.devices import compare_trace, run_code
from graphc.cli.firmware import add_code, check_unused
from graphc.cli.options import (
    BOARDS,
    INTERPRETER,
    add_feeds,
    add_limits,
    add_model,
    add_target,
    add_tolerance,
    command,
    contender_of,
    examples,
    rtol,
    target_options,
)

SUMMARY = """\
Compares a model's outputs with a reference's. Both run on the same inputs; the error of an output
is its largest difference, relative to the range of the reference's output. The exit code is 0 if
every output is within --rtol, 1 if not. Integers of 8 bits may differ by one.

With --target c it is the code of a microcontroller that runs: compiled for the host, with undefined
behaviour made an error, or, with --board, cross-compiled and run in QEMU. With --trace the log of a
device, built with -DNAME_TRACE and given the same inputs, is compared layer by layer: by CRCs, and
floats by range and mean too, within --rtol (1e-3), if it is built with -DNAME_SUMMARY besides."""

EPILOG = examples(
    ("graphc verify model.onnx", "compiled for the CPU against ONNX Runtime"),
    ("graphc verify model.onnx --dim batch=4 --seed 7", "other shapes, other inputs"),
    ("graphc verify model.onnx --against interpreter", "against graphc's own interpreter"),
    ("graphc verify model.onnx --target interpreter", "the interpreter against ONNX Runtime"),
    ("graphc verify model.onnx --target cuda --simulate --precision f16", "the error of f16"),
    ("graphc verify model.onnx --target c --board mps2-an386", "on a Cortex-M4 that QEMU emulates"),
    ("graphc verify model.onnx --target c --trace log.txt", "the first layer a device has wrong"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "verify", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser, INTERPRETER)
    parser.add_argument("--against", choices=("onnxruntime", INTERPRETER), default="onnxruntime",
                        help="the reference (default: %(default)s)")  # fmt: skip
    add_tolerance(parser, narrow=True)
    add_feeds(parser)
    add_limits(parser)
    group = parser.add_argument_group("C for microcontrollers (--target c)")
    group.add_argument("--board", choices=BOARDS, help="run on this machine of QEMU")
    group.add_argument("--trace", metavar="LOG",
                       help="compare the CRCs in a device's log with the host's")  # fmt: skip
    add_code(group)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.analysis.text import table
    from graphc.cli.models import open_model
    from graphc.cli.runs import contender, results
    from graphc.ir.compare import agreements
    from graphc.passes.maps import as_tensors

    if args.target != "c":
        check_unused(args)
    model = open_model(args)
    feeds = model.feeds(args.seed)
    if args.trace:
        return compare_trace(model, feeds, args)
    expected = contender(model, args.against, **target_options(args))(feeds)
    if args.target == "c":
        found, expected = run_code(model, feeds, args), as_tensors(model.graph, expected)
    else:
        found = results(model, contender_of(args), feeds, **target_options(args))
    allowed = rtol(args)
    compared = agreements(model.graph.output_names, found, expected)
    rows = [("output", "error", "")]
    failed = []
    for each, value in zip(compared, expected):
        within = each.within(max(allowed, _unit(value)))
        rows.append((each.name, f"{each.error:.2g}", "ok" if within else f"differs {each.problem}"))
        failed += [] if within else [each.name]
    print(table(rows))
    target = f"{args.target} on {args.board}" if args.board else args.target
    target += f" in {args.precision}" if args.precision != "f32" else ""
    summary = f"{target} against {args.against}, rtol {allowed:g}"
    if failed:
        print(f"FAILED: {summary}: {len(failed)} of {len(compared)} outputs differ")
        return 1
    print(f"passed: {summary}: {len(compared)} outputs agree")
    return 0


def _unit(expected: Any) -> float:
    """What one unit of an 8-bit integer is, relative to the range of an output."""
    import numpy as np

    from graphc.ir.compare import extent_of

    if not isinstance(expected, np.ndarray) or expected.dtype not in (np.int8, np.uint8):
        return 0.0
    return 1.0 / extent_of(expected.astype(np.float64)) if expected.size else 0.0
