"""The functions of a text that a backend emits, by the kernels that they belong to.

A kernel `nest_0` has the functions `nest_0`, and `nest_0.1`, `nest_0_1` and the like, which are
parts of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PART = r"(?:[._]\w+)*"
COMMENT = r"(?:^(?://|/\*| \*)[^\n]*\n)*"


def by_braces(text: str, kernels: Iterable[str]) -> dict[str, str]:
    """Of LLVM or the C family: a function opens with a line that has its name before a
    parenthesis, and is closed by a brace at the start of a line; comments before it are its own."""
    name = _named(kernels)
    pattern = rf"{COMMENT}^(?!declare)[^\s}}][^\n]*\b{name}\(.*?^}}$"
    return _joined((m[1], m[0]) for m in re.finditer(pattern, text, re.M | re.S))


def by_labels(text: str, kernels: Iterable[str]) -> dict[str, str]:
    """Of assembly: functions stand apart by empty lines, constants with those that read them."""
    label = re.compile(rf"^_?{_named(kernels)}:", re.M)
    parts = ((label.search(part), part) for part in re.split(r"(?<=\n)\n", text))
    return _joined((match[1], part.strip("\n")) for match, part in parts if match)


def _named(kernels: Iterable[str]) -> str:
    """A pattern of the functions of kernels, whose first group is the kernel."""
    names = sorted(kernels, key=len, reverse=True)
    return rf"({'|'.join(map(re.escape, names)) or '(?!)'}){PART}"


def _joined(functions: Iterator[tuple[str, str]]) -> dict[str, str]:
    by_name: dict[str, list[str]] = {}
    for name, text in functions:
        by_name.setdefault(name, []).append(text)
    return {name: "\n\n".join(texts) + "\n" for name, texts in by_name.items()}
