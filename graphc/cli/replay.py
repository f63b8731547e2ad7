"""graphc replay: runs again the command that an internal error left in a directory."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from graphc.cli.crash import COMMAND
from graphc.cli.options import command, examples
from graphc.cli.output import add_json, answer
from graphc.errors import GraphcError, ModelError

SUMMARY = """\
Runs again the command of an internal error. Attach its directory to a report: it holds the model,
the options and the traceback, but neither weights nor data: in its copies arrays of more than 8
elements are drawn anew. If the error does not happen with these, GRAPHC_CRASH_WEIGHTS=1 keeps them
in the next directory. The traceback is shown. Plugins that the command names are run: look at
command.json first if the directory is somebody else's."""

EPILOG = examples(("graphc replay graphc-crash-k3x0v9", "the same command, on the same files"))


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "replay", run, SUMMARY, EPILOG)
    parser.add_argument("directory", metavar="DIR", help="the directory of an error message")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command in its directory, and shows the traceback."""
    folder = Path(args.directory)
    try:
        recorded = json.loads((folder / COMMAND).read_text())
        argv = [str(argument) for argument in recorded["argv"]]
        environment = {
            name: str(value)
            for name, value in recorded["environment"].items()
            if name.startswith("GRAPHC_")  # no others are recorded
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / COMMAND}: cannot be read: {error}") from error
    os.chdir(folder)
    os.environ.update(environment)
    inner = args.parser(argv).parse_args(argv)
    if inner.run is run:
        raise ModelError(f"{folder}: its command is a replay itself")
    if not args.json:
        print("graphc", *argv)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed) if args.json else contextlib.nullcontext():
        code, fault = _outcome(inner)
    trace = "".join(traceback.format_exception(fault)) if fault else None
    data = {
        "command": argv, "exit_code": code, "output": printed.getvalue(),
        "error": str(fault) if fault else None, "traceback": trace,
    }  # fmt: skip
    answer(args, data, "")
    if trace and not args.json:
        print(trace, file=sys.stderr, end="")
    return code


def _outcome(inner: argparse.Namespace) -> tuple[int, Exception | None]:
    """The exit code of a command, and the internal error that it ends with."""
    try:
        return inner.run(inner), None
    except GraphcError as error:
        if error.exit_code != 70:
            raise
        return 70, error
    except Exception as error:
        return 70, error
