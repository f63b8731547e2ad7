"""The functions of a text that a backend emits, by the kernels that they belong to.

A kernel `nest_0` has the functions `nest_0`, and `nest_0.1`, `nest_0_1` and the like, which are
parts of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PART = r"(?:[._]\w+)*"


def by_braces(text: str, kernels: Iterable[str]) -> dict[str, str]:
    """Of LLVM or the C family: a function opens with a line that has its name before a
    parenthesis, and is closed by a brace at the start of a line."""
    opening = rf"^[^\s}}][^\n]*\b({{}}){PART}\("
    return _sorted(re.split(r"(?<=\n}\n)", text), opening, kernels)


def by_labels(text: str, kernels: Iterable[str]) -> dict[str, str]:
    """Of assembly: functions stand apart by empty lines, constants with those that read them."""
    return _sorted(re.split(r"(?<=\n)\n", text), rf"^_?({{}}){PART}:", kernels)


def _sorted(parts: Iterable[str], opening: str, kernels: Iterable[str]) -> dict[str, str]:
    names = sorted(kernels, key=len, reverse=True)
    pattern = re.compile(opening.replace("{}", "|".join(map(re.escape, names))), re.M)
    found: dict[str, list[str]] = {}
    for part in parts if names else ():
        match = pattern.search(part)
        if match:
            found.setdefault(match[1], []).append(part.strip("\n"))
    return {name: "\n\n".join(texts) + "\n" for name, texts in found.items()}
