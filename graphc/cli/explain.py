"""graphc explain: what became of each layer of a model, and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_machine,
    add_model,
    add_target,
    command,
    examples,
    settings,
    target_of,
)
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.report.answers import Record
    from graphc.report.layers import Layer
    from graphc.report.trace import Trace
    from graphc.runtime.compiled import CompiledModel
    from graphc.runtime.readings import Recorder
    from graphc.targets import Target

SUMMARY = """\
Explains what became of a model's layers, and why: for a layer (an ONNX node, or a tensor that it
gives): which rewrites it went through, what removed it, how its result is laid out in memory, which
layers are fused with it and why others are not, which strategy made its kernel, by what steps, and
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
    add_machine(parser)
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")


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
    from graphc.cli.runs import peaks_of
    from graphc.report.answers import Record
    from graphc.report.layers import find, layers_of
    from graphc.report.trace import Trace

    model = open_model(args)
    model.close()
    layers = layers_of(model.graph)
    wanted = [x for asked in args.layer for x in find(layers, asked)] if args.layer else layers
    trace = Trace()
    target = target_of(args).detached()
    watched(model, target, args, trace)
    return Record(model.graph, trace, peaks_of(target, args)), list(dict.fromkeys(wanted))


def watched(
    model: Model,
    target: Target,
    args: argparse.Namespace,
    trace: Trace,
    recorder: Recorder | None = None,
) -> CompiledModel | None:
    """The model, compiled while it is watched; None where no host runs it. What is compiled in
    stages, while it runs, has run."""
    from graphc.cli.output import progress
    from graphc.cli.runs import Job
    from graphc.passes.manager.context import Context

    chosen = settings(
        args, target, hooks=[trace], observe=trace.observe,
        context=Context(journal=trace.journal), recorder=recorder,
    )  # fmt: skip
    job = Job(model, target, chosen)
    with progress(f"compiling {model.path.name} for {target.name}"):
        if target.alone:  # what runs elsewhere has no part on this host
            job.program()
            return None
        compiled = job.compiled()
        if trace.is_staged or not trace.programs:
            try:
                compiled.run(model.feeds(args.seed))
            except ModelError as error:  # of the random inputs: what comes later is not compiled
                trace.stopped = str(error)
        return compiled
