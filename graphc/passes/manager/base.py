"""What a pass is: its base class, that of the hooks around it, and where passes are registered.

A pass is a dataclass: a name, the properties of graphs that it requires, establishes and destroys
(contracts.py), options as fields, and `run(graph, ctx) -> changed`, which edits the graph in place.
Verifying, timing, dumping and comparing results are hooks of the manager, never code in a pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from graphc.errors import InternalError, ModelError
from graphc.ir.graph import Graph
from graphc.ir.phases import PHASES
from graphc.passes.manager.context import Context
from graphc.passes.manager.contracts import PROPERTIES
from graphc.records import dataclass


@dataclass
class Pass:
    """Base of all passes; subclasses are dataclasses whose fields are the pass's options.

    `requires`, `establishes` and `destroys` name properties (contracts.py); a graph is in the phase
    that is established, unless it is in a later one. `symbolic` passes take graphs whose types hold
    symbols, or are not known.
    """

    name: ClassVar[str] = ""
    requires: ClassVar[Sequence[str]] = ()
    establishes: ClassVar[Sequence[str]] = ()
    destroys: ClassVar[Sequence[str]] = ()
    symbolic: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: Context) -> bool:
        """Edits the graph; returns whether anything changed."""
        raise NotImplementedError

    def phase(self) -> str:
        """The phase that the pass takes graphs to; `imported` if to none."""
        return next((name for name in self.establishes if name in PHASES), "imported")

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


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_option_text, value))}]"
    return str(value)


def made_here(thing: object) -> bool:
    """Whether a function or a class is part of graphc itself, and not of a plugin."""
    return getattr(thing, "__module__", "").startswith("graphc.")


def file_of(maker: Callable) -> str:
    """The name of the file that a pass or the function of a rule is from."""
    code = getattr(getattr(maker, "run", maker), "__code__", None)
    return Path(code.co_filename).name if code else maker.__module__


class Hook:
    """What a manager calls around each pass."""

    def before(self, step: Pass, graph: Graph, ctx: Context) -> None:
        """Called before a pass runs."""

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        """Called after a pass has run."""


# ---------------------------------------------------------------- registry

PASSES: dict[str, type[Pass]] = {}


def register_pass(cls: type[Pass]) -> type[Pass]:
    """Makes a pass available to pipelines under its name (a class decorator)."""
    if not cls.name:
        raise InternalError(f"pass {cls.__name__} has no name")
    for what in ("requires", "establishes", "destroys"):
        names = getattr(cls, what)
        unknown = [n for n in names if n not in PROPERTIES]
        if isinstance(names, str) or unknown:
            raise ModelError(f"pass {cls.name}: {what} must be a tuple of {', '.join(PROPERTIES)}")
    PASSES[cls.name] = cls
    return cls


def establishing(name: str) -> list[str]:
    """The names of the passes that establish a property."""
    return [cls.name for cls in PASSES.values() if name in cls.establishes]
