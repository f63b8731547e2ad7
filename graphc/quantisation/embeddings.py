"""Tables of embeddings in 8 bits: a quarter of their bytes, with a scale for each row.

Only the rows that a Gather chooses are converted back. Nothing is computed with them in integers,
so what reads the rows is as before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.quantisation import rounding
from graphc.quantisation.layers import all_layers, distinct
from graphc.quantisation.recurrent import recurrent_layers
from graphc.quantisation.weights import LARGEST


@dataclass(frozen=True)
class Table:
    """A constant of which Gathers choose rows; `name` is that of the first one's node."""

    gathers: list[Op]
    name: str

    @property
    def end(self) -> Value:
        """The rows that the first one chooses."""
        return self.gathers[0].output

    def store(self) -> float:
        """Gives the Gathers a table of integers; the mean step of these."""
        first = self.gathers[0]
        old = first.operand(0)
        contents = old.constant
        assert contents is not None
        rows = contents.astype(np.float64).reshape(len(contents), -1)
        scales = rounding.scales_of(rows, LARGEST)
        codes = rounding.nearest(rows, scales, LARGEST).astype(np.int8).reshape(contents.shape)
        b = Builder(first.region, first, first.loc)  # type: ignore[arg-type]
        integers, zeros = b.constant(codes), np.zeros(len(scales), np.int8)
        integers.name = f"{old.name}_quantised" if old.name else ""
        real = b.DequantizeLinear(integers, scales.astype(np.float32), zeros, axis=0)
        for gather in self.gathers:
            gather.set_input(0, real)
        return float(scales.mean())


def tables(graph: Graph, left_out: Collection[str] = ()) -> list[Table]:
    """The constant float32 tables of which Gathers choose rows by indices that vary; their names
    are others than those of layers."""
    taken = {layer.name for layer in all_layers(graph)}
    taken |= {layer.name for layer in recurrent_layers(graph)}
    by_constant: dict[Value, Table] = {}
    for op in graph.ops:
        if op.name != "Gather" or not _is_embedding(op):
            continue
        if op.operand(0) not in by_constant:
            name = distinct(op.loc[0] if op.loc else op.output.name, taken)
            by_constant[op.operand(0)] = Table([], name)
        by_constant[op.operand(0)].gathers.append(op)
    return [table for table in by_constant.values() if table.name not in left_out]


def _is_embedding(op: Op) -> bool:
    contents = op.operand(0).constant
    return (
        contents is not None
        and contents.ndim >= 2
        and contents.size > 0
        and op.attrs.get("axis", 0) % contents.ndim == 0
        and op.operand(0).tensor.dtype is dtypes.f32
        and op.operand(1).constant is None
        and bool(np.isfinite(contents).all())
    )
