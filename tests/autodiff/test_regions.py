"""Gradients of branches and loops, against PyTorch running the loop, and against differences."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) / 2


def total(x):
    return dsl.ReduceSum(x, keepdims=0)


def check(loss, reference, args: dict[str, np.ndarray]) -> None:
    value, slopes = graphc.value_and_grad(lambda a: loss(**a))(args)
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in args.items()}
    wanted = reference(**leaves)
    wanted.backward()
    np.testing.assert_allclose(value, wanted.item(), rtol=1e-5)
    for name, leaf in leaves.items():
        np.testing.assert_allclose(slopes[name], leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan(axis, back):
    def loss(w, h, x):
        def trip(state, row):
            new = dsl.Tanh(state @ w + row)
            return new, new * row

        last, rows = dsl.scan(trip, h, over=x, axes=[axis], reverse=[back])
        return total(last * 2.0) + total(rows * rows)

    def reference(w, h, x):
        rows = x.unbind(axis)
        result = 0
        for row in rows[::-1] if back else rows:
            h = torch.tanh(h @ w + row)
            result = result + ((h * row) ** 2).sum()
        return (h * 2).sum() + result

    x = floats(4, 2, 3) if axis == 0 else floats(2, 4, 3)
    check(loss, reference, {"w": floats(3, 3), "h": floats(2, 3), "x": x})


def test_a_loop_of_known_length():
    def loss(w, h):
        def trip(i, state):
            return dsl.Sin(state @ w) + dsl.Cast(i, to=dsl.f32)

        return total(dsl.loop(trip, h, trips=5) ** 2.0)

    def reference(w, h):
        for i in range(5):
            h = torch.sin(h @ w) + i
        return (h**2).sum()

    check(loss, reference, {"w": floats(3, 3), "h": floats(2, 3)})


def test_a_loop_that_data_ends_is_refused():
    def loss(h):
        return total(dsl.loop(lambda i, s: s * 2.0, h, while_=lambda s: total(s) < 100.0))

    with pytest.raises(graphc.UnsupportedError, match="length depends on data has no derivative"):
        graphc.grad(loss)(np.ones(2, np.float32))


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_a_branch(first):
    def loss(x, w):
        return total(dsl.cond(total(x) > 0.0, lambda: dsl.Exp(x * w), lambda: x * x * 3.0))

    def reference(x, w):
        return torch.exp(x * w).sum() if x.sum() > 0 else (x * x * 3).sum() + 0 * w.sum()

    check(loss, reference, {"x": first + floats(4) / 8, "w": floats(4)})


def test_a_recurrent_layer():
    x, w, r, b = floats(5, 2, 3), floats(1, 16, 3), floats(1, 16, 4), floats(1, 32)

    def loss(x, w, r, b):
        y, h, c = dsl.LSTM(x, w, r, b, hidden_size=4, outputs=3)
        return total(y * y) + total(h) + total(c * 0.5)

    layer = torch.nn.LSTM(3, 4)
    order = np.r_[0:4, 8:12, 12:16, 4:8]  # ONNX: i, o, f, c; PyTorch: i, f, c, o
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor(w[0][order]))
        layer.weight_hh_l0.copy_(torch.tensor(r[0][order]))
        layer.bias_ih_l0.copy_(torch.tensor(b[0, :16][order]))
        layer.bias_hh_l0.copy_(torch.tensor(b[0, 16:][order]))
    leaf = torch.tensor(x, requires_grad=True)
    y, (h, c) = layer(leaf)
    ((y * y).sum() + h.sum() + (c * 0.5).sum()).backward()
    slopes = graphc.grad(loss, argnums=(0, 1, 2, 3))(x, w, r, b)
    np.testing.assert_allclose(slopes[0], leaf.grad.numpy(), rtol=1e-4, atol=1e-5)
    wanted = layer.weight_hh_l0.grad.numpy()
    np.testing.assert_allclose(slopes[2][0][order], wanted, rtol=1e-4, atol=1e-5)
