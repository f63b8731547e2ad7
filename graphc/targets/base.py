"""What a target is. docs/writing_a_target.md writes one in a file.

A target is a dataclass: a name, the options a user may give as fields (`option`), and methods that
say what graphs become on it. Every method has a default, that of a machine of plain loops, but for
`load` and `emit`. An instance is a target with its options chosen. Nothing heavy is imported before
a method is called, since command lines are read with all targets registered.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from graphc.errors import ModelError, UnsupportedError
from graphc.ir.machine import PRECISIONS, Machine
from graphc.records import dataclass

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.passes.manager.base import Pass
    from graphc.provenance import Provenance
    from graphc.report.profile import Logged
    from graphc.runtime.compiled import CompiledModel
    from graphc.runtime.plans import CompileStatic, Executable
    from graphc.runtime.readings import Recorder

PLAIN = "checks, decompose, fold, cse, dce"
"""A pipeline for machines of plain loops: a kernel for each operator."""
CHECKS = ("on", "off")  # whether compiled code checks indices and lengths of data
MODES = ("any", "exact", "auto")  # how a model of open shape runs (runtime/tiers.py)
RTOL = 1e-4
"""The largest error of results in float32, relative to their range, that is expected."""
NARROW_RTOL = 1e-2
"""The same where factors are rounded to a narrower type (passes/precision.py)."""
PREPARING = (
    "canonicalise, rewrite{group=lowering}, decompose, fold, canonicalise, cse, dce, dead-channels"
)
"""What most pipelines have in front of layouts and fusion."""


@dataclass(frozen=True)
class Build:
    """What executables are made with: `program`, which optimises and lowers a static graph; the
    number of `threads`; `key`, a text that tells all that a program depends on beside its graph, or
    None if it depends on more, so that it must not come from a cache; and the `recorder` that takes
    times of steps, if they are measured."""

    program: Callable[[Graph], Program]
    threads: int
    key: Callable[[Graph], str | None]
    recorder: Recorder | None = None


@dataclass(frozen=True)
class Target:
    """Base of all targets; subclasses are frozen dataclasses whose fields are options."""

    name: ClassVar[str] = ""
    forms: ClassVar[Mapping[str, str]] = {}
    """The texts it makes of programs, by name, with the suffix of their files; its code first."""
    files: ClassVar[Sequence[str]] = ()
    """The suffixes of files that `write` makes."""
    folder: ClassVar[bool] = False
    """Whether `write` makes folders, whose names have none of these suffixes."""
    alone: ClassVar[bool] = False
    """Whether programs have no host beside them: a model is one program, verified as it is."""
    open_sizes: ClassVar[bool] = False
    """Whether programs may be of open shape: kernels whose sizes are known at run time."""
    counts: ClassVar[bool] = False
    """Whether programs may have sizes that data decides while they run."""
    control_flow: ClassVar[bool] = False
    """Whether programs may have loops and branches."""
    records: ClassVar[bool] = False
    """Whether programs can time their steps for a recorder (runtime/readings.py)."""
    keeps_integers: ClassVar[bool] = False
    """Whether quantised weights stay so while graphs are typed: for a pipeline with `integers`."""

    def __post_init__(self) -> None:
        """ModelError if an option has a value that it does not take."""
        for f in dataclasses.fields(self):
            self._check(f, getattr(self, f.name))

    def _check(self, f: dataclasses.Field, value: Any) -> None:
        choices = f.metadata["choices"]
        if choices and value not in (*choices, f.default):
            raise ModelError(f"{f.name} must be one of {', '.join(choices)}, found {value!r}")
        kind = f.metadata["type"]
        if not (isinstance(value, kind) or value == f.default):
            raise ModelError(f"{f.name} must be {f.metadata['what']}, found {value!r}")

    # ---------------------------------------------------------------- what code is made for

    @classmethod
    def devices(cls) -> dict[str, dict[str, Any]]:
        """The devices of onnx.backend that are this target, each with options that it sets."""
        return {cls.name.upper(): {}}

    @cached_property
    def machine(self) -> Machine:
        """What passes and strategies ask of the machine."""
        return Machine()

    def attached(self) -> Target:
        """The target, with what is known of the device at hand; UnsupportedError if it is needed
        and there is none."""
        return self

    def detached(self) -> Target:
        """The target where nothing is run: code is made, and no device is needed."""
        return self

    def shown(self, form: str) -> Target:
        """The target whose programs a form shows."""
        return self

    def watched(self) -> Target:
        """The target as it is verified, with all that tells of mistakes."""
        return self

    # ---------------------------------------------------------------- what users are told

    @property
    def title(self) -> str:
        """Its name, with those options that results depend on."""
        return self.name

    @property
    def processor(self) -> str:
        """The processor that code is made for, where a user chooses it."""
        return ""

    @property
    def rtol(self) -> float:
        """The largest error of results, relative to their range, that is expected."""
        return RTOL

    def inspected(self, job: Job, program: Program, rows: int | None) -> str:
        """What `graphc inspect` tells beside steps and memory, in at most so many rows."""
        return ""

    def inspected_data(self, job: Job, program: Program) -> dict[str, Any]:
        """What `inspected` tells, as data."""
        return {}

    def compared(self, job: Job, feeds: Mapping[str, Any], rtol: float | None) -> int | None:
        """The exit code of a comparison in place of the usual one of `graphc verify`, which prints
        what it found; None: there is none."""
        return None

    untimed = "does not time its steps"

    def logged(self, job: Job) -> Logged | None:
        """What the calls of a model's program take on another machine, as options say how to know;
        None if none does, or programs are timed here. `untimed` tells what to do then."""
        return None

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

    def variant(self) -> str:
        """What programs depend on beside the graph, the pipeline and the machine, as a text that
        names entries of caches."""
        return ""

    def program(self, graph: Graph, lower: Callable[..., Program]) -> Program:
        """The program of a typed static graph, which `lower` changes: what it asks of the graph
        stands before the call, what it does to programs alone after it. Lowered again, with `rows`,
        some of the layers are executed by rows."""
        return lower(graph)

    # ---------------------------------------------------------------- what becomes of programs

    def load(self, program: Program) -> Executable:
        """A function from the inputs, numpy arrays in order, to the list of outputs."""
        raise UnsupportedError(f"target {self.name!r} cannot run models")

    def compiler(self, build: Build) -> CompileStatic:
        """What compiles static graphs."""
        return lambda graph: self.load(build.program(graph))

    def emit(self, program: Program, form: str) -> str:
        """A program as one of the target's texts."""
        raise UnsupportedError(f"target {self.name!r} has no form {form!r}")

    def kernel_code(self, program: Program) -> Mapping[str, Mapping[str, str]]:
        """By form, the code of each kernel of a program, by name."""
        return {}

    def any_shape(self, path: Path) -> bool:
        """Whether a file can hold a model of open shape."""
        return False

    def write(self, job: Job, path: Path) -> None:
        """Writes a model to a file or a folder."""
        raise UnsupportedError(f"target {self.name!r} writes no files")

    def write_program(self, program: Program, path: Path) -> None:
        """Writes a program that is planned already."""
        raise ModelError(f"-o {path}: target {self.name!r} makes no files of planned programs")

    def adopter(self) -> Callable[[Any], Any] | None:
        """What takes arrays in the memory of the device (see CompiledModel); None if it has no
        memory of its own."""
        return None


def option(
    default: Any,
    help: str,
    *,
    choices: Collection[str] = (),
    type: type | tuple[type, ...] = str,
    what: str = "a text",
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    given: Any = None,
    commands: Collection[str] = (),
) -> Any:
    """A field of a target that is an option: its default, and what it does.

    Values are of `choices` or `type`, which `what` tells in words. On the command line `read` makes
    them of text (which is named `metavar`), and `given` is the value where none is written (if that
    is True, others come after `=`). An option of a few `commands` is that of no other, and none of
    `graphc.compile`.
    """
    data = {
        "help": help, "choices": tuple(choices), "type": type, "what": what, "metavar": metavar,
        "read": read, "given": given, "commands": tuple(commands),
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=data)


@dataclass(frozen=True)
class Rounding(Target):
    """Base of the targets that can multiply in narrower types (passes/precision.py)."""

    precision: str = option(
        "f32", "to which the factors of matrix products and convolutions are rounded; sums are "
        "in f32", choices=PRECISIONS,
    )  # fmt: skip

    @property
    def title(self) -> str:
        return self.name if self.precision == "f32" else f"{self.name} in {self.precision}"

    @property
    def rtol(self) -> float:
        return RTOL if self.precision == "f32" else NARROW_RTOL


def nonnegative(text: str) -> float:
    """A number of at least zero."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise ModelError(f"expected a number of at least 0, found {text!r}")
    return number


class Job(Protocol):
    """A model that a command compiles for a target, and what the command offers beside it."""

    @property
    def name(self) -> str:
        """What files and functions are called: --name, or the model's file without its suffix."""

    @property
    def provenance(self) -> Provenance | None:
        """What files say of where they come from."""

    @property
    def closed(self) -> bool:
        """Whether the shapes of all inputs are fixed."""

    def on(self, target: Target) -> Job:
        """The same for another target."""

    def program(self) -> Program:
        """The whole model as one program."""

    def trained(self) -> tuple[Program, Any]:
        """The whole model with a training step, which is of the target's options, as one program,
        and which part of it is what."""

    @property
    def graph(self) -> Graph:
        """The model, with what the user pinned."""

    def step(self) -> tuple[Job, dict[str, Any]]:
        """The training step that the target's options ask for, as a model from a batch, the rate
        and the state to the loss and the state after it; and the state that it starts from."""

    def compiled(self) -> CompiledModel:
        """The model as graphc.compile gives it."""

    def feeds(self, seed: int = 0) -> dict[str, Any]:
        """Contents for the inputs, random where the user gives none."""

    def expected(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of ONNX Runtime, or of the interpreter where that is missing; maps as
        tensors."""

    def note(self, text: str) -> None:
        """Tells the user."""

    def busy(self, what: str) -> AbstractContextManager[None]:
        """Tells the user what is being done, while it lasts."""


# ---------------------------------------------------------------- registry

TARGETS: dict[str, type[Target]] = {}


def register_target(cls: type[Target]) -> type[Target]:
    """Makes a target available under its name (a class decorator)."""
    if not cls.name:
        raise ModelError(f"target {cls.__name__} has no name")
    TARGETS[cls.name] = cls
    return cls


def options_of(cls: type[Target], command: str | None = None) -> dict[str, dataclasses.Field]:
    """The options of a target, by name: those of a command, or those of any."""
    return {
        f.name: f
        for f in dataclasses.fields(cls)
        if not f.metadata["commands"] or command in f.metadata["commands"]
    }
