"""graphc bisect: finds the first rewrite that makes the output wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_feeds,
    add_model,
    add_passes,
    add_target,
    add_tolerance,
    command,
    examples,
    pipeline,
    rtol,
    settings_options,
    target_of,
)
from graphc.cli.output import add_json, answer

if TYPE_CHECKING:
    from graphc.ir.graph import Graph

SUMMARY = """\
Finds the rewrite that makes the output wrong. Every rewrite has a number; with GRAPHC_FUEL=n the
n-th and all later ones are refused. The smallest n whose rewrite makes the output differ from the
reference interpreter's is found by compiling the model about log2(n) times; its rule and layer are
named. The exit code is 1 if there is one, 0 if the output is right."""

EPILOG = examples(
    ("graphc bisect model.onnx", "which rewrite breaks it?"),
    ("graphc bisect model.onnx --plugin my_pass.py", "is it mine?"),
    ("GRAPHC_FUEL=17 graphc compile model.onnx --emit ir", "the graph before rewrite 17"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "bisect", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser)
    add_passes(parser)
    add_tolerance(parser)
    add_feeds(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc import driver
    from graphc.cli.models import open_model
    from graphc.cli.output import progress
    from graphc.passes.manager.bisect import bisect

    target = target_of(args)
    passes = pipeline(args, target.pipeline()) or target.pipeline()
    model = open_model(args)
    feeds = model.feeds(args.seed)
    graph = model.pinned()

    as_it_is = driver.Settings(**settings_options(args), passes="checks")
    compile_static = driver.compiler(target, as_it_is)

    def execute(rewritten: Graph, inputs: Sequence[Any]) -> list[Any]:
        return compile_static(rewritten)(inputs)

    with progress(f"bisecting the rewrites of {model.path.name}"):
        inputs = [feeds[p.name] for p in graph.params]
        culprit = bisect(
            graph, inputs, passes, tolerance=rtol(args, target), execute=execute, target=target
        )
    data = {"model": model.path.stem, "culprit": None if culprit is None else str(culprit)}
    answer(args, data, str(culprit or "the output is right after every rewrite"))
    return 0 if culprit is None else 1
