"""graphc verify: compares the outputs of a model with those of a reference."""

from __future__ import annotations

import argparse
import contextlib
import io
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
    reader,
    rtol,
    run_options,
    settings,
    settings_options,
)
from graphc.cli.output import add_json, answer
from graphc.targets.base import nonnegative

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.targets import Target

Feeds = Mapping[str, Any]

SUMMARY = """\
Compares a model's outputs with a reference's. Both run on the same inputs; the error of an output
is its largest difference, relative to the range of the reference's output. The exit code is 0 if
every output is within --rtol, 1 if not. Quantised outputs (integers of 8 bits, and what is
dequantised) may differ by --steps of their scale. Where an output differs from ONNX Runtime, that
is asked again without its optimisations, and who deviates is told: a quantised model that is as
near to one of its ways as they are to one another passes.

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
    parser.add_argument("--against", choices=("onnxruntime", INTERPRETER),
                        help="the reference (default: onnxruntime; of TensorFlow Lite models, "
                        "interpreter)")  # fmt: skip
    add_tolerance(parser)
    parser.add_argument("--steps", type=reader(nonnegative), metavar="N", default=1.0,
                        help="steps that quantised outputs may differ by (default: 1)")  # fmt: skip
    add_feeds(parser)
    add_limits(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.analysis.text import table
    from graphc.cli.deviation import deviations, quantising, units
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
    if args.against is None:
        args.against = INTERPRETER if model.path.suffix.lower() == ".tflite" else "onnxruntime"
    expected = contender(model, args.against, **settings_options(args))(feeds)
    if not isinstance(who, str) and who.alone:
        outputs, expected = _alone(who, model, feeds, args), as_tensors(model.graph, expected)
    else:
        outputs = contender(model, who, **run_options(args, who))(feeds)
    allowed = rtol(args, who)
    compared = agreements(model.graph.output_names, outputs, expected)
    steps = units(model.graph, expected)
    within = [o.within(max(allowed, args.steps * step)) for o, step in zip(compared, steps)]
    told = ["ok" if fine else f"differs {o.problem}" for o, fine in zip(compared, within)]
    if not all(within) and args.against == "onnxruntime":
        plain = _unoptimised(who, model, feeds, args)
        judged = deviations(model.graph.output_names, outputs, expected, plain)
        for n in (n for n, fine in enumerate(within) if not fine):
            within[n] = bool(quantising(model.graph)) and judged[n].is_accepted
            told[n] = f"{'ok' if within[n] else 'differs'}: {judged[n].told(steps[n])}"
    rows = [("output", "error", "")]
    rows += [(o.name, f"{o.error:.2g}", text) for o, text in zip(compared, told)]
    title = who if isinstance(who, str) else who.title
    summary = f"{title} against {args.against}, rtol {allowed:g}"
    verdict = f"passed: {summary}: {len(compared)} outputs agree"
    if not all(within):
        failed = within.count(False)
        verdict = f"FAILED: {summary}: {failed} of {len(compared)} outputs differ"
    data = [{"name": o.name, "error": o.error, "agrees": fine, "told": text}
            for o, fine, text in zip(compared, within, told)]  # fmt: skip
    about = {"model": model.path.stem, "target": title, "against": args.against, "rtol": allowed}
    answer(args, {**about, "passed": all(within), "outputs": data}, f"{table(rows)}\n{verdict}")
    return 0 if all(within) else 1


def _unoptimised(
    who: str | Target, model: Model, feeds: Feeds, args: argparse.Namespace
) -> list[Any]:
    """The outputs of ONNX Runtime without its optimisations."""
    from graphc import verify
    from graphc.passes.maps import as_tensors

    outputs = verify.onnxruntime(model.source, args.threads, optimised=False)(
        {**feeds, **model.values}
    )
    return as_tensors(model.graph, outputs) if not isinstance(who, str) and who.alone else outputs


def _compared(target: Target, model: Model, feeds: Feeds, args: argparse.Namespace) -> int | None:
    """The exit code of the target's own comparison, if it has one."""
    from graphc.cli.runs import Job

    job = Job(model, target, settings(args, target))
    if not args.json:
        return target.compared(job, feeds, args.rtol)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = target.compared(job, feeds, args.rtol)
    if code is not None:
        told = text.getvalue().strip()
        answer(args, {"model": model.path.stem, "passed": code == 0, "told": told}, "")
    return code


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
