"""Transformations of functions, against PyTorch's autograd and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
SLOPES = (
    "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Gelu", "Mish", "HardSwish", "Elu", "Celu",
)  # fmt: skip


def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def total(x):
    return dsl.ReduceSum(x, keepdims=0)


def assert_near(found, wanted, tolerance: float = 1e-4) -> None:
    """Within a share of the range of what is wanted."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    span = max(np.ptp(wanted), np.abs(wanted).max()) if wanted.size else 0.0
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(span, 1e-3))


def check(loss, reference, args: dict[str, np.ndarray]) -> None:
    """The gradients by all arguments equal PyTorch's."""
    value, gradients = graphc.value_and_grad(lambda a: loss(**a))(args)
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in args.items()}
    wanted = reference(**leaves)
    wanted.backward()
    assert_near(value, wanted.detach().numpy())
    for name, leaf in leaves.items():
        assert_near(gradients[name], leaf.grad.numpy())


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_convolutional_network(dtype):
    """The gradient of a bias before a normalisation is 0: in float32 it would be noise alone."""
    F, bias = torch.nn.functional, floats(6).astype(dtype)

    def loss(x, w, scale, shift, v, m, b=bias):
        y = dsl.Conv(x, w, b, pads=[1, 1, 1, 1], strides=[2, 2])
        moments = np.zeros(6, dtype), np.ones(6, dtype)
        y, *_ = dsl.BatchNormalization(y, scale, shift, *moments, training_mode=1, outputs=3)
        y = dsl.Conv(dsl.Relu(y), v, group=6, pads=[1, 1, 1, 1])
        y = dsl.MaxPool(dsl.HardSwish(y), kernel_shape=[2, 2], strides=[2, 2])
        y = dsl.LogSoftmax(dsl.Flatten(y) @ m)
        return dsl.NegativeLogLikelihoodLoss(y, np.array([1, 0, 3]), reduction="mean")

    def reference(x, w, scale, shift, v, m, b=bias):
        y = F.conv2d(x, w, torch.as_tensor(b), stride=2, padding=1)
        y = F.batch_norm(y, None, None, scale, shift, training=True)
        y = F.conv2d(F.relu(y), v, padding=1, groups=6)
        y = F.max_pool2d(F.hardswish(y), 2)
        return F.nll_loss(F.log_softmax(y.flatten(1) @ m, -1), torch.tensor([1, 0, 3]))

    args = {
        "x": floats(3, 3, 8, 8), "w": floats(6, 3, 3, 3), "scale": floats(6), "shift": floats(6),
        "v": floats(6, 1, 3, 3), "m": floats(24, 4, scale=0.3),
    }  # fmt: skip
    args = {name: array.astype(dtype) for name, array in args.items()}
    check(loss, reference, args | ({"b": bias} if dtype == np.float64 else {}))


def test_a_transformer_block():
    F = torch.nn.functional
    heads, width, length = 2, 8, 5
    tokens = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])

    def split(x):
        return dsl.Transpose(dsl.Reshape(x, [2, length, heads, width // heads]), perm=[0, 2, 1, 3])

    def loss(table, q, k, v, scale, shift, up, down):
        x = dsl.Gather(table, tokens)
        y = dsl.LayerNormalization(x, scale, shift)
        y = dsl.Attention(split(y @ q), split(y @ k), split(y @ v), is_causal=1)
        x = x + dsl.Reshape(dsl.Transpose(y, perm=[0, 2, 1, 3]), [2, length, width])
        return total((x + dsl.Gelu(x @ up) @ down) ** 2.0)

    def torch_split(x):
        return x.reshape(2, length, heads, width // heads).transpose(1, 2)

    def reference(table, q, k, v, scale, shift, up, down):
        x = table[torch.tensor(tokens)]
        y = F.layer_norm(x, (width,), scale, shift)
        y = F.scaled_dot_product_attention(
            torch_split(y @ q), torch_split(y @ k), torch_split(y @ v), is_causal=True
        )
        x = x + y.transpose(1, 2).reshape(2, length, width)
        return ((x + F.gelu(x @ up) @ down) ** 2).sum()

    args = {"table": floats(10, width), **{n: floats(width, width, scale=0.3) for n in "qkv"}}
    args |= {"scale": floats(width), "shift": floats(width)}
    args |= {"up": floats(width, 16, scale=0.3), "down": floats(16, width, scale=0.3)}
    check(loss, reference, args)


@pytest.mark.parametrize("x", [-1000.0, -100.0, -0.0, 0.0, 100.0, 1000.0])
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_far_out_are_pytorchs(name, x):
    leaf = torch.tensor([x], requires_grad=True)
    getattr(torch.nn.functional, name.lower())(leaf).sum().backward()
    found = graphc.grad(lambda v: total(dsl.apply(name, v)))(np.array([x], np.float32))
    np.testing.assert_allclose(found, leaf.grad.numpy(), atol=1e-6)


def test_maximum_of_equals_is_shared_as_pytorchs_amax():
    x = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    torch.amax(leaf, 1).sum().backward()
    found = graphc.grad(lambda v: total(dsl.ReduceMax(v, np.array([1]))))(x)
    np.testing.assert_allclose(found, leaf.grad.numpy())


@pytest.mark.parametrize("row", [[2.0, 3, 4], [0.0, 3, 4], [0.0, 0, 4]])
def test_products_with_zeros(row):
    x = np.array(row, np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    leaf.prod().backward()
    found = graphc.grad(lambda v: dsl.ReduceProd(v, keepdims=0))(x)
    np.testing.assert_allclose(found, leaf.grad.numpy())


def test_narrow_floats_are_summed_in_float32():
    x = np.full(5000, 0.01, np.float16)
    found = graphc.grad(lambda s: total(dsl.Expand(s, [5000]) * x))(np.ones(1, np.float16))
    assert found[0] == np.float16(np.float32(x[0]) * 5000)


# ---------------------------------------------------------------- the transformations


def test_arguments_are_trees_and_chosen_by_number():
    def f(p, x):
        return total(p["a"] * x) + total(p["rest"][0] * p["rest"][1]), x + 1.0

    p = {"a": floats(3), "rest": [floats(2), floats(2)]}
    x = floats(3)
    (value, aux), (by_p, by_x) = graphc.value_and_grad(f, argnums=(0, 1), has_aux=True)(p, x)
    np.testing.assert_allclose(value, (p["a"] * x).sum() + (p["rest"][0] * p["rest"][1]).sum(),
                               rtol=1e-6)  # fmt: skip
    np.testing.assert_array_equal(aux, x + 1)
    np.testing.assert_array_equal(by_p["a"], x)
    np.testing.assert_array_equal(by_p["rest"][0], p["rest"][1])
    np.testing.assert_array_equal(by_x, p["a"])


def test_second_derivatives():
    a = np.array([0.3, 1.0, 2.0])

    def f(x):
        return total(dsl.Sin(x) * x)

    wanted = 2 * np.cos(a) - a * np.sin(a)
    twice = graphc.grad(lambda x: total(graphc.grad(f)(x)))(a)
    _, forward_over_reverse = graphc.jvp(graphc.grad(f), [a], [np.ones(3)])
    np.testing.assert_allclose(twice, wanted, rtol=1e-12)
    np.testing.assert_allclose(forward_over_reverse, wanted, rtol=1e-12)


def test_a_hessian_vector_product_of_a_network():
    w, x, v = floats(4, 4), floats(3, 4), floats(4, 4)

    def f(w):
        return total(dsl.Softmax(dsl.Tanh(x @ w) @ w) ** 2.0)

    _, found = graphc.jvp(graphc.grad(f), [w], [v])

    def reference(w):
        return (torch.softmax(torch.tanh(torch.tensor(x) @ w) @ w, -1) ** 2).sum()

    _, wanted = torch.autograd.functional.hvp(reference, torch.tensor(w), torch.tensor(v))
    assert_near(found, wanted.numpy())


def test_a_pullback_takes_what_the_function_gives():
    a, b = floats(3), floats(3)
    value, pull = graphc.vjp(lambda x, y: {"p": x * y, "s": x + y}, a, b)
    np.testing.assert_array_equal(value["p"], a * b)
    by_a, by_b = pull({"p": np.ones(3, np.float32), "s": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(by_a, b)
    np.testing.assert_array_equal(by_b, a)


def test_inside_a_graph():
    @dsl.graph
    def step(x: dsl.f32[3], w: dsl.f32[3]):
        return w - 0.1 * graphc.grad(lambda v: total((v * x - 1.0) ** 2.0))(w)

    x, w = floats(3), floats(3)
    (found,) = graphc.compile(step, threads=1).run({"x": x, "w": w})
    np.testing.assert_allclose(found, w - 0.2 * (w * x - 1) * x, rtol=1e-5)
    assert graphc.parse(str(step)) == step


def test_gradients_stop():
    x = floats(3)
    found = graphc.grad(lambda v: total(graphc.stop_gradient(v * 2.0) * v))(x)
    np.testing.assert_allclose(found, 2 * x, rtol=1e-6)


def test_a_gradient_of_ones_own():
    @graphc.custom_vjp
    def rounded(x):
        """Rounding that lets gradients pass (a straight-through estimator)."""
        return dsl.Round(x)

    @rounded.defvjp
    def _(residuals, g):
        return (g,)

    x = np.array([0.4, 1.6], np.float32)
    np.testing.assert_array_equal(rounded(x), [0, 2])
    found = graphc.grad(lambda v: total(rounded(v * 3.0) * v))(x)
    np.testing.assert_allclose(found, 3 * x + np.round(3 * x))


def test_a_forward_pass_of_ones_own_keeps_what_it_likes():
    @graphc.custom_vjp
    def power(x, y):
        return x * y

    power.defvjp(lambda x, y: (x * y, {"x": x}), lambda kept, g: (g * 0.0, g * kept["x"] * 10.0))
    x, y = floats(2), floats(2)
    by_x, by_y = graphc.grad(lambda x, y: total(power(x, y)), argnums=(0, 1))(x, y)
    np.testing.assert_array_equal(by_x, np.zeros(2, np.float32))
    np.testing.assert_allclose(by_y, 10 * x, rtol=1e-6)


# ---------------------------------------------------------------- mistakes


def test_a_function_that_gives_no_scalar_is_refused():
    with pytest.raises(graphc.ModelError, match="returns a scalar.*graphc.vjp"):
        graphc.grad(lambda x: x * 2.0)(floats(3))


def test_open_shapes_are_refused():
    with dsl.building() as g:
        x = g.input("x", dsl.f32["N"])
        with pytest.raises(graphc.ModelError, match="static shapes.*give the shapes"):
            graphc.grad(total)(x)
        g.output(y=x)


def test_gradients_of_another_type_are_refused():
    _, pull = graphc.vjp(lambda x: x * 2.0, floats(3))
    with pytest.raises(graphc.ModelError, match="their types must be equal"):
        pull(floats(4))


def test_a_function_without_its_gradient_is_refused():
    own = graphc.custom_vjp(lambda x: x)
    with pytest.raises(graphc.ModelError, match="defvjp"):
        graphc.grad(lambda x: total(own(x)))(floats(3))
