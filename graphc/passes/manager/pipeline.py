"""Pipelines as text:

    fold, canonicalise, layout{prefer=NHWC}, fuse

A name is that of a pass or of a rewrite rule. Options are numbers, true, false, names, "strings" or
[lists].
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from graphc.errors import ModelError, near_or_all
from graphc.passes.manager.base import PASSES, Pass, establishing
from graphc.passes.manager.contracts import check_order
from graphc.passes.rewriter import RULES, Rewrite


def make_pass(name: str, options: dict[str, Any] | None = None) -> Pass:
    """The pass (or the rewrite rule, as a pass) with this name; ModelError lists what there is."""
    options = options or {}
    cls = PASSES.get(name)
    if cls is None and name in RULES:
        cls, options = Rewrite, {"rules": [name], **options}
    if cls is None:
        known = near_or_all(name, sorted([*PASSES, *RULES]))
        raise ModelError(f"there is no pass or rule {name!r}{known}")
    accepted = {f.name for f in dataclasses.fields(cls) if f.init}
    wrong = [key for key in options if key not in accepted]
    if wrong:
        raise ModelError(f"pass {name} has no option {wrong[0]!r}; it takes {sorted(accepted)}")
    return cls(**options)


_TOKEN = re.compile(r"\s*(?:([\w.+-]+)|\"([^\"]*)\"|([{}\[\],=]))")


class _Pipeline:
    """A reader of pipeline text."""

    def __init__(self, text: str):
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(f"cannot read {text[position:].strip()!r}")
            kind = ("word", "string", "mark")[(match.lastindex or 1) - 1]
            self.tokens.append((kind, match.group(match.lastindex or 1)))
            position = match.end()

    def error(self, what: str) -> ModelError:
        return ModelError(f"pipeline {self.text!r}: {what}")

    def peek(self, mark: str) -> bool:
        return bool(self.tokens) and self.tokens[0] == ("mark", mark)

    def take(self, mark: str) -> bool:
        matched = self.peek(mark)
        if matched:
            self.tokens.pop(0)
        return matched

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            found = repr(self.tokens[0][1]) if self.tokens else "the end"
            raise self.error(f"expected {mark!r}, found {found}")

    def word(self) -> str:
        if not self.tokens or self.tokens[0][0] == "mark":
            found = repr(self.tokens[0][1]) if self.tokens else "the end"
            raise self.error(f"expected a name, found {found}")
        return self.tokens.pop(0)[1]

    def passes(self) -> list[Pass]:
        passes = []
        while self.tokens:
            passes.append(make_pass(self.word(), self.options()))
            if self.tokens:
                self.expect(",")
        return passes

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if not self.take("{"):
            return options
        while not self.take("}"):
            key = self.word()
            self.expect("=")
            options[key] = self.value()
            if not self.peek("}"):
                self.expect(",")
        return options

    def value(self) -> Any:
        if self.take("["):
            items = []
            while not self.take("]"):
                items.append(self.value())
                if not self.peek("]"):
                    self.expect(",")
            return items
        if self.tokens and self.tokens[0][0] == "string":
            return self.word()
        return _literal(self.word())


def _literal(text: str) -> Any:
    if text in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse_pipeline(text: str) -> list[Pass]:
    """The passes that `text` names, in order; ModelError if it cannot be read, or if no graph can
    run through them in this order."""
    passes = _Pipeline(text).passes()
    check_order(passes, establishing)
    return passes


def steps_of(pipeline: str | Iterable[Pass]) -> list[Pass]:
    """The passes of a pipeline that is given as text (see parse_pipeline) or as passes."""
    return parse_pipeline(pipeline) if isinstance(pipeline, str) else list(pipeline)
