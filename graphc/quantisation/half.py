"""Weights in float16: half the bytes of a model, with 11 bits of each number.

Every float32 constant of two dimensions or more (weights of layers, of recurrent ones too, tables
of embeddings) becomes float16 behind a Cast to float32, in which all is computed as before. A
constant with a number that float16 cannot hold stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph
from graphc.quantisation.rewriting import drop_unread

LARGEST = float(np.finfo(np.float16).max)


def put(graph: Graph, kept: Collection[str] = ()) -> set[str]:
    """Halves constants but those of `kept` names, in place; the names of those it halved.
    ModelError if there is none."""
    halved = set()
    for op in [op for op in graph.ops if op.name == "Constant"]:
        value = op.output
        contents = value.constant
        if contents is None or value.tensor.dtype is not dtypes.f32 or contents.ndim < 2:
            continue
        if value.name in kept:
            continue
        if not contents.size or not np.abs(contents).max() <= LARGEST:
            continue
        b = Builder(graph, graph.after(op), op.loc)
        half = b.constant(contents.astype(np.float16))
        real = b.Cast(half, to=dtypes.f32.onnx)
        half.name, real.name = f"{value.name}_half", f"{value.name}_real"
        value.replace_uses(real)
        halved.add(value.name)
    drop_unread(graph)
    if not halved:
        raise ModelError(
            "there are no weights for float16: no float32 constant of two dimensions or more whose "
            f"numbers are at most {LARGEST:g}"
        )
    return halved
