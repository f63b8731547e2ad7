"""The graphs that bench_cuda.py measures, and inputs for them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import models
from graphc.errors import ModelError
from graphc.feeds import random_feeds
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.ir.parser import parse_graph
from graphc.passes.specialise import specialise

MODELS = os.environ.get("GRAPHC_MODELS")
REPEATED = 1 << 20  # numbers drawn for a large input, which repeats them


def parsed(text: str) -> Graph:
    """A typed static graph."""
    return specialise(parse_graph(text))


def elementwise(name: str, inputs: int, count: int) -> str:
    """One operator on flat tensors."""
    params = ", ".join(f"%x{n}: f32[{count}]" for n in range(inputs))
    operands = ", ".join(f"%x{n}" for n in range(inputs))
    operator = {"relu": "Relu", "gelu": "Gelu", "add": "Add"}[name]
    return f"graph @{name}({params}) -> ? {{\n  %y = {operator}({operands})\n  return %y\n}}"


def reduction(name: str, rows: int, length: int) -> str:
    """One reduction of rows, with what belongs to it."""
    body = {
        "softmax": "%y = Softmax(%x) {axis=-1}",
        "layer_norm": f"const %s : f32[{length}] = splat(1.0)\n  %y = LayerNormalization(%x, %s)",
        "sum": "const %a : i64[1] = [1]\n  %y = ReduceSum(%x, %a)",
    }[name]
    return f"graph @{name}(%x: f32[{rows},{length}]) -> ? {{\n  {body}\n  return %y\n}}"


def product(size: int, type: str) -> str:
    """A square matrix product."""
    return (
        f"graph @product(%x: {type}[{size},{size}], %w: {type}[{size},{size}]) -> ? {{\n"
        "  %y = MatMul(%x, %w)\n  return %y\n}"
    )


def attention(length: int, type: str, heads: int = 16, size: int = 64) -> str:
    """Attention of one layer."""
    shape = f"{type}[1,{heads},{length},{size}]"
    return (
        f"graph @attention(%q: {shape}, %k: {shape}, %v: {shape}) -> ? {{\n"
        "  %y = Attention(%q, %k, %v)\n  return %y\n}"
    )


def inputs_of(graph: Graph) -> list[np.ndarray]:
    """Random inputs; large ones repeat what is drawn."""
    found = []
    for param in graph.params:
        type = param.tensor
        if type.size <= REPEATED or not type.dtype.is_float:
            found.append(random_feeds(graph, 0, {p.name: 0 for p in graph.params if p is not param})
                         [param.name])  # fmt: skip
            continue
        drawn = np.random.default_rng(0).standard_normal(REPEATED).astype(type.dtype.np)
        found.append(np.resize(drawn, type.static_shape))
    return found


def model(directory: str | None, name: str, batch: int) -> Graph:
    """A model of the directory, for a batch; ModelError if it is not there."""
    paths = sorted(Path(directory).rglob(f"{name}.onnx")) if directory else []
    if not paths:
        raise ModelError(f"{name}.onnx is not in {directory}; name its folder with --directory")
    return specialise(import_onnx(rebatched(models.filled(onnx.load(paths[0])), batch)))


def rebatched(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A model of batch 1 for another batch: in its inputs, and in the shapes that constants give
    to Reshape and Expand, whose first extent is 1."""
    if batch == 1:
        return model
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]
    shapes = {node.input[1] for node in model.graph.node if node.op_type in ("Reshape", "Expand")}
    for tensor in model.graph.initializer:
        if tensor.name in shapes:
            extents = numpy_helper.to_array(tensor).copy()
            if len(extents) > 1 and extents[0] == 1:
                extents[0] = batch
                tensor.CopyFrom(numpy_helper.from_array(extents, tensor.name))
    return model
