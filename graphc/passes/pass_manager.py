"""Passes, their registry, pipelines as text, and the manager that runs them.

A pass is a dataclass: a name, the phase it requires and the one it ensures, options as fields, and
`run(graph, ctx) -> changed`, which edits the graph in place. Verifying, timing, dumping and
comparing results are hooks of the manager, never code in a pass. A pipeline is written as

    fold, canonicalise, layout{prefer=NHWC}, fuse

where a name is that of a pass or of a rewrite rule. Options are numbers, true, false, names,
"strings" or [lists].
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from graphc.errors import GraphcError, InternalError, ModelError
from graphc.ir.graph import Graph
from graphc.passes.context import Context

PHASES = (
    "imported", "typed", "canonical", "laid_out", "fused", "lowered", "planned", "emitted",
)  # fmt: skip


def reached(graph: Graph, phase: str) -> bool:
    """Whether the graph is in this phase or a later one."""
    return PHASES.index(graph.phase) >= PHASES.index(phase)


def is_optimised(graph: Graph) -> bool:
    """Whether passes have taken the graph beyond the phase `typed`."""
    return PHASES.index(graph.phase) > PHASES.index("typed")


@dataclass
class Pass:
    """Base of all passes; subclasses are dataclasses whose fields are the pass's options.

    `requires` is the phase the graph must have reached; `ensures`, if set, the one it is in
    afterwards (a graph never goes back to an earlier phase). `symbolic` passes take graphs whose
    types hold symbols, or are not known.
    """

    name: ClassVar[str] = ""
    requires: ClassVar[str] = "imported"
    ensures: ClassVar[str | None] = None
    symbolic: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: Context) -> bool:
        """Edits the graph; returns whether anything changed."""
        raise NotImplementedError

    def __str__(self) -> str:
        options = [
            f"{f.name}={_option_text(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if f.repr and getattr(self, f.name) != _default(f)
        ]
        return self.name + (f"{{{', '.join(options)}}}" if options else "")


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_option_text, value))}]"
    return str(value)


def made_here(thing: object) -> bool:
    """Whether a function or a class is part of graphc itself, and not of a plugin."""
    return getattr(thing, "__module__", "").startswith("graphc.")


def file_of(maker: Callable[..., Any]) -> str:
    """The name of the file that a pass or the function of a rule is from."""
    code = getattr(getattr(maker, "run", maker), "__code__", None)
    return Path(code.co_filename).name if code else maker.__module__


# ---------------------------------------------------------------- registry

PASSES: dict[str, type[Pass]] = {}


def register_pass(cls: type[Pass]) -> type[Pass]:
    """Makes a pass available to pipelines under its name (a class decorator)."""
    if not cls.name:
        raise InternalError(f"pass {cls.__name__} has no name")
    PASSES[cls.name] = cls
    return cls


def make_pass(name: str, options: dict[str, Any] | None = None) -> Pass:
    """The pass (or the rewrite rule, as a pass) with this name; ModelError lists what there is."""
    from graphc.passes.rewriter import RULES, Rewrite

    options = options or {}
    cls = PASSES.get(name)
    if cls is None and name in RULES:
        cls, options = Rewrite, {"rules": [name], **options}
    if cls is None:
        known = ", ".join(sorted([*PASSES, *RULES]))
        raise ModelError(f"there is no pass or rule {name!r}; there are {known}")
    accepted = {f.name for f in dataclasses.fields(cls) if f.init}
    wrong = [key for key in options if key not in accepted]
    if wrong:
        raise ModelError(f"pass {name} has no option {wrong[0]!r}; it takes {sorted(accepted)}")
    return cls(**options)


# ---------------------------------------------------------------- pipelines as text

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
        found = self.peek(mark)
        if found:
            self.tokens.pop(0)
        return found

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
        found = []
        while self.tokens:
            found.append(make_pass(self.word(), self.options()))
            if self.tokens:
                self.expect(",")
        return found

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
    """The passes that `text` names, in order; ModelError if it cannot be read."""
    return _Pipeline(text).passes()


# ---------------------------------------------------------------- running


def _run(step: Pass, graph: Graph, ctx: Context) -> bool:
    """Runs a pass; what goes wrong in one of a plugin is a ModelError that says where."""
    try:
        return bool(step.run(graph, ctx))
    except GraphcError:
        raise
    except Exception as error:
        if made_here(type(step)):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"pass {step} fails: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno})"
        ) from error


class Hook:
    """What a manager calls around each pass."""

    def before(self, step: Pass, graph: Graph, ctx: Context) -> None:
        """Called before a pass runs."""

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        """Called after a pass has run."""


class PassManager:
    """Runs passes in order, with hooks around each."""

    def __init__(self, passes: str | Iterable[Pass], hooks: Sequence[Hook] = ()):
        self.passes = parse_pipeline(passes) if isinstance(passes, str) else list(passes)
        self.hooks = list(hooks)

    def remaining(self, graph: Graph) -> list[Pass]:
        """The passes that a graph has ahead of it: those after the first that takes a graph to its
        phase. All of them for one that is only typed, or if no pass leads to its phase."""
        order = [PHASES.index(step.ensures or "imported") for step in self.passes]
        phase = PHASES.index(graph.phase)
        done = next((n for n, ensured in enumerate(order, 1) if ensured >= phase), 0)
        return self.passes[done:] if is_optimised(graph) else self.passes

    def run(self, graph: Graph, ctx: Context) -> bool:
        """Runs every pass once; returns whether any changed the graph."""
        changed = False
        for step in self.passes:
            changed |= self.step(step, graph, ctx)
        return changed

    def step(self, step: Pass, graph: Graph, ctx: Context) -> bool:
        """Runs one pass."""
        if not reached(graph, step.requires):
            raise InternalError(
                f"pass {step.name} requires a graph that is {step.requires}, "
                f"found one that is {graph.phase}"
            )
        for hook in self.hooks:
            hook.before(step, graph, ctx)
        with ctx.timed(step.name):
            changed = _run(step, graph, ctx)
        if step.ensures is not None and not reached(graph, step.ensures):
            graph.phase = step.ensures
        for hook in self.hooks:
            hook.after(step, graph, ctx, changed)
        return changed


def run_pipeline(graph: Graph, text: str, ctx: Context | None = None) -> Graph:
    """Runs the passes that `text` names on the graph, in place, and returns it."""
    from graphc.passes.hooks import usual_hooks

    ctx = ctx or Context()
    PassManager(text, usual_hooks(ctx)).run(graph, ctx)
    return graph
