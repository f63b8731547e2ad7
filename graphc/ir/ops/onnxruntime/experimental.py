"""Experimental operators that ONNX has removed and ONNX Runtime still has, in ONNX's own domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, composite
from graphc.ir.ops.helpers import RUNTIME_TRAITS


@composite("Affine", traits=RUNTIME_TRAITS)
def affine(b: Builder, x: Float, *, alpha: float = 1.0, beta: float = 0.0) -> Value:
    """alpha * x + beta."""
    return b.Add(b.Mul(x, alpha), beta)


@composite("Scale", traits=RUNTIME_TRAITS)
def scale(b: Builder, x: Float, *, scale: float = 1.0) -> Value:
    """scale * x."""
    return b.Mul(x, scale)


@composite("ScaledTanh", traits=RUNTIME_TRAITS)
def scaled_tanh(b: Builder, x: Float, *, alpha: float, beta: float) -> Value:
    """alpha * tanh(beta * x)."""
    return b.Mul(b.Tanh(b.Mul(x, beta)), alpha)


@composite("ParametricSoftplus", traits=RUNTIME_TRAITS)
def parametric_softplus(b: Builder, x: Float, *, alpha: float, beta: float) -> Value:
    """alpha * log(exp(beta * x) + 1)."""
    return b.Mul(b.Softplus(b.Mul(x, beta)), alpha)


@composite("ImageScaler", traits=RUNTIME_TRAITS)
def image_scaler(b: Builder, x: Float, *, scale: float = 1.0, bias: Sequence[float]) -> Value:
    """scale * x + the bias of each channel, x [N, C, H, W]."""
    channels = x.tensor.dims[1] if x.tensor.rank == 4 else None
    if channels != len(bias):
        raise ModelError(f"takes [N, {len(bias)}, H, W], as the bias has it, found {x.type}")
    added = b.constant(np.array(bias).reshape(-1, 1, 1), x.tensor.dtype)
    return b.Add(b.Mul(x, scale), added)


@composite("Crop", traits=RUNTIME_TRAITS)
def crop(
    b: Builder, x: Float, *, border: Sequence[int], scale: Sequence[int] | None = None
) -> Value:
    """x [N, C, H, W] without its borders (left, top, right, bottom); with `scale`, its height and
    width from the left and the top border on."""
    if x.tensor.rank != 4 or len(border) != 4:
        raise ModelError(f"takes [N, C, H, W] and 4 borders, found {x.type} and {list(border)}")
    height, width = x.tensor.static_shape[2:]
    left, top, right, bottom = border
    rows, columns = scale or (height - top - bottom, width - left - right)
    if min(left, top) < 0 or top + rows > height or left + columns > width:
        raise ModelError(f"the borders {list(border)} leave nothing of that size of {x.type}")
    ends = np.array([top + rows, left + columns])
    return b.Slice(x, np.array([top, left]), ends, np.array([2, 3]))
