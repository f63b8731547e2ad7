"""The trees of regular expressions in RE2's syntax, parsed without recursion.

Syntax and meaning: github.com/google/re2/wiki/Syntax. Digits, spaces and words are those of ASCII;
scripts (\\p{Greek}) are not known here, and single bytes (\\C) are not matched.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from graphc.errors import ModelError, UnsupportedError
from graphc.records import dataclass

MAX_LENGTH = 20_000  # of a pattern
MAX_REPEAT = 1000  # of RE2
MAX_DEPTH = 100  # of groups in groups
LAST = 0x10FFFF

DIGIT, SPACE = ((48, 57),), ((9, 10), (12, 13), (32, 32))
WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
PERL = {"d": DIGIT, "s": SPACE, "w": WORD}
POSIX = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": DIGIT,
    "graph": ((33, 126),), "lower": ((97, 122),), "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)), "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),), "word": WORD, "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip
CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
CATEGORIES = {
    "": "CLMNPSZ", "C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo",
    "Z": "lps",
}  # fmt: skip
FOLDS = {"k": "\u212a", "K": "\u212a", "s": "\u017f", "S": "\u017f"}  # beside upper and lower case


# ---------------------------------------------------------------- trees


@dataclass(frozen=True)
class Chars:
    """One character: in one of the items (ranges, or a category; or not, if `inverted`)."""

    items: tuple[tuple[Any, bool], ...]  # (ranges or the start of a category, inverted)
    inverted: bool = False
    fold: bool = False

    def holds(self, char: str) -> bool:
        forms = _forms(char) if self.fold else (char,)
        held = any(within(what, forms) != inverted for what, inverted in self.items)
        return held != self.inverted


@dataclass(frozen=True)
class At:
    """Nothing, at a place: begin or end of the text or (m) of a line, at a word's edge or not."""

    place: str


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Choice:
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Repeat:
    part: Any
    least: int
    most: int | None


def _forms(char: str) -> tuple[str, ...]:
    """A character in all cases."""
    variants = {char, char.lower(), char.upper(), char.upper().lower(), char.lower().upper()}
    variants |= {FOLDS[c] for c in tuple(variants) if c in FOLDS}
    return tuple(c for c in variants if len(c) == 1)


def within(what: Any, forms: Iterable[str]) -> bool:
    if isinstance(what, str):
        return any(unicodedata.category(c).startswith(what) for c in forms)
    return any(low <= ord(c) <= high for c in forms for low, high in what)


# ---------------------------------------------------------------- parsing


@dataclass
class _Group:
    """A group that is open: its choices so far, what is being read, and the flags outside."""

    outer: frozenset[str]
    choices: list[Any] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)

    def closed(self) -> Any:
        parts = (*self.choices, Sequence(tuple(self.parts)))
        return Choice(parts) if len(parts) > 1 else parts[0]


class _Parser:
    def __init__(self, pattern: str):
        self.text, self.at = pattern, 0
        self.flags: frozenset[str] = frozenset()

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"pattern {shown(self.text)} is not a regular expression: {what}")

    def take(self, start: str) -> bool:
        """Whether the rest starts so; then it is read."""
        there = self.text.startswith(start, self.at)
        self.at += len(start) * there
        return there

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.wrong("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def tree(self) -> Any:
        stack, repeated = [_Group(self.flags)], False
        while self.at < len(self.text):
            group, count = stack[-1], self.repetition()
            if count is not None:
                if not group.parts or repeated:
                    raise self.wrong("nothing to repeat" if not repeated else "repeated twice")
                group.parts.append(Repeat(group.parts.pop(), *count))
                self.take("?")  # what is found first does not matter
                repeated = True
                continue
            repeated = False
            if self.take("("):
                self.open(stack)
            elif self.take(")"):
                if len(stack) == 1:
                    raise self.wrong("a ) without a (")
                done = stack.pop()
                self.flags = done.outer
                stack[-1].parts.append(done.closed())
            elif self.take("|"):
                group.choices.append(Sequence(tuple(group.parts)))
                group.parts = []
            elif self.take("\\Q"):
                quoted, _, rest = self.text[self.at :].partition("\\E")
                self.at = len(self.text) - len(rest)
                group.parts += map(self.literal, map(ord, quoted))
            else:
                group.parts.append(self.atom())
        if len(stack) > 1:
            raise self.wrong("a ( without a )")
        return stack[0].closed()

    def repetition(self) -> tuple[int, int | None] | None:
        """How often what precedes is repeated, if that is said here."""
        for sign, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return count
        end = self.text.find("}", self.at) if self.text.startswith("{", self.at) else -1
        low, comma, high = self.text[self.at + 1 : max(end, 0)].partition(",")
        if not _is_number(low) or not (high == "" or _is_number(high)):
            return None  # a { that stands for itself
        self.at = end + 1
        least = _number(low)
        most = least if not comma else _number(high) if high else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self.wrong(f"a repetition of {{{low}{comma}{high}}}")
        return least, most

    def open(self, stack: list[_Group]) -> None:
        """What follows a (: a group, named or not, or flags."""
        if len(stack) > MAX_DEPTH:
            raise self.wrong(f"groups nested more than {MAX_DEPTH} deep")
        outer = self.flags
        if self.take("?"):
            named = self.take("P<") or (self.text[self.at + 1 : self.at + 2] not in ("=", "!")
                                        and self.take("<"))  # fmt: skip
            if named:
                name, bracket, _ = self.text[self.at :].partition(">")
                if not bracket or not name.isidentifier() or not name.isascii():
                    raise self.wrong("a group's name")
                self.at += len(name) + 1
            elif self.read_flags():
                return
        stack.append(_Group(outer))

    def read_flags(self) -> bool:
        """Reads the flags after (? up to a ), when they hold from here on, or to a : before the
        group for which they hold; whether it was a )."""
        adding, flags = True, set(self.flags)
        while (char := self.next()) not in ":)":
            if char == "-" and adding:
                adding = False
            elif char in "imsU":
                flags = flags | {char} if adding else flags - {char}
            else:
                raise self.wrong(f"(?{char} is not known here")
        self.flags = frozenset(flags)
        return char == ")"

    def literal(self, code: int) -> Chars:
        return self.chars((((code, code),), False))

    def chars(self, *items: tuple[Any, bool], inverted: bool = False) -> Chars:
        return Chars(items, inverted, "i" in self.flags)

    def atom(self) -> Any:
        char = self.next()
        if char == ".":
            return Chars(
                ((((10, 10),), True),) if "s" not in self.flags else ((((0, LAST),), False),)
            )
        if char == "[":
            return self.char_class()
        if char in "^$":
            line = "line " if "m" in self.flags else ""
            return At(line + ("begin" if char == "^" else "end"))
        if char != "\\":
            return self.literal(ord(char))
        places = {"A": "begin", "z": "end", "b": "edge", "B": "no edge"}
        if self.text[self.at : self.at + 1] in places and self.at < len(self.text):
            return At(places[self.next()])
        item = self.group_escape()
        return self.literal(self.escape()) if item is None else self.chars(item)

    def group_escape(self) -> tuple[Any, bool] | None:
        """The characters that a letter after a \\ stands for: \\d, \\pN, \\p{Lu} and their like."""
        letter = self.text[self.at : self.at + 1]
        if letter and letter in "dswDSW":
            self.at += 1
            return PERL[letter.lower()], letter.isupper()
        if letter not in ("p", "P"):
            return None
        self.at += 1
        name, inverted = self.next(), letter == "P"
        if name == "{":
            name, brace, _ = self.text[self.at :].partition("}")
            if not brace:
                raise self.wrong("a \\p{ without a }")
            self.at += len(name) + 1
        inverted ^= name.startswith("^")
        name = name.removeprefix("^")
        if name == "Any":
            return ((0, LAST),), inverted
        known = CATEGORIES.get(name[:-1], "")
        if not name or name[-1] not in known:
            raise UnsupportedError(
                f"pattern {shown(self.text)}: characters \\p{{{name}}} are not known"
            )
        return name, inverted

    def escape(self) -> int:
        """The character that follows a \\, by its code."""
        char = self.next()
        if char in CONTROLS:
            return CONTROLS[char]
        if char == "x":
            return self.hexadecimal()
        if char in "01234567":
            digits = char
            while len(digits) < 3 and self.text[self.at : self.at + 1] in tuple("01234567"):
                digits += self.next()
            if char != "0" and len(digits) == 1:
                raise self.wrong(f"\\{char} refers back, which takes no linear time")
            return int(digits, 8)
        if not char.isascii() or char.isalnum():
            raise self.wrong(f"\\{char} is not known")
        return ord(char)

    def hexadecimal(self) -> int:
        if self.take("{"):
            digits, closed, _ = self.text[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits = closed = self.text[self.at : self.at + 2]
            self.at += 2
        known = closed and digits and all(c in "0123456789abcdefABCDEF" for c in digits)
        if not known or len(digits) == 1 and closed == digits or int(digits[-9:], 16) > LAST:
            raise self.wrong(f"\\x{digits}")
        return int(digits[-9:], 16)

    def char_class(self) -> Chars:
        inverted, items, first = self.take("^"), [], True
        while first or not self.take("]"):
            first = False
            if self.text.startswith("[:", self.at) and ":]" in self.text[self.at :]:
                self.at += 2
                name = self.text[self.at :].partition(":]")[0]
                if name.removeprefix("^") not in POSIX:
                    raise self.wrong(f"[:{name[:20]}:] is not known")
                self.at += len(name) + 2
                items.append((POSIX[name.removeprefix("^")], name.startswith("^")))
                continue
            char = self.next()
            item = self.group_escape() if char == "\\" else None
            if item is not None:
                items.append(item)
                continue
            low = high = self.escape() if char == "\\" else ord(char)
            if (
                self.text[self.at : self.at + 1] == "-"
                and self.text[self.at + 1 : self.at + 2] != "]"
            ):
                self.at += 1
                char = self.next()
                high = self.escape() if char == "\\" else ord(char)
                if high < low:
                    raise self.wrong(f"a range from {chr(low)!r} to {chr(high)!r}")
            items.append((((low, high),), False))
        return self.chars(*items, inverted=inverted)


def shown(pattern: str) -> str:
    """A pattern in messages."""
    return repr(pattern if len(pattern) <= 60 else pattern[:57] + "...")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 9 else MAX_REPEAT + 1


def parse(pattern: str) -> Any:
    """The tree of a pattern; ModelError says what is wrong with it."""
    if len(pattern) > MAX_LENGTH:
        raise ModelError(f"a pattern of {len(pattern)} characters is longer than {MAX_LENGTH}")
    parser = _Parser(pattern)
    tree = parser.tree()
    if _repeated(tree) > MAX_REPEAT:
        raise parser.wrong(f"repetitions come to more than {MAX_REPEAT}")
    return tree


def _repeated(tree: object) -> int:
    """How often the innermost part of a tree is repeated, which RE2 bounds."""
    if isinstance(tree, Repeat):
        return max(1, tree.least, tree.most or 0) * _repeated(tree.part)
    return max(map(_repeated, getattr(tree, "parts", ())), default=1)
