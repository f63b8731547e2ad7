"""Intermediate values of a model, by the names that they have in it.

The model is compiled once, with the values that are asked for as further outputs, and run on one
sample after the other: nothing of a sample is kept once the next is asked for. Values that many
readers share are computed once, as in the model itself; the compiler knows nothing of observers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphc.api import compile
from graphc.driver import load_graph
from graphc.errors import ModelError, did_you_mean
from graphc.ir.graph import Graph, Value, clone_graph

Feeds = Mapping[str, Any]


def named_values(graph: Graph) -> dict[str, Value]:
    """The values of a graph by name, in the order in which they are computed: inputs, then results
    of operators. Constants, and values inside branches and loops, are left out."""
    values = {param.name: param for param in graph.params if param.name}
    for op in graph.ops:
        if op.name != "Constant":
            values.update({v.name: v for v in op.outputs if v.name and v.name not in values})
    return values


def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """A copy of a graph whose outputs are the values of these names, in this order.

    ModelError if a value is not known.
    """
    copy = clone_graph(graph)
    values, own = named_values(copy), dict(copy.named_results())
    chosen = [own[name] if name in own else _named(values, name) for name in names]
    copy.set_results(chosen)
    copy.output_names = list(names)
    copy.output_types = [value.type for value in chosen]
    return copy


def observe(
    source: Any, names: Sequence[str] | None, samples: Iterable[Feeds], **options: Any
) -> Iterator[dict[str, np.ndarray]]:
    """The values of these names (all, if None) for each of the samples, one after the other.

    `source` is a model as `graphc.compile` takes it, `options` are arguments of the same. A sample
    holds an array for each input of the model, by its name. ModelError if a value is not known.
    """
    graph = load_graph(source)
    wanted = list(named_values(graph)) if names is None else list(names)
    model = compile(with_outputs(graph, wanted), **options)
    for sample in samples:
        yield dict(zip(wanted, model.run(dict(sample)), strict=True))


def _named(values: Mapping[str, Value], name: str) -> Value:
    if name in values:
        return values[name]
    hint = did_you_mean(name, values)
    raise ModelError(f"there is no value {name!r} among the {len(values)} of the model{hint}")
