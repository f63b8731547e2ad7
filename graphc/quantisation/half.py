"""Weights in float16: half the bytes of a model, with 11 bits of each number.

Every float32 constant of two dimensions or more (weights of layers, of recurrent ones too, tables
of embeddings) becomes float16 behind a Cast to float32, in which all is computed as before. A
constant with a number that float16 cannot hold stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Value
from graphc.quantisation.rewriting import drop_unread

LARGEST = float(np.finfo(np.float16).max)


def fits(value: Value) -> bool:
    """Whether a value is a constant that float16 can take the place of."""
    contents = value.constant
    if contents is None or value.tensor.dtype is not dtypes.f32 or contents.ndim < 2:
        return False
    return bool(contents.size and np.abs(contents).max() <= LARGEST)


@dataclass(frozen=True)
class Half:
    """A constant in float16."""

    contents: np.ndarray
    name: str
    step = 1.0  # as if it were one of integers

    @staticmethod
    def of(value: Value) -> Half:
        """For a value that `fits`."""
        assert value.constant is not None
        return Half(value.constant.astype(np.float16), value.name)

    def __call__(self, b: Builder) -> Value:
        """The constant in float32."""
        half = b.constant(self.contents)
        real = b.Cast(half, to=dtypes.f32.onnx)
        if self.name:
            half.name, real.name = f"{self.name}_half", f"{self.name}_real"
        return real


def put(graph: Graph, kept: Collection[str] = ()) -> None:
    """Halves all constants but those of `kept` names, in place. ModelError if there is none."""
    constants = [op.output for op in graph.ops if op.name == "Constant"]
    halved = [v for v in constants if v.name not in kept and fits(v)]
    for value in halved:
        op = value.producer
        assert op is not None
        value.replace_uses(Half.of(value)(Builder(graph, graph.after(op), op.loc)))
    drop_unread(graph)
    if not halved:
        raise ModelError(
            "there are no weights for float16: no float32 constant of two dimensions or more whose "
            f"numbers are at most {LARGEST:g}"
        )
