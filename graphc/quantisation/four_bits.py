"""Weights of 4 bits for matrix products, with a scale for each block of what a sum reads.

What layers read stays float: large language models are bound by the bytes of their weights. The
result is standard ONNX: DequantizeLinear of int4 with a `block_size`, of which ONNX Runtime makes
MatMulNBits, as graphc does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.quantisation import rounding
from graphc.quantisation.layers import PRODUCTS, Layer
from graphc.quantisation.moments import Moments

BLOCK = 32  # weights with one scale
LARGEST = 7


def fits(layer: Layer) -> bool:
    """Whether a layer can have 4 bits: matrix products whose sums are of whole blocks."""
    return layer.op.name in PRODUCTS and layer.weights.shape[1 - layer.axis] % BLOCK == 0


def check(layers: Sequence[Layer]) -> None:
    """ModelError if there is no layer that can have 4 bits."""
    if not any(map(fits, layers)):
        raise ModelError(
            "there is no layer for weights of 4 bits: no MatMul or Gemm with constant weights "
            f"whose sums are of a multiple of {BLOCK} products"
        )


@dataclass(frozen=True)
class FourBits:
    """The integers of a layer's weights, and their scales, one for each block."""

    integers: np.ndarray
    scales: np.ndarray
    axis: int
    name: str

    @property
    def step(self) -> float:
        """The mean of the scales."""
        return float(self.scales.mean())

    def __call__(self, b: Builder) -> Value:
        """The weights in floats."""
        codes = b.constant(self.integers.astype(dtypes.i4.np))
        codes.name = self.name
        return b.DequantizeLinear(codes, self.scales, axis=self.axis, block_size=BLOCK)


def rounded(layer: Layer, moments: Moments) -> FourBits:
    """The weights of a layer in 4 bits."""
    rows = np.moveaxis(layer.weights.astype(np.float64), layer.axis, 0)
    seconds = moments.estimated(False)[0]
    blocks = rows.reshape(-1, BLOCK)
    scales = rounding.scales_of(blocks, LARGEST).reshape(len(rows), -1)
    spread = np.repeat(scales, BLOCK, 1)
    integers = rounding.with_feedback(rows, spread, LARGEST, seconds)
    whole = np.ascontiguousarray(np.moveaxis(integers, 0, layer.axis)).astype(np.int8)
    steps = np.ascontiguousarray(np.moveaxis(scales, 0, layer.axis)).astype(np.float32)
    name = layer.op.operand(1).name
    return FourBits(whole, steps, 1 - layer.axis, f"{name}_quantised" if name else "")
