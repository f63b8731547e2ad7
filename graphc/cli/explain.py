"""graphc explain: what became of each layer of a model, and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_model,
    add_target,
    command,
    examples,
    natural,
    settings,
    target_of,
)

if TYPE_CHECKING:
    from graphc.analysis.roofline import Machine
    from graphc.cli.models import Model
    from graphc.report.answers import Record
    from graphc.report.layers import Layer
    from graphc.report.trace import Trace
    from graphc.targets import Target

SUMMARY = """\
Explains what became of a model's layers, and why: for a layer (an ONNX node, or a tensor
that it gives): which rewrites it went through, what removed it, how its result is laid out in
memory, which layers are fused with it and why others are not, which strategy made its kernel and
why those before it did not, the kernel's schedule (threads, loops, tiles, vectors, unrolling), its
operations, the bytes it reads and writes, and what bounds it by the roofline: operations at peak
speed (compute), or bytes at full bandwidth (memory, or the cache), with the least time. Without
--layer, a line for each layer. Open dimensions count as 1.

The least times are those of this machine, which is measured, or of a GPU of --arch; the peaks of a
microcontroller are given with --machine."""

EPILOG = examples(
    ("graphc explain model.onnx", "every layer in a line"),
    ("graphc explain model.onnx --layer fc1", "all about a layer"),
    ("graphc explain model.onnx --layer 'relu*'", "about all layers of a pattern"),
    ("graphc explain model.onnx --layer y --dim batch=8", "the layer that gives a tensor"),
    ("graphc explain model.onnx --target c --cpu cortex-m4 --layer fc1", "on a microcontroller"),
    ("graphc explain model.onnx --target cuda --arch sm_90 --json", "as data, for a GPU"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "explain", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser)
    parser.add_argument("--layer", metavar="NAME", action="append", default=[],
                        help="a node, or a tensor that a node gives; * and ? stand for any "
                        "characters; repeatable")  # fmt: skip
    parser.add_argument("--machine", metavar="GFLOPS,GB/S[,CACHE]",
                        help="peak and bandwidths (default: this machine's, measured; a GPU's, "
                        "as its architecture has them)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--seed", type=natural, default=0,
                        help="of the inputs, where shapes depend on them (default: 0)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.report import text

    compiled, layers = record(args)
    answers = list(map(compiled.answer, layers))
    if args.json:
        print(json.dumps([dataclasses.asdict(answer) for answer in answers], indent=2))
    elif args.layer:
        print("\n\n".join(map(text.full, answers)))
    else:
        print(text.overview(answers))
    return 0


def record(args: argparse.Namespace) -> tuple[Record, list[Layer]]:
    """The model, compiled while it was watched, and the layers that are asked for."""
    from graphc.cli.models import open_model
    from graphc.report.answers import Record
    from graphc.report.layers import find, layers_of
    from graphc.report.trace import Trace

    model = open_model(args)
    model.close()
    layers = layers_of(model.graph)
    wanted = [x for asked in args.layer for x in find(layers, asked)] if args.layer else layers
    trace = Trace()
    target = target_of(args).detached()
    _compile(model, target, args, trace)
    return Record(model.graph, trace, _machine(target, args)), list(dict.fromkeys(wanted))


def _compile(model: Model, target: Target, args: argparse.Namespace, trace: Trace) -> None:
    """Compiles the model while it is watched."""
    from graphc import driver
    from graphc.cli.output import progress
    from graphc.cli.runs import Job
    from graphc.passes.manager.context import Context
    from graphc.passes.specialise import specialise

    context = Context(journal=trace.journal)
    watched = settings(args, target, hooks=[trace], observe=trace.observe, context=context)
    job = Job(model, target, watched)
    with progress(f"compiling {model.path.name} for {target.name}"):
        trace.journal.stage = "specialise"
        context = Context(journal=trace.journal)
        specialise(model.pinned(), policy=driver.policy(target), partial=True, ctx=context)
        if target.alone:  # what runs elsewhere has no part on this host
            job.program()
            return
        compiled = job.compiled()
        if not trace.programs:
            compiled.run(model.feeds(args.seed))


def _machine(target: Target, args: argparse.Namespace) -> Machine | None:
    """The machine that is given, known or measured; None for a microcontroller without one."""
    from graphc.analysis.roofline import parse_machine
    from graphc.cli.output import progress

    if args.machine:
        return parse_machine(args.machine)
    known = target.roofline()
    if known is not None or target.alone:
        return known
    from graphc.backends.llvm_cpu.roofline import measure_machine  # loads LLVM

    with progress("measuring this machine"):
        return measure_machine(args.threads or 1)
