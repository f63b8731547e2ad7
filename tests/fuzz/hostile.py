"""Edits that attack a compiler: names that would end comments and strings, absurd extents and
attributes, cycles, repeated names, and weights said to be in files that are not the model's.

Names hold `@`, which no C has outside of comments and strings: see `leaks`.
"""

from __future__ import annotations

import random
import re

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

NAMES = (
    '*/ @ /*', '"; @ //', "'@'", "@\\\n@", "??/\n@", "\n@\n", "%s%n@", "{@}", "</a>@", "", " ",
    "\u202e@\u2066", "\x00@", "../../@", "main", "int", "in0", "x" * 5000, "é\U0001f600@", "`@`",
    "$(@)", "R\"(@)\"", "#error @", "\u2028@", "*\\\n/@",
)  # fmt: skip
EXTENTS = (
    -(1 << 63), -1, 0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 1 << 32, 1 << 46, 1 << 62,
    (1 << 63) - 1,
)  # fmt: skip
LOCATIONS = (
    "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem", "", ".",
    "..", "missing", "a\x00b", "\n", "x" * 5000,
)  # fmt: skip
NUMBERS = ("0", "-1", "1", "99999999999999999999", str(1 << 62), "x", "", "1e3")
LONG = 100_000  # elements of an attribute


def rename(rng: random.Random, model: ModelProto) -> None:
    """One value, everywhere."""
    graphs = _graphs(model.graph)
    names = sorted({name for graph in graphs for name in _names(graph)})
    if names:
        _replace(graphs, rng.choice(names), rng.choice(NAMES))


def rename_all(rng: random.Random, model: ModelProto) -> None:
    """Every value, node and graph, and dimensions."""
    graphs = _graphs(model.graph)
    end = rng.choice(NAMES)
    for number, name in enumerate(sorted({n for graph in graphs for n in _names(graph) if n})):
        _replace(graphs, name, f"{number}{end}")
    for graph in graphs:
        graph.name = end
        for node in graph.node:
            node.name = end
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):
                    dim.dim_param = end


def rename_node(rng: random.Random, model: ModelProto) -> None:
    for node in rng.choice(_graphs(model.graph)).node:
        node.name, node.doc_string = rng.choice(NAMES), rng.choice(NAMES)


def rename_operator(rng: random.Random, model: ModelProto) -> None:
    graph = rng.choice(_graphs(model.graph))
    if graph.node:
        node = rng.choice(graph.node)
        if rng.random() < 0.5:
            node.op_type = rng.choice(NAMES)
        else:
            node.domain = rng.choice(NAMES)


def stretch(rng: random.Random, model: ModelProto) -> None:
    """An extent of an input or a weight."""
    graph = rng.choice(_graphs(model.graph))
    shapes = [v.type.tensor_type.shape.dim for v in (*graph.input, *graph.output)]
    shapes = [shape for shape in shapes if shape]
    weights = [t for t in graph.initializer if t.dims]
    if shapes and (not weights or rng.random() < 0.7):
        rng.choice(rng.choice(shapes)).dim_value = rng.choice(EXTENTS)
    elif weights:
        tensor = rng.choice(weights)
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(EXTENTS)


def deepen(rng: random.Random, model: ModelProto) -> None:
    """An input of very many dimensions."""
    if model.graph.input:
        dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
        for _ in range(rng.choice((9, 64, 1000))):
            dims.add(dim_value=rng.choice((1, 2)))


def lengthen(rng: random.Random, model: ModelProto) -> None:
    """A very long attribute, or very large numbers in one."""
    attributes = [a for g in _graphs(model.graph) for n in g.node for a in n.attribute]
    if attributes:
        attribute = rng.choice(attributes)
        if attribute.type == AttributeProto.INTS and rng.random() < 0.5:
            for place in range(len(attribute.ints)):
                attribute.ints[place] = rng.choice(EXTENTS)
        elif attribute.type == AttributeProto.INT:
            attribute.i = rng.choice(EXTENTS)
        elif attribute.type == AttributeProto.STRING:
            attribute.s = rng.choice((b"\xff\xfe", b"a" * LONG, b"@"))
        elif attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            items = attribute.ints if attribute.type == AttributeProto.INTS else attribute.floats
            items.extend([1] * LONG)


def elsewhere(rng: random.Random, model: ModelProto) -> None:
    """A weight in another file."""
    tensors = [t for graph in _graphs(model.graph) for t in graph.initializer]
    for node in model.graph.node:
        tensors += [a.t for a in node.attribute if a.HasField("t")]
    if not tensors:
        tensors = [model.graph.initializer.add(name="elsewhere", data_type=1, dims=[4])]
    tensor = rng.choice(tensors)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=rng.choice(LOCATIONS))
    for key in ("offset", "length"):
        if rng.random() < 0.5:
            tensor.external_data.add(key=key, value=rng.choice(NUMBERS))


def loop_back(rng: random.Random, model: ModelProto) -> None:
    """A node reads its own result, or one that comes later."""
    nodes = [n for n in model.graph.node if n.input and n.output]
    if nodes:
        node = rng.choice(nodes)
        node.input[rng.randrange(len(node.input))] = rng.choice(rng.choice(nodes).output)


def repeat_name(rng: random.Random, model: ModelProto) -> None:
    """Two inputs, outputs, weights or dimensions of one name."""
    graph = model.graph
    items = rng.choice((graph.input, graph.output, graph.initializer))
    if items:
        items.add().CopyFrom(rng.choice(items))


EDITS = (
    rename, rename_all, rename_node, rename_operator, stretch, stretch, deepen, lengthen, lengthen,
    elsewhere, loop_back, repeat_name,
)  # fmt: skip

_HARMLESS = re.compile(r'/\*.*?\*/|//(?:\\\n|[^\n])*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def leaks(text: str) -> list[str]:
    """Lines of C in which a hostile name is more than a comment or a string."""
    plain = _HARMLESS.sub("", text.replace("??/", "\\").replace("\\\n", ""))
    return [line for line in plain.splitlines() if "@" in line]


def _graphs(graph: GraphProto) -> list[GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found += _graphs(inner)
    return found


def _names(graph: GraphProto) -> list[str]:
    made = [name for node in graph.node for name in (*node.input, *node.output)]
    return [*made, *[v.name for v in (*graph.input, *graph.output, *graph.initializer)]]


def _replace(graphs: list[GraphProto], old: str, new: str) -> None:
    for graph in graphs:
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            if value.name == old:
                value.name = new
        for node in graph.node:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    if name == old:
                        names[place] = new
