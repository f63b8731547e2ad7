"""The graphs of a model that is trained where it runs: inference and a training step.

Both read the same state, parameters of the graphs: the weights that are trained, what the optimiser
keeps for each, and, where the optimiser asks for it, how many steps there were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.types import TensorType
from graphc.passes.dce import remove_dead
from graphc.passes.specialise import specialise
from graphc.train.layers import chosen, exactly
from graphc.train.optimizers import Optimizer
from graphc.train.parameters import as_input
from graphc.train.step import RATE, STEP, TARGET, Step, _Making
from graphc.transforms import inlined

LABELS = ("cross_entropy", "nll")  # losses whose target is the number of a class
STEPS = "steps"


@dataclass(frozen=True)
class Stateful:
    """A static graph with state: by the number of each parameter that is state, that of the result
    that replaces it, if any does."""

    graph: Graph
    state: Mapping[int, int | None]


@dataclass(frozen=True)
class Trainable:
    """Inference, a training step, and the contents that the state starts from, by name; what it
    does not name starts as zeros. `parameters` are the names of those trained."""

    inference: Stateful
    step: Stateful
    initial: Mapping[str, np.ndarray]
    parameters: Sequence[str]


def trainable(model: Graph, parameters: str, loss: str, optimizer: Optimizer) -> Trainable:
    """A model of static shapes with the training of some of its parameters (layers.chosen). The
    loss `cross_entropy` takes what a last Softmax is given. Statistics of BatchNormalization stay.

    ModelError if a parameter is not f32, or the model is open.
    """
    graph = clone_graph(model)
    names = chosen(graph, parameters)
    step = host_step(graph, names, loss, optimizer)
    odd = [name for name in names if step.state_dict()[name].dtype != np.float32]
    if odd:
        raise ModelError(f"{odd[0]} is of {step.state_dict()[odd[0]].dtype}: only f32 is trained")
    weights = {name: step.state_dict()[name] for name in step._chosen}
    return Trainable(_inference(graph, list(weights)), _step(step, loss), weights, list(weights))


def host_step(graph: Graph, names: Sequence[str], loss: str, optimizer: Optimizer) -> Step:
    """The step as this machine runs it."""
    return Step(
        scores(graph) if loss == "cross_entropy" else graph, loss, optimizer,
        [exactly(name) for name in names], train_mode=False,
    )  # fmt: skip


def scores(model: Graph) -> Graph:
    """A model whose first result is what its last Softmax is given, if that is over the classes of
    [N, classes]; else the model."""
    graph = clone_graph(model)
    op = graph.results[0].producer
    if op is not None and op.name == "Softmax" and op.attrs.get("axis", -1) in (-1, 1):
        if _typed(model).results[0].tensor.rank != 2:
            return graph
        graph.set_results([op.operand(0), *graph.results[1:]])
        graph.output_names, graph.output_types = [], []
        remove_dead(graph)
    return graph


def _inference(model: Graph, names: Sequence[str]) -> Stateful:
    """The model with weights to train for parameters."""
    graph = clone_graph(model)
    constants = {op.output.name: op for op in graph.ops if op.name == "Constant"}
    first = len(graph.params)
    for name in names:
        as_input(graph, constants[name])
    return Stateful(_typed(graph), {first + n: None for n in range(len(names))})


def _step(step: Step, loss: str) -> Stateful:
    """The training step. Its parameters are the inputs, the target, the rate, and the state; its
    results the loss, and what replaces the state."""
    inputs = {p.name: np.zeros(p.tensor.static_shape, p.tensor.dtype.np) for p in step.graph.params}
    made = _Making(step, inputs, target_type(step, loss))
    graph, named = made.graph, {p.name: p for p in made.graph.params}
    updates = dict(zip(made.updated, graph.results[2:]))
    graph.set_results([graph.results[0], *updates.values()])
    graph.output_names = ["loss", *updates]
    remove_dead(graph)
    if named[STEP].uses:
        updates[STEPS] = _counted(graph, named[STEP])
        graph.set_results([*graph.results, updates[STEPS]])
        graph.output_names = ["loss", *updates]
    given = [*inputs, TARGET, RATE]
    graph.params = [named[name] for name in given] + [
        named.get(name, named[STEP]) for name in updates
    ]
    for number, value in enumerate(graph.params):
        value.index = number
    return Stateful(graph, {len(given) + n: n + 1 for n in range(len(updates))})


def _counted(graph: Graph, number: Value) -> Value:
    """Makes the number of the step, from 1 on, that of the steps before and one; gives it."""
    number.name = STEPS
    users = list(number.uses)
    (more,) = inlined(Builder(graph, graph.ops[0]), lambda n: [n + np.float32(1)], [number])
    for user, position in users:
        user.set_input(position, more)
    return more


def _typed(graph: Graph) -> Graph:
    """A graph with static types."""
    return specialise(graph, {p.name: p.tensor.static_shape for p in graph.params})


def target_type(step: Step, loss: str) -> TensorType:
    """The type of a target: 32-bit labels, or the type of the result."""
    result = _typed(step.graph).results[0].tensor
    if loss not in LABELS:
        return TensorType(result.dtype, result.static_shape)
    if result.rank < 2:
        raise ModelError(f"{loss} takes scores of shape [N, classes, ...], found {result}")
    return TensorType(dtypes.i32, (result.static_shape[0], *result.static_shape[2:]))
