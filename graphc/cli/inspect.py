"""graphc inspect: the operators of a model, where its time goes, and how its memory is used."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
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
from graphc.cli.streams import add_stream, streamed, table
from graphc.cli.streams import data as stream_data
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.cli.runs import Job
    from graphc.ir.expr import Sym
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Peaks
    from graphc.ir.program import Program
    from graphc.runtime.listing import ExecutableInfo

SUMMARY = """\
Lists the contents of a model and where its time goes: operators with their operations (FLOPs),
bytes and operations per byte; the steps the model is compiled to, with the least time each can take
on this machine by the roofline (operations at peak speed, or bytes at full bandwidth) and its
bound; and the memory plan. Open dimensions count as 1. With --specialise any (or auto) and bounds
for them (--dim seq=1..128) the program for all sizes is listed at its largest sizes, then its
memory as a function of them, and which programs there are and why. With --target c the steps are
those of a microcontroller, with --ram the fastest that fit, by rows if they have to; --trades shows
RAM against instructions. With --mhz and --cpu, or --chip, its time is told by layer: the code is
cross-compiled and run in QEMU, its instructions are counted by class, and their cycles are those of
the processor; without compiler or emulator it is an estimate from the kernels. Either comes with
how far off it can be. With --stream they are those of a step over one hop, with what it computes
and keeps of each operator. With --target cuda they are those of a GPU of --arch, whose peaks (those
of matrix cores for kernels that use them) are known; --accesses then runs some blocks of every
kernel in the simulator and lists the cost of their accesses: bytes that are moved and not used, how
far the accesses of a warp are coalesced (the fewest sectors of global memory they need, of those
they touch), and bank conflicts (the wavefronts of shared memory they need beyond the fewest), with
the worst accesses one by one. --machine-code compiles the kernels and lists, of each, registers,
spills, shared memory, occupancy, instructions for each product of matrix cores, barriers and the
width of accesses, and predicts its time and what bounds it, from its machine code and two blocks in
the PTX machine; no GPU is needed.

Of a .gcm file it lists the contents, and checks every byte against its digest, without running or
loading any code. A .gcm holds native code: load it only if you trust its author."""

EPILOG = examples(
    ("graphc inspect model.onnx", "the most important of everything"),
    ("graphc inspect model.onnx --dim batch=8 --all", "every node and every step"),
    ("graphc inspect model.onnx --specialise any --dim seq=1..128", "memory at every size"),
    ("graphc inspect model.onnx --machine 50,10", "for 50 GFLOP/s and 10 GB/s"),
    ("graphc inspect model.onnx --target c --cpu cortex-m4", "as it runs on a microcontroller"),
    ("graphc inspect model.onnx --target c --cpu cortex-m4 --trades", "RAM against instructions"),
    ("graphc inspect model.onnx --target c --chip stm32l4r5", "its time there, by layer"),
    ("graphc inspect model.onnx --target c --cpu cortex-m7 --mhz 480 --json", "as data"),
    ("graphc inspect model.onnx --target cuda --accesses", "which kernels read memory badly"),
    ("graphc inspect model.onnx --target cuda --arch sm_90a --machine-code", "what kernels take"),
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
    add_stream(parser)
    add_machine(parser)
    parser.add_argument("--json", action="store_true",
                        help="print steps, memory and times as JSON")  # fmt: skip
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
    model, target, step = streamed(open_model(args), target, args)
    stays_open = args.specialise in ("any", "auto") and target.open_sizes
    if stays_open:
        _check_bounds(model)
    else:
        model.close()
    job = Job(model, target, settings(args, target))
    graph, programs, made = _compiled(job, args)
    if args.svg:
        _draw(programs, args.svg)
    if args.json:
        more = {} if step is None else {"stream": stream_data(step)}
        print(json.dumps({**_data(programs, job, peaks), **more}, indent=2))
        return 0
    print(report.summary(graph))
    print("\n" + report.operators(graph))
    if step is not None:
        print("\n" + table(step))
    if args.all:
        print("\n" + report.nodes(graph))
    least = (
        f"least times of {report.peaks_text(peaks, programs)}"
        if peaks
        else "no least times, as its peaks are not known: --machine GFLOPS,GB/S gives them"
    )
    processor = f" ({target.processor})" if target.processor else ""
    print(f"\ncompiled for {target.name}{processor}; {least}")
    for program in programs:
        _tell(program, job, peaks, None if args.all else TOP)
    if stays_open:
        print("\n" + "\n".join(map(str, made)))
    return 0


def _check_bounds(model: Model) -> None:
    """ModelError names a dimension that has none."""
    for name, symbol in model.pinned().symbols.items():
        if symbol.hi is None:
            raise ModelError(f"dimension {name} has no bounds: give them, as --dim {name}=1..64")


def _data(programs: list[Program], job: Job, peaks: Peaks | None) -> dict[str, Any]:
    """What is printed with --json: each program, of open shape at its largest sizes."""
    from graphc.analysis import report

    rows = []
    for program in programs:
        sizes = _largest(program.all_sizes)
        more = job.target.inspected_data(job, program)
        rows.append({"sizes": sizes, **report.data(_at(program, sizes), peaks), **more})
    return {"model": job.name, "target": job.target.name, "processor": job.target.processor,
            "programs": rows}  # fmt: skip


def _at(program: Program, sizes: dict[str, int]) -> Program:
    from graphc.ir.program import at_sizes

    return at_sizes(program, list(sizes.values())) if sizes else program


def _tell(program: Program, job: Job, peaks: Peaks | None, rows: int | None) -> None:
    """Prints the steps and the memory of a program; of one of open shape, at its largest sizes."""
    from graphc.analysis import report
    from graphc.analysis.open_memory import open_memory

    sizes = _largest(program.all_sizes)
    shown = _at(program, sizes)
    if sizes:
        at = ", ".join(f"{name} = {most}" for name, most in sizes.items())
        print(f"\na program for all sizes; at the largest, {at}:")
    print("\n" + report.steps(shown, peaks, rows))
    print("\n" + report.memory(shown))
    if program.all_sizes:
        print("\n" + open_memory(program))
    more = job.target.inspected(job, program, rows)
    if more:
        print("\n" + more)


def _largest(sizes: Iterable[Sym]) -> dict[str, int]:
    from graphc.ir.types import largest

    return {size.name: largest(size) for size in sizes}


def _inspect_saved(args: argparse.Namespace) -> int:
    """Prints what a compiled model is made of."""
    from graphc.cli.saved import contents

    given = [name for name in ("shape", "dim", "set", "svg", "json") if getattr(args, name)]
    if given:
        raise ModelError(f"--{given[0]}: {args.model} is compiled already; leave the option out")
    print(contents(args.model, None if args.all else TOP))
    return 0


def _draw(programs: list[Program], path: str) -> None:
    """Writes the picture of the program with the largest arena."""
    from graphc.analysis.arena_svg import arena_svg
    from graphc.files import write_text

    write_text(path, arena_svg(max(programs, key=lambda program: program.arena_bytes)))


def _compiled(
    job: Job, args: argparse.Namespace
) -> tuple[Graph, list[Program], list[ExecutableInfo]]:
    """The typed graph; its programs: one, or one for each stage if shapes depend on data; and, of a
    model that may have a program for all sizes, what was made and why."""
    from graphc.cli.output import progress
    from graphc.passes.specialise import specialise

    pinned = job.model.pinned()
    graph = specialise(pinned, dims=_largest(pinned.symbols.values()), partial=True)
    programs: list[Program] = []
    with progress(f"compiling {job.model.path.name} for {job.target.name}"):
        if job.target.alone:  # what runs elsewhere has no part on this host
            return graph, [job.program()], []
        job.settings.observe = programs.append
        compiled = job.compiled()
        if not programs:
            compiled.run(job.feeds(args.seed))
    return graph, programs, compiled.executables()
