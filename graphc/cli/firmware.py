"""Options for C sources on a microcontroller; what `graphc compile --target c -o FOLDER` does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphc.cli.options import BOARDS, CPUS, GOALS, PACKAGES, nonnegative, target_of
from graphc.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    from graphc.backends.micro_c import BundleOptions
    from graphc.cli.models import Model
    from graphc.driver import Settings
    from graphc.ir.program import Program

UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20}
DEFAULTS: dict[str, Any] = {
    "with_test": False, "tolerance": None, "libm": None, "weights": "f32", "weights_as": "c",
    "cpu": None, "io": "caller", "ram": None, "flash": None, "board": None, "trace": None,
    "package": None, "opt": GOALS[0],
}  # fmt: skip
SPELLING = {"libm": "--libm and --no-libm"}


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """The options of a folder of C sources."""
    group = parser.add_argument_group("C sources for a microcontroller (--target c -o FOLDER)")
    add = group.add_argument
    add("--with-test", action="store_true",
        help="add a test on random inputs, with the outputs of ONNX Runtime")  # fmt: skip
    add("--tolerance", metavar="T", type=nonnegative,
        help="the largest error the test accepts, in units of an output (default: 1 for "
        "integers of 8 bits; of floats 1e-3 of the range, 1e-2 with --weights f16)")  # fmt: skip
    add_code(group)
    add("--weights-as", choices=("c", "incbin", "bin"), default="c",
        help="constants as C text, as a binary file that an assembler file includes, or as a "
        "binary file that the firmware places (default: %(default)s)")  # fmt: skip
    add("--board", choices=BOARDS,
        help="add start-up code and a Makefile, which make the test an image for this machine of "
        "QEMU (implies --with-test, and the board's --cpu)")  # fmt: skip
    add("--package", choices=PACKAGES, help="lay the files out for this ecosystem, and add its own")
    add("--ram", metavar="64K", type=size,
        help="refuse a model that needs more RAM: arena, stack, inputs and outputs")  # fmt: skip
    add("--flash", metavar="256K", type=size,
        help="refuse a model that needs more flash: constants, and estimated code")  # fmt: skip


def add_code(parser: Any) -> None:
    """The options that change what the C code computes, or how."""
    parser.add_argument("--cpu", choices=CPUS, metavar="CPU",
                        help="the processor it is for: "
                        f"{', '.join(CPUS)} (default: {CPUS[0]}, or a board's)")  # fmt: skip
    parser.add_argument("--opt", choices=GOALS, default=GOALS[0],
                        help="optimise code for this (default: %(default)s)")  # fmt: skip
    parser.add_argument("--io", choices=("caller", "arena"), default="caller",
                        help="whether inputs and outputs are the caller's, or live in the arena "
                        "and take no memory of their own (default: %(default)s)")  # fmt: skip
    parser.add_argument("--libm", action=argparse.BooleanOptionalAction,
                        help="call libm for exp, log, tanh and erf; with --no-libm for nothing "
                        "(default: polynomials for those, libm for other functions)")  # fmt: skip
    parser.add_argument("--weights", choices=("f32", "f16"), default="f32",
                        help="store float weights as they are, or as float16 that is converted "
                        "when it is read, by instructions with gcc's -mfp16-format=ieee (default: "
                        "%(default)s)")  # fmt: skip


def size(text: str) -> int:
    """Bytes from `64K`, `1M`, `256KB`, `4096`."""
    found = re.fullmatch(r"(\d+)([KM]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a size such as 64K or 1M, found {text!r}")
    return int(found[1]) * UNITS[found[2].upper()]


def check_unused(args: argparse.Namespace) -> None:
    """ModelError if an option is given that only C for microcontrollers has."""
    needed = "--target c and a folder: -o FOLDER" if hasattr(args, "with_test") else "--target c"
    for name, default in DEFAULTS.items():
        if getattr(args, name, default) != default:
            option = SPELLING.get(name, "--" + name.replace("_", "-"))
            raise ModelError(f"{option}: goes with {needed}")


def micro_program(model: Model, args: argparse.Namespace, settings: Settings) -> Program:
    """The program of a model, for what the options ask."""
    from graphc.cli import emit

    args.cpu = cpu_name(args)
    return emit.program(model, target_of(args), settings)


def cpu_name(args: argparse.Namespace) -> str:
    """The processor that is asked for: by name, or that of a board."""
    if args.cpu is None and getattr(args, "board", None):
        from graphc.backends.micro_c.boards import BOARDS

        return BOARDS[args.board].cpu
    return args.cpu or CPUS[0]


def options(model: Model, args: argparse.Namespace, samples: Any = None) -> BundleOptions:
    """What the options ask of the text."""
    from graphc.backends.micro_c import BundleOptions

    return BundleOptions(
        name=model.path.stem, libm=args.libm, weights_as=args.weights_as, samples=samples,
        tolerance=args.tolerance, cpu=cpu_name(args), package=args.package,
        board=args.board, opt=args.opt,
    )  # fmt: skip


def write_sources(model: Model, args: argparse.Namespace, settings: Settings) -> None:
    """Writes the folder; ModelError if it exceeds a budget."""
    from graphc.backends.micro_c import write_bundle
    from graphc.files import atomic_folder

    if args.board and args.package:
        raise ModelError("--board: goes without --package")
    if args.board and args.weights_as == "bin":
        raise ModelError("--board: goes with --weights-as c or incbin")
    samples = _samples(model) if args.with_test or args.board else None
    program = micro_program(model, args, settings)
    chosen = options(model, args, samples)
    check_budgets(program, chosen, args.ram, args.flash)
    with atomic_folder(args.output) as temporary:
        write_bundle(program, temporary, chosen)


def _samples(model: Model) -> tuple[Sequence[Any], Sequence[Any]]:
    """Inputs, and the outputs of ONNX Runtime, or of the interpreter where that is missing."""
    from graphc import verify
    from graphc.cli.output import note
    from graphc.cli.runs import contender
    from graphc.passes.maps import as_tensors

    feeds = model.feeds(seed=0)
    try:
        expected = contender(model, "onnxruntime", threads=1)(feeds)
    except UnsupportedError as error:
        note(f"the test expects what graphc's interpreter computes: {error}")
        expected = verify.interpreter(model.pinned())(feeds)
    return list(feeds.values()), as_tensors(model.graph, expected)


def check_budgets(
    program: Program, chosen: BundleOptions, ram: int | None, flash: int | None
) -> None:
    """ModelError if the program needs more; a table of the layers goes to stderr before."""
    if ram is None and flash is None:
        return
    import sys

    from graphc.analysis.text import nbytes
    from graphc.backends.micro_c import model_of
    from graphc.backends.micro_c.budget import Budget

    budget = Budget.of(model_of(program, chosen))
    over = [
        (name, needed, limit, table)
        for name, needed, limit, table in (
            ("--ram", budget.ram, ram, budget.ram_table),
            ("--flash", budget.flash, flash, budget.flash_table),
        )
        if limit is not None and needed > limit
    ]  # fmt: skip
    for _, _, _, table in over:
        print(table(), file=sys.stderr)
    if over:
        raise ModelError("; ".join(f"{name} {nbytes(limit)}: {nbytes(needed)} are needed"
                                   for name, needed, limit, _ in over))  # fmt: skip
