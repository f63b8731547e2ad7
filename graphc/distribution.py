"""What graphc is called where it is installed from, and how to install what it does not need.

The project that is called graphc on PyPI is another one. The module is `graphc` all the same.
"""

from __future__ import annotations

NAME = "graphc-compiler"  # that of pyproject.toml


def install(extra: str) -> str:
    """The command that installs the packages of one of the extras of pyproject.toml."""
    return f"pip install '{NAME}[{extra}]'"
