"""What can run a model: graphc for a target, the interpreter, or ONNX Runtime."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphc.cli import emit
from graphc.cli.options import INTERPRETER, option_name
from graphc.cli.output import note, progress
from graphc.errors import UnsupportedError
from graphc.targets import options_of

if TYPE_CHECKING:
    from graphc.backends.micro_c.joined import Training
    from graphc.cli.models import Model
    from graphc.driver import Settings
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Peaks
    from graphc.ir.program import Program
    from graphc.provenance import Provenance
    from graphc.runtime.compiled import CompiledModel
    from graphc.targets import Target
    from graphc.verify import Run


@dataclass
class Job:
    """A model that is compiled for a target, as that sees it (graphc/targets/base.py)."""

    model: Model
    target: Target
    settings: Settings
    named: str = ""

    @property
    def name(self) -> str:
        return self.named or self.model.path.stem

    @property
    def provenance(self) -> Provenance:
        from graphc.provenance import Provenance

        return Provenance.of(self.model.path, self._options())

    def _options(self) -> str:
        """The options that decide what is compiled, as the command line has them."""
        given = [f"--target {self.target.name}"]
        for name, option in options_of(type(self.target), "compile").items():
            value = getattr(self.target, name)
            if value != option.default:
                flag = option_name(name)
                off = f"--no-{flag[2:]}"
                given.append(
                    (flag if value else off) if isinstance(value, bool) else f"{flag} {value}"
                )
        given += [f"--{name} {value}" for name, value in (
            ("name", self.named), ("checks", self.settings.checks),
            ("specialise", self.settings.specialise),
            ("passes", self.settings.passes),
        ) if value and value not in ("on", "auto")]  # fmt: skip
        return " ".join([*given, *self.model.pin_options()])

    @property
    def closed(self) -> bool:
        return not self.model.pinned().symbols

    def on(self, target: Target) -> Job:
        return replace(self, target=target)

    def program(self) -> Program:
        return emit.program(self.model, self.target, self.settings)

    def trained(self) -> tuple[Program, Training]:
        from graphc.targets.micro_c import MicroC
        from graphc.train.bundle import joint_program

        assert isinstance(self.target, MicroC)
        graph = self.model.pinned()
        emit.check_closed(graph)
        return joint_program(graph, self.target, self.settings)

    @property
    def graph(self) -> Graph:
        return self.model.pinned()

    def step(self) -> tuple[Job, dict[str, Any]]:
        from graphc.cli.models import Model
        from graphc.targets.training import Trains
        from graphc.train.bundle import step_of

        assert isinstance(self.target, Trains)
        emit.check_closed(self.graph)
        graph, state = step_of(self.graph, self.target)
        return replace(self, model=Model(self.model.path, graph, {}, {}, {})), state

    def compiled(self) -> CompiledModel:
        from graphc import driver

        return driver.compile(
            self.model.graph, self.target, **self.model.pins(), **vars(self.settings)
        )

    def feeds(self, seed: int = 0) -> dict[str, Any]:
        return self.model.feeds(seed)

    def expected(self, feeds: Mapping[str, Any]) -> list[Any]:
        from graphc import verify
        from graphc.passes.maps import as_tensors

        try:
            outputs = contender(self.model, "onnxruntime", threads=1)(feeds)
        except UnsupportedError as error:
            note(f"the test expects what graphc's interpreter computes: {error}")
            outputs = verify.interpreter(self.model.pinned())(feeds)
        return as_tensors(self.model.graph, outputs)

    def note(self, text: str) -> None:
        note(text)

    def busy(self, what: str) -> AbstractContextManager[None]:
        return progress(what)


def contender(model: Model, name: str | Target, **options: Any) -> Run:
    """A function from feeds to outputs, of a target, `interpreter` or `onnxruntime`; `options` are
    settings.

    Feeds are those of the pinned graph; values that are bound are added where they are inputs.
    """
    from graphc import verify

    if name == INTERPRETER:
        run = verify.interpreter(model.pinned(), options.get("max_iterations"))
        return _quietly(run, f"interpreting {model.path.name}")
    if name == "onnxruntime":
        with progress(f"loading {model.path.name} in ONNX Runtime"):
            reference = verify.onnxruntime(model.source, options.get("threads"))
        return lambda feeds: reference({**feeds, **model.values})
    assert not isinstance(name, str)
    from graphc.driver import Settings

    with progress(f"compiling {model.path.name} for {name.name}"):
        return Job(model, name, Settings(**options)).compiled().run


def peaks_of(target: Target, args: argparse.Namespace) -> Peaks | None:
    """The peaks that are given, or those of the target's machine, which is this one where the user
    chooses no processor; None if they are not known."""
    from graphc.analysis.roofline import parse_peaks
    from graphc.backends.llvm_cpu.machine import host_machine

    if args.machine:
        return parse_peaks(args.machine)
    threads = args.threads or 1
    with progress("reading the peaks of the machine"):
        own = target.machine.peaks(threads)
        return own if own or target.processor else host_machine().peaks(threads)


def _quietly(run: Run, what: str) -> Run:
    def watched(feeds: Any) -> list[Any]:
        with progress(what):
            return run(feeds)

    return watched
