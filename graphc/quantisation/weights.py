"""The integers of a layer's weights, for what it reads in given steps."""

from __future__ import annotations

import numpy as np

from graphc.quantisation import rounding
from graphc.quantisation.layers import PRODUCTS, Layer
from graphc.quantisation.moments import Moments
from graphc.quantisation.rewriting import Weights

LARGEST = 127  # of int8 weights, which are symmetric
LARGEST_BIAS = 1 << 29  # in units of a sum, which is of 32 bits


def rounded(
    layer: Layer, moments: Moments | None, step: float, least: float = 0.0, sharing: bool = False
) -> Weights:
    """The integers of a layer's weights, for data in units of `step`. The bias, if the layer can
    have one, makes up for what they change in the mean; so only what departs from the mean counts
    in rounding. A channel of small weights and a large bias has a scale in which the bias fits.
    No scale is below `least`. With `sharing`, all channels of a matrix product have one scale."""
    rows, bias = rows_of(layer), bias_of(layer)
    has_bias = bias is not None or layer.op.name != "MatMul"
    groups = [None] if moments is None else list(moments.estimated(has_bias))
    parts = list(zip(np.split(rows, len(groups)), groups))
    scales = np.concatenate([rounding.scales_of(part, LARGEST, own) for part, own in parts])
    floors = np.full(len(rows), least)
    if bias is not None:
        floors = np.maximum(floors, np.abs(bias) / (step * LARGEST_BIAS))
    if sharing and layer.op.name in PRODUCTS:
        scales = rounding.shared_scale(rows, scales, LARGEST, groups[0])
        floors = np.full_like(floors, floors.max())
    scales = np.maximum(scales, floors)
    steps = np.split(scales, len(groups))
    integers = np.concatenate([_integers(*part, own) for part, own in zip(parts, steps)])
    if has_bias and moments is not None:
        mean = moments.mean_of(rows - integers * scales[:, None])
        bias = mean if bias is None else bias + mean
    return _as_weights(layer, integers, scales, bias)


def _integers(rows: np.ndarray, seconds: np.ndarray | None, scales: np.ndarray) -> np.ndarray:
    """The integers of rows of weights, with a scale for each, for data of these moments."""
    if seconds is None:
        return rounding.nearest(rows, scales, LARGEST)
    return rounding.with_feedback(rows, scales, LARGEST, seconds)


def _as_weights(
    layer: Layer, integers: np.ndarray, scales: np.ndarray, bias: np.ndarray | None
) -> Weights:
    return Weights(from_rows(layer, integers).astype(np.int8), scales, bias)


def rows_of(layer: Layer) -> np.ndarray:
    """The weights in float64, a row for each output channel."""
    moved = np.moveaxis(layer.weights.astype(np.float64), layer.axis, 0)
    return moved.reshape(len(moved), -1)


def from_rows(layer: Layer, rows: np.ndarray) -> np.ndarray:
    """Rows as weights have them."""
    shape = layer.weights.shape
    moved = (shape[layer.axis], *(n for axis, n in enumerate(shape) if axis != layer.axis))
    return np.ascontiguousarray(np.moveaxis(rows.reshape(moved), 0, layer.axis))


def bias_of(layer: Layer) -> np.ndarray | None:
    """The bias in float64, one number for each output channel; None if there is none."""
    op, channels = layer.op, layer.weights.shape[layer.axis]
    value = op.inputs[2] if len(op.inputs) > 2 else None
    if layer.bias is not None:
        value = layer.bias.operand(1 if layer.bias.operand(0) is op.output else 0)
    if value is None or value.constant is None:
        return None
    flat = value.constant.astype(np.float64).reshape(-1)
    return np.broadcast_to(flat, (channels,)).copy()
