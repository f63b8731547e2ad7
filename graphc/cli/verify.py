"""graphc verify: compares the outputs of a model with those of a reference."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
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
    run_options,
    settings,
    settings_options,
)

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.targets import Target

Feeds = Mapping[str, Any]

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
    add_tolerance(parser)
    add_feeds(parser)
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.analysis.text import table
    from graphc.cli.models import open_model
    from graphc.cli.runs import contender
    from graphc.ir.compare import agreements
    from graphc.passes.maps import as_tensors

    who = contender_of(args)
    model = open_model(args)
    feeds = model.feeds(args.seed)
    code = None if isinstance(who, str) else _compared(who, model, feeds, args)
    if code is not None:
        return code
    expected = contender(model, args.against, **settings_options(args))(feeds)
    if not isinstance(who, str) and who.alone:
        outputs, expected = _alone(who, model, feeds, args), as_tensors(model.graph, expected)
    else:
        outputs = contender(model, who, **run_options(args, who))(feeds)
    allowed = rtol(args, who)
    compared = agreements(model.graph.output_names, outputs, expected)
    rows = [("output", "error", "")]
    failed = []
    for output, value in zip(compared, expected):
        within = output.within(max(allowed, _unit(value)))
        rows.append(
            (output.name, f"{output.error:.2g}", "ok" if within else f"differs {output.problem}")
        )
        failed += [] if within else [output.name]
    print(table(rows))
    title = who if isinstance(who, str) else who.title
    summary = f"{title} against {args.against}, rtol {allowed:g}"
    if failed:
        print(f"FAILED: {summary}: {len(failed)} of {len(compared)} outputs differ")
        return 1
    print(f"passed: {summary}: {len(compared)} outputs agree")
    return 0


def _compared(target: Target, model: Model, feeds: Feeds, args: argparse.Namespace) -> int | None:
    """The exit code of the target's own comparison, if it has one."""
    from graphc.cli.runs import Job

    return target.compared(Job(model, target, settings(args, target)), feeds, args.rtol)


def _alone(target: Target, model: Model, feeds: Feeds, args: argparse.Namespace) -> list[Any]:
    """The outputs of the model as one program, which has no host beside it."""
    from graphc.cli.output import progress
    from graphc.cli.runs import Job
    from graphc.ir.program import true_outputs

    with progress(f"compiling {model.path.name} for {target.title}"):
        program = Job(model, target, settings(args, target)).program()
        run = target.watched().load(program)
    with progress(f"running {model.path.name}"):
        return true_outputs(program, run(list(feeds.values())))


def _unit(expected: Any) -> float:
    """What one unit of an 8-bit integer is, relative to the range of an output."""
    import numpy as np

    from graphc.ir.compare import extent_of

    if not isinstance(expected, np.ndarray) or expected.dtype not in (np.int8, np.uint8):
        return 0.0
    return 1.0 / extent_of(expected.astype(np.float64)) if expected.size else 0.0
