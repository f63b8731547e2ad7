"""graphc completion: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
from typing import Any

from graphc.cli.options import command, examples
from graphc.cli.output import add_json, answer
from graphc.distribution import install
from graphc.errors import UnsupportedError

SHELLS = ("bash", "zsh", "tcsh")

SUMMARY = """\
Prints a script that lets a shell complete commands, options and their choices. The script is made
from the options there are: print it again after an update. It is written by the package shtab."""

EPILOG = examples(
    ("graphc completion bash > ~/.local/share/bash-completion/completions/graphc",
     "bash finds it there"),
    ("graphc completion zsh > ~/.zfunc/_graphc", "where ~/.zfunc is in zsh's fpath"),
)  # fmt: skip


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "completion", run, SUMMARY, EPILOG)
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        import shtab
    except ImportError as error:
        needed = f"completion needs the package shtab: {install('completion')}"
        raise UnsupportedError(needed) from error
    script = shtab.complete(args.parser([]), args.shell)
    answer(args, {"shell": args.shell, "script": script}, script)
    return 0
