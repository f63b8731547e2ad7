"""--stream: a model over a window of time as a step of one hop."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphc.cli.options import positive
from graphc.cli.output import note, progress
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.streaming import Streamed
    from graphc.targets import Target

SHOWN = 60  # characters of the name of an operator


def add_stream(parser: argparse.ArgumentParser) -> None:
    """What makes a step of a model."""
    group = parser.add_argument_group("streams")
    group.add_argument("--stream", metavar="DIM",
                       help="make a step over one hop of time of a model over a window: it takes "
                       "the next frames along this dimension, or axis of an input (x:1), and keeps "
                       "what later ones need as state (--target c: in NAME_state; else as inputs "
                       "and outputs)")  # fmt: skip
    group.add_argument("--hop", metavar="N", type=positive, default=None,
                       help="the frames of a step (default: as few as strides allow)")  # fmt: skip
    group.add_argument("--stream-since", choices=("window", "start"), default="window",
                       help="what a step gives: the model's outputs for the last window, or for "
                       "all since the start of the signal, where recurrent layers and causal "
                       "padding go on (default: %(default)s)")  # fmt: skip
    group.add_argument("--stream-borders", choices=("refuse", "recompute"), default="refuse",
                       help="what to do if padding inside of the window makes frames near its "
                       "borders others in each window (default: %(default)s)")  # fmt: skip


def streamed(
    model: Model, target: Target, args: argparse.Namespace
) -> tuple[Model, Target, Streamed | None]:
    """The model that --stream makes, if it is given, and the target with the state of that."""
    if args.stream is None:
        given = {"--hop": args.hop is not None, "--stream-since": args.stream_since != "window",
                 "--stream-borders": args.stream_borders != "refuse"}  # fmt: skip
        for name, is_given in given.items():
            if is_given:
                raise ModelError(f"{name}: goes with --stream DIM")
        return model, target, None
    from graphc.streaming import stream

    if getattr(target, "train", None) is not None:
        raise ModelError("--stream: goes without --train")
    with progress(f"making a step of {model.path.name}"):
        step = stream(
            model.graph, args.stream, args.hop, args.stream_since,
            args.stream_borders == "recompute", **model.pins(),
        )  # fmt: skip
    since, borders = args.stream_since, args.stream_borders
    options = [f"--stream {args.stream}", f"--hop {step.hop}", f"--stream-since {since}"]
    options.append(f"--stream-borders {borders}")
    made = replace(
        model, graph=step.graph, shapes={}, dims={}, values={},
        derived=(*model.pin_options(), *options),
    )  # fmt: skip
    if hasattr(target, "state") and step.state:
        pairs = [target.state] if target.state else []
        target = replace(target, state=",".join([*pairs, step.pairs]))  # type: ignore[call-arg]
    note(summary(step))
    return made, target, step


def summary(step: Streamed) -> str:
    """In one line what a step takes and keeps."""
    from graphc.analysis.text import nbytes

    over = "since the start" if step.window is None else f"over a window of {step.window}"
    frames = "1 frame" if step.hop == 1 else f"{step.hop} frames"
    return f"a step of {frames} {over}: state {nbytes(step.state_bytes)} ({step.state_bytes} bytes)"


def table(step: Streamed) -> str:
    """What a step computes and keeps of each operator."""
    rows = [("frames", "of", "state", "operator")]
    rows += [
        (str(w.frames), str(w.all), str(w.state or ""), w.name[:SHOWN])
        for w in step.work
        if w.state or w.frames < w.all
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    lines = ["  ".join([*(c.rjust(w) for c, w in zip(row, widths)), row[3]]) for row in rows]
    return "\n".join([summary(step), *lines])


def data(step: Streamed) -> dict[str, Any]:
    """The same as plain data."""
    rows = [{"operator": w.name, "frames": w.frames, "of": w.all, "state_bytes": w.state}
            for w in step.work]  # fmt: skip
    return {"hop": step.hop, "window": step.window, "state_bytes": step.state_bytes,
            "state": step.state, "operators": rows}  # fmt: skip
