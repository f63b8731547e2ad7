"""Maps at the edge of a model: outputs that are a tensor in the form of maps.

A classifier written by an exporter ends in ZipMap, which makes of a row of scores a map from labels
to scores. An operator with the trait "presentation" is of that kind: its operand holds all that its
result does. Where such a result is an output and nothing else, the operand takes its place: the
model is compiled without the operator, which is then applied to what the compiled code gives
(`apart`), or left out where there is no host (`in_tensors`, which says so).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import warn
from graphc.ir.graph import Graph, Op, Value, clone_graph
from graphc.ir.opdef import lookup
from graphc.ir.ops.dictionaries import class_labels
from graphc.passes.dce import remove_dead


def presented(graph: Graph) -> dict[int, Op]:
    """The ops that present outputs, by the number of the output."""
    makers = {number: value.producer for number, value in enumerate(graph.results)}
    return {
        number: op
        for number, op in makers.items()
        if op is not None and "presentation" in op.defn.traits
    }


def apart(graph: Graph) -> tuple[Graph, dict[int, Op]]:
    """A copy of the graph with tensors in the place of outputs that are presented, and the ops that
    present them; the graph itself if there are none."""
    ops = presented(graph)
    if not ops:
        return graph, ops
    copy = clone_graph(graph)
    results, types = list(copy.results), list(copy.output_types)
    for number in ops:
        maker = copy.results[number].producer
        assert maker is not None and maker.inputs[0] is not None
        results[number] = _distinct(copy, maker.inputs[0], results)
        if number < len(types):
            types[number] = None
    copy.output_names = [name for name, _ in graph.named_results()]
    copy.output_types = types
    copy.set_results(results)
    remove_dead(copy)
    return copy, ops


def _distinct(graph: Graph, value: Value, results: Sequence[Value]) -> Value:
    """The value, or a copy if it is a result already: a program gives each once."""
    if value not in results:
        return value
    return graph.append(Op(lookup("Identity"), [value], {}, 1)).output


def in_tensors(graph: Graph) -> Graph:
    """The graph with outputs as tensors, for a target without a host; a warning names them."""
    tensors, ops = apart(graph)
    tell(graph, ops)
    return tensors


def tell(graph: Graph, ops: dict[int, Op]) -> None:
    """Warns that outputs are tensors in compiled code, and says what their columns are."""
    names = [name for name, _ in graph.named_results()]
    for number, op in ops.items():
        labels = class_labels(**op.attrs)
        shown = ", ".join(map(str, labels[:8])) + (", ..." if len(labels) > 8 else "")
        warn(
            f"output {names[number]!r} is a list of maps, which compiled code does not have: it is "
            f"the tensor that {op.where()} takes, with a column for each of the labels {shown}"
        )


def as_tensors(graph: Graph, outputs: Sequence[Any]) -> list[Any]:
    """Outputs with tensors in the place of maps, as `in_tensors` gives them."""
    tensors = list(outputs)
    for number, op in presented(graph).items():
        labels = class_labels(**op.attrs)
        rows = [[row[label] for label in labels] for row in outputs[number]]
        tensors[number] = np.array(rows, np.float32).reshape(len(rows), len(labels))
    return tensors
