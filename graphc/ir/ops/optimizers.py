"""Steps of gradient descent on any number of tensors (ai.onnx.preview.training).

Operands after the rate and the update count are all parameters, then all gradients, then the
running averages in the same order; results are the new parameters, then the new averages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite

DOMAIN = "ai.onnx.preview.training"


def _updated(tensors: Sequence[Value], kinds: int, update: Callable[..., tuple]) -> list[Value]:
    """update(parameter, gradient, averages...) for each parameter; results grouped by kind."""
    count, rest = divmod(len(tensors), kinds)
    if rest or not count:
        raise ModelError(f"{len(tensors)} tensors given, a multiple of {kinds} is required")
    groups = [tensors[k * count : (k + 1) * count] for k in range(kinds)]
    results = [update(*members) for members in zip(*groups)]
    return [value for kind in zip(*results) for value in kind]


def _regularised(b: Builder, x: Value, gradient: Value, coefficient: float) -> Value:
    return b.Add(b.Mul(x, coefficient), gradient) if coefficient else gradient


def _mixed(b: Builder, old: Value, new: Value, keep: float) -> Value:
    """keep * old + (1 - keep) * new."""
    return b.Add(b.Mul(old, keep), b.Mul(new, 1 - keep))


@composite("Adagrad", domain=DOMAIN, outputs=None)
def adagrad(
    b: Builder, rate: Float, count: Int, *tensors: Float, decay_factor: float = 0.0,
    epsilon: float = 1e-6, norm_coefficient: float = 0.0,
) -> list[Value]:  # fmt: skip
    """Steps divided by the root of the accumulated squared gradient."""
    times = b.Cast(count, to=rate.tensor.dtype.onnx)
    step = b.Div(rate, b.Add(b.Mul(times, decay_factor), 1.0))

    def update(x: Value, gradient: Value, squares: Value) -> tuple[Value, ...]:
        gradient = _regularised(b, x, gradient, norm_coefficient)
        squares = b.Add(squares, b.Mul(gradient, gradient))
        scale = b.Add(b.Sqrt(squares), epsilon)
        return b.Sub(x, b.Div(b.Mul(step, gradient), scale)), squares

    return _updated(tensors, 3, update)


@composite("Adam", domain=DOMAIN, outputs=None)
def adam(
    b: Builder, rate: Float, count: Int, *tensors: Float, alpha: float = 0.9, beta: float = 0.999,
    epsilon: float = 1e-6, norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> list[Value]:  # fmt: skip
    """Steps along the averaged gradient divided by the root of the averaged squared gradient."""
    dtype = rate.tensor.dtype
    times = b.Cast(count, to=dtype.onnx)
    falls = [b.Sub(1.0, b.Pow(b.constant(base, dtype), times)) for base in (alpha, beta)]
    corrected = b.Div(b.Mul(rate, b.Sqrt(falls[1])), falls[0])
    step = b.Where(b.Greater(count, b.constant(0, i64)), corrected, rate)

    def update(x: Value, gradient: Value, mean: Value, squares: Value) -> tuple[Value, ...]:
        gradient = _regularised(b, x, gradient, norm_coefficient)
        mean = _mixed(b, mean, gradient, alpha)
        squares = _mixed(b, squares, b.Mul(gradient, gradient), beta)
        scale = b.Add(b.Sqrt(squares), epsilon)
        new = b.Sub(x, b.Div(b.Mul(step, mean), scale))
        return b.Mul(new, 1 - norm_coefficient_post), mean, squares

    return _updated(tensors, 4, update)


@composite("Momentum", domain=DOMAIN, outputs=None)
def momentum(
    b: Builder, rate: Float, count: Int, *tensors: Float, alpha: float, beta: float, mode: str,
    norm_coefficient: float,
) -> list[Value]:  # fmt: skip
    """Steps along the averaged gradient; Nesterov's look one step ahead."""
    if mode not in ("standard", "nesterov"):
        raise ModelError(f"mode {mode!r} is not one of standard, nesterov")
    is_later = b.Greater(count, b.constant(0, i64))
    share = b.Where(is_later, b.constant(beta, dtypes.f32), b.constant(1, dtypes.f32))

    def update(x: Value, gradient: Value, average: Value) -> tuple[Value, ...]:
        gradient = _regularised(b, x, gradient, norm_coefficient)
        weight = b.Cast(share, to=x.tensor.dtype.onnx)
        average = b.Add(b.Mul(average, alpha), b.Mul(weight, gradient))
        ahead = b.Add(gradient, b.Mul(average, alpha)) if mode == "nesterov" else average
        return b.Sub(x, b.Mul(rate, ahead)), average

    return _updated(tensors, 3, update)
