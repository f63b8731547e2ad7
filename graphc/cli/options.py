"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.targets import Target

ONE_LINE = re.compile(r"\s*\n\s*")
TARGETS = ("cpu", "c", "cuda")
CPUS = ("generic", "cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "rv32")
GOALS = ("speed", "size")
PACKAGES = ("zephyr", "arduino", "platformio", "esp-idf", "cmsis")
BOARDS = ("mps2-an386", "mps2-an500", "mps2-an505", "mps3-an547", "riscv32-virt")
INTERPRETER = "interpreter"
CHECKS = ("on", "off")
PRECISIONS = ("f32", "tf32", "f16", "bf16")


def examples(*pairs: tuple[str, str]) -> str:
    """The end of a help text: commands to copy, each with what it does."""
    return "\n".join(["examples:", *(f"  {command}\n      {what}" for command, what in pairs)])


def command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Adds a command. The first sentence of `summary` stands for it in the list of commands."""
    added = commands.add_parser(
        name,
        help=re.split(r"\.\s", summary)[0],
        description=summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(run=run)
    return added


# ---------------------------------------------------------------- arguments


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, and what pins its shapes."""
    parser.add_argument("model", metavar="MODEL", help="an .onnx file, or a graph in text (.gir)")
    pins = parser.add_argument_group("inputs of open shape")
    pins.add_argument("--shape", metavar="NAME=1,3,224,224", type=shape, action="append",
                      default=[], help="the shape of an input; repeatable")  # fmt: skip
    pins.add_argument("--dim", metavar="NAME=4", type=dim, action="append", default=[],
                      help="a named dimension (NAME=1..8: its bounds); repeatable")  # fmt: skip
    pins.add_argument("--set", metavar="NAME=VALUE", type=setting, action="append", default=[],
                      help="the contents of an input, fixed while compiling: a number, a [list], "
                      "true, a word, or @file.npy; repeatable")  # fmt: skip


def add_target(parser: argparse.ArgumentParser, *more: str) -> None:
    """What to compile for, and with how many threads."""
    parser.add_argument("--target", choices=(*TARGETS, *more), default="cpu",
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--threads", metavar="N", type=positive, default=None,
                        help="CPU threads (default: all)")  # fmt: skip
    parser.add_argument("--checks", choices=CHECKS, default=CHECKS[0],
                        help="whether a run fails that meets indices or lengths out of range; "
                        "without, they are clamped (default: %(default)s)")  # fmt: skip
    parser.add_argument("--device", metavar="N", type=natural, default=0,
                        help="which GPU (default: 0)")  # fmt: skip
    parser.add_argument("--simulate", action="store_true",
                        help="run a GPU's kernels on this machine's CPU (slow)")  # fmt: skip
    parser.add_argument("--precision", choices=PRECISIONS, default="f32",
                        help="in which a GPU's kernels multiply; they add up in f32 "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--tune", action="store_true",
                        help="choose the tiles of a GPU's kernels by measuring them on it; choices "
                        "are kept in the disk cache")  # fmt: skip
    parser.add_argument("--arch", metavar="SM,SM", type=archs,
                        help="plan kernels for these GPUs, the first above all (default: the GPU "
                        "at hand, or sm_80, and code for sm_90 too in a folder; sm_90a: Hopper "
                        "alone, with its own instructions)")  # fmt: skip


def target_options(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that the arguments ask for."""
    given = {name: getattr(args, name, None) for name in ("threads", "max_iterations")}
    return {"checks": args.checks, **{n: v for n, v in given.items() if v is not None}}


def contender_of(args: argparse.Namespace) -> str | Target:
    """The target, or the name of what runs models beside targets."""
    return args.target if args.target == INTERPRETER else target_of(args)


def target_of(args: argparse.Namespace, name: str | None = None) -> Target:
    """The target of the arguments, or the one named, with its options; ModelError if one is given
    that others have."""
    from graphc.targets import lookup, options_of, owner_of

    cls = lookup(name or args.target)
    given = {}
    for option, value in vars(args).items():
        owner = cls if option in options_of(cls) else owner_of(option)
        if owner is None or value in (None, options_of(owner)[option].default):
            continue
        if owner is not cls:
            raise ModelError(
                f"--{option}: goes with --target {owner.name}, found --target {cls.name}"
            )
        given[option] = value
    return cls(**given)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """How long a run may go on."""
    parser.add_argument("--max-iterations", metavar="N", type=positive, default=None,
                        help="after how many a loop is taken to have no end, with those of loops "
                        "inside it (default: 10000000)")  # fmt: skip


def add_feeds(parser: argparse.ArgumentParser) -> None:
    """Contents of the inputs."""
    parser.add_argument("--input", metavar="NAME=FILE.npy", action="append", default=[],
                        help="contents of an input; or FILE.npz for all of them; inputs that are "
                        "not given are random; repeatable")  # fmt: skip
    parser.add_argument("--seed", type=natural, default=0, help="of random inputs (default: 0)")


def add_tolerance(parser: argparse.ArgumentParser, narrow: bool = False) -> None:
    """How far outputs may be from the reference's; `narrow`: it depends on --precision."""
    default = "1e-4, or 1e-2 for a --precision below f32" if narrow else "1e-4"
    parser.add_argument(
        "--rtol", type=nonnegative, default=None if narrow else 1e-4, metavar="R",
        help=f"largest error, relative to an output's range (default: {default})",
    )  # fmt: skip


def rtol(args: argparse.Namespace) -> float:
    """What --rtol says, or the default for --precision."""
    return args.rtol if args.rtol is not None else 1e-4 if args.precision == "f32" else 1e-2


def add_passes(parser: argparse.ArgumentParser) -> None:
    """The user's own pipeline and passes."""
    parser.add_argument("--passes", metavar="P,Q{option=value}",
                        help="a pipeline in place of the usual one")  # fmt: skip
    parser.add_argument("--plugin", metavar="FILE.py", action="append", default=[],
                        help="a file that registers passes or rules; its passes run before layouts "
                        "are chosen (or where --passes names them); repeatable")  # fmt: skip


# ---------------------------------------------------------------- texts


def pair(text: str) -> tuple[str, str]:
    """NAME=REST, split at the last `=` (names may hold one)."""
    name, found, rest = text.rpartition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, rest


def filename(text: str) -> str:
    """The name of a file or folder to write."""
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file, found ''")
    return text


def positive(text: str) -> int:
    """An integer above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {text!r}")
    return int(text)


def natural(text: str) -> int:
    """An integer from zero on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected 0 or a positive integer, found {text!r}")
    return int(text)


def archs(text: str) -> str:
    """`sm_80,sm_90`, without those that are named twice."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in found if not re.fullmatch(r"sm_\d+[af]?", part)]
    if wrong or not found:
        raise argparse.ArgumentTypeError(f"expected sm_80,sm_90 or the like, found {text!r}")
    return ",".join(dict.fromkeys(found))


def nonnegative(text: str) -> float:
    """A number of at least zero."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text!r}")
    return found


def _extent(text: str, whole: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text.strip()!r} in {whole!r} is no dimension")
    return int(text)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`x=1,3,224,224`; `x=` is a scalar."""
    name, rest = pair(text)
    return name, tuple(_extent(part, text) for part in rest.split(",")) if rest else ()


def dim(text: str) -> tuple[str, int | tuple[int, int]]:
    """`N=4`, or `N=1..8`."""
    name, rest = pair(text)
    low, found, high = rest.partition("..")
    if not found:
        return name, _extent(rest, text)
    bounds = _extent(low, text), _extent(high, text)
    if bounds[0] > bounds[1]:
        raise argparse.ArgumentTypeError(f"{rest!r} is empty")
    return name, bounds


def setting(text: str) -> tuple[str, str]:
    """`sr=16000`; the value is read once the type of the input is known."""
    name, found, rest = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, rest
