"""graphc compile: compiles a model to a file, or prints a form it takes on the way."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.cuda import write_folder
from graphc.cli.firmware import add_bundle, check_unused, write_sources
from graphc.cli.options import (
    add_model,
    add_passes,
    add_target,
    command,
    examples,
    filename,
    target_of,
    target_options,
)
from graphc.cli.resume import PHASES as RESUMABLE
from graphc.errors import ModelError, UnsupportedError
from graphc.ir.phases import PHASES

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.driver import Settings
    from graphc.ir.program import Program
    from graphc.targets import Target

FORMS = ("ir", "kernel", "program", "llvm", "asm", "c", "cuda")
SUFFIXES = {".gir": "ir", ".ll": "llvm", ".s": "asm", ".c": "c", ".cu": "cuda"}
NATIVE = {"cpu": "llvm", "c": "c", "cuda": "cuda"}  # the form that is compiled by others
ARTIFACTS = (".so", ".o", ".gcm")

SUMMARY = """\
Compiles a model to files, or prints a form it takes. With -o OUT the result is written, whole or
not at all; the name tells what it is:

  .so .o     a shared library or an object file, with a C header beside it
  .gcm       a model for graphc.load and graphc run, for every shape within the bounds of
             dimensions (--dim N=1..8)
  .ll .s     LLVM IR, assembly
  .cu        CUDA kernels
  .c         plain loops in C
  .gir       the graph as text, its large constants beside it in .gir.npz
  a folder   (--target c) C99 sources for a microcontroller, a header, a build file and a report
             (--target cuda) kernels, their machine code, weights, a launch plan, and what runs
             them from Python and from C++

With --target c or cuda every name that does not end in one of these suffixes is that of a folder
(kws-v1.0 too); with --target cpu such a name is refused.

A .so, .o or .gcm holds native code: load one only if you trust whoever made it.

With --emit the form named is printed, or written to OUT. With neither, the model is compiled and
what it came to is told."""

EPILOG = examples(
    ("graphc compile model.onnx", "can it be compiled? how long does that take?"),
    ("graphc compile model.onnx -o model.so --dim batch=1", "a library that needs no Python"),
    ("graphc compile model.onnx -o model.gcm --dim batch=1..8", "for graphc.load and graphc run"),
    ("graphc compile model.onnx --target c -o firmware/model", "C99 for a microcontroller"),
    ("graphc compile model.onnx --target c --cpu cortex-m55 -o firmware", "with its vectors"),
    ("graphc compile model.onnx --target cuda --arch sm_90 -o gpu/model", "kernels for a GPU"),
    ("graphc compile model.onnx --emit ir --stop-after canonical", "the graph after clean-up"),
    ("graphc compile model.onnx --stop-after fused -o fused.gir", "the graph as it is lowered"),
    ("graphc compile fused.gir --start-from fused -o model.so", "goes on from there"),
    ("graphc compile model.onnx --emit kernel", "the loop nests"),
    ("graphc compile model.onnx --dump-to stages", "the graph after every pass, in stages/"),
    ("graphc compile model.onnx --explain fold-bn-into-conv", "why that rule fired or did not"),
    ("graphc compile model.onnx --plugin my_pass.py --emit ir", "with a pass of your own"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "compile", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=filename, help="the file or folder to write"
    )
    parser.add_argument("--emit", choices=FORMS, help="the form to print or write")
    parser.add_argument("--stop-after", choices=PHASES, metavar="PHASE",
                        help=f"print the model after a phase: {', '.join(PHASES)}")  # fmt: skip
    parser.add_argument("--start-from", choices=RESUMABLE, metavar="PHASE",
                        help="MODEL is text of this phase, and compilation goes on from there: "
                        f"{', '.join(RESUMABLE)}; the text of a graph says so itself, unless it is "
                        "written by hand or goes back to an earlier phase")  # fmt: skip
    add_bundle(parser)
    add_passes(parser)
    parser.add_argument(
        "--dump-to", metavar="DIR", type=filename, help="write the graph after every pass"
    )
    parser.add_argument(
        "--explain", metavar="RULE", action="append", default=[],
        help="print how often a rewrite rule or a pass (fuse-attention, say) applied, and where it "
        "did not and why; repeatable",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    form = _form(args)
    args.target = _target(form, args)
    bundle = form is None and _is_bundle(args)
    from graphc.cli.models import open_model

    if not (bundle and args.output and args.target == "c"):
        check_unused(args)
    target = target_of(args, "plain" if form == "c" else args.target)
    settings = compile_settings(args, target)
    _check_rules(args.explain)
    if args.start_from == "planned":
        return _from_program(args, form)
    model = open_model(args)
    _resume(model, args)
    if form is not None:
        _emit(model, form, args, target, settings)
    elif args.output:
        _save(model, args, settings)
    else:
        _report(model, args, target, settings)
    printed = form is not None and args.output is None
    for name in args.explain:
        text = settings.context.diagnostics.explain(name)
        print(text, file=sys.stderr if printed else sys.stdout)
    return 0


def _resume(model: Model, args: argparse.Namespace) -> None:
    """Takes the model as one of the phase that --start-from names; checks --stop-after."""
    from graphc.cli.resume import graph_from

    if args.start_from is not None:
        if model.path.suffix != ".gir":
            raise ModelError(f"--start-from {args.start_from}: {model.path} is not text (.gir)")
        model.graph = graph_from(model.graph, args.start_from, model.path)
    if args.stop_after and PHASES.index(args.stop_after) < PHASES.index(model.graph.phase):
        raise ModelError(
            f"--stop-after {args.stop_after}: {model.path} is already {model.graph.phase}"
        )


def _from_program(args: argparse.Namespace, form: str | None) -> int:
    """Goes on from a planned program in text."""
    from graphc.cli.resume import compile_program

    program = compile_program(args, form)
    if form is None and not args.output:
        _tell(program)
    return 0


def pipeline(args: argparse.Namespace, target: Target) -> str:
    """The passes that --passes and --plugin ask for; else those of the target."""
    from graphc.cli.plugins import load_plugins, pipeline_with

    own = load_plugins(args.plugin)
    return args.passes or pipeline_with(target.pipeline(), own)


def compile_settings(args: argparse.Namespace, target: Target) -> Settings:
    """Settings from --threads, --passes, --plugin and --dump-to."""
    from graphc.driver import Settings
    from graphc.passes.manager.hooks import Dump

    hooks = [Dump(args.dump_to)] if args.dump_to else []
    return Settings(passes=pipeline(args, target), hooks=hooks, **target_options(args))


def _form(args: argparse.Namespace) -> str | None:
    """What to emit, from --emit, --stop-after or the name of the output; None for an artifact."""
    suffix = Path(args.output).suffix if args.output else ""
    if args.stop_after is not None:
        implied = {"lowered": "kernel", "planned": "program", "emitted": NATIVE[args.target]}
        form = implied.get(args.stop_after, "ir")
        if args.emit not in (None, form) and not (form == "llvm" and args.emit == "asm"):
            raise ModelError(f"--emit {args.emit} does not go with --stop-after {args.stop_after}")
        return args.emit or form
    if args.emit is None and suffix not in SUFFIXES and _is_bundle(args):
        return None
    if args.emit is None and args.output:
        if suffix not in (*SUFFIXES, *ARTIFACTS):
            known = ", ".join((*SUFFIXES, *ARTIFACTS))
            raise ModelError(f"-o {args.output}: expected a name ending in {known}")
    return args.emit or SUFFIXES.get(suffix)


def _is_bundle(args: argparse.Namespace) -> bool:
    """Whether the output is a folder."""
    path = Path(args.output or "model.c")
    is_file = path.suffix in (*SUFFIXES, *ARTIFACTS) and not path.is_dir()
    return args.target in ("c", "cuda") and not is_file


def _check_rules(names: list[str]) -> None:
    from graphc.passes.manager.base import PASSES
    from graphc.passes.rewriter import RULES

    for name in names:
        if name not in RULES and name not in PASSES:
            rules, passes = (", ".join(sorted(each)) for each in (RULES, PASSES))
            raise ModelError(
                f"--explain {name}: there is no such rule or pass; there are the rules {rules} "
                f"and the passes {passes}"
            )


# ---------------------------------------------------------------- what comes out


def _emit(
    model: Model, form: str, args: argparse.Namespace, target: Target, settings: Settings
) -> None:
    from graphc.cli import emit
    from graphc.cli.output import progress
    from graphc.ir.text.printer import graph_constants, program_constants

    with progress(f"compiling {model.path.name} for {args.target}"):
        if form == "ir":
            graph = emit.graph_at(model, args.stop_after, target, settings)
            text, constants = str(graph), graph_constants(graph)
        else:
            program = emit.program(model, target, settings)
            text = emit.text(program, form)
            constants = program_constants(program) if form == "program" else {}
    emit.write(text, constants, args.output)


def _target(form: str | None, args: argparse.Namespace) -> str:
    """The target whose program a form shows: that of --target, unless only one has the form."""
    owner = {"llvm": "cpu", "asm": "cpu", "c": "c", "cuda": "cuda"}.get(form or "", args.target)
    if args.target not in (owner, "cpu"):
        raise ModelError(f"--emit {form} goes with --target {owner}")
    return owner


def _save(model: Model, args: argparse.Namespace, settings: Settings) -> None:
    """Writes a library, object or saved model for the CPU, or a folder of sources."""
    from graphc.cli.output import progress

    with progress(f"compiling {model.path.name} to {args.output}"):
        if _is_bundle(args) and args.target == "cuda":
            write_folder(model, args, settings)
        elif _is_bundle(args):
            write_sources(model, args, settings)
        elif args.target == "cpu":
            _write_native(model, Path(args.output), target_of(args), settings)
        else:
            made = f"a .{'cu' if args.target == 'cuda' else 'c'} file or a folder"
            raise UnsupportedError(f"-o {args.output}: --target {args.target} makes {made}")


def _write_native(model: Model, path: Path, target: Target, settings: Settings) -> None:
    from graphc import driver
    from graphc.backends.llvm_cpu import aot
    from graphc.backends.llvm_cpu.runtime import NativeModel
    from graphc.cli.emit import check_closed, program
    from graphc.files import check_folder
    from graphc.passes import maps
    from graphc.passes.specialise import choices

    check_folder(path)
    if path.suffix == ".gcm" and model.pinned().symbols:
        choices(model.pinned())  # complains before anything is compiled
        driver.compile(model.graph, target, **model.pins(), **vars(settings)).save(path)
        return
    check_closed(model.pinned())
    compiled = driver.compile(model.graph, target, **model.pins(), **vars(settings))
    parts = [part for _, part in compiled.executables()]
    if len(parts) != 1 or not isinstance(parts[0], NativeModel):
        program(model, target, settings)  # its refusal names the node that needs the host
        raise UnsupportedError(f"-o {path}: parts of this model run on the host, in Python")
    if path.suffix == ".gcm":
        compiled.save(path)
    else:
        maps.tell(model.graph, maps.presented(model.graph))
        aot.build(parts[0].image, path)


def _report(model: Model, args: argparse.Namespace, target: Target, settings: Settings) -> None:
    """Compiles, and tells what the model came to."""
    from graphc import driver
    from graphc.analysis.text import duration
    from graphc.cli import emit
    from graphc.cli.output import note, progress

    programs: list[Program] = []
    settings.observe = programs.append
    start = time.perf_counter()
    with progress(f"compiling {model.path.name} for {args.target}"):
        if args.target == "cuda" and not args.simulate:  # needs no GPU
            emit.text(emit.program(model, target, settings), "cuda")
        else:
            driver.compile(model.graph, target, **model.pins(), **vars(settings))
    taken = duration(time.perf_counter() - start)
    if not programs:
        note("shapes depend on inputs: compiled when it is run (pin them with --dim, --shape)")
        return
    for program in programs:
        _tell(program)
    print(f"compiled for {args.target} in {taken}")


def _tell(program: Program) -> None:
    """Prints what a model came to."""
    from graphc.analysis.text import nbytes

    constants = sum(c.nbytes for c in program.constants)
    print(f"{program.name}: {len(program.steps)} steps of {len(program.kernels)} kernels, "
          f"constants {nbytes(constants)}, arena {nbytes(program.arena_bytes)} "
          f"(at least {nbytes(program.arena_lower_bound)})")  # fmt: skip
