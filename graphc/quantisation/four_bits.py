"""Weights of 4 bits for matrix products, with a scale for each block of what a sum reads.

What layers read stays float: large language models are bound by the bytes of their weights. The
result is standard ONNX: DequantizeLinear of int4 with a `block_size`, of which ONNX Runtime makes
MatMulNBits, as graphc does.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.quantisation import rounding
from graphc.quantisation.layers import PRODUCTS, Choice, Layer
from graphc.quantisation.moments import Moments
from graphc.quantisation.rewriting import drop_unread

BLOCK = 32  # weights with one scale
LARGEST = 7


def fitting(choice: Choice) -> list[Layer]:
    """The layers that become 4 bits: matrix products whose sums are of whole blocks. ModelError if
    there is none."""
    found = [
        layer for layer in choice.layers
        if layer.op.name in PRODUCTS and layer.weights.shape[1 - layer.axis] % BLOCK == 0
    ]  # fmt: skip
    if not found:
        raise ModelError(
            "there is no layer for weights of 4 bits: no MatMul or Gemm with constant weights "
            f"whose sums are of a multiple of {BLOCK} products"
        )
    return found


def put(choice: Choice, layer: Layer, moments: Moments) -> float:
    """Replaces the weights of a layer; the mean of their scales."""
    rows = np.moveaxis(layer.weights.astype(np.float64), layer.axis, 0)
    seconds = moments.estimated(False)[0]
    blocks = rows.reshape(-1, BLOCK)
    scales = rounding.scales_of(blocks, LARGEST).reshape(len(rows), -1)
    spread = np.repeat(scales, BLOCK, 1)
    integers = rounding.with_feedback(rows, spread, LARGEST, seconds)
    b, old = Builder(choice.graph, layer.op, layer.op.loc), layer.op.operand(1)
    packed = np.ascontiguousarray(np.moveaxis(integers, 0, layer.axis)).astype(dtypes.i4.np)
    steps = np.ascontiguousarray(np.moveaxis(scales, 0, layer.axis)).astype(np.float32)
    codes = b.constant(packed)
    codes.name = f"{old.name}_quantised" if old.name else ""
    real = b.DequantizeLinear(codes, steps, axis=1 - layer.axis, block_size=BLOCK)
    layer.op.set_input(1, real)
    drop_unread(choice.graph)
    return float(steps.mean())
