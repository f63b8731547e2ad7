"""Bundles of C that train part of a model where they run (backends/micro_c/training.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from graphc.driver import Settings, to_program
from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.targets.micro_c import MicroC
from graphc.targets.training import Trains
from graphc.train.channels import text_of
from graphc.train.optimizers import OPTIMIZERS
from graphc.train.states import Stateful, Trainable, trainable

if TYPE_CHECKING:
    from graphc.backends.micro_c.joined import Training
    from graphc.passes.lower.program import Conventions


@dataclass(frozen=True)
class _Part(MicroC):
    """The target, for one of the programs that become a bundle."""

    carried: Mapping[int, int | None] = field(
        default_factory=dict, metadata={"choices": (), "type": dict, "commands": ()}
    )

    def conventions(self) -> Conventions:
        return replace(super().conventions(), state=self.carried)

    def program(self, graph: Graph, lower: Callable[..., Program]) -> Program:
        return self.draft(graph, lower)


def step_of(graph: Graph, target: Trains) -> tuple[Graph, dict[str, np.ndarray]]:
    """The training step of a model of static shapes that the options of a target ask for: a graph
    from the inputs, the target, the rate and the state to the loss and the new state; and the state
    that it starts from, by the names of the graph's inputs."""
    step = (model := _trainable(graph, target)).step
    for name, value in step.graph.named_results():
        value.name = name
    kept = [step.graph.params[number] for number in step.state]
    zeros = {p.name: np.zeros(p.tensor.static_shape, p.tensor.dtype.np) for p in kept}
    return step.graph, {**zeros, **{n: a for n, a in model.initial.items() if n in zeros}}


def joint_program(
    graph: Graph, target: MicroC, settings: Settings | None = None
) -> tuple[Program, Training]:
    """Inference and a training step of a model of static shapes as one program, as the options of
    the target (`train`, `loss`, `optimizer`) ask for it, and which part is what."""
    from graphc.backends.micro_c.joined import joined

    model = _trainable(graph, target)
    if target.io == "arena":
        raise ModelError("--io arena: a bundle that trains leaves inputs and outputs to the caller")
    settings = settings or Settings()

    def lowered(part: Stateful) -> Program:
        options = {f.name: getattr(target, f.name) for f in fields(target)}
        return to_program(part.graph, _Part(**options, carried=part.state), settings)

    notes = {name: f"channels {text_of(own)}" for name, own in model.channels.items()}
    parts = lowered(model.inference), lowered(model.step)
    program, training = joined(*parts, model.initial, notes)
    return target.finished(program), training


def _trainable(graph: Graph, target: Trains) -> Trainable:
    """What the options of a target ask for."""
    optimizer = OPTIMIZERS[target.optimizer]
    return trainable(graph, target.train or "all", target.loss, optimizer, target.channels)
