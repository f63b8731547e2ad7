"""The graphs of a training step, made of that of a model.

The constants to train become inputs, and what they are updated to results, as are running
statistics and the state of the optimiser. A step is one graph, or two where gradients of several
batches or processes are added up before the update: `gradients_graph` and `update_graph`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from graphc.autodiff.reverse import gradients
from graphc.errors import ModelError
from graphc.frontend.dsl_tensor import Tensor, apply
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value, clone_graph
from graphc.ir.types import TensorType
from graphc.train.batches import TARGET, Types, typed_for
from graphc.train.loss_scale import SCALE, SKIPPED, LossScale
from graphc.train.losses import Loss
from graphc.train.optimizers import Optimizer
from graphc.train.parameters import (
    DRAW,
    as_input,
    statistics,
    with_batch_statistics,
    with_dropout,
    with_shared_statistics,
)
from graphc.transforms import inlined

RATE, STEP = "rate of the step", "number of the step"
SHARE, SUM, GRADIENT = "share of the batch", "sum for ", "gradient of "
Arrays = Mapping[str, np.ndarray]
SCALAR = TensorType(dtypes.f32, ())


@dataclass(frozen=True)
class Recipe:
    """What makes a step of a model: see the arguments of `Step`. `chosen` are the names of the
    parameters to train; the norm of their gradients is told if `norm`."""

    loss: Loss
    optimizer: Optimizer
    chosen: tuple[str, ...]
    clip_norm: float | None = None
    train_mode: bool = True
    metrics: Mapping[str, Loss] = field(default_factory=dict)
    seed: int = 0
    scale: LossScale | None = None
    norm: bool = True

    @property
    def needs_norm(self) -> bool:
        """Whether the norm of the gradients is told, or updates depend on it."""
        return self.norm or self.clip_norm is not None or self.scale is not None


@dataclass
class Made:
    """A graph, and the names of its results: numbers first (loss, metrics), then `updated`, the
    state that the others are."""

    graph: Graph
    numbers: list[str]
    updated: list[str]

    def finish(self, results: Sequence[Value]) -> Made:
        """Sets the results."""
        self.graph.set_results(results)
        self.graph.output_names = [*self.numbers, *self.updated]
        self.graph.output_types = []
        return self


class _Forward:
    """A model's graph for a batch, with its loss and metrics, whose parameters are inputs. Results
    are the loss, the metrics, and the running statistics that `moved` names."""

    def __init__(self, recipe: Recipe, model: Graph, batch: Types, training: bool):
        opened = clone_graph(model)
        constants = {op.output.name: op for op in opened.ops if op.name == "Constant"}
        for name in recipe.chosen:
            as_input(opened, constants[name])
        moved = with_batch_statistics(opened) if training else {}
        if training:
            with_dropout(opened, recipe.seed)
        for name in statistics(opened):
            as_input(opened, constants[name])
        opened.set_results([opened.results[0], *moved.values()])
        self.graph, self.moved = typed_for(opened, batch), list(moved)
        with_shared_statistics(self.graph)
        named = {p.name: p for p in self.graph.params}
        self.weights = {name: named[name] for name in recipe.chosen}
        labels = self.graph.add_param(batch[TARGET], TARGET)
        self.b = Builder(self.graph)
        functions = {"loss": recipe.loss, **recipe.metrics}
        first, *rest = self.graph.results
        made = inlined(self.b, lambda *x: [f(*x) for f in functions.values()], [first, labels])
        for name, value in zip(functions, made):
            if value.tensor.dims != ():
                raise ModelError(f"{name} must be a scalar, found {value.type}")
        self.numbers = list(functions)
        self.graph.set_results([*made, *rest])

    def slopes(self, scaling: Mapping[str, Value]) -> list[Value]:
        """The gradients of the loss by the weights. They are computed for the loss times its scale,
        if there is one, and then divided by it."""
        loss, weights = self.graph.results[0], list(self.weights.values())
        if not scaling:
            one = self.b.constant(np.ones((), loss.tensor.dtype.np))
            return gradients(self.graph, {loss: one}, weights)
        scale = scaling[SCALE]
        seed = self.b.Cast(scale, to=loss.tensor.dtype.onnx)
        made = gradients(self.graph, {loss: seed}, weights)
        return [inlined(self.b, _unscaled, [slope, scale])[0] for slope in made]


def step_graph(recipe: Recipe, model: Graph, batch: Types) -> Made:
    """A whole step."""
    made = _Forward(recipe, model, batch, recipe.train_mode)
    scaling = _scaling(made.graph, recipe)
    slopes = made.slopes(scaling)
    norm, names, results = _updates(made.b, recipe, made.weights, slopes, scaling)
    told = {} if norm is None else {"norm": norm}
    titles = [*told, *made.numbers]
    return Made(made.graph, titles, [*made.moved, *names]).finish(
        [*told.values(), *made.graph.results, *results]
    )


def gradients_graph(recipe: Recipe, model: Graph, batch: Types) -> Made:
    """Adds the gradients of a batch, times its share of a larger one, to inputs."""
    made = _Forward(recipe, model, batch, recipe.train_mode)
    slopes = made.slopes(_scaling(made.graph, recipe, [SCALE]))
    share = made.graph.add_param(SCALAR, SHARE)
    sums = []
    for (name, weight), slope in zip(made.weights.items(), slopes):
        before = made.graph.add_param(weight.type, SUM + name)
        sums += inlined(made.b, _added, [before, slope, share])
    updated = [*made.moved, *(GRADIENT + name for name in made.weights)]
    return Made(made.graph, made.numbers, updated).finish([*made.graph.results, *sums])


def update_graph(recipe: Recipe, state: Arrays) -> Made:
    """The update of the parameters by gradients."""
    graph = Graph("update")
    types = {n: TensorType(dtypes.of(state[n].dtype), state[n].shape) for n in recipe.chosen}
    weights = {name: graph.add_param(type, name) for name, type in types.items()}
    slopes = [graph.add_param(type, GRADIENT + name) for name, type in types.items()]
    scaling = _scaling(graph, recipe)
    norm, names, results = _updates(Builder(graph), recipe, weights, slopes, scaling)
    told = {} if norm is None else {"norm": norm}
    return Made(graph, [*told], names).finish([*told.values(), *results])


def evaluation_graph(recipe: Recipe, model: Graph, batch: Types) -> Made:
    """The loss and metrics of a batch, as in inference."""
    made = _Forward(recipe, model, batch, training=False)
    return Made(made.graph, made.numbers, []).finish(made.graph.results)


def _added(before: Tensor, slope: Tensor, share: Tensor) -> list[Tensor]:
    return [before + slope * apply("CastLike", share, slope)]


def _scaling(graph: Graph, recipe: Recipe, names: Sequence[str] | None = None) -> dict[str, Value]:
    """The state of the loss scale (of these names alone) as inputs of a graph; none without one."""
    state = {} if recipe.scale is None else recipe.scale.state()
    return {
        name: graph.add_param(TensorType(dtypes.of(array.dtype), array.shape), name)
        for name, array in state.items()
        if names is None or name in names
    }


def _updates(
    b: Builder,
    recipe: Recipe,
    weights: Mapping[str, Value],
    slopes: Sequence[Value],
    scaling: Mapping[str, Value],
) -> tuple[Value | None, list[str], list[Value]]:
    """The norm of the gradients, if it is needed; the names of what is updated, and the new values:
    each parameter with its slots, and the state of the loss scale. If there is one, and gradients
    are infinite or no numbers, that alone changes."""
    assert isinstance(b.region, Graph)
    norms = inlined(b, lambda *x: [_norm(x)], slopes) if recipe.needs_norm else []
    rate, step = (b.region.add_param(SCALAR, n) for n in (RATE, STEP))
    names, results = list[str](), list[Value]()
    if scaling:
        (is_finite,) = inlined(b, lambda x: [x < np.float32(np.inf)], norms)
        (step,) = inlined(b, _less, [step, scaling[SKIPPED]])

    if recipe.clip_norm is not None:
        slopes = [inlined(b, partial(_clipped, recipe.clip_norm), [g, *norms])[0] for g in slopes]
    update = partial(_update, recipe)
    waits = bool(scaling) or recipe.clip_norm is not None
    for (name, weight), slope in zip(weights.items(), slopes):
        kept = {f"{slot} of {name}": slot for slot in recipe.optimizer.slots}
        slots = [b.region.add_param(weight.type, title) for title in kept]
        place = b if waits else _behind(b.region, [slope.producer, *weight.users])
        made = inlined(place, update, [weight, slope, rate, step, *slots])
        if scaling:
            pairs = zip(made, [weight, *slots])
            made = [inlined(b, _chosen, [is_finite, new, old])[0] for new, old in pairs]
        results += made
        names += [name, *kept]
    if scaling:
        results += inlined(b, partial(_rescaled, recipe), [is_finite, *scaling.values()])
        names += scaling
    return next(iter(norms), None), names, results


def _behind(graph: Graph, ops: Sequence[Op | None]) -> Builder:
    """Adds ops behind these. There a gradient is read as soon as it is known, which frees its
    memory, and a parameter is replaced once nothing reads it, so that it may be where it lies."""
    places = [graph.place(op) for op in ops if op is not None]
    return Builder(graph, graph.after(graph.ops[max(places)]) if places else None)


def _rescaled(recipe: Recipe, is_finite: Tensor, *state: Tensor) -> list[Tensor]:
    """The new state of the loss scale."""
    assert recipe.scale is not None
    return list(recipe.scale.update(dict(zip(recipe.scale.state(), state)), is_finite).values())


def _unscaled(slope: Tensor, scale: Tensor) -> list[Tensor]:
    return [slope / apply("CastLike", scale, slope)]


def _less(step: Tensor, skipped: Tensor) -> list[Tensor]:
    """The number of an update, from that of its step: those that were skipped do not count."""
    return [step - apply("CastLike", skipped, step)]


def _chosen(condition: Tensor, new: Tensor, old: Tensor) -> list[Tensor]:
    return [apply("Where", condition, new, old)]


def _clipped(most: float, g: Tensor, norm: Tensor) -> list[Tensor]:
    """A gradient, made smaller by as much as all are, so that their norm is at most that."""
    share = apply("Min", most / (norm + 1e-6), np.float32(1))
    return [g * apply("CastLike", share, g)]


def _update(
    recipe: Recipe, p: Tensor, g: Tensor, rate: Tensor, count: Tensor, *slots: Tensor
) -> list[Tensor]:
    """A new parameter, and what is kept for it."""
    rate, count = (apply("CastLike", scalar, p) for scalar in (rate, count))
    titles = recipe.optimizer.slots
    new, kept = recipe.optimizer.update(p, g, dict(zip(titles, slots)), rate, count)
    return [new, *(kept[slot] for slot in titles)]


def _norm(slopes: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, in float32."""
    squares = [
        apply("ReduceSumSquare", apply("Cast", g, to=dtypes.f32), keepdims=0) for g in slopes
    ]
    return apply("Sqrt", sum(squares[1:], squares[0]))


__all__ = [
    "DRAW", "GRADIENT", "RATE", "SHARE", "STEP", "SUM", "TARGET", "Loss", "Made", "Recipe",
    "evaluation_graph", "gradients_graph", "step_graph", "update_graph",
]  # fmt: skip
