"""Writes docs/api.md, the reference of the public Python API, from signatures and docstrings.

    python docs/api_reference.py           # writes the page
    python docs/api_reference.py --check   # exit code 1 if the page is not up to date

What is public: `graphc.__all__`, and what the modules of MODULES list in theirs.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphc

PAGE = Path(__file__).with_name("api.md")
MODULES = ("graphc", "graphc.dsl", "graphc.train", "graphc.ray", "graphc.passes", "graphc.backend")
HEAD = """# Python API

Written by `docs/api_reference.py` from the docstrings. What is not listed here may change.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(line for name in MODULES for line in module_section(name))])


def module_section(name: str) -> Iterator[str]:
    """A module: its docstring, then what it makes public, by name."""
    module = graphc
    for part in name.split(".")[1:]:
        module = getattr(module, part)
    yield from (f"## {name}", "", *described(module))
    for public in sorted(public_names(module), key=str.lower):
        thing = getattr(module, public)
        if inspect.isclass(thing):
            yield from class_section(f"{name}.{public}", thing)
        elif callable(thing):
            yield from entry("###", f"{name}.{public}", thing)


def public_names(module: Any) -> list[str]:
    """The names in `__all__`, or the functions and classes of a module and of those whose names
    begin with its own (dsl_tensor.py is part of dsl.py)."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (getattr(thing, "__module__", None) or "").startswith(module.__name__)
    ]


def class_section(name: str, cls: type) -> Iterator[str]:
    """A class with its public methods and properties, those of its bases in graphc included."""
    yield from entry("###", name, cls)
    if issubclass(cls, (Exception, enum.Enum)):
        return
    for member in sorted(members(cls)):
        thing = inspect.getattr_static(cls, member)
        if isinstance(thing, property):
            yield from (f"#### {name}.{member}", "", *described(thing))
        elif callable(getattr(cls, member)):
            yield from entry("####", f"{name}.{member}", getattr(cls, member))


def members(cls: type) -> list[str]:
    """The public attributes that graphc's classes in the method resolution order define."""
    ours = [c for c in cls.__mro__ if c.__module__.startswith("graphc")]
    return list({name for c in ours for name in vars(c) if not name.startswith("_")})


def entry(level: str, name: str, thing: Any) -> Iterator[str]:
    """A heading with the signature, and the docstring."""
    yield from (f"{level} {name}", "", "```", f"{name.split('.')[-1]}{signature(thing)}", "```", "")
    yield from described(thing)


class Plain(str):
    """An annotation as it is written in the source, which prints without quotes."""

    def __repr__(self) -> str:
        return str(self)


def signature(thing: Any) -> str:
    """The signature as it is written in the source; one parameter a line if it is long."""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        p.replace(annotation=_plain(p.annotation), default=_default(p.default))
        for p in given.parameters.values()
        if p.name != "self"
    ]
    result = _plain(given.return_annotation)
    text = str(inspect.Signature(parameters, return_annotation=result))
    if len(text) < 88:
        return text
    lines = "".join(f"    {p},\n" for p in map(str, parameters))
    return f"(\n{lines})" + (f" -> {result}" if result is not inspect.Signature.empty else "")


def _plain(annotation: Any) -> Any:
    return Plain(annotation) if isinstance(annotation, str) else annotation


def _default(value: Any) -> Any:
    """A default; one that prints with an address or is made anew for each call as three dots."""
    return Plain("...") if repr(value).startswith("<") and not inspect.isclass(value) else value


def described(thing: Any) -> Iterator[str]:
    """The docstring as lines of the page; the one that Python writes for a dataclass is none."""
    text = inspect.getdoc(thing) or ""
    if text and not text.startswith(f"{getattr(thing, '__name__', None)}("):
        yield from (fenced(text), "")


def fenced(text: str) -> str:
    """Prose with its indented paragraphs as code blocks, which are not run: they are excerpts."""
    paragraphs = re.split(r"\n\n(?=\S)|\n\n(?=    )", text)
    return "\n\n".join(
        f"```\n{inspect.cleandoc(p)}\n```" if p.startswith("    ") else p for p in paragraphs
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="say whether the page is up to date")
    check = parser.parse_args().check
    text = page()
    if check:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
