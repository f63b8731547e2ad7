"""Bundles of C that train part of a model where they run (backends/micro_c/training.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from graphc.driver import Settings, to_program
from graphc.errors import ModelError, UnsupportedError
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.machine import Machine
from graphc.ir.ops.counts import is_count
from graphc.ir.program import Program
from graphc.targets.micro_c import MicroC
from graphc.targets.training import Trains
from graphc.train.channels import text_of
from graphc.train.optimizers import OPTIMIZERS
from graphc.train.recompute import fitted
from graphc.train.states import Stateful, Trainable, trainable

if TYPE_CHECKING:
    from graphc.backends.micro_c.joined import Training
    from graphc.passes.lower.program import Conventions


SAVING = frozenset({"widening_loads", "results_in_place"})
SAVING_MOST = SAVING | {"little_memory"}


@dataclass(frozen=True)
class _Part(MicroC):
    """The target, for one of the programs that become a bundle; `tight`: in an arena that is too
    small for it otherwise."""

    tight: bool = field(default=False, metadata={"choices": (), "type": bool, "commands": ()})

    carried: Mapping[int, int | None] = field(
        default_factory=dict, metadata={"choices": (), "type": dict, "commands": ()}
    )

    @cached_property
    def machine(self) -> Machine:
        """The processor, short of memory: bytes are kept as bytes between the passes forward and
        backward, and those who read them convert them; state is updated where it lies."""
        cpu = super().machine
        return replace(cpu, instructions=cpu.instructions | (SAVING_MOST if self.tight else SAVING))

    def conventions(self) -> Conventions:
        return replace(super().conventions(), state=self.carried)

    def _ram_of(self, program: Program) -> int:
        """The bytes that are limited: those of the arena."""
        return program.arena_bytes

    def program(self, graph: Graph, lower: Callable[..., Program]) -> Program:
        return self.draft(graph, lower)


def step_of(graph: Graph, target: Trains) -> tuple[Graph, dict[str, np.ndarray]]:
    """The training step of a model of static shapes that the options of a target ask for: a graph
    from the inputs, the target, the rate and the state to the loss and the new state; and the state
    that it starts from, by the names of the graph's inputs. Sizes that data decides are none of the
    graph's, whose inputs are static."""
    step = (model := _trainable(graph, target)).step
    for name, value in step.graph.named_results():
        value.name = name
    step.graph.symbols = {}
    kept = [step.graph.params[number] for number in step.state]
    zeros = {p.name: np.zeros(p.tensor.static_shape, p.tensor.dtype.np) for p in kept}
    return step.graph, {**zeros, **{n: a for n, a in model.initial.items() if n in zeros}}


def joint_program(
    graph: Graph, target: MicroC, settings: Settings | None = None
) -> tuple[Program, Training]:
    """Inference and a training step of a model of static shapes as one program, as the options of
    the target (`train`, `loss`, `optimizer`) ask for it, and which part is what. UnsupportedError
    if data decides sizes, as both would tell them."""
    model = _trainable(graph, target)
    decided = next(filter(is_count, model.step.graph.ops), None)
    if decided is not None:
        raise UnsupportedError(
            f"{decided.where()}: data decides a size, which a bundle that trains cannot tell; "
            "a training step of this model can be a .so or a .gcm"
        )
    if target.io == "arena":
        raise ModelError("--io arena: a bundle that trains leaves inputs and outputs to the caller")
    parts = _Parts(model, target, settings or Settings())
    program, training = parts.joined(parts.lowered(model.inference), parts.lowered(model.step))
    if target.ram is not None:
        beside = parts.ram(program, training) - program.arena_bytes
        if program.arena_bytes > target.ram - beside:
            program, training = _within(parts, target.ram, beside)
    return target.finished(program), training


def _within(parts: _Parts, ram: int, beside: int) -> tuple[Program, Training]:
    """Both, of which so many bytes of RAM are not the arena's. ModelError says what is too much."""
    from graphc.analysis.text import nbytes

    told = f"--ram {nbytes(ram)}: the stack and what training changes take {beside:,} bytes"
    if beside >= ram:
        raise ModelError(f"{told}, without temporaries")
    try:
        return parts.within(ram - beside)
    except ModelError as error:
        raise ModelError(f"{told}; {error}") from error


@dataclass(frozen=True)
class _Parts:
    """Inference and a training step, and how they become a program."""

    model: Trainable
    target: MicroC
    settings: Settings

    def lowered(self, part: Stateful, arena: int | None = None, tight: bool = False) -> Program:
        """The program of a part; with layers by rows if it takes more of the arena than this."""
        options = {f.name: getattr(self.target, f.name) for f in fields(self.target)}
        options.update(train=None, ram=arena, trades=False)
        own = _Part(**options, carried=part.state, tight=tight)
        return to_program(clone_graph(part.graph), own, self.settings)

    def joined(self, inference: Program, step: Program) -> tuple[Program, Training]:
        """Both as one."""
        from graphc.backends.micro_c.joined import joined

        channels = self.model.channels.items()
        notes = {name: f"channels {text_of(own)}" for name, own in channels}
        return joined(inference, step, self.model.initial, notes)

    def ram(self, program: Program, training: Training) -> int:
        """The bytes of RAM that a bundle takes."""
        from graphc.backends.micro_c import model_of
        from graphc.backends.micro_c.budget import Budget

        made = model_of(self.target.finished(program), self.target.code(training=training))
        return Budget.of(made).ram

    def within(self, arena: int) -> tuple[Program, Training]:
        """Both in an arena of at most this, if that can be: layers that are not trained are run by
        rows, and masks are applied by each reader; if that is not enough, values of the forward
        pass are computed again in the backward pass. ModelError says what a step takes."""
        inference = self.lowered(self.model.inference, arena)
        step = self.lowered(self.model.step, arena)
        if step.arena_bytes > arena:
            step = self.lowered(self.model.step, arena, tight=True)
        if step.arena_bytes > arena:
            step = self.lowered(self._again(arena), arena, tight=True)
        return self.joined(inference, step)

    def _again(self, arena: int) -> Stateful:
        """The step, with values that are computed again."""
        graph, state = clone_graph(self.model.step.graph), self.model.step.state

        def measure(graph: Graph) -> int:
            return self.lowered(Stateful(graph, state), tight=True).arena_bytes

        return Stateful(fitted(graph, graph.results[0], arena, measure).graph, state)


def _trainable(graph: Graph, target: Trains) -> Trainable:
    """What the options of a target ask for."""
    optimizer = OPTIMIZERS[target.optimizer]
    return trainable(
        graph, target.train or "all", target.loss, optimizer, target.channels, target.tail
    )
