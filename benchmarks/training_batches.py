"""Models with another batch size and length than they were exported with, and batches to train on.

Exporters write shapes into the targets of Reshape, and constants of one batch into masks. Here such
targets get the new sizes, and constants that are joined to a batch are expanded to it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

import models

TOKENS = {"bert_base": (128, 64)}  # the length it was exported with, and the one asked for


def resized(model: onnx.ModelProto, batch: int, tokens: tuple[int, int] | None = None) -> None:
    """Gives a model, in place, another size of the batch, and another number of tokens."""
    graph = model.graph
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value = batch
        for dim in dims:
            if tokens and dim.dim_value == tokens[0]:
                dim.dim_value = tokens[1]
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    targets = {n.input[1] for n in graph.node if n.op_type == "Reshape"}
    changed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name in targets:
            dims = [tokens[1] if tokens and d == tokens[0] else int(d) for d in array]
            changed[name] = np.array(_of_batch(dims, batch), np.int64)
        elif tokens and array.dtype.kind in "bi" and tokens[0] in array.shape:
            cut = tuple(slice(tokens[1] if s == tokens[0] else None) for s in array.shape)
            changed[name] = np.ascontiguousarray(array[cut])
    for node in graph.node:
        if node.op_type == "LSTM":
            for name in node.input[5:7]:  # the states that it starts from
                if name:
                    changed[name] = np.repeat(arrays[name], batch, 1)
        if node.op_type == "GatherND":  # [..., 2]: the row of the batch, and the token
            index = np.repeat(changed.get(node.input[1], arrays[node.input[1]]), batch, 0)
            index[..., 0] = np.arange(batch).reshape(-1, *[1] * (index.ndim - 2))
            changed[node.input[1]] = index
    for tensor in graph.initializer:
        if tensor.name in changed:
            tensor.CopyFrom(numpy_helper.from_array(changed[tensor.name], tensor.name))
    _expand_joined(graph, set(arrays), batch)


def _of_batch(dims: list[int], batch: int) -> list[int]:
    """The target of a Reshape for another batch: where it had a 1, or else in front."""
    if 1 in dims:
        dims[dims.index(1)] = batch
    elif -1 not in dims:
        dims[0] = -1
    return dims


def _expand_joined(graph: onnx.GraphProto, constants: set[str], batch: int) -> None:
    """Has constants with a first dim of 1 that are concatenated to a batch be repeated for it."""
    ranks = {t.name: tuple(t.dims) for t in graph.initializer}
    for position, node in reversed(list(enumerate(graph.node))):
        if node.op_type != "Concat" or all(name in constants for name in node.input):
            continue
        for number, name in enumerate(node.input):
            if name in constants and ranks[name][0] == 1 and len(ranks[name]) == 3:
                shape, made = f"{name} shape", f"{name} of a batch"
                dims = np.array([batch, 1, 1], np.int64)
                graph.initializer.append(numpy_helper.from_array(dims, shape))
                node.input[number] = made
                graph.node.insert(position, helper.make_node("Expand", [name, shape], [made]))


def batch_of(
    model: onnx.ModelProto, output: tuple[int, ...], labels: bool, seed: int = 0
) -> list[np.ndarray]:
    """Inputs of a model, and targets for its output: labels of its last axis (of axis 1 for
    images), or numbers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in model.graph.input:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            arrays.append(rng.standard_normal(dims, dtype=np.float32))
        else:
            most = 2 if "mask" in value.name else 1000
            arrays.append(rng.integers(1 if most == 2 else 0, most, dims))
    if not labels:
        return [*arrays, rng.standard_normal(output, dtype=np.float32)]
    classes = output[1] if len(output) == 4 else output[-1]
    places = (output[0], *output[2:]) if len(output) == 4 else output[:-1]
    return [*arrays, rng.integers(0, classes, places)]


def prepared(path: models.Path, batch: int) -> onnx.ModelProto:
    """A model with weights, for batches of this size."""
    model = models.filled(onnx.load(path))
    resized(model, batch, TOKENS.get(path.stem))
    return model
