"""Layers next to the outputs that stay float because that costs next to nothing.

The error of an output layer goes to the outputs as it is: no layer behind it averages it out. Where
such a layer is a small share of the model, its bytes and its time are no reason to round it.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Graph, Op
from graphc.quantisation.layers import Layer, all_layers
from graphc.quantisation.mixtures import multiplications
from graphc.quantisation.recurrent import RecurrentLayer, recurrent_layers

SMALL = 0.01  # of a model's weights, and of its multiplications
GAIN = 0.5  # dB of the outputs that a float layer has to bring


def small_output_layers(graph: Graph) -> list[str]:
    """The names of the layers whose results no other layer reads, and which have at most `SMALL`
    of the weights and of the multiplications of all layers together, those behind first."""
    layers = all_layers(graph)
    every: Sequence[Layer | RecurrentLayer] = [*layers, *recurrent_layers(graph)]
    weights, work = _totals(every)
    read = _read_by(graph, {layer.op for layer in every})
    last = sorted(
        (layer for layer in layers if layer.op not in read),
        key=lambda layer: graph.place(layer.op), reverse=True,
    )  # fmt: skip
    chosen: list[str] = []
    spent = [0.0, 0.0]
    for layer in last:
        own = (layer.weights.size, multiplications(layer))
        if spent[0] + own[0] <= SMALL * weights and spent[1] + own[1] <= SMALL * work:
            spent = [spent[0] + own[0], spent[1] + own[1]]
            chosen.append(layer.name)
    return chosen


def _totals(every: Sequence[Layer | RecurrentLayer]) -> tuple[float, float]:
    """The weights and the multiplications of all layers."""
    weights = work = 0.0
    for layer in every:
        if isinstance(layer, RecurrentLayer):
            weights, work = weights + layer.size, work + layer.multiplications
        else:
            weights, work = weights + layer.weights.size, work + multiplications(layer)
    return weights, work


def _read_by(graph: Graph, layers: set[Op]) -> set[Op]:
    """The ops whose results reach a layer, through any ops."""
    reaching: set[Op] = set()
    for op in reversed(list(graph.ops)):
        for value in op.outputs:
            if any(user in layers or user in reaching for user in value.users):
                reaching.add(op)
    return reaching
