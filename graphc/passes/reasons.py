"""Why something is not done. A predicate of a decision returns None for yes, or a `Reason`.

A reason costs as little as a tuple: its text is made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphc.ir.graph import Op, Value

MOST = 3  # things that a text names one by one
LONGEST = 64  # characters of a name in a text


class Reason:
    """A sentence, and what its braces stand for: ops and values are named as the user names them,
    several one after another. It is true, so `predicate(x) or other(x)` is the first reason."""

    __slots__ = ("parts", "text")

    def __init__(self, text: str, *parts: object):
        self.text, self.parts = text, parts

    def __str__(self) -> str:
        return self.text.format(*map(named, self.parts)) if self.parts else self.text


def named(part: object) -> str:
    """How a text calls something: ops by kind and layer, values by name and type."""
    if isinstance(part, Op):
        return called("the kernel of" if part.name == "fused" else part.name, part.loc)
    if isinstance(part, Value):
        shape = "" if part.type is None else f" ({part.type})"
        made = "an input" if part.producer is None else f"what {named(part.producer)} gives"
        return f"{short(part.name) or made}{shape}"
    if isinstance(part, (list, set, frozenset)):
        return listed(map(named, part))
    return str(part)


def called(operator: str, loc: Sequence[str]) -> str:
    """An op by its operator and the first layer that it comes from."""
    return f'{operator} "{short(loc[0])}"' if loc else operator


def short(name: str) -> str:
    """A name, or, if it is long, its ends: exporters join the names of all that they merged."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 4]}...{name[-LONGEST // 2 :]}"


def listed(names: Iterable[str]) -> str:
    """Names one after another; of many, the first few and how many more there are."""
    unique = list(dict.fromkeys(names))
    more = len(unique) - MOST
    return ", ".join(unique[:MOST]) + (f" and {more} more" if more > 0 else "")
