"""What ONNX Runtime's optimisers fuse: activations with a bias, products with an activation.

Operators of domain com.microsoft, each a graph of ONNX's own, so that whatever is done with those
is done with them. Reference: docs/ContribOperators.md of ONNX Runtime, and its CPU kernels where
that says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Number, composite
from graphc.ir.ops.convolution import CONV
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS, normal_axis

# ---------------------------------------------------------------- activations


@composite("Gelu", domain=RUNTIME, traits=RUNTIME_TRAITS)
def gelu(b: Builder, x: Float) -> Value:
    """ONNX's Gelu, by erf."""
    return b.Gelu(x)


@composite("BiasGelu", domain=RUNTIME, traits=RUNTIME_TRAITS)
def bias_gelu(b: Builder, x: Float, bias: Float) -> Value:
    """Gelu of x + bias, by erf."""
    return b.Gelu(b.Add(x, bias))


@composite("FastGelu", domain=RUNTIME, traits=RUNTIME_TRAITS)
def fast_gelu(b: Builder, x: Float, bias: Float | None = None) -> Value:
    """Gelu of x + bias, by tanh."""
    return b.Gelu(x if bias is None else b.Add(x, bias), approximate="tanh")


@composite("GemmFastGelu", domain=RUNTIME, traits=RUNTIME_TRAITS)
def gemm_fast_gelu(b: Builder, x: Float, w: Float, bias: Float | None = None) -> Value:
    """Gelu of x w + bias, by tanh."""
    return fast_gelu(b, b.MatMul(x, w), bias)


@composite("QuickGelu", domain=RUNTIME, traits=RUNTIME_TRAITS)
def quick_gelu(b: Builder, x: Float, *, alpha: float = 1.702) -> Value:
    """x * sigmoid(alpha * x)."""
    return b.Swish(x, alpha=alpha)


@composite("BiasSplitGelu", domain=RUNTIME, traits=RUNTIME_TRAITS)
def bias_split_gelu(b: Builder, x: Float, bias: Float) -> Value:
    """The left half of x + bias (along the last axis) times the Gelu of the right half."""
    left, right = b.Split(b.Add(x, bias), num_outputs=2, axis=-1, outputs=2)
    return b.Mul(left, b.Gelu(right))


@composite("BiasAdd", domain=RUNTIME, traits=RUNTIME_TRAITS)
def bias_add(b: Builder, x: Float, bias: Float, skip: Float) -> Value:
    """x + bias + skip."""
    return b.Add(b.Add(x, bias), skip)


@composite("BiasSoftmax", domain=RUNTIME, traits=RUNTIME_TRAITS)
def bias_softmax(
    b: Builder, x: Float, bias: Float, *, axis: int = 1, is_inner_broadcast: int
) -> Value:
    """Softmax of x + bias over all dims from the axis on.

    The bias has the dims of x, some of those before the axis left out or 1: the last of these if
    `is_inner_broadcast`, else the first.
    """
    shape = x.tensor.static_shape
    first = normal_axis(axis, len(shape))
    if is_inner_broadcast:
        missing = len(shape) - bias.tensor.rank
        dims = bias.tensor.static_shape
        outer = dims[: len(dims) - (len(shape) - first)]
        bias = b.Reshape(bias, np.array((*outer, *(1,) * missing, *shape[first:])))
    total = b.Add(x, bias)
    if first == len(shape) - 1:
        return b.Softmax(total, axis=-1)
    flat = b.Reshape(total, np.array((*shape[:first], -1)))
    return b.Reshape(b.Softmax(flat, axis=-1), np.array(shape))


# ---------------------------------------------------------------- activations by name


_ACTIVATIONS = {  # name: its parameters, in order
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "HardSwish": (),
    "Elu": ("alpha",),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}


def _activated(b: Builder, x: Value, name: str | None, given: dict[str, float | None]) -> Value:
    """The named activation of x; parameters that are None have ONNX's defaults."""
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"activation {name!r} is not one of {', '.join(sorted(_ACTIVATIONS))}"
        )
    return getattr(b, name)(x, **{key: given.get(key) for key in _ACTIVATIONS[name]})


def activated_by_list(
    b: Builder, x: Value, name: str | None, params: Sequence[float] | None
) -> Value:
    """As `_activated`, the parameters in order; also Clip, whose parameters are its bounds."""
    if name == "Clip":
        if params is None or len(params) != 2:
            raise ModelError(f"Clip has two activation_params, found {params}")
        return b.Clip(x, *(b.constant(bound, x.tensor.dtype) for bound in params))
    return _activated(b, x, name, dict(zip(_ACTIVATIONS.get(name or "", ()), params or ())))


# ---------------------------------------------------------------- products


@composite("FusedMatMul", domain=RUNTIME, traits=RUNTIME_TRAITS)
def fused_matmul(
    b: Builder, x: Float, y: Float, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
    transBatchA: int = 0, transBatchB: int = 0,
) -> Value:  # fmt: skip
    """alpha * x' y'. A factor of `transBatch` has its rows first, before the dims of the batch;
    then one of `trans` has its last two dims exchanged."""
    product = b.MatMul(_turned(b, x, transA, transBatchA), _turned(b, y, transB, transBatchB))
    return product if alpha == 1 else b.Mul(product, alpha)


def _turned(b: Builder, x: Value, last_two: int, batch: int) -> Value:
    rank = x.tensor.rank
    if rank < 2:
        return x
    perm = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if last_two:
        perm[-2:] = perm[:-3:-1]
    return x if perm == list(range(rank)) else b.Transpose(x, perm=perm)


@composite("TransposeMatMul", domain=RUNTIME, traits=RUNTIME_TRAITS)
def transpose_matmul(
    b: Builder, x: Float, y: Float, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:  # noqa: N803
    """The former name of FusedMatMul."""
    return fused_matmul(b, x, y, alpha=alpha, transA=transA, transB=transB)


@composite("FusedGemm", domain=RUNTIME, traits=RUNTIME_TRAITS)
def fused_gemm(
    b: Builder, x: Number, y: Number, c: Number | None = None, *, activation: str | None = None,
    activation_alpha: float | None = None, activation_beta: float | None = None,
    activation_gamma: float | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0,
) -> Value:  # fmt: skip
    """The activation of ONNX's Gemm."""
    result = b.Gemm(x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    return _activated(b, result, activation, given)


@composite("FusedConv", domain=RUNTIME, traits=RUNTIME_TRAITS)
def fused_conv(
    b: Builder, x: Float, w: Float, bias: Float | None = None, z: Float | None = None, *,
    activation: str | None = None, activation_params: Sequence[float] | None = None, **attrs: CONV,
) -> Value:  # fmt: skip
    """The activation of ONNX's Conv plus z."""
    result = b.Conv(x, w, bias, **attrs)
    if z is not None:
        result = b.Add(result, z)
    return activated_by_list(b, result, activation, activation_params)


def with_channels_second(b: Builder, x: Value, function: Callable[[Value], Value]) -> Value:
    """function(x) with the channels second, whose last dim in x and in the result they are."""
    rank = x.tensor.rank
    forth, back = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    return b.Transpose(function(b.Transpose(x, perm=forth)), perm=back)


@composite("NhwcFusedConv", domain=RUNTIME, traits=RUNTIME_TRAITS)
def nhwc_fused_conv(
    b: Builder, x: Float, w: Float, bias: Float | None = None, z: Float | None = None, *,
    activation: str | None = None, activation_params: Sequence[float] | None = None, **attrs: CONV,
) -> Value:  # fmt: skip
    """FusedConv of x, z and a result with the channels last; the weights are as ever."""
    result = with_channels_second(b, x, lambda v: b.Conv(v, w, bias, **attrs))
    if z is not None:
        result = b.Add(result, z)
    return activated_by_list(b, result, activation, activation_params)


@composite("NhwcConv", domain=RUNTIME, traits=RUNTIME_TRAITS)
def nhwc_conv(b: Builder, x: Float, w: Float, bias: Float | None = None, **attrs: CONV) -> Value:
    """ONNX's Conv of x and a result with the channels last."""
    return nhwc_fused_conv(b, x, w, bias, **attrs)
