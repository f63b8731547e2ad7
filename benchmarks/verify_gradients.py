"""Gradients of all parameters of models, next to PyTorch's.

    python benchmarks/verify_gradients.py --directory MODELS [--target cpu] [--simulate]
        [--image SIDE] [--tokens LENGTH] [--most 1e-4] [NAME ...]

One JSON line per model: `apart` is the largest difference of an element from PyTorch's in float64,
by the largest element of that gradient there, over all parameters, and `worst` the parameter that
has it; `torch32` is the same of PyTorch in float32. The loss is the sum of the results times fixed
random numbers. The command fails if a model is more than `--most` apart.

A ReLU whose operand is within rounding errors of zero has another slope in float32, whoever
computes it, and one such element can change gradients by a hundredth. With `--double` the model is
computed in float64, where that does not happen.

`--target c` runs plain C, `--target cuda --simulate` the kernels of GPUs on this machine's CPU.
`--image` and `--tokens` make inputs smaller, of models that take it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import training_batches
from onnx_torch import OnnxModule

import graphc
import models
from graphc.autodiff.reverse import gradients
from graphc.errors import GraphcError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.passes.specialise import specialise
from graphc.train.parameters import as_input, discovered

Arrays = Mapping[str, np.ndarray]


def gradient_graph(model: onnx.ModelProto, names: Sequence[str], shapes: Any) -> Graph:
    """The graph from inputs, parameters and the seed of the first result to the gradients."""
    graph = import_onnx(model)
    constants = {op.output.name: op for op in graph.ops if op.name == "Constant"}
    for name in names:
        shapes[name] = constants[name].output.tensor.static_shape
        as_input(graph, constants[name])
    graph.set_results(graph.results[:1])
    graph = specialise(graph, {p.name: shapes[p.name] for p in graph.params})
    params = {p.name: p for p in graph.params}
    seed = graph.add_param(graph.results[0].tensor, "seed")
    slopes = gradients(graph, {graph.results[0]: seed}, [params[name] for name in names])
    graph.set_results(slopes)
    graph.output_names, graph.output_types = [], []
    return graph


def doubled(model: onnx.ModelProto) -> None:
    """Has a model compute in float64."""
    float32, float64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    del model.graph.value_info[:]
    for tensor in model.graph.initializer:
        if tensor.data_type == float32:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == float32:
            value.type.tensor_type.elem_type = float64
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == float32:
                attribute.i = float64


def resize(model: onnx.ModelProto, image: int | None, tokens: int | None) -> None:
    """Gives inputs static shapes: images another side, and open lengths another extent."""
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim in dims:
            if dim.dim_param:
                is_length = tokens and "seq" in dim.dim_param.lower()
                dim.dim_value = tokens if is_length else models.extent_of(dim.dim_param)
        for dim in dims[2:] if image and len(dims) == 4 else ():
            dim.dim_value = image
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def verify(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    double = args.double
    model = models.filled(onnx.load(path))
    resize(model, args.image, args.tokens)
    given = training_batches.batch_of(model, (1, 1), False)[:-1]
    names = list(discovered(import_onnx(model)))
    module = OnnxModule(model, names)
    wanted, shape, seed = reference(module.double(), given, None)
    single, _, _ = reference(OnnxModule(model, names), given, seed)
    if double:
        doubled(model)
        given = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in given]
        seed = seed.astype(np.float64)
    inputs = {i.name: array for i, array in zip(model.graph.input, given)}
    graph = gradient_graph(model, names, {n: a.shape for n, a in inputs.items()})
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    feeds = {**weights, **inputs, "seed": seed}
    options = {"simulate": True} if args.simulate else {}
    compiled = graphc.compile(graph, target=args.target, threads=args.threads[0], **options)
    found = compiled.run({p.name: feeds[p.name] for p in graph.params})
    apart = {name: error(array, wanted[name]) for name, array in zip(names, found)}
    worst = max(apart, key=lambda name: apart[name])
    return {
        "model": path.stem,
        "parameters": len(names),
        "apart": apart[worst],
        "worst": worst,
        "torch32": max(error(single[name], wanted[name]) for name in names),
    }


def reference(module: OnnxModule, given: Sequence[np.ndarray], seed: np.ndarray | None) -> Any:
    """PyTorch's gradients by name, the shape of the result, and the seed."""
    dtype = next(module.parameters()).dtype
    tensors = [torch.tensor(a).to(dtype) if a.dtype.kind == "f" else torch.tensor(a) for a in given]
    if dtype == torch.float64:
        module.constants = {
            n: c.double() if isinstance(c, torch.Tensor) else c for n, c in module.constants.items()
        }
    result = module(*tensors)
    if seed is None:
        rng = np.random.default_rng(1)
        seed = rng.standard_normal(tuple(result.shape)).astype(np.float32)
    (result * torch.tensor(seed).to(dtype)).sum().backward()
    leaves = module.trained().items()
    grads = {n: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for n, p in leaves}
    return grads, tuple(result.shape), seed


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, by the largest element wanted."""
    scale = float(np.abs(wanted).max(initial=0.0))
    return float(np.abs(found - wanted).max(initial=0.0)) / (scale or 1.0)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rows; 1 if a model is too far apart, or failed."""
    parser = models.arguments("gradients of all parameters next to PyTorch's")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--simulate", action="store_true", help="with --target cuda")
    parser.add_argument("--image", type=int, help="the side of images")
    parser.add_argument("--tokens", type=int, help="the extent of open lengths")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--most", type=float, default=1e-4)
    args = parser.parse_args(argv)
    failed = False
    for path in models.paths(args):
        try:
            row = verify(path, args)
            failed = failed or not row["apart"] <= args.most
        except GraphcError as problem:
            row, failed = {"model": path.stem, "error": str(problem)}, True
        print(json.dumps(row), flush=True)
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as problem:
        sys.exit(f"verify_gradients: {problem}")
