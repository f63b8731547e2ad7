"""graphc report: all about a model and its compiled code, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path
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
    nonnegative,
    reader,
    settings,
    target_of,
)
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.ir.machine import Peaks
    from graphc.report.gathered import Data
    from graphc.report.measuring import Measured
    from graphc.report.profile import Logged
    from graphc.report.trace import Trace
    from graphc.runtime.compiled import CompiledModel
    from graphc.runtime.readings import Recorder
    from graphc.targets import Target

SUMMARY = """\
Writes a page about a model: one HTML file, which needs no network and no server. It shows the graph
as imported and as compiled side by side: choose a node to see what rewrote it, the fused group it
is in, its kernels and their code (LLVM and assembly, C, or CUDA). Colours show measured time, the
distance from the roofline, operations, bytes, and accuracy. Then there are tables that sort and
filter, the memory over time, the roofline, what limits the model, and the three cheapest remedies.

Times are measured on the CPU for --seconds. For a microcontroller they are those that its log tells
(--log), or by the instructions that an emulator counts (--chip, --mhz). Else the page has the least
times by the roofline. Open dimensions count as 1. With --against, two reports stand side by side: a
model and its quantised copy, or two versions of graphc by the JSON of an earlier report."""

EPILOG = examples(
    ("graphc report model.onnx -o report.html", "the page"),
    ("graphc report model.onnx --threads 1 --dim batch=8 -o report.html", "at a size, on one core"),
    ("graphc report model.onnx --against q.onnx -o both.html", "next to its quantised copy"),
    ("graphc report model.onnx --json --seconds 0", "the data, nothing measured"),
    ("graphc report model.onnx --target c --chip stm32l4r5 -o mcu.html", "for a microcontroller"),
    ("graphc report model.onnx --phases phases -o report.html",
     "and ONNX files of each phase, with JSON for Model Explorer"),
)  # fmt: skip


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "report", run, SUMMARY, EPILOG)
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="REPORT.html", type=filename,
                        help="the page to write")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the data of the page as JSON")
    parser.add_argument("--against", metavar="REPORT.json|OTHER.onnx",
                        help="what --json printed, or a model to compile alike: the page compares "
                        "the two")  # fmt: skip
    parser.add_argument("--accuracy", metavar="COMPARED.json",
                        help="what `graphc compare MODEL --json` printed: the page shows how far "
                        "layers are off")  # fmt: skip
    parser.add_argument("--phases", metavar="DIR", type=filename,
                        help="write the graph of each phase as ONNX, and all of them as JSON for "
                        "Model Explorer")  # fmt: skip
    parser.add_argument("--seconds", type=reader(nonnegative), default=2.0, metavar="S",
                        help="how long times are measured; 0: not at all (default: 2)")  # fmt: skip
    add_target(parser)
    add_machine(parser)
    add_feeds(parser, seed=False)
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.cli.output import Written, answer
    from graphc.cli.phases import write_phases
    from graphc.files import check_folder, write_text
    from graphc.report.page import page

    if not (args.output or args.json or args.phases):
        raise ModelError("what to write is missing: give -o REPORT.html, --json or --phases DIR")
    for path in filter(None, (args.output, args.phases)):
        check_folder(Path(path))
    other = _against(args)
    accuracy = _accuracy(args.accuracy) if args.accuracy else {}
    report = gathered(args, accuracy)
    written = [Written(path) for path in (args.output, args.phases) if path]
    if args.output:
        write_text(args.output, page(report, other))
    if args.phases:
        write_phases(args, Path(args.phases))
    told = map(str, written)
    answer(args, report, "\n".join(filter(None, told)))
    return 0


def _against(args: argparse.Namespace) -> Data | None:
    """The report to compare with: read, or that of another model."""
    from graphc.report.page import read_report

    if args.against is None:
        return None
    if args.against.endswith(".json"):
        return read_report(Path(args.against))
    own = argparse.Namespace(**{**vars(args), "model": args.against})
    return gathered(own, {})


def _accuracy(path: str) -> Data:
    """Differences by layer, as `graphc compare --json` tells them."""
    from graphc.report.page import read_json

    data = read_json(Path(path))
    layers = data.get("layers") if isinstance(data, dict) else None
    if not isinstance(layers, list) or not all(isinstance(x, dict) for x in layers):
        raise ModelError(f"{path}: is not what graphc compare --json prints")
    kept = ("max_abs", "relative", "sqnr", "cosine", "ulp")
    return {
        str(x.get("layer")): {k: x[k] for k in kept if isinstance(x.get(k), int | float)}
        for x in layers
    }


def gathered(args: argparse.Namespace, accuracy: Data) -> Data:
    """The data of the report of a model."""
    from graphc.cli.explain import watched
    from graphc.cli.models import open_model
    from graphc.cli.output import progress
    from graphc.cli.runs import peaks_of
    from graphc.passes.specialise import specialise
    from graphc.report.answers import Record
    from graphc.report.gathered import Gathering
    from graphc.report.profile import logged_medians, medians
    from graphc.report.remedies import told
    from graphc.report.trace import Trace
    from graphc.runtime.readings import Recorder

    model, trace, target = open_model(args), Trace(), target_of(args).detached()
    opened = list(model.pinned().symbols)
    shaped = specialise(model.close(), partial=True)
    recorder = Recorder() if target.records and args.seconds else None
    compiled = watched(model, target, args, trace, recorder)
    measured = _measured(model, compiled, recorder, trace, args)
    peaks = peaks_of(target, args)
    about = {
        **_about(model, target, args, peaks), "stopped": trace.stopped,
        "open_dims": {name: model.dims[name] for name in opened if name in model.dims},
        "measured": measured and _runs(measured),
    }  # fmt: skip
    logged = _logged(model, target, args)
    if logged:
        about["times"] = logged.how
    times = list(medians(measured)) if measured else []
    times += [(trace.programs[0], logged_medians(logged))] if logged else []
    with progress(f"gathering what is known of {model.path.name}"):
        record = Record(model.graph, trace, peaks)
        report = Gathering(record, shaped, target.kernel_code, times, accuracy).data(about)
    return {**report, **told(report)}


def _logged(model: Model, target: Target, args: argparse.Namespace) -> Logged | None:
    """What steps take on a device, where options say how to know."""
    from graphc.cli.runs import Job

    return target.logged(Job(model, target, settings(args, target))) if target.alone else None


def _about(model: Model, target: Target, args: argparse.Namespace, peaks: Peaks | None) -> Data:
    """What was compiled, for what."""
    from graphc import __version__
    from graphc.backends.llvm_cpu.target import default_threads
    from graphc.cli.deviation import quantising

    return {
        "model": model.path.stem, "graphc": __version__, "target": target.title,
        "processor": target.processor, "cores": default_threads(),
        "threads": args.threads or default_threads() if target.records else None,
        "quantised": bool(quantising(model.graph)),
        "int8_flops": peaks and peaks.using(["dot4"]).flops,
        "io": getattr(target, "io", None),
    }  # fmt: skip


def _measured(
    model: Model,
    compiled: CompiledModel | None,
    recorder: Recorder | None,
    trace: Trace,
    args: argparse.Namespace,
) -> Measured | None:
    """The model, measured where that can be."""
    from graphc.cli.output import note, progress
    from graphc.report.measuring import Plan, measure

    if recorder is None or compiled is None or trace.stopped:
        return None
    feeds = model.feeds(args.seed)
    try:
        with progress(f"running {model.path.name}"):
            return measure(lambda: compiled.run(feeds), recorder, Plan(args.seconds))
    except ModelError as error:  # of the inputs
        note(f"warning: nothing is measured: {error}")
        return None


def _runs(measured: Measured) -> Data:
    """Whole runs; `inside` is the part of a run that its steps take."""
    from graphc.report.profile import profile_of

    profile = profile_of(measured, None)
    return {
        "run": profile.run, "latencies": dict(profile.latencies), "rounds": profile.rounds,
        "first": profile.first, "per_second": profile.per_second, "inside": profile.inside,
    }  # fmt: skip
