"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphc.errors import ModelError
from graphc.targets import DEFAULT, TARGETS, lookup, options_of, owner_of
from graphc.targets.base import CHECKS, MODES, RTOL, nonnegative

if TYPE_CHECKING:
    from graphc.driver import Pipeline, Settings
    from graphc.targets import Target

ONE_LINE = re.compile(r"\s*\n\s*")
INTERPRETER = "interpreter"


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
    """Adds a command. What stands before the first full stop or colon of `summary` stands for it in
    the list of commands."""
    added = commands.add_parser(
        name,
        help=re.split(r"[.:]\s", summary)[0],
        description=summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(run=run, command=name, own_parser=added)
    added.add_argument("--plugin", metavar="FILE.py", action="append", default=[],
                       help="a file that registers operators, rules, passes or targets; its passes "
                       "run before layouts are chosen (or where --passes names them); "
                       "repeatable")  # fmt: skip
    return added


# ---------------------------------------------------------------- arguments


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, and what pins its shapes."""
    parser.add_argument(
        "model", metavar="MODEL", help="an .onnx or .tflite file, or a graph in text (.gir)"
    )
    pins = parser.add_argument_group("inputs of open shape")
    pins.add_argument("--shape", metavar="NAME=1,3,224,224", type=shape, action="append",
                      default=[], help="the shape of an input; repeatable")  # fmt: skip
    pins.add_argument("--dim", metavar="NAME=4", type=dim, action="append", default=[],
                      help="a named dimension (NAME=1..8: its bounds); repeatable")  # fmt: skip
    pins.add_argument("--set", metavar="NAME=VALUE", type=setting, action="append", default=[],
                      help="the contents of an input, fixed while compiling: a number, a [list], "
                      "true, a word, or @file.npy; repeatable")  # fmt: skip


def add_target(parser: argparse.ArgumentParser, *more: str) -> None:
    """What to compile for, with the options of all targets, and with how many threads."""
    command = parser.get_default("command")
    parser.add_argument("--target", choices=(*TARGETS, *more), default=DEFAULT,
                        help="default: %(default)s")  # fmt: skip
    parser.add_argument("--threads", metavar="N", type=positive, default=None,
                        help="CPU threads (default: all)")  # fmt: skip
    parser.add_argument("--checks", choices=CHECKS, default=CHECKS[0],
                        help="whether a run fails that meets indices or lengths out of range; "
                        "without, they are clamped (default: %(default)s)")  # fmt: skip
    parser.add_argument("--specialise", choices=MODES, default=None,
                        help="how a model of open shape runs: any: by one program for all "
                        "sizes; exact: by one for each shape; auto (default): by the first, and "
                        "by exact ones for shapes that keep coming")  # fmt: skip
    known: set[str] = set()
    for cls in TARGETS.values():
        own = [f for name, f in options_of(cls, command).items() if name not in known]
        group = parser.add_argument_group(f"--target {cls.name}") if own else parser
        for field in own:
            _add_option(group, field)
        known.update(f.name for f in own)


def _add_option(group: Any, field: dataclasses.Field) -> None:
    """Adds an option of a target. None stands for one that is not given."""
    data, name = field.metadata, option_name(field.name)
    named = isinstance(field.default, str | int) and not isinstance(field.default, bool)
    text = data["help"] + (f" (default: {field.default})" if named and field.default != "" else "")
    text = text.replace("%", "%%")
    if data["type"] is bool:
        both = field.default is None
        action: Any = argparse.BooleanOptionalAction if both else "store_true"
        group.add_argument(name, action=action, default=None, help=text)
        return
    more: dict[str, Any] = {} if data["given"] is None else {"nargs": "?", "const": data["given"]}
    if data["choices"]:
        more["choices"] = data["choices"]
    metavar = data["metavar"] or (name[2:].upper() if len(data["choices"]) > 5 else None)
    read = data["read"] or (natural if data["type"] is int else str)
    made = group.add_argument(
        name, type=reader(read), metavar=metavar, default=None, help=text, **more
    )
    made.is_flag = data["given"] is True


def reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of texts whose complaints are those of the command line."""

    def reading(text: str) -> Any:
        try:
            return read(text)
        except ModelError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reading


def option_name(name: str) -> str:
    """--with-test for with_test."""
    return "--" + name.replace("_", "-")


def settings_options(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that the arguments ask for."""
    given = {
        name: getattr(args, name, None) for name in ("threads", "max_iterations", "specialise")
    }
    return {"checks": args.checks, **{n: v for n, v in given.items() if v is not None}}


def settings(args: argparse.Namespace, target: Target, **more: Any) -> Settings:
    """As `settings_options`, with the passes that --passes and plugins ask for."""
    from graphc.driver import Settings

    passes = pipeline(args, target.pipeline())
    return Settings(**settings_options(args), passes=passes, **more)


def pipeline(args: argparse.Namespace, usual: Pipeline) -> Pipeline | None:
    """The passes that --passes asks for, or else the usual ones with those of plugins; None if
    these are none."""
    from graphc.passes.manager.pipeline import steps_of
    from graphc.plugins import passes_of, with_passes

    chosen, own = getattr(args, "passes", None), passes_of(args.modules)
    if chosen or not own:
        return chosen
    steps = with_passes(steps_of(usual), own)
    return ", ".join(map(str, steps))


def run_options(args: argparse.Namespace, who: str | Target) -> dict[str, Any]:
    """The settings for what runs a model."""
    return settings_options(args) if isinstance(who, str) else vars(settings(args, who))


def contender_of(args: argparse.Namespace) -> str | Target:
    """The target, or the name of what runs models beside targets."""
    return args.target if args.target == INTERPRETER else target_of(args)


def target_of(args: argparse.Namespace, name: str | None = None) -> Target:
    """The target of the arguments, or the one named, with its options; ModelError if one is given
    that others have."""
    cls = lookup(name or args.target)
    given = {}
    for option, value in vars(args).items():
        owner = owner_of(option, cls, args.command)
        if owner is None or value is None:
            continue
        if owner is cls:
            given[option] = value
        elif value != options_of(owner, args.command)[option].default:
            raise ModelError(
                f"{option_name(option)}: goes with --target {owner.name}, found --target {cls.name}"
            )
    return cls(**given)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """How long a run may go on."""
    parser.add_argument("--max-iterations", metavar="N", type=positive, default=None,
                        help="after how many a loop is taken to have no end, with those of loops "
                        "inside it (default: 10000000)")  # fmt: skip


def add_feeds(parser: argparse.ArgumentParser, seed: bool = True) -> None:
    """Contents of the inputs; `seed`: with that of random ones."""
    parser.add_argument("--input", metavar="NAME=FILE.npy", action="append", default=[],
                        help="contents of an input; or FILE.npz for all of them; inputs that are "
                        "not given are random; repeatable")  # fmt: skip
    if seed:
        parser.add_argument("--seed", type=natural, default=0, help="of random inputs (default: 0)")


def add_tolerance(parser: argparse.ArgumentParser) -> None:
    """How far outputs may be from the reference's."""
    parser.add_argument(
        "--rtol", type=reader(nonnegative), default=None, metavar="R",
        help=f"largest error, relative to an output's range (default: {RTOL:g}, or 1e-2 for a "
        "--precision below f32)",
    )  # fmt: skip


def rtol(args: argparse.Namespace, target: str | Target) -> float:
    """What --rtol says, or what is expected of the target."""
    if args.rtol is not None:
        return args.rtol
    return RTOL if isinstance(target, str) else target.rtol


def add_machine(parser: argparse.ArgumentParser) -> None:
    """What least times are of; compiling may need inputs."""
    parser.add_argument("--machine", metavar="GFLOPS,GB/S[,CACHE]",
                        help="peak and bandwidths (default: this machine's, measured; a GPU's, "
                        "as its architecture has them)")  # fmt: skip
    parser.add_argument("--seed", type=natural, default=0,
                        help="of the inputs, where shapes depend on them (default: 0)")  # fmt: skip


def add_passes(parser: argparse.ArgumentParser) -> None:
    """The user's own pipeline."""
    parser.add_argument("--passes", metavar="P,Q{option=value}",
                        help="a pipeline in place of the usual one")  # fmt: skip


# ---------------------------------------------------------------- texts


def pair(text: str) -> tuple[str, str]:
    """NAME=REST, split at the last `=` (names may hold one)."""
    name, equals, rest = text.rpartition("=")
    if not equals or not name:
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
    low, parts, high = rest.partition("..")
    if not parts:
        return name, _extent(rest, text)
    bounds = _extent(low, text), _extent(high, text)
    if bounds[0] > bounds[1]:
        raise argparse.ArgumentTypeError(f"{rest!r} is empty")
    return name, bounds


def setting(text: str) -> tuple[str, str]:
    """`sr=16000`; the value is read once the type of the input is known."""
    name, equals, rest = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, rest
