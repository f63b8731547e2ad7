"""Activation functions, in forms that neither overflow to NaN nor cancel.

Each is computed in `dtype.compute` (float32 for narrow floats) and rounded once. Only exp(-|x|) or
a single exp(-x) appears where exp(x) could overflow into inf / inf or inf * 0.
"""

from __future__ import annotations

import math

from graphc.errors import ModelError
from graphc.ir.dtypes import f32
from graphc.ir.expr import Expr, absolute, erf, exp, log, maximum, minimum, select, tanh
from graphc.ir.opdef import Float, Number, OutIndex, op
from graphc.ir.ops.helpers import wide


@op("Relu")
def relu(i: OutIndex, x: Number) -> Expr:
    """x above 0, else 0; NaN stays."""
    return select(x[i] < 0, 0, x[i])


@op("LeakyRelu")
def leaky_relu(i: OutIndex, x: Float, *, alpha: float = 0.01) -> Expr:
    """x above 0, else alpha * x."""
    v = wide(x[i])
    return select(v < 0, v * alpha, v).cast(x.dtype)


@op("PRelu")
def parametric_relu(i: OutIndex, x: Number, slope: Number) -> Expr:
    """x above 0, else slope * x; slope broadcasts to x."""
    return select(x[i] < 0, x[i] * slope[i], x[i])


@op("ThresholdedRelu")
def thresholded_relu(i: OutIndex, x: Float, *, alpha: float = 1.0) -> Expr:
    """x above alpha, else 0."""
    v = wide(x[i])
    return select(v > alpha, x[i], 0)


@op("Elu")
def elu(i: OutIndex, x: Float, *, alpha: float = 1.0) -> Expr:
    """x above 0, else alpha * (exp(x) - 1)."""
    v = wide(x[i])
    return select(v < 0, (exp(v) - 1) * alpha, v).cast(x.dtype)


@op("Celu")
def celu(i: OutIndex, x: Float, *, alpha: float = 1.0) -> Expr:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    v = wide(x[i])
    return (maximum(v, 0) + minimum((exp(v / alpha) - 1) * alpha, 0)).cast(x.dtype)


@op("Selu")
def selu(
    i: OutIndex, x: Float, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Expr:
    """gamma * x above 0, else gamma * alpha * (exp(x) - 1). ONNX rounds the constants of Klambauer
    et al. (2017) to float32."""
    v = wide(x[i])
    return (select(v > 0, v, (exp(v) - 1) * alpha) * gamma).cast(x.dtype)


@op("Sigmoid")
def sigmoid(i: OutIndex, x: Float) -> Expr:
    """1 / (1 + exp(-x))."""
    return _sigmoid(wide(x[i])).cast(x.dtype)


def _sigmoid(v: Expr) -> Expr:
    return 1 / (exp(-v) + 1)


@op("HardSigmoid")
def hard_sigmoid(i: OutIndex, x: Float, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """alpha * x + beta, kept within 0..1."""
    return _unit(wide(x[i]) * alpha + beta).cast(x.dtype)


@op("HardSwish")
def hard_swish(i: OutIndex, x: Float) -> Expr:
    """x * (x / 6 + 1/2, kept within 0..1)."""
    v = wide(x[i])
    return (v * _unit(v * (1 / 6) + 0.5)).cast(x.dtype)


def _unit(v: Expr) -> Expr:
    return maximum(minimum(v, 1), 0)


@op("Swish")
def swish(i: OutIndex, x: Float, *, alpha: float = 1.0) -> Expr:
    """x * sigmoid(alpha * x)."""
    v = wide(x[i])
    return (v * _sigmoid(v * alpha)).cast(x.dtype)


@op("SwiGLU")
def swiglu(i: OutIndex, a: Float, b: Float, *, alpha: float = 1.0) -> Expr:
    """a * sigmoid(alpha * a) * b, for operands of one shape."""
    if a.shape != b.shape:
        raise ModelError(f"takes operands of equal shape, found {a.shape} and {b.shape}")
    v = wide(a[i])
    return (v * _sigmoid(v * alpha) * wide(b[i])).cast(a.dtype)


@op("Softplus")
def softplus(i: OutIndex, x: Float) -> Expr:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)), as exact below 0 as above."""
    v = wide(x[i])
    return (maximum(v, 0) + _log1p(exp(-absolute(v)))).cast(x.dtype)


def _log1p(v: Expr) -> Expr:
    """log(1 + v) for v of 0 to 1 (or NaN), exact for small v also: what the sum 1 + v loses by
    rounding is made up for by a quotient (Kahan; Goldberg, "What every computer scientist should
    know about floating-point arithmetic", 1991, theorem 4)."""
    total = v + 1
    return select(total.eq(1), v, log(total) * v / (total - 1))


@op("Mish")
def mish(i: OutIndex, x: Float) -> Expr:
    """x * tanh(log(1 + exp(x))).

    With n = exp(-|x|) the tanh is (1 + 2n) / (1 + 2n + 2n^2) for x >= 0, and below 0
    (n^2 + 2n) / (n^2 + 2n + 2).
    """
    v = wide(x[i])
    n = exp(-absolute(v))
    top = select(v < 0, n * (n + 2), n * 2 + 1)
    rest = select(v < 0, 2, n * n * 2)
    return (v * (top / (top + rest))).cast(x.dtype)


@op("Softsign", traits=("finite",))
def softsign(i: OutIndex, x: Float) -> Expr:
    """x / (1 + |x|)."""
    v = wide(x[i])
    return (v / (absolute(v) + 1)).cast(x.dtype)


@op("Gelu")
def gelu(i: OutIndex, x: Float, *, approximate: str = "none") -> Expr:
    """x * P(standard normal <= x), by erf, or by tanh if `approximate` is "tanh"."""
    v = wide(x[i])
    if approximate == "none":
        gate = erf(v * math.sqrt(0.5))
    elif approximate == "tanh":
        gate = tanh((v + v * v * v * 0.044715) * math.sqrt(2 / math.pi))
    else:
        raise ModelError(f"approximate must be none or tanh, found {approximate!r}")
    return (v * 0.5 * (gate + 1)).cast(x.dtype)


@op("Shrink")
def shrink(i: OutIndex, x: Number, *, lambd: float = 0.5, bias: float = 0.0) -> Expr:
    """x + bias below -lambd, x - bias above lambd, else 0; integers are compared as floats."""
    v = wide(x[i]) if x.dtype.is_float else x[i].cast(f32)
    return select(v < -lambd, v + bias, select(v > lambd, v - bias, 0)).cast(x.dtype)
