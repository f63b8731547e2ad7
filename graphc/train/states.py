"""The graphs of a model that is trained where it runs: inference and a training step.

Both read the same state, parameters of the graphs: the weights that are trained, what the optimiser
keeps for each, and, where the optimiser asks for it, how many steps there were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError, near_or_all
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Value, clone_graph, constant_op
from graphc.ir.types import TensorType
from graphc.passes.dce import remove_dead
from graphc.train.batches import typed_for
from graphc.train.channels import with_channels
from graphc.train.float_tail import (
    FAKE,
    QUANTISE,
    Codes,
    coded,
    codes_of,
    is_quantised,
    with_float_tail,
    with_float_weights,
)
from graphc.train.layers import chosen
from graphc.train.losses import LOSSES
from graphc.train.optimizers import Optimizer
from graphc.train.parameters import as_input
from graphc.train.step_graph import RATE, STEP, TARGET, Recipe, step_graph
from graphc.train.sums_of_codes import with_sums_of_codes
from graphc.transforms import inlined

LABELS = ("cross_entropy", "nll")  # losses whose target is the number of a class
INT8 = "int8"
STEPS = "steps"
TRAINING = "training"  # what ops that belong to no node of the model are called


@dataclass(frozen=True)
class Stateful:
    """A static graph with state: by the number of each parameter that is state, that of the result
    that replaces it, if any does."""

    graph: Graph
    state: Mapping[int, int | None]


@dataclass(frozen=True)
class Trainable:
    """Inference, a training step, and the contents that the state starts from, by name; what it
    does not name starts as zeros. `channels` are those of a weight that are trained, by its name,
    if that is not the whole."""

    inference: Stateful
    step: Stateful
    initial: Mapping[str, np.ndarray]
    channels: Mapping[str, Sequence[int]]


def trainable(
    model: Graph, parameters: str, loss: str, optimizer: Optimizer, channels: str | None = None,
    tail: str = "float32",
) -> Trainable:  # fmt: skip
    """A model of static shapes with the training of some of its parameters (layers.chosen), or of
    some of their `channels` (channels.py). The loss `cross_entropy` takes what a last Softmax is
    given. Statistics of BatchNormalization stay. `tail` is what a quantised model's trained part is
    computed in and kept as (float_tail.py).

    ModelError if a parameter is not f32, or there is no such loss, or a tail of int8 is asked of a
    model that is not quantised.
    """
    if loss not in LOSSES:
        raise ModelError(f"there is no loss {loss!r}{near_or_all(loss, LOSSES)}")
    is_int8 = tail == INT8
    if is_int8 and not is_quantised(model):
        raise ModelError("a tail of int8 is of a quantised model (QDQ); this one has float weights")
    given = model
    model, names = to_train(model, parameters, is_int8)
    codes = codes_of(given, names) if is_int8 else {}
    model, parts = with_channels(model, names, channels or "all")
    codes.update((name, codes[name].taken(own)) for name, own in parts.items() if name in codes)
    constants = {op.output.name: op for op in model.ops if op.name == "Constant"}
    weights = {name: constants[name].attrs["value"] for name in names}
    for name, array in weights.items():
        if array.dtype != np.float32:
            raise ModelError(
                f"{name} is of {array.dtype}: only float32 is trained by steps in files"
            )
    recipe = Recipe(LOSSES[loss], optimizer, tuple(names), train_mode=False)
    compared = judged(model, loss)
    step = _step(recipe, compared, target_type(compared, loss), codes)
    weights.update((name, own.of(weights[name])) for name, own in codes.items())
    return Trainable(_inference(model, names, codes), step, weights, parts)


def to_train(model: Graph, parameters: str, rounded: bool = False) -> tuple[Graph, list[str]]:
    """A model with the parameters that a user asks to train as constants of floats, and their
    names; in a quantised one, what depends on them is computed in floats, which are rounded as the
    model has it if `rounded`."""
    if not is_quantised(model):
        return model, chosen(model, parameters)
    names = chosen(with_float_weights(model), parameters)
    return with_float_tail(model, names, rounded), names


def judged(model: Graph, loss: str) -> Graph:
    """A model whose first result is what a loss is given: before it is quantised, and, if that is
    `cross_entropy`, before a last Softmax over the classes of [N, classes]."""
    last = model.results[0].producer
    if last is not None and last.name in (QUANTISE, FAKE):
        model = _without_last(model)
        last = model.results[0].producer
    if loss != "cross_entropy" or last is None or last.name != "Softmax":
        return model
    is_of_classes = last.attrs.get("axis", -1) in (-1, 1)
    is_matrix = is_of_classes and typed_for(model, {}).results[0].tensor.rank == 2
    return _without_last(model) if is_matrix else model


def _without_last(model: Graph) -> Graph:
    """A model whose first result is the first operand of the op that makes it now."""
    graph = clone_graph(model)
    last = graph.results[0].producer
    assert last is not None
    graph.set_results([last.operand(0), *graph.results[1:]])
    graph.output_names, graph.output_types = [], []
    remove_dead(graph)
    return graph


def _inference(model: Graph, names: Sequence[str], codes: Mapping[str, Codes]) -> Stateful:
    """The model with weights to train for parameters."""
    graph = clone_graph(model)
    constants = {op.output.name: op for op in graph.ops if op.name == "Constant"}
    first = len(graph.params)
    for name in names:
        as_input(graph, constants[name])
    graph = typed_for(graph, {})
    coded(graph, codes, {})
    if codes:
        with_sums_of_codes(graph)
    return Stateful(graph, {first + n: None for n in range(len(names))})


def _step(recipe: Recipe, model: Graph, target: TensorType, codes: Mapping[str, Codes]) -> Stateful:
    """The training step. Its parameters are the inputs, the target, the rate, and the state; its
    results the loss, and what replaces the state."""
    batch = {**{p.name: p.tensor for p in model.params}, TARGET: target}
    made = step_graph(recipe, model, batch)
    known = {loc for op in model.ops for loc in op.loc}
    for op in made.graph.ops:
        if not known.intersection(op.loc):
            op.loc = (TRAINING,)
    graph, named = made.graph, {p.name: p for p in made.graph.params}
    results = dict(zip([*made.numbers, *made.updated], graph.results))
    updates = {name: results[name] for name in made.updated}
    graph.set_results([results["loss"], *updates.values()])
    _bind(graph, model, {*batch, RATE, STEP, *updates})
    remove_dead(graph)
    if codes:
        coded(graph, codes, {name: n + 1 for n, name in enumerate(updates)}, named[STEP])
        with_sums_of_codes(graph)
        named = {p.name: p for p in graph.params}
    if named[STEP].uses:
        updates[STEPS], named[STEPS] = _counted(graph, named[STEP]), named[STEP]
        graph.set_results([*graph.results, updates[STEPS]])
    graph.output_names = ["loss", *(f"new {name}" for name in updates)]
    given = [*batch, RATE]
    graph.params = [named[name] for name in (*given, *updates)]
    for number, value in enumerate(graph.params):
        value.index = number
    return Stateful(graph, {len(given) + n: n + 1 for n in range(len(updates))})


def _bind(graph: Graph, model: Graph, given: Set[str]) -> None:
    """Makes constants of the model that are parameters, such as running statistics, constants
    again, but for those that are given."""
    constants = {op.output.name: op for op in model.ops if op.name == "Constant"}
    for value in graph.params:
        if value.name not in given and value.name in constants:
            made = constant_op(constants[value.name].attrs["value"], value.name)
            value.replace_uses(graph.insert_before(graph.ops[0], made).output)


def _counted(graph: Graph, number: Value) -> Value:
    """Makes the number of the step, from 1 on, that of the steps before and one; gives it."""
    number.name = STEPS
    users = list(number.uses)
    (more,) = inlined(Builder(graph, graph.ops[0]), lambda n: [n + np.float32(1)], [number])
    for user, position in users:
        user.set_input(position, more)
    return more


def target_type(model: Graph, loss: str) -> TensorType:
    """The type of a target: 32-bit labels, or the type of the result."""
    result = typed_for(model, {}).results[0].tensor
    if loss not in LABELS:
        return TensorType(result.dtype, result.static_shape)
    if result.rank < 2:
        raise ModelError(f"{loss} takes scores of shape [N, classes, ...], found {result}")
    return TensorType(dtypes.i32, (result.static_shape[0], *result.static_shape[2:]))
