"""Official test models with something wrong: the cases of fuzz_models.py.

A mutant is made from a model of the onnx package by a few random edits: of operands, attributes,
declared types, initializers, names, operators and versions, or of the bytes of the file. Inputs are
those of the official case where they still fit, else random, with small integers of either sign.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import hostile
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

LARGEST_MODEL = 1 << 18  # bytes
INTEGERS = (-(1 << 63), -(1 << 31), -100, -3, -2, -1, 0, 1, 2, 3, 4, 7, 100, (1 << 31) - 1, 1 << 40)
EXTENTS = (0, 1, 2, 3, 5, 8)
FLOATS = (0.0, -1.0, 0.5, 1e38, -1e38, 1e-40, float("nan"), float("inf"))
TEXTS = ("", "NONE", "SUM", "linear", "nearest", "SAME_UPPER", "reflect", "ij,jk->ik", "\x00", "é")
DTYPES = [t for t in TensorProto.DataType.values() if t]
COMMON = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.BOOL)


@dataclass(frozen=True)
class Mutant:
    """A model file, what it was made from and how, and inputs by name, where any fit."""

    name: str
    edits: tuple[str, ...]
    data: bytes
    inputs: dict[str, Any]


@lru_cache(maxsize=1)
def originals() -> list[Any]:
    """The official single-operator cases of moderate size, in order of their names."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    return sorted((t for t in tests if t.model.ByteSize() < LARGEST_MODEL), key=lambda t: t.name)


def make(seed: int, attack: bool = False) -> Mutant:
    """The mutant of a seed; one that attacks has an edit of hostile.py too."""
    rng = random.Random(seed)
    test = rng.choice(originals())
    model = ModelProto.FromString(test.model.SerializeToString())
    edits = []
    for _ in range(0 if attack and rng.random() < 0.7 else rng.choice((1, 1, 1, 2, 2, 3))):
        edit = rng.choice(EDITS)
        edit(rng, model)
        edits.append(edit.__name__)
    if attack:
        edit = rng.choice(hostile.EDITS)
        edit(rng, model)
        edits.append(edit.__name__)
    data = model.SerializeToString()
    if rng.random() < 0.03:
        edits.append("damage")
        data = damaged(rng, data)
    given = {}
    if test.data_sets:
        names = [i.name for i in test.model.graph.input]
        given = dict(zip(names, map(plain, test.data_sets[0][0])))
    return Mutant(test.name, tuple(edits), data, given)


def plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The file cut off, or with some bytes changed."""
    if rng.random() < 0.3:
        return data[: rng.randrange(len(data) + 1)]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


# ---------------------------------------------------------------- places


def graphs(graph: GraphProto) -> list[GraphProto]:
    """A graph and all graphs within."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found += graphs(inner)
    return found


def some_graph(rng: random.Random, model: ModelProto) -> GraphProto:
    return rng.choice(graphs(model.graph))


def some_node(rng: random.Random, model: ModelProto) -> NodeProto:
    graph = some_graph(rng, model)
    return rng.choice(graph.node) if graph.node else NodeProto()


def some_attribute(rng: random.Random, model: ModelProto) -> AttributeProto:
    node = some_node(rng, model)
    return rng.choice(node.attribute) if node.attribute else AttributeProto()


def value_names(graph: GraphProto) -> list[str]:
    made = [name for node in graph.node for name in (*node.input, *node.output)]
    return [*made, *[v.name for v in (*graph.input, *graph.output, *graph.initializer)], "nowhere"]


# ---------------------------------------------------------------- edits


def drop_operand(rng: random.Random, model: ModelProto) -> None:
    node = some_node(rng, model)
    names = rng.choice((node.input, node.input, node.output))
    if names:
        del names[rng.randrange(len(names))]


def blank_operand(rng: random.Random, model: ModelProto) -> None:
    node = some_node(rng, model)
    names = rng.choice((node.input, node.input, node.output))
    if names:
        names[rng.randrange(len(names))] = ""


def repeat_operand(rng: random.Random, model: ModelProto) -> None:
    node = some_node(rng, model)
    if node.input:
        node.input.append(rng.choice(node.input))


def swap_operands(rng: random.Random, model: ModelProto) -> None:
    names = some_node(rng, model).input
    if len(names) > 1:
        a, b = rng.sample(range(len(names)), 2)
        names[a], names[b] = names[b], names[a]


def rename_operand(rng: random.Random, model: ModelProto) -> None:
    graph = some_graph(rng, model)
    if graph.node:
        node = rng.choice(graph.node)
        names = rng.choice((node.input, node.input, node.output))
        if names:
            names[rng.randrange(len(names))] = rng.choice(value_names(graph))


def add_output(rng: random.Random, model: ModelProto) -> None:
    some_node(rng, model).output.append("another")


def drop_attribute(rng: random.Random, model: ModelProto) -> None:
    attributes = some_node(rng, model).attribute
    if attributes:
        del attributes[rng.randrange(len(attributes))]


def change_attribute(rng: random.Random, model: ModelProto) -> None:
    """Another value of the same kind."""
    attribute = some_attribute(rng, model)
    if attribute.HasField("i"):
        attribute.i = rng.choice((min(attribute.i, 1 << 62) + 1, *INTEGERS))
    elif attribute.HasField("f"):
        attribute.f = rng.choice((-attribute.f, *FLOATS))
    elif attribute.HasField("s"):
        attribute.s = rng.choice(TEXTS).encode()
    elif attribute.HasField("t"):
        change_tensor(rng, attribute.t)
    else:
        change_list(rng, attribute)


def change_list(rng: random.Random, attribute: AttributeProto) -> None:
    """One more element, one less, or another one."""
    for items, others in (
        (attribute.ints, INTEGERS),
        (attribute.floats, FLOATS),
        (attribute.strings, [t.encode() for t in TEXTS]),
    ):
        if items:
            place = rng.randrange(len(items))
            kind = rng.randrange(4)
            if kind == 0:
                del items[place]
            elif kind == 1:
                items.append(items[place])
            elif kind == 2 and attribute.ints:
                items[place] += rng.choice((1, -1))
            else:
                items[place] = rng.choice(others)


def retype_attribute(rng: random.Random, model: ModelProto) -> None:
    """A value of another kind."""
    attribute = some_attribute(rng, model)
    name = attribute.name
    attribute.Clear()
    value = rng.choice((1, 0, -1, 1.5, "text", [1, 2], [0.5], ["a"], [1]))
    attribute.CopyFrom(onnx.helper.make_attribute(name or "axis", value))


def change_tensor(rng: random.Random, tensor: TensorProto) -> None:
    """Another element type, other extents, or other contents, mostly still a valid tensor."""
    kind = rng.randrange(4)
    if kind == 0:
        tensor.data_type = rng.choice(DTYPES)
        return
    if kind == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice((*EXTENTS, -1, 1 << 40))
        return
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):  # an earlier edit
        return
    if kind == 2:
        array = array[None] if array.ndim == 0 or rng.random() < 0.5 else array[..., :0]
    elif array.dtype.kind in "if" and array.size:
        array = array.copy()
        place = rng.randrange(array.size)
        with np.errstate(all="ignore"):
            low = FLOATS if array.dtype.kind == "f" else (-3, -1, 0, 1, 2, 5, 100)
            array.reshape(-1)[place] = rng.choice(low)
    name = tensor.name
    with np.errstate(all="ignore"):
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))


def change_initializer(rng: random.Random, model: ModelProto) -> None:
    graph = some_graph(rng, model)
    if graph.initializer:
        change_tensor(rng, rng.choice(graph.initializer))


def change_declared(rng: random.Random, model: ModelProto) -> None:
    """Another element type, rank or extent of an input or output."""
    graph = some_graph(rng, model)
    values = rng.choice((graph.input, graph.input, graph.input, graph.output))
    if not values:
        return
    type = rng.choice(values).type
    while type.HasField("sequence_type") or type.HasField("optional_type"):
        kind = type.sequence_type if type.HasField("sequence_type") else type.optional_type
        type = kind.elem_type
    tensor = type.tensor_type
    kind = rng.randrange(7)
    dims = tensor.shape.dim
    if kind == 0:
        tensor.elem_type = rng.choice((*COMMON, *DTYPES))
    elif kind == 1:
        dims.add(dim_value=rng.choice(EXTENTS))
    elif kind == 2 and dims:
        del dims[rng.randrange(len(dims))]
    elif kind == 3:
        del dims[:]
    elif kind == 4 and dims:
        rng.choice(dims).dim_param = rng.choice("NM")
    elif kind == 5:
        tensor.ClearField("shape")
    elif dims:
        rng.choice(dims).dim_value = rng.choice((*EXTENTS, *EXTENTS, -1, 1 << 40))


def change_operator(rng: random.Random, model: ModelProto) -> None:
    some_node(rng, model).op_type = rng.choice(rng.choice(originals()).model.graph.node).op_type


def change_opset(rng: random.Random, model: ModelProto) -> None:
    if model.opset_import:
        rng.choice(model.opset_import).version = rng.randrange(-1, 32)


def repeat_node(rng: random.Random, model: ModelProto) -> None:
    graph = some_graph(rng, model)
    if graph.node:
        node = graph.node.add()
        node.CopyFrom(rng.choice(graph.node[:-1]))
        if rng.random() < 0.8:
            for place in range(len(node.output)):
                node.output[place] += "_again"


def drop_value(rng: random.Random, model: ModelProto) -> None:
    """One node, input, output or initializer less."""
    graph = some_graph(rng, model)
    items = rng.choice((graph.node, graph.input, graph.output, graph.initializer))
    if items:
        del items[rng.randrange(len(items))]


EDITS = (
    *[drop_operand, blank_operand, repeat_operand, swap_operands, rename_operand, add_output],
    *[drop_attribute, retype_attribute, change_initializer, change_operator, change_opset],
    *[repeat_node, drop_value],
    *[change_attribute] * 8,
    *[change_declared] * 8,
)
