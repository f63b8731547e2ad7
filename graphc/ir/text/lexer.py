"""Tokens of graphc's text, and a cursor over them that reports errors by line and column.

Comments run from `#` to the end of the line, or fill a line that starts with `//` (elsewhere `//`
is the floor division). A number may carry its dtype (`2:i32`, `0.1:f16`, `nan:f32`), written
without spaces, so that the colon of `sum(k<4: x[k])` is never taken for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from graphc.errors import ModelError
from graphc.ir import dtypes

T = TypeVar("T")

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_WORD = r"[A-Za-z0-9_./]+(?:::[A-Za-z0-9_./]+)*"
_DTYPE = "|".join(sorted(dtypes.BY_NAME, key=len, reverse=True))
_NUMBER = r"\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|0x[0-9a-fA-F]+|\d+"
_PUNCTUATION = r"\.\.\.|->|\.\.|//|<<|>>|<=|>=|==|!=|&&|\|\||\^\^|\*\*|[-+*/%<>=!~&|^(){}\[\],:;?`]"
_TOKEN = re.compile(
    rf"""(?P<space>(?<=\n)[ \t]*//[^\n]*|\A[ \t]*//[^\n]*|[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<digest>sha256:[0-9a-f]+)
    |(?P<value>%(?:{_STRING}|{_WORD}))
    |(?P<symbol>@(?:{_STRING}|{_WORD}))
    |(?P<number>(?:{_NUMBER}|nan|inf):(?:{_DTYPE})\b|{_NUMBER})
    |(?P<string>{_STRING}(?::string\b)?)
    |(?P<ident>\$\d+|[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<punctuation>{_PUNCTUATION})
    |(?P<bad>.)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A token: its kind (a group name above, or `end`), its text and its offset."""

    kind: str
    text: str
    offset: int


def tokenize(text: str) -> list[Token]:
    """All tokens but space and comments, and one `end` token."""
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind in ("space", "newline"):
            continue
        if kind == "bad":
            raise ModelError(f"{position(text, match.start())}: unexpected {match.group()!r}")
        tokens.append(Token(kind or "", match.group(), match.start()))
    tokens.append(Token("end", "", len(text)))
    return tokens


def position(text: str, offset: int) -> str:
    """`line:column`, both from 1."""
    line = text.count("\n", 0, offset) + 1
    return f"{line}:{offset - text.rfind(chr(10), 0, offset)}"


def unquote(text: str) -> str:
    """The contents of a string literal, or a bare name as it is."""
    return json.loads(text) if text.startswith('"') else text


class Cursor:
    """A position among the tokens of a text."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = tokenize(text)
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def ahead(self, count: int = 1) -> Token:
        """A token further on (the last one is `end`)."""
        return self.tokens[min(self.at + count, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Skips a token and returns it; `end` is never skipped."""
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def sees(self, text: str) -> bool:
        """Whether the next token is this word or punctuation (not a quoted string)."""
        return self.tokens[self.at].text == text

    def accept(self, text: str) -> bool:
        """Skips the next token if it is `text`."""
        matches = self.tokens[self.at].text == text
        self.at += matches
        return matches

    def expect(self, text: str) -> None:
        """Skips the next token, which must be `text`."""
        if not self.accept(text):
            self.fail(f"expected `{text}`")

    def listed(self, closing: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between them, up to a closing bracket, which is skipped."""
        items = []
        while not self.accept(closing):
            items.append(item())
            if not self.sees(closing):
                self.expect(",")
        return items

    def expect_kind(self, kind: str, what: str) -> str:
        """The text of the next token, which must be of this kind."""
        if self.token.kind != kind:
            self.fail(f"expected {what}")
        return self.next().text

    def close_angle(self) -> None:
        """Skips one `>`, splitting a `>>`."""
        token = self.token
        if token.text == ">>":
            self.tokens[self.at] = Token("punctuation", ">", token.offset + 1)
            return
        self.expect(">")

    def name(self, what: str) -> str:
        """An identifier or a quoted name."""
        if self.token.kind not in ("ident", "string"):
            self.fail(f"expected {what}")
        return unquote(self.next().text)

    def sigil_name(self, kind: str, what: str) -> str:
        """The name of a `%value` or `@symbol`."""
        return unquote(self.expect_kind(kind, what)[1:])

    def string(self) -> str:
        """The contents of a quoted string."""
        return unquote(self.expect_kind("string", "a string"))

    def integer(self) -> int:
        """An integer, possibly negative."""
        negative = self.accept("-")
        text = self.expect_kind("number", "an integer")
        try:
            value = int(text, 0)
        except ValueError:
            self.at -= 1
            self.fail("expected an integer")
        return -value if negative else value

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raises a ModelError at the next token (or another one)."""
        token = token or self.token
        found = "the end of the text" if token.kind == "end" else f"`{token.text}`"
        where = position(self.text, token.offset)
        shown = f", found {found}" if message.startswith("expected") else ""
        raise ModelError(f"{where}: {message}{shown}")
