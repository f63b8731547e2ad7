"""graphc opt: optimises a model and writes it as ONNX again."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_feeds,
    add_model,
    add_passes,
    add_tolerance,
    command,
    examples,
    filename,
    pipeline,
    rtol,
)
from graphc.cli.output import Written, add_json, answer
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.ir.compare import Agreement
    from graphc.ir.graph import Graph

PASSES = "canonicalise, cse, dce"

SUMMARY = f"""\
Optimises a model and writes it as ONNX again. The result is checked by onnx.checker. Passes by
default: {PASSES}. Weights that are quantised stay so. Dimensions that are
open stay open: rules that need static shapes are left out there, and do their work where --dim or
--shape pin them. Other passes (layouts, fusion, decomposition) take static shapes only. --verify
runs both models in ONNX Runtime and compares them; if they differ nothing is written, and the exit
code is 1."""

EPILOG = examples(
    ("graphc opt model.onnx -o small.onnx", "folded and cleaned up, open dimensions still open"),
    ("graphc opt model.onnx -o small.onnx --dim batch=1 --verify", "and compared"),
    (
        "graphc opt model.onnx -o flat.onnx --dim batch=1 --passes decompose,fold,dce",
        "by passes of your choice",
    ),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "opt", run, SUMMARY, EPILOG)
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="OUT.onnx", type=filename, required=True,
                        help="the ONNX file to write")  # fmt: skip
    add_passes(parser)
    parser.add_argument("--verify", action="store_true", help="compare the two in ONNX Runtime")
    add_tolerance(parser)
    add_feeds(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.cli.models import open_model
    from graphc.cli.output import progress
    from graphc.driver import Settings, optimise
    from graphc.files import check_folder
    from graphc.frontend.onnx_export import export_onnx
    from graphc.passes.integers import KEEP_INTEGERS
    from graphc.passes.manager.context import Context

    check_folder(Path(args.output))
    context = Context(options={"fold_policy": KEEP_INTEGERS})
    settings = Settings(passes=pipeline(args, PASSES) or PASSES, context=context)
    model = open_model(args)
    with progress(f"optimising {model.path.name}"):
        graph = _typed(model, settings.passes)
        before = _counts(model.graph)
        optimise(graph, settings)
    worst = _worst(model, graph, args) if args.verify else None
    data: dict[str, Any] = {"model": model.path.stem, "before": before, "after": _counts(graph)}
    text = ""
    if worst is not None:
        data |= {"error": worst.error, "passed": worst.within(rtol(args, "onnxruntime"))}
        text = f"largest error {worst.error:.2g} ({worst.name}) {worst.problem}".rstrip() + "\n"
        if not data["passed"]:
            answer(args, data, f"{text}FAILED: {args.output} is not written")
            return 1
    written = Written(args.output)
    with progress(f"writing {args.output}"):
        export_onnx(graph, args.output)
    text += _changes(before, data["after"])
    answer(args, {**data, **written.data}, f"{text}\n{written}".rstrip())
    return 0


def _typed(model: Model, passes: str | Any) -> Graph:
    """The graph with static types, or, if dimensions are open, typed as far as that goes."""
    from graphc.cli.emit import typed
    from graphc.passes.integers import KEEP_INTEGERS
    from graphc.passes.manager.pipeline import steps_of
    from graphc.passes.specialise import has_static_inputs, type_symbolically

    pinned = model.pinned()
    if has_static_inputs(pinned):
        return typed(model, None)
    for step in steps_of(passes):
        if not step.symbolic:
            dims = ", ".join(pinned.symbols) or "the inputs"
            raise ModelError(f"pass {step.name} takes static shapes only: pin {dims} (--dim)")
    return type_symbolically(pinned, KEEP_INTEGERS)


def _counts(graph: Graph) -> Counter[str]:
    return Counter(op.name for op in graph.walk() if op.name != "Constant")


def _changes(before: Counter[str], after: Counter[str]) -> str:
    changed = [n for n in sorted({*before, *after}) if before[n] != after[n]]
    lines = [f"  {name}: {before[name]} -> {after[name]}" for name in changed]
    return "\n".join([f"{before.total()} ops before, {after.total()} after", *lines])


def _worst(model: Model, graph: Graph, args: argparse.Namespace) -> Agreement:
    """The output that is farthest from what the model gives in ONNX Runtime."""
    from graphc.cli.runs import contender
    from graphc.ir.compare import agreements
    from graphc.verify import onnxruntime

    feeds = model.feeds(args.seed)
    expected = contender(model, "onnxruntime")(feeds)
    outputs = onnxruntime(graph)(feeds)
    return max(agreements(model.graph.output_names, outputs, expected), key=lambda a: a.error)
