"""Bundles of C that train part of a model where they run (backends/micro_c/training.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from graphc.driver import Settings, to_program
from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.targets.micro_c import MicroC
from graphc.train.optimizers import OPTIMIZERS
from graphc.train.states import Stateful, trainable

if TYPE_CHECKING:
    from graphc.backends.micro_c.joined import Training
    from graphc.passes.lower.program import Conventions


@dataclass(frozen=True)
class _Part(MicroC):
    """The target, for one of the programs that become a bundle."""

    state: Mapping[int, int | None] = field(
        default_factory=dict, metadata={"choices": (), "type": dict, "commands": ()}
    )

    def conventions(self) -> Conventions:
        return replace(super().conventions(), state=self.state)

    def program(self, graph: Graph, lower: Callable[[Graph], Program]) -> Program:
        return self.draft(graph, lower)


def joint_program(
    graph: Graph, target: MicroC, settings: Settings | None = None
) -> tuple[Program, Training]:
    """Inference and a training step of a model of static shapes as one program, as the options of
    the target (`train`, `loss`, `optimizer`) ask for it, and which part is what."""
    from graphc.backends.micro_c.joined import joined

    model = trainable(graph, target.train or "all", target.loss, OPTIMIZERS[target.optimizer])
    if target.io == "arena":
        raise ModelError("--io arena: a bundle that trains leaves inputs and outputs to the caller")
    settings = settings or Settings()

    def lowered(part: Stateful) -> Program:
        options = {f.name: getattr(target, f.name) for f in fields(target)}
        return to_program(part.graph, _Part(**options, state=part.state), settings)

    program, training = joined(lowered(model.inference), lowered(model.step), model.initial)
    return target.finished(program), training
