"""graphc compile: compiles a model to a file, or prints a form it takes on the way."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_model,
    add_passes,
    add_target,
    command,
    examples,
    filename,
    option_name,
    settings,
    target_of,
)
from graphc.cli.output import Written, add_json, answer
from graphc.cli.resume import PHASES as RESUMABLE
from graphc.cli.streams import add_stream, streamed
from graphc.errors import ModelError, UnsupportedError, did_you_mean
from graphc.ir.phases import PHASES
from graphc.targets import DEFAULT, TARGETS, lookup, options_of

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.cli.runs import Job
    from graphc.ir.program import Program
    from graphc.targets import Target

FORMS = ("ir", "kernel", "program")  # of any target

SUMMARY = """\
Compiles a model to files, or prints a form it takes. With -o OUT the result is written, whole or
not at all. The suffix of the name chooses the form:

  .so .o     a shared library or an object file, with a C header beside it; with --specialise any
             for all sizes within bounds (--dim N=1..8), which each run is given; with --triple and
             --mcpu for another machine (.obj for Windows)
  .a .wasm   a static library with a Rust crate beside it; a module of WebAssembly with a package
             for JavaScript (--triple wasm32)
  .gcm       a model for graphc.load and graphc run, for every shape within the bounds of
             dimensions (--dim N=1..8): a program for each, or, with
             --specialise any, one for all
  .ll .s     LLVM IR, assembly
  .cu        CUDA kernels
  .c         plain loops in C
  .onnx      with --train: the training step, for any runtime of ONNX
  .gir       the graph as text, its large constants beside it in .gir.npz
  a folder   (--target c) C99 sources for a microcontroller, a header, a build file and a report;
             with --specialise any, for all sizes within the bounds of dimensions
             (--target cuda) kernels, their machine code, weights, a launch plan, and launchers
             in Python and C++; likewise

With --target c or cuda every name without one of these suffixes is a folder (kws-v1.0 too); with
--target cpu such a name is refused.

With --train a .so, .o, .gcm or .onnx holds a training step: from the inputs, the target of the
loss, the rate and the state (parameters, and what the optimiser keeps for each) to the loss and the
new state. What the state starts from is beside it, as arrays by the names of the inputs (.npz).

A .so, .o or .gcm holds native code: load one only if you trust its author.

With --emit the form named is printed, or written to OUT. With neither, the model is compiled and a
summary is printed."""

EPILOG = examples(
    ("graphc compile model.onnx", "can it be compiled? how long does that take?"),
    ("graphc compile model.onnx -o model.so --dim batch=1", "a library that needs no Python"),
    ("graphc compile model.onnx -o model.so --dim batch=1..64 --specialise any", "for any batch"),
    (
        "graphc compile model.onnx --triple aarch64-linux-gnu --mcpu cortex-a76 -o model.so",
        "for Arm",
    ),
    ("graphc compile model.onnx --triple wasm32 -o model.wasm", "for browsers and Node.js"),
    ("graphc compile model.onnx -o model.gcm --dim batch=1..8", "for graphc.load and graphc run"),
    ("graphc compile model.onnx --target c -o firmware/model", "C99 for a microcontroller"),
    ("graphc compile model.onnx --target c --cpu cortex-m55 -o firmware", "with its vectors"),
    ("graphc compile model.onnx --target c --stream x:0 -o firmware", "a step for each row of x"),
    ("graphc compile model.onnx --target cuda --arch sm_90 -o gpu/model", "kernels for a GPU"),
    ("graphc compile model.onnx --train all --optimizer adamw -o step.onnx", "a training step"),
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
    parser.add_argument("--name", type=_name, metavar="NAME",
                        help="what files and functions in a folder are called (default: as the "
                        "model's file)")  # fmt: skip
    forms = dict.fromkeys(name for cls in TARGETS.values() for name in cls.forms)
    parser.add_argument("--emit", choices=(*FORMS, *forms), help="the form to print or write")
    parser.add_argument("--stop-after", choices=PHASES, metavar="PHASE",
                        help=f"print the model after a phase: {', '.join(PHASES)}")  # fmt: skip
    parser.add_argument("--start-from", choices=RESUMABLE, metavar="PHASE",
                        help="MODEL is text of this phase, and compilation goes on from there: "
                        f"{', '.join(RESUMABLE)}; the text of a graph says so itself, unless it is "
                        "written by hand or goes back to an earlier phase")  # fmt: skip
    add_stream(parser)
    add_passes(parser)
    add_json(parser)
    parser.add_argument(
        "--dump-to", metavar="DIR", type=filename, help="write the graph after every pass"
    )
    parser.add_argument(
        "--explain", metavar="RULE", action="append", default=[],
        help="print how often a rewrite rule or a pass (fuse-attention, say) applied, and where it "
        "did not and why; repeatable",
    )  # fmt: skip


def _name(text: str) -> str:
    """An identifier of C."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", text):
        raise argparse.ArgumentTypeError(
            f"expected a letter, and up to 39 more letters, digits and _, found {text!r}"
        )
    return text


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.cli.models import open_model
    from graphc.cli.runs import Job
    from graphc.passes.manager.context import Context
    from graphc.passes.manager.hooks import Dump
    from graphc.passes.manager.journal import Journal

    form, start = _form(args), time.perf_counter()
    if args.json and form is not None and not args.output:
        raise ModelError("--json: goes with -o OUT or with the summary, since --emit prints a text")
    args.target = _maker(form, args)
    target = target_of(args)
    if form is not None or not args.output:
        _check_unused(args, target)
    if form is not None and form in target.forms:
        target = target.shown(form)
    _check_rules(args.explain)
    if args.name and (
        form is not None or not args.output or Path(args.output).suffix in target.files
    ):
        raise ModelError("--name: goes with a folder: -o FOLDER, and --target c or cuda")
    written = Written(args.output) if args.output else None
    if args.start_from == "planned":
        _from_program(args, form, target)
        if written:
            _answer(args, start, written)
        return 0
    hooks = [Dump(args.dump_to)] if args.dump_to else []
    context = Context(journal=Journal() if args.explain else None)
    asked = settings(args, target, hooks=hooks, context=context)
    model, target, _ = streamed(open_model(args), target, args)
    job = Job(model, target, asked, args.name or "")
    _resume(job.model, args)
    if form is not None:
        _emit(job, form, args)
    elif args.output:
        _save(job, args.output)
    else:
        _report(job, args)
    if written:
        _answer(args, start, written)
    printed = args.json or form is not None and args.output is None
    for name in args.explain:
        text = job.settings.context.explain(name)
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


def _answer(args: argparse.Namespace, start: float, written: Written) -> None:
    """Tells what was written."""
    about = {"model": Path(args.model).stem, "target": args.target,
             "seconds": round(time.perf_counter() - start, 3)}  # fmt: skip
    answer(args, {**about, **written.data}, str(written))


def _from_program(args: argparse.Namespace, form: str | None, target: Target) -> None:
    """Goes on from a planned program in text."""
    from graphc.cli.resume import compile_program

    program = compile_program(args, form, target)
    if form is None and not args.output:
        answer(args, {"model": program.name, "programs": [_data(program)]}, _text(program))


def _check_unused(args: argparse.Namespace, target: Target) -> None:
    """ModelError if an option of what the target writes is given, and nothing is written."""
    for name, field in options_of(type(target), args.command).items():
        if field.metadata["commands"] and getattr(target, name) != field.default:
            what = "a folder: -o FOLDER" if target.folder else "a file: -o FILE"
            raise ModelError(f"{option_name(name)}: goes with --target {target.name} and {what}")


# ---------------------------------------------------------------- what the arguments ask for


def _suffixes() -> dict[str, str]:
    """The suffixes of texts, and the forms that these are."""
    texts = {suffix: form for cls in TARGETS.values() for form, suffix in cls.forms.items()}
    return {".gir": "ir", **texts}


def _form(args: argparse.Namespace) -> str | None:
    """What to emit, from --emit, --stop-after or the name of the output; None for files that the
    target writes."""
    own = lookup(args.target).forms
    path = Path(args.output) if args.output else None
    if args.stop_after is not None:
        implied = {"lowered": "kernel", "planned": "program", "emitted": next(iter(own), "program")}
        form = implied.get(args.stop_after, "ir")
        if args.emit not in (None, form, *(own if form in own else ())):
            raise ModelError(f"--emit {args.emit} does not go with --stop-after {args.stop_after}")
        return args.emit or form
    if args.emit is not None or path is None:
        return args.emit
    files = [suffix for cls in TARGETS.values() for suffix in cls.files]
    is_file = path.suffix in (*_suffixes(), *files) and not path.is_dir()
    if not is_file and not lookup(args.target).folder:
        known = ", ".join((*_suffixes(), *files))
        raise ModelError(f"-o {args.output}: expected a name ending in {known}")
    return _suffixes().get(path.suffix) if is_file else None


def _maker(form: str | None, args: argparse.Namespace) -> str:
    """The target whose program a form shows: that of --target, unless only others have the form."""
    if form is None or form in (*FORMS, *lookup(args.target).forms):
        return args.target
    owner = next(name for name, cls in TARGETS.items() if form in cls.forms)
    if args.target != DEFAULT:
        raise ModelError(f"--emit {form} goes with --target {owner}")
    return owner


def _check_rules(names: list[str]) -> None:
    from graphc.passes.manager.base import PASSES
    from graphc.passes.rewriter import RULES

    for name in names:
        if name not in RULES and name not in PASSES:
            rules, passes = (", ".join(sorted(names)) for names in (RULES, PASSES))
            all_there_are = f"; there are the rules {rules} and the passes {passes}"
            known = did_you_mean(name, [*RULES, *PASSES]) or all_there_are
            raise ModelError(f"--explain {name}: there is no such rule or pass{known}")


# ---------------------------------------------------------------- what comes out


def _emit(job: Job, form: str, args: argparse.Namespace) -> None:
    from graphc.cli import emit
    from graphc.cli.output import progress
    from graphc.ir.text.printer import graph_constants, program_constants

    with progress(f"compiling {job.model.path.name} for {job.target.name}"):
        if form == "ir":
            graph = emit.graph_at(job.model, args.stop_after, job.target, job.settings)
            text, constants = str(graph), graph_constants(graph)
        else:
            program = job.program()
            text = emit.text(program, form, job.target)
            constants = program_constants(program) if form == "program" else {}
    if args.output:
        text = job.provenance.stamped(args.output, text)
    emit.write(text, constants, args.output)


def _save(job: Job, output: str) -> None:
    """Has the target write the model to a file or a folder."""
    from graphc.cli.emit import check_closed, one_for_all
    from graphc.cli.output import progress
    from graphc.files import check_folder
    from graphc.passes.specialise import choices

    path, target = Path(output), job.target
    is_folder = target.folder and (path.is_dir() or not _is_known(path.suffix))
    if not is_folder and path.suffix not in target.files:
        made = [f"a {suffix} file" for suffix in (*target.forms.values(), *target.files)]
        made += ["a folder"] if target.folder else []
        raise UnsupportedError(f"-o {output}: --target {target.name} makes {' or '.join(made)}")
    with progress(f"compiling {job.model.path.name} to {output}"):
        if not is_folder:
            check_folder(path)
        if target.any_shape(path) and not job.closed:
            if job.settings.specialise == "exact":
                choices(job.model.pinned())  # complains before anything is compiled
        elif not ((target.alone or is_folder) and one_for_all(job.model, target, job.settings)):
            check_closed(job.model.pinned(), job.target.open_sizes)
        target.write(job, path)


def _is_known(suffix: str) -> bool:
    """Whether a suffix is that of a file."""
    return suffix in _suffixes() or any(suffix in cls.files for cls in TARGETS.values())


def _report(job: Job, args: argparse.Namespace) -> None:
    """Compiles, and tells what the model came to."""
    from graphc.analysis.text import duration
    from graphc.cli.output import note, progress

    programs: list[Program] = []
    job.settings.observe = programs.append
    job.target = job.target.detached()
    start = time.perf_counter()
    with progress(f"compiling {job.model.path.name} for {job.target.name}"):
        job.compiled()
    seconds = time.perf_counter() - start
    data = {"model": job.name, "target": job.target.name, "seconds": round(seconds, 3),
            "programs": list(map(_data, programs))}  # fmt: skip
    if not programs:
        note("shapes depend on inputs: compiled when it is run (pin them with --dim, --shape)")
    ending = [f"compiled for {job.target.name} in {duration(seconds)}"] if programs else []
    answer(args, data, "\n".join([*map(_text, programs), *ending]))


def _data(program: Program) -> dict[str, Any]:
    """What a model came to; bytes at the largest sizes."""
    return {
        "name": program.name,
        "steps": len(program.steps),
        "kernels": len(program.kernels),
        "constant_bytes": sum(c.nbytes for c in program.constants),
        "arena_bytes": program.arena_bytes,
        "least_arena_bytes": program.arena_lower_bound,
    }


def _text(program: Program) -> str:
    from graphc.analysis.text import nbytes

    of = _data(program)
    return (
        f"{of['name']}: {of['steps']} steps of {of['kernels']} kernels, "
        f"constants {nbytes(of['constant_bytes'])}, arena {nbytes(of['arena_bytes'])} "
        f"(at least {nbytes(of['least_arena_bytes'])})"
    )
