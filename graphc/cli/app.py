"""The command line: one module per command, each with `add(commands)` and `run(args) -> int`.

Exit codes: 0 success; 1 a verification that failed; 2 something the user can mend (a model, an
option, a file), told in one message on stderr; 70 an error of graphc itself, which leaves a
directory and names the command that replays it; 130 interrupted. Nothing heavy is imported before
a command runs, so that help and mistakes in options are answered at once.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from graphc import __version__
from graphc.cli import (
    bench,
    bisect,
    compare,
    compile,
    completion,
    explain,
    inspect,
    opt,
    profile,
    quantise,
    replay,
    report,
    run,
    train,
    verify,
)
from graphc.cli.interrupt import EXIT_CODE, interruptible
from graphc.cli.options import ONE_LINE, examples
from graphc.cli.output import note
from graphc.errors import LIMITS, GraphcError, ModelWarning, beyond_limits, did_you_mean
from graphc.plugins import load_file, load_installed

COMMANDS = (
    compile, run, train, quantise, verify, compare, bench, profile, report, opt, inspect, explain,
    bisect, replay, completion,
)  # fmt: skip
USER_ERROR = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that says in one line what is wrong."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """As the base, but a command itself tells which of its arguments it does not know."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            own = getattr(parsed, "own_parser", self)
            own.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base, but what follows a flag is none of its values, unless after `=`."""
        flags = {
            name for name, action in self._option_string_actions.items()
            if getattr(action, "is_flag", False)
        }  # fmt: skip
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args(
            [f"{word}=true" if word in flags else word for word in given], namespace
        )

    def error(self, message: str) -> NoReturn:
        near = self._meant(message)
        self.exit(USER_ERROR, f"{self.prog}: error: {message}{near} (see {self.prog} --help)\n")

    def _meant(self, message: str) -> str:
        """What a mistake in an option or a choice may have been meant to be."""
        if option := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            return did_you_mean(option[1], self._option_string_actions)
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            return did_you_mean(choice[1], re.split(r"[', ]+", choice[2]))
        return ""


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands, once plugins are loaded, those that arguments name included."""
    first = Parser(prog="graphc", add_help=False, allow_abbrev=False)
    first.add_argument("--plugin", action="append", default=[])
    files = first.parse_known_args(argv)[0].plugin
    modules = [*load_installed(), *map(load_file, files)]
    top = Parser(
        prog="graphc",
        description="Compiles neural networks: ONNX and TensorFlow Lite models to code for a CPU "
        "or a GPU, or to C.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=examples(
            ("graphc inspect model.onnx", "its operators, and where its time will go"),
            ("graphc verify model.onnx", "compile it and compare it with ONNX Runtime"),
            ("graphc bench model.onnx --threads 1", "time it next to ONNX Runtime"),
            ("graphc profile model.onnx --threads 1", "see which layers take its time"),
            ("graphc report model.onnx -o report.html", "all of it on a page to look at"),
            ("graphc run model.onnx --input x=x.npy -o y.npz", "run it"),
            ("graphc train model.onnx --data train.npz -o trained.onnx", "train it"),
            ("graphc quantise model.onnx --data calib.npz -o q.onnx", "quantise it to int8"),
            ("graphc compile --help", "options and examples of one command"),
        ),
    )
    top.add_argument("--version", action="version", version=f"graphc {__version__}")
    top.set_defaults(parser=parser, modules=modules)  # a replay reads its command with it
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        args = parser(argv).parse_args(argv)
        with interruptible(), warnings.catch_warnings():
            warnings.simplefilter("default", ModelWarning)
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            code = args.run(args)
        _flush()
        return code
    except SystemExit as stop:  # argparse, after help or a mistake
        return stop.code if isinstance(stop.code, int) else USER_ERROR
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_CODE)
    except BrokenPipeError:  # the reader of our output has gone
        return 0
    except Exception as error:
        return _failed(error, argv)


def _open_streams() -> None:
    """Lets everything be printed: names of a model may hold characters that the terminal has no
    code for, and the caller may have closed a stream (which is None then)."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it stays open)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Writes what is printed. Where that fails, the interpreter must not try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _show_warning(message: Warning | str, *place: object) -> None:
    note(f"warning: {ONE_LINE.sub(' ', str(message).strip())}")


def _failed(error: Exception, argv: list[str]) -> int:
    """Tells an error to the user; the exit code for it."""
    if isinstance(error, GraphcError) and error.exit_code != 70:
        return _say(str(error), error.exit_code)
    if isinstance(error, LIMITS):
        return _say(str(beyond_limits(error)), USER_ERROR)
    if isinstance(error, OSError) and error.errno is not None:  # the system refuses something
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _say(f"{named}{error.strerror}", USER_ERROR)
    from graphc.cli.crash import leave_replay

    return _say(leave_replay(error, argv), 70)


def _say(message: str, code: int) -> int:
    print(f"graphc: {ONE_LINE.sub(' ', message.strip())}", file=sys.stderr)
    return code
