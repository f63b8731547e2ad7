"""The graph of a training step, made of that of a model.

The constants to train become inputs, and what they are updated to results, as are running
statistics and the state of the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.autodiff.reverse import gradients
from graphc.errors import ModelError
from graphc.frontend.dsl_tensor import Tensor, apply
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.types import TensorType
from graphc.passes.specialise import specialise
from graphc.train.optimizers import Optimizer
from graphc.train.parameters import as_input, with_batch_statistics
from graphc.transforms import inlined

Loss = Callable[[Tensor, Tensor], Tensor]
RATE, STEP, TARGET = "rate of the step", "number of the step", "target"


@dataclass(frozen=True)
class Recipe:
    """What makes a step of a model: see the arguments of `Step`. `chosen` are the names of the
    parameters to train."""

    loss: Loss
    optimizer: Optimizer
    chosen: tuple[str, ...]
    clip_norm: float | None = None
    train_mode: bool = True


class StepGraph:
    """The graph of a step: `updated` names the state that its results after the first two are."""

    def __init__(self, recipe: Recipe, model: Graph, batch: Mapping[str, np.ndarray]):
        self.recipe, self.updated = recipe, list[str]()
        open_graph = clone_graph(model)
        constants = {op.output.name: op for op in open_graph.ops if op.name == "Constant"}
        for name in recipe.chosen:
            as_input(open_graph, constants[name])
        moved = with_batch_statistics(open_graph) if recipe.train_mode else {}
        open_graph.set_results([open_graph.results[0], *moved.values()])
        shapes = {
            p.name: batch[p.name].shape if p.name in batch else p.tensor.static_shape
            for p in open_graph.params
        }
        graph = self.graph = specialise(open_graph, shapes)
        named = {p.name: p for p in graph.params}
        weights = {name: named[name] for name in recipe.chosen}
        target = batch[TARGET]
        labels = graph.add_param(TensorType(dtypes.of(target.dtype), target.shape), TARGET)
        b = Builder(graph)
        (loss,) = inlined(b, lambda *x: [recipe.loss(*x)], [graph.results[0], labels])
        if loss.tensor.dims != ():
            raise ModelError(f"a loss must be a scalar, found {loss.type}")
        graph.set_results([loss, *graph.results[1:]])
        one = b.constant(np.ones((), loss.tensor.dtype.np))
        slopes = gradients(graph, {loss: one}, list(weights.values()))
        (norm,) = inlined(b, lambda *x: [_norm(x)], slopes)
        results = [graph.results[0], norm, *graph.results[1:]]
        self.updated += moved
        results += self._updates(b, weights, slopes, norm)
        graph.set_results(results)
        graph.output_names = ["loss", "norm", *self.updated]
        graph.output_types = []

    def _updates(
        self, b: Builder, weights: Mapping[str, Value], slopes: Sequence[Value], norm: Value
    ) -> list[Value]:
        """The new parameters, each with its slots."""
        rates = [self.graph.add_param(TensorType(dtypes.f32, ()), n) for n in (RATE, STEP)]
        results = []
        for (name, weight), slope in zip(weights.items(), slopes):
            kept = {f"{slot} of {name}": slot for slot in self.recipe.optimizer.slots}
            slots = [self.graph.add_param(weight.type, title) for title in kept]
            results += inlined(b, self._update, [weight, slope, norm, *rates, *slots])
            self.updated += [name, *kept]
        return results

    def _update(
        self, p: Tensor, g: Tensor, norm: Tensor, rate: Tensor, count: Tensor, *slots: Tensor
    ) -> list[Tensor]:
        """A new parameter, and what is kept for it."""
        optimizer, clip_norm = self.recipe.optimizer, self.recipe.clip_norm
        if clip_norm is not None:
            share = apply("Min", clip_norm / (norm + 1e-6), np.float32(1))
            g = g * apply("CastLike", share, g)
        rate, count = (apply("CastLike", scalar, p) for scalar in (rate, count))
        new, kept = optimizer.update(p, g, dict(zip(optimizer.slots, slots)), rate, count)
        return [new, *(kept[slot] for slot in optimizer.slots)]


def _norm(slopes: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, in float32."""
    squares = [
        apply("ReduceSumSquare", apply("Cast", g, to=dtypes.f32), keepdims=0) for g in slopes
    ]
    return apply("Sqrt", sum(squares[1:], squares[0]))
