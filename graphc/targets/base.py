"""What a target is. docs/writing_a_target.md writes one in a file.

A target is a dataclass: a name, the options a user may give as fields (`option`), and methods that
say what graphs become on it. Every method has a default, that of a machine of plain loops, but for
`load` and `emit`. An instance is a target with its options chosen. Nothing heavy is imported before
a method is called, since command lines are read with all targets registered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from graphc.errors import ModelError, UnsupportedError
from graphc.ir.machine import Machine

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.passes.manager.base import Pass
    from graphc.runtime.plans import CompileStatic, Executable

PLAIN = "checks, decompose, fold, cse, dce"
"""A pipeline for machines of plain loops: a kernel for each operator."""
PREPARING = "canonicalise, rewrite{group=lowering}, decompose, fold, canonicalise, cse, dce"
"""What most pipelines have in front of layouts and fusion."""


@dataclass(frozen=True)
class Build:
    """What executables are made with: `program`, which optimises and lowers a static graph; the
    number of `threads`; and `key`, a text that tells all that a program depends on beside its
    graph, or None if it depends on more, so that it must not come from a cache."""

    program: Callable[[Graph], Program]
    threads: int
    key: Callable[[Graph], str | None]


@dataclass(frozen=True)
class Target:
    """Base of all targets; subclasses are frozen dataclasses whose fields are options."""

    name: ClassVar[str] = ""
    keeps_integers: ClassVar[bool] = False
    """Whether quantised weights stay so while graphs are typed: for a pipeline with `integers`."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            self._check(f, getattr(self, f.name))

    def _check(self, f: dataclasses.Field, value: Any) -> None:
        """ModelError if an option has a value that it does not take."""
        choices = f.metadata["choices"]
        if choices and value not in (*choices, f.default):
            raise ModelError(f"{f.name} must be one of {', '.join(choices)}, found {value!r}")
        kind = f.metadata["type"]
        if not (isinstance(value, kind) or value == f.default):
            raise ModelError(f"{f.name} must be {f.metadata['what']}, found {value!r}")

    # ---------------------------------------------------------------- what code is made for

    @cached_property
    def machine(self) -> Machine:
        """What passes and strategies ask of the machine."""
        return Machine()

    def attached(self) -> Target:
        """The target, with what is known of the device at hand; UnsupportedError if it is needed
        and there is none."""
        return self

    # ---------------------------------------------------------------- from graphs to programs

    def pipeline(self) -> str | Sequence[Pass]:
        """The passes over a typed graph, as text or objects. They must take composite operators
        apart; those named `checks` are left out for `checks="off"`."""
        return PLAIN

    def strategies(self) -> Sequence[Strategy]:
        """What makes kernels, tried in order; the last has to match always."""
        from graphc.passes.lower.strategies.plain import plain_loops

        return plain_loops()

    def conventions(self) -> Conventions:
        """What programs have to keep to."""
        from graphc.passes.lower.program import Conventions

        return Conventions()

    def program(self, graph: Graph, lower: Callable[[Graph], Program]) -> Program:
        """The program of a typed static graph, which `lower` changes: what it asks of the graph
        stands before the call, what it does to programs alone after it."""
        return lower(graph)

    # ---------------------------------------------------------------- what becomes of programs

    def load(self, program: Program) -> Executable:
        """A function from the inputs, numpy arrays in order, to the list of outputs."""
        raise UnsupportedError(f"target {self.name!r} cannot run models")

    def compiler(self, build: Build) -> CompileStatic:
        """What compiles static graphs."""
        return lambda graph: self.load(build.program(graph))

    def adopter(self) -> Callable[[Any], Any] | None:
        """What takes arrays in the memory of the device (see CompiledModel); None if it has no
        memory of its own."""
        return None


def option(
    default: Any,
    help: str,
    *,
    choices: Collection[str] = (),
    type: type = str,
    what: str = "a text",
) -> Any:
    """A field of a target that is an option: its default, and what it does. Values are of `choices`
    or `type`, which `what` tells in words."""
    data = {"help": help, "choices": tuple(choices), "type": type, "what": what}
    return dataclasses.field(default=default, metadata=data)


# ---------------------------------------------------------------- registry

TARGETS: dict[str, type[Target]] = {}


def register_target(cls: type[Target]) -> type[Target]:
    """Makes a target available under its name (a class decorator)."""
    if not cls.name:
        raise ModelError(f"target {cls.__name__} has no name")
    TARGETS[cls.name] = cls
    return cls


def options_of(cls: type[Target]) -> Mapping[str, dataclasses.Field]:
    """The options of a target, by name."""
    return {f.name: f for f in dataclasses.fields(cls)}
