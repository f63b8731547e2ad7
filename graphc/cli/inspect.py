"""graphc inspect: the operators of a model, where its time goes, and how its memory is used."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_machine,
    add_model,
    add_target,
    command,
    examples,
    filename,
    settings,
    target_of,
)
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.runs import Job
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program

SUMMARY = """\
Lists the contents of a model and where its time goes: operators with their operations (FLOPs),
bytes and operations per byte; the steps the model is compiled to, with the least time each can take
on this machine by the roofline (operations at peak speed, or bytes at full bandwidth) and its
bound; and the memory plan. Open dimensions count as 1. With --target c the steps are those of a
microcontroller: give its peaks with --machine. With --target cuda they are those of a GPU of
--arch, whose peaks (those of matrix cores for kernels that use them) are known; --accesses then
runs some blocks of every kernel in the simulator and lists the cost of their accesses: bytes
that are moved and not used, how far the accesses of a warp are coalesced (the fewest sectors of
global memory they need, of those they touch), and bank conflicts (the wavefronts of shared memory
they need beyond the fewest), with the worst accesses one by one.

Of a .gcm file it lists the contents, and checks every byte against its digest, without running or
loading any code. A .gcm holds native code: load it only if you trust its author."""

EPILOG = examples(
    ("graphc inspect model.onnx", "the most important of everything"),
    ("graphc inspect model.onnx --dim batch=8 --all", "every node and every step"),
    ("graphc inspect model.onnx --machine 50,10", "for 50 GFLOP/s and 10 GB/s"),
    ("graphc inspect model.onnx --target c --cpu cortex-m4", "as it runs on a microcontroller"),
    ("graphc inspect model.onnx --target cuda --accesses", "which kernels read memory badly"),
    ("graphc inspect model.onnx --target c --svg arena.svg", "a picture of memory over time"),
    ("graphc inspect model.gcm", "the contents of a compiled model, and its CPU"),
)
TOP = 12


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "inspect", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser)
    parser.add_argument("--all", action="store_true",
                        help=f"every node and every step, not just the {TOP} longest")  # fmt: skip
    add_machine(parser)
    parser.add_argument("--svg", metavar="OUT.svg", type=filename,
                        help="draw the arena over time: steps, offsets, tensors")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.analysis import report
    from graphc.cli.models import open_model
    from graphc.cli.runs import Job, peaks_of

    if args.model.endswith(".gcm"):
        return _inspect_saved(args)
    target = target_of(args).detached()
    peaks = peaks_of(target, args)
    model = open_model(args)
    model.close()
    job = Job(model, target, settings(args, target))
    graph, programs = _compiled(job, args)
    if args.svg:
        _draw(programs, args.svg)
    print(report.summary(graph))
    print("\n" + report.operators(graph))
    if args.all:
        print("\n" + report.nodes(graph))
    text = report.peaks_text(peaks, programs)
    processor = f" ({target.processor})" if target.processor else ""
    print(f"\ncompiled for {target.name}{processor}; least times of {text}")
    for program in programs:
        print("\n" + report.steps(program, peaks, None if args.all else TOP))
        print("\n" + report.memory(program))
        more = target.inspected(job, program, None if args.all else TOP)
        if more:
            print("\n" + more)
    return 0


def _inspect_saved(args: argparse.Namespace) -> int:
    """Prints what a compiled model is made of."""
    from graphc.cli.saved import contents

    given = [name for name in ("shape", "dim", "set", "svg") if getattr(args, name)]
    if given:
        raise ModelError(f"--{given[0]}: {args.model} is compiled already; leave the option out")
    print(contents(args.model, None if args.all else TOP))
    return 0


def _draw(programs: list[Program], path: str) -> None:
    """Writes the picture of the program with the largest arena."""
    from graphc.analysis.arena_svg import arena_svg
    from graphc.files import write_text

    write_text(path, arena_svg(max(programs, key=lambda program: program.arena_bytes)))


def _compiled(job: Job, args: argparse.Namespace) -> tuple[Graph, list[Program]]:
    """The typed graph and its programs: one, or one for each stage if shapes depend on data."""
    from graphc.cli.output import progress
    from graphc.passes.specialise import specialise

    graph = specialise(job.model.pinned(), partial=True)
    programs: list[Program] = []
    with progress(f"compiling {job.model.path.name} for {job.target.name}"):
        if job.target.alone:  # what runs elsewhere has no part on this host
            return graph, [job.program()]
        job.settings.observe = programs.append
        compiled = job.compiled()
        if not programs:
            compiled.run(job.feeds(args.seed))
    return graph, programs
