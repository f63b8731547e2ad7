"""The command line: `graphc COMMAND ...`, or `main([...])` from Python."""

from graphc.cli.app import main

__all__ = ["main"]
