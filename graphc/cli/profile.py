"""graphc profile: where the time of a model goes, measured."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_feeds,
    add_limits,
    add_machine,
    add_model,
    add_target,
    command,
    examples,
    filename,
    natural,
    nonnegative,
    positive,
    reader,
    settings,
    target_of,
)
from graphc.errors import UnsupportedError

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.report.measuring import Measured
    from graphc.report.profile import Profile
    from graphc.targets import Target

SUMMARY = """\
Measures where the time of a model goes: for each step of the compiled program the layers (ONNX
nodes) that it computes, its kernel, how often it runs, its time (the median over runs), what it
takes at the least on this machine by the roofline (operations at peak speed, or bytes at full
bandwidth), which of the two bounds it, how many times as long it takes, and its rates. Then whole
runs: percentiles, and how many there are in a second.

Steps are timed inside the one call that runs the model: its code reads the processor's counter
after each step. What a reading costs is measured and subtracted. Whole runs are measured without
readings, by turns with timed ones. Steps that run on several threads are timed on the thread that
calls. Open dimensions have to be given the sizes that the model is used with.

With --target c, --chip or --mhz give the times of layers on a microcontroller by the instructions
that an emulator counts; --log shows the log of a device: of firmware that is built with
-DNAME_PROFILE and prints `profile LAYER COUNT NAME` after each layer, the counts of a timer. Least
times are those of --machine."""

EPILOG = examples(
    ("graphc profile model.onnx", "where the time goes"),
    ("graphc profile model.onnx --threads 1 --all", "on one core, every step"),
    ("graphc profile model.onnx --dim batch=8", "at a size that it is used with"),
    ("graphc profile model.onnx --streams 4 --seconds 10", "four threads that each run it"),
    ("graphc profile model.onnx --trace t.json", "for ui.perfetto.dev, a slice for each step"),
    ("graphc profile model.onnx --runs 50 --json", "as data"),
    ("graphc profile model.onnx --target c --chip stm32l4r5", "on a microcontroller, by counting"),
    (
        "graphc profile model.onnx --target c --cpu cortex-m4 --log log.txt --mhz 168",
        "the times that a microcontroller printed",
    ),
)
TOP = 20
EVENT_RUNS = 5  # of which the mean number of events is taken
ROOM = 1 << 16  # steps of a call that a trace shows


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "profile", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser)
    often = parser.add_argument_group("how much is measured")
    often.add_argument("--seconds", type=reader(nonnegative), default=5.0, metavar="S",
                       help="how long (default: 5)")  # fmt: skip
    often.add_argument("--runs", type=positive, metavar="N",
                       help="so many runs instead, and as many timed ones")  # fmt: skip
    often.add_argument("--warm-up", type=natural, default=2, metavar="N",
                       help="runs before, the first not counted (default: 2)")  # fmt: skip
    often.add_argument("--streams", type=positive, default=1, metavar="N",
                       help="threads that each run the model, side by side; unless --threads says "
                       "otherwise, they share the cores (default: 1)")  # fmt: skip
    add_machine(parser)
    add_feeds(parser, seed=False)
    add_limits(parser)
    parser.add_argument("--all", action="store_true",
                        help=f"every step, not just the {TOP} longest")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")
    parser.add_argument("--trace", type=filename, metavar="T.json",
                        help="write a trace in Chrome's format, which Perfetto opens")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.cli.models import open_model
    from graphc.cli.runs import peaks_of
    from graphc.report.profile import profile_of

    target = target_of(args)
    args.threads = args.threads or _threads(args.streams)
    model = open_model(args)
    model.check_sizes()
    if target.alone:
        return _logged(model, target, args)
    measured, about = _measured(model, target, args)
    peaks = peaks_of(target, args)
    profile = replace(profile_of(measured, peaks), about=about)
    if args.trace:
        _write_trace(measured, about, args.trace)
    if args.json:
        print(json.dumps(profile.data(), indent=2))
    else:
        _print(profile, args)
    return 0


def _logged(model: Model, target: Target, args: argparse.Namespace) -> int:
    """Shows what layers take on a device. Least times are shown of peaks that are given."""
    from graphc.analysis.roofline import parse_peaks
    from graphc.analysis.text import duration
    from graphc.cli.output import progress
    from graphc.cli.runs import Job
    from graphc.report.profile import logged_times, row
    from graphc.report.profile_text import regimes, table_of

    with progress(f"compiling {model.path.name} for {target.name}"):
        told = target.logged(Job(model, target, settings(args, target)))
    if told is None:
        raise UnsupportedError(f"target {target.name!r} {target.untimed}")
    steps = logged_times(told, parse_peaks(args.machine) if args.machine else None)
    total = sum(step.seconds for step in steps)
    if args.json:
        rows = [row(step, total) for step in steps]
        print(json.dumps({"model": model.path.stem, "target": target.name, "times": told.how,
                          "layers": rows}))  # fmt: skip
        return 0
    lines = [table_of(steps, None if args.all else TOP), "", regimes(steps)]
    calls = len(told.program.calls)
    lines += [f"{len(steps)} of {calls} layers: {duration(total)}", f"times: {told.how}"]
    print("\n".join(filter(None, lines)))
    return 0


def _threads(streams: int) -> int:
    """The cores, shared by the streams."""
    from graphc.backends.llvm_cpu.target import default_threads

    return max(default_threads() // streams, 1)


def _measured(
    model: Model, target: Target, args: argparse.Namespace
) -> tuple[Measured, dict[str, Any]]:
    """The model, compiled and measured, and what was done."""
    import time

    from graphc.cli.output import progress
    from graphc.cli.runs import Job
    from graphc.report.hardware import counted
    from graphc.report.measuring import Plan, measure
    from graphc.runtime.readings import Recorder

    recorder = Recorder()
    job = Job(model, target, settings(args, target, recorder=recorder))
    feeds = model.feeds(args.seed)
    start = time.perf_counter()
    with progress(f"compiling {model.path.name} for {target.name}"):
        compiled = job.compiled()
    seconds = time.perf_counter() - start
    plan = Plan(args.seconds, args.runs, args.warm_up, args.streams, ROOM if args.trace else 0)
    with progress(f"running {model.path.name}", 0 if args.runs else args.seconds):
        measured = measure(partial(compiled.run, feeds), recorder, plan)
        events = counted(partial(compiled.run, feeds), EVENT_RUNS)
    about = {
        "model": model.path.stem, "target": target.name, "threads": args.threads,
        "streams": args.streams, "compile_s": round(seconds, 3),
        "inputs": {spec.name: list(_shape(feeds[spec.name])) for spec in compiled.inputs},
        "events": events,
    }  # fmt: skip
    return measured, about


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _print(profile: Profile, args: argparse.Namespace) -> None:
    from graphc.analysis.text import duration
    from graphc.report import profile_text

    about = profile.about
    threads = f"{args.threads} thread{'s' if args.threads > 1 else ''}"
    streams = f", {args.streams} streams" if args.streams > 1 else ""
    print(f"{about['model']} for {about['target']}, {threads}{streams}: compiled in "
          f"{about['compile_s']:.2f} s, first run {duration(profile.first)}")  # fmt: skip
    print("\n" + profile_text.table_of(profile.steps, None if args.all else TOP) + "\n")
    lines = [profile_text.regimes(profile.steps), *profile_text.run_text(profile),
             profile_text.events_text(about["events"])]  # fmt: skip
    print("\n".join(filter(None, lines)))


def _write_trace(measured: Measured, about: dict[str, Any], path: str) -> None:
    from graphc.files import write_text
    from graphc.report.profile_text import chrome_trace

    write_text(path, json.dumps(chrome_trace(measured.traced, measured.counter, about)))
