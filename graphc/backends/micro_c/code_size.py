"""An estimate of code size: the number of operators in C text, before a compiler has seen it."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_OPERATOR = re.compile(r"[-+*/<>=&|^?]+")


def without_comments(text: str) -> str:
    """The text that a compiler reads."""
    return _COMMENT.sub("", text)


def operators(text: str) -> int:
    """How many operators of C a text has, those in comments apart."""
    return len(_OPERATOR.findall(without_comments(text)))
