"""The models that benchmarks and verification run, found in a directory, and inputs for them.

A directory is given by argument or $GRAPHC_MODELS. Models whose weights were taken out (they say so
in their metadata) get random ones, the same every time, which keep a signal alive in deep networks.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from pathlib import Path

import numpy as np
import onnx

from graphc import driver
from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.runtime.feeds import random_feeds

OPEN_DIMS = {"batch": 1, "seq": 64}  # extents of dimensions left open, by a part of their name


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with what both scripts take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("models", nargs="*", help="names of models in the directory; default: all")
    parser.add_argument(
        "--directory", default=os.environ.get("GRAPHC_MODELS"), help="$GRAPHC_MODELS"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    return parser


def paths(args: argparse.Namespace) -> list[Path]:
    """The models asked for; ModelError if there is none."""
    if not args.directory:
        raise ModelError("name a directory of .onnx files with --directory or $GRAPHC_MODELS")
    chosen = sorted(Path(args.directory).rglob("*.onnx"))
    if args.models:
        chosen = [p for p in chosen if p.stem in args.models]
    if not chosen:
        raise ModelError(f"no such models in {args.directory}")
    return chosen


def load(path: Path) -> tuple[onnx.ModelProto, Graph, dict[str, np.ndarray]]:
    """A model with weights, its graph with static shapes, and inputs by name."""
    model = filled(onnx.load(path))
    graph = import_onnx(model)
    graph = driver.typed(graph, dims={name: extent_of(name) for name in graph.symbols})
    return model, graph, random_feeds(graph)


def extent_of(name: str) -> int:
    """What an open dimension is given, by its name."""
    return next((size for part, size in OPEN_DIMS.items() if part in name.lower()), 1)


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Draws the weights again that were taken out: normal, with the mean, deviation and range
    recorded; filters of convolutions as He et al. do (Delving Deep into Rectifiers, 2015)."""
    notes = {p.key: p.value for p in model.metadata_props}
    if "hollow" not in notes:
        return model
    statistics = json.loads(notes["hollow"])
    for tensor in model.graph.initializer:
        if tensor.name not in statistics:
            continue
        mean, deviation, low, high = statistics[tensor.name]
        if len(tensor.dims) >= 4:
            mean, low, high = 0.0, -np.inf, np.inf
            deviation = (2.0 / np.prod(tensor.dims[1:])) ** 0.5
        rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
        drawn = rng.standard_normal(tuple(tensor.dims), dtype=np.float32) * deviation + mean
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        array = np.clip(drawn, low, high).astype(dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model
