"""Which values of two graphs are the same, and a graph whose layers are each given exact inputs.

Values pair by name. A float value that the other model quantises pairs with what its readers see,
that is behind QuantizeLinear and DequantizeLinear. What depends on constants alone, as dequantised
weights do, belongs to the layer that reads it; so does arithmetic on shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir import dtypes
from graphc.ir.graph import Graph, Op, Value, clone_graph
from graphc.ir.types import TensorType
from graphc.observing import named_values

SUFFIXES = ("_DequantizeLinear_Output", "_dequantized", "_QuantizeLinear_Output", "_quantized",
            "_QuantizeLinear_Input")  # fmt: skip
SHAPES = ("Shape", "Size")
EXACT = "exact value of "  # names of inputs


@dataclass(frozen=True)
class Pair:
    """A value of the reference, and the value of the other model that stands for it. `layer` and
    `operator` are of the node that computes it in the reference; `others` of those in the other
    model that do so from pairs before (`reads`, by name)."""

    name: str
    other: str
    layer: str
    operator: str
    reads: tuple[str, ...] = ()


def pairs_of(reference: Graph, other: Graph) -> list[Pair]:
    """The pairs, in the order in which the other model computes them."""
    ours, theirs = data_values(reference), data_values(other)
    counterparts: dict[str, Value] = {}
    for name in ours:
        value = _standing_for(name, ours, theirs)
        if value is not None:
            counterparts[name] = value
    names = {value.name: name for name, value in counterparts.items()}
    pairs = []
    for other_name in theirs:
        if other_name in names and theirs[other_name].producer is not None:
            name = names[other_name]
            maker = ours[name].producer or theirs[other_name].producer
            assert maker is not None
            layer = maker.loc[0] if maker.loc else name
            reads = tuple(names[v.name] for v in _sources(theirs[other_name], names))
            pairs.append(Pair(name, other_name, layer, maker.name, reads))
    return pairs


def data_values(graph: Graph) -> dict[str, Value]:
    """The named values that depend on what inputs hold."""
    depends = set(graph.params)
    for op in graph.ops:
        if op.name not in SHAPES and any(v in depends for v in _operands(op)):
            depends.update(op.outputs)
    return {name: value for name, value in named_values(graph).items() if value in depends}


def _operands(op: Op) -> list[Value]:
    """What an op reads, and what its branches and loops do."""
    inner = [v for region in op.regions for o in region.walk() for v in o.inputs if v is not None]
    return [v for v in op.inputs if v is not None] + inner


def _standing_for(
    name: str, ours: Mapping[str, Value], theirs: Mapping[str, Value]
) -> Value | None:
    """The value of the other model for one of the reference."""
    value = theirs.get(name)
    if value is None:
        value = next((theirs[name + s] for s in SUFFIXES if name + s in theirs), None)
    if value is None:
        return None
    seen = _as_read(value)
    is_ours_too = seen.name in ours or ours[name].producer is None
    return value if seen is value or is_ours_too or seen.name not in theirs else seen


def _as_read(value: Value) -> Value:
    """What readers of a value see, if it is quantised for them or is quantised itself."""
    for op in value.users:
        if op.name == "DequantizeLinear" and op.inputs[0] is value:
            return op.output
        if op.name == "QuantizeLinear" and op.inputs[0] is value:
            for reader in op.output.users:
                if reader.name == "DequantizeLinear":
                    return reader.output
    return value


def _sources(value: Value, names: Mapping[str, str]) -> list[Value]:
    """The nearest paired values that a value is computed from."""
    sources: dict[Value, None] = {}
    waiting = [] if value.producer is None else _operands(value.producer)
    seen: set[Value] = set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if source.name in names:
            sources[source] = None
        elif source.producer is not None:
            waiting += _operands(source.producer)
    return list(sources)


# ---------------------------------------------------------------- exact inputs


def apart(
    graph: Graph, pairs: Sequence[Pair], values: Mapping[str, np.ndarray]
) -> tuple[Graph, list[Pair]]:
    """A copy of the other model whose pairs are its outputs, and which reads each of them from an
    input of its own (EXACT + name); and the pairs for which that is possible: tensors of floats and
    8-bit integers, of the types that the reference's `values` have."""
    copy = clone_graph(graph)
    known = named_values(copy)
    cut = [pair for pair in pairs if _is_cut(known[pair.other], values[pair.name])]
    for pair in cut:
        value, array = known[pair.other], values[pair.name]
        type = TensorType(dtypes.of(array.dtype), tuple(map(int, array.shape)))
        param = copy.add_param(type, EXACT + pair.name)
        results = copy.results
        value.replace_uses(param)
        copy.set_results(results)
    copy.set_results([known[pair.other] for pair in cut])
    copy.output_names = [pair.name for pair in cut]
    copy.output_types = [None] * len(cut)
    return copy, cut


def _is_cut(value: Value, array: object) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiuV":
        return False
    if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
        return False
    return not isinstance(value.type, TensorType) or value.type.dtype.np == array.dtype
