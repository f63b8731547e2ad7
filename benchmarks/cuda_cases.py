"""The graphs that bench_cuda.py measures, and inputs for them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import models
from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.ir.text.parser import parse_graph
from graphc.passes.specialise import specialise
from graphc.runtime.feeds import random_feeds

MODELS = os.environ.get("GRAPHC_MODELS")
REPEATED = 1 << 20  # numbers drawn for a large input, which repeats them


def parsed(text: str) -> Graph:
    """A typed static graph."""
    return specialise(parse_graph(text))


ELEMENTWISE = {  # operators on x, other operands, and what is done
    "relu": ("", "%y = Relu(%x)"),
    "gelu": ("", "%y = Gelu(%x)"),
    "add": (", %z: TYPE[ROWS,LENGTH]", "%y = Add(%x, %z)"),
    "scale": (", %s: TYPE[LENGTH], %b: TYPE[ROWS,1]", "%u = Mul(%x, %s)\n  %y = Add(%u, %b)"),
    "cast": ("", "%y = Cast(%x) {to=OTHER}"),
    "transpose": ("", "%y = Transpose(%x) {perm=[1,0]}"),
}
REDUCTIONS = {
    "softmax": "%y = Softmax(%x) {axis=-1}",
    "layer_norm": "const %s : TYPE[LENGTH] = splat(1.0)\n  %y = LayerNormalization(%x, %s)",
    "rms_norm": "const %s : TYPE[LENGTH] = splat(1.0)\n  %y = RMSNormalization(%x, %s)",
    "sum": "const %a : i64[1] = [1]\n  %y = ReduceSum(%x, %a)",
    "column_sum": "const %a : i64[1] = [0]\n  %y = ReduceSum(%x, %a)",
}
OTHER = {"f32": 10, "f16": 1}  # numbers of the types that a cast gives: f16 and f32


def elementwise(name: str, type: str, rows: int, length: int) -> str:
    """An operator on tensors of rows."""
    return _of_rows(name, *ELEMENTWISE[name], type, rows, length)


def reduction(name: str, type: str, rows: int, length: int) -> str:
    """One reduction of rows or columns, with what belongs to it."""
    return _of_rows(name, "", REDUCTIONS[name], type, rows, length)


def _of_rows(name: str, params: str, body: str, type: str, rows: int, length: int) -> str:
    text = f"graph @{name}(%x: TYPE[ROWS,LENGTH]{params}) -> ? {{\n  {body}\n  return %y\n}}"
    text = text.replace("TYPE", type).replace("OTHER", str(OTHER.get(type)))
    return text.replace("ROWS", str(rows)).replace("LENGTH", str(length))


def moved(text: str) -> int:
    """Bytes that a graph must read and write: its parameters and results."""
    graph = parsed(text)
    types = [value.tensor for value in (*graph.params, *graph.results)]
    return sum(type.size * type.dtype.size for type in types)


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
    arrays = []
    for param in graph.params:
        type = param.tensor
        if type.size <= REPEATED or not type.dtype.is_float:
            others = {p.name: 0 for p in graph.params if p is not param}
            arrays.append(random_feeds(graph, 0, others)[param.name])
            continue
        drawn = np.random.default_rng(0).standard_normal(REPEATED).astype(type.dtype.np)
        arrays.append(np.resize(drawn, type.static_shape))
    return arrays


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
