"""Tails of int8: weights that are trained as bytes, against PyTorch and the same graph here."""

from __future__ import annotations

import numpy as np
import pytest
from test_bundle_training import quantised

import graphc
from graphc import dsl
from graphc.backends.micro_c import model_of
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.host_training import HostTraining
from graphc.errors import ModelError
from graphc.frontend.dsl_tensor import apply
from graphc.passes.specialise import specialise
from graphc.targets.micro_c import MicroC
from graphc.train.bundle import joint_program, step_of
from graphc.train.float_tail import Codes
from graphc.train.sums_of_codes import with_sums_of_codes

RATE = 0.05


def fake(x, scale, zero):
    return apply("graphc.FakeQuantize", x, scale, zero)


@pytest.mark.parametrize("zero", [np.int8(-3), np.uint8(7), np.int8(-128)])
def test_gradients_pass_where_nothing_is_clamped(zero):
    info, scale = np.iinfo(zero.dtype), np.float32(0.5)
    codes = np.arange(info.min - 3, info.max + 4)
    x = ((codes - int(zero)) * 0.5 + 0.1).astype(np.float32)
    weights = np.arange(1, len(x) + 1, dtype=np.float32)

    def f(x):
        return dsl.ReduceSum(fake(x, scale, zero) * weights, keepdims=0)

    inside = (codes > info.min) & (codes < info.max)
    np.testing.assert_array_equal(graphc.grad(f)(x), np.where(inside, weights, 0))
    value, tangent = graphc.jvp(f, [x], [np.ones_like(x)])
    assert tangent == pytest.approx(weights[inside].sum())
    clamped = (np.clip(codes, info.min, info.max) - int(zero)) * 0.5
    assert value == pytest.approx(float((clamped * weights).sum()), rel=1e-6)


HALF, TWO = np.float32(0.5), np.int8(2)


def rounded(x, draw, scale=HALF, zero=TWO, **attrs):
    with dsl.building("rounded") as g:
        values = g.input("x", dsl.f32[x.shape]), g.input("draw", dsl.i64[()])
        g.output(y=apply("graphc.QuantizeAt", values[0], scale, zero, values[1], **attrs))
    return graphc.compile(g.graph, threads=1)([x, np.array(draw, np.int64)])[0]


def test_rounding_at_random_is_right_in_the_mean():
    x = np.full((4, 5000), 0.65, np.float32)  # 1.3 steps
    found = rounded(x, 1)
    assert set(np.unique(found)) == {3, 4}
    assert (found == 4).mean() == pytest.approx(0.3, abs=0.015)
    assert not np.array_equal(found, rounded(x, 2))
    assert not np.array_equal(found, rounded(x, 1, layer=1))
    np.testing.assert_array_equal(found, rounded(x, 1))


def test_rounding_keeps_to_the_limits_and_whole_steps_stay():
    x = np.array([1e9, -1e9, np.inf, -np.inf, np.nan, 1.5, -2.0], np.float32)
    np.testing.assert_array_equal(rounded(x, 3), [127, -128, 127, -128, -128, 5, -2])
    per_channel = rounded(
        np.ones((2, 3), np.float32), 0, np.array([0.5, 0.25], np.float32),
        np.array([0, 1], np.int8), axis=0,
    )  # fmt: skip
    np.testing.assert_array_equal(per_channel, [[2] * 3, [5] * 3])


def test_codes_of_weights():
    codes = np.array([[-128, 5], [127, 0]], np.int8)
    own = Codes(np.array([0.1, 0.3], np.float32), np.array([0, 0], np.int8), 0)
    np.testing.assert_array_equal(own.of(codes * own.scale[:, None]), codes)
    part = own.taken([1])
    np.testing.assert_array_equal(part.of(codes[1:] * np.float32(0.3)), codes[1:])
    whole = Codes(np.float32(0.1), np.array(3, np.uint8), 1)
    assert whole.taken([1]) is whole


def test_products_with_trained_weights_are_sums_of_whole_numbers():
    """So no order of a sum, and no target, rounds them otherwise."""
    random = np.random.default_rng(3)
    rows, image, dense, filters = (
        random.integers(-128, 128, shape).astype(np.int8)
        for shape in ((5, 400), (1, 40, 4, 4), (400, 7), (6, 40, 3, 3))
    )
    scales = random.random(7).astype(np.float32)
    zeros, bias = np.arange(7, dtype=np.int8), random.random(6).astype(np.float32)
    with dsl.building("products") as g:
        x, h = g.input("x", dsl.i8[5, 400]), g.input("h", dsl.i8[1, 40, 4, 4])
        w, v = g.input("w", dsl.i8[400, 7]), g.input("v", dsl.i8[6, 40, 3, 3])
        left = dsl.DequantizeLinear(x, np.float32(0.3), np.int8(-7))
        g.output(
            y=left @ dsl.DequantizeLinear(w, scales, zeros, axis=1),
            z=dsl.Conv(fake(dsl.Cast(h, to=dsl.f32) * np.float32(0.1), np.float32(0.1), np.int8(0)),
                       dsl.DequantizeLinear(v, scales[:6], zeros[:6], axis=0), bias),
        )  # fmt: skip
    graph = specialise(g.graph)
    with_sums_of_codes(graph)
    y, z = graphc.compile(graph, threads=1)([rows, image, dense, filters])
    sums = (rows.astype(np.int64) + 7) @ (dense.astype(np.int64) - zeros)
    np.testing.assert_array_equal(y, sums.astype(np.float32) * (np.float32(0.3) * scales))
    taps = np.lib.stride_tricks.sliding_window_view(image.astype(np.int64), (3, 3), (2, 3))
    taken = filters.astype(np.int64) - zeros[:6, None, None, None]
    sums = np.einsum("ncpqab,ocab->nopq", taps, taken).astype(np.float32)
    by = (np.float32(0.1) * scales[:6])[:, None, None]
    np.testing.assert_array_equal(z, sums * by + bias[:, None, None])


def compiled(graph, **options):
    target = MicroC(tail="int8", **options)
    program, training = joint_program(graph, target)
    return HostTraining(program, training, target.code(), sanitize=True)


def batches(count):
    random = np.random.default_rng(5)
    for _ in range(count):
        yield random.integers(-128, 128, (2, 3, 8, 8)).astype(np.int8), np.array([1, 4], np.int32)


@pytest.mark.parametrize(
    ("what", "optimizer", "channels", "cpu"),
    [("last layer", "sgd", "all", "cortex-m4"), ("last 2 layers", "momentum", "all", "cortex-m55"),
     ("all", "sgd", "all", "cortex-m4"), ("last 2 layers", "adam", "50%", "cortex-m4")],
)  # fmt: skip
def test_steps_are_those_of_this_machine(what, optimizer, channels, cpu):
    graph = quantised()
    options = {"train": what, "optimizer": optimizer, "channels": channels}
    device = compiled(graph, cpu=cpu, **options)
    step, state = step_of(graph, MicroC(tail="int8", **options))
    host = graphc.compile(step, threads=1)
    names = [p.name for p in step.params]
    start = {name: array.copy() for name, array in device.state.items()}
    for x, y in batches(10):
        feeds = {"x": x, "target": y, "rate of the step": np.array(RATE, np.float32), **state}
        results = dict(zip([o.name for o in host.outputs], host([feeds[n] for n in names])))
        state = {name: results[f"new {name}"] for name in state}
        assert device.step([x], y, RATE) == pytest.approx(float(results["loss"]), rel=1e-4)
    moved = 0
    for name, array in device.state.items():
        apart = np.abs(array.astype(np.float64) - state[name])
        is_weight = name.endswith(".weight") and " of " not in name
        assert array.dtype == (np.int8 if is_weight else np.float32)
        assert apart.max() < (1 if is_weight else 1e-5), name
        moved += int((array != start[name]).sum())
    assert moved > 5


def test_a_step_is_that_of_pytorch():
    """With fake quantisation and gradients straight through; weights differ by rounding alone."""
    torch = pytest.importorskip("torch")

    class Fake(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale, zero):
            codes = torch.clamp(torch.round(x / scale) + zero, -128, 127)
            ctx.save_for_backward((codes > -128) & (codes < 127))
            return (codes - zero) * scale

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], None, None

    graph = quantised()
    device = compiled(graph, train="all")
    (x, y), *_ = batches(1)
    weights = {
        name: torch.tensor(array * np.float32(0.01), requires_grad=True)
        for name, array in device.state.items()
        if name.endswith(".weight")
    }
    first, second, third = (weights[f"{n}.weight"] for n in ("first", "second", "third"))
    h = torch.tensor((x.astype(np.float32) + 3) * np.float32(0.02))
    h = Fake.apply(torch.relu(torch.nn.functional.conv2d(h, first)), 0.05, -3)
    h = Fake.apply(torch.relu(torch.nn.functional.conv2d(h, second)), 0.05, -3)
    scores = h.flatten(1) @ third
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y, dtype=torch.int64))
    loss.backward()
    rate = 2.0
    assert device.step([x], y, rate) == pytest.approx(float(loss), rel=1e-5)
    moves = 0
    for name, weight in weights.items():
        wanted = (weight - rate * weight.grad).detach().numpy() / 0.01
        inside = np.clip(wanted, -128, 127)
        assert np.abs(device.state[name] - inside).max() <= 1.0001, name
        moves += np.abs(wanted - weight.detach().numpy() / 0.01).max()
    assert moves > 2


def test_weights_of_bytes_take_a_quarter():
    graph = quantised()
    sizes = {}
    for tail in ("float32", "int8"):
        target = MicroC(train="all", tail=tail)
        program, training = joint_program(graph, target)
        sizes[tail] = Budget.of(model_of(program, target.code(training=training))).state
    assert sizes["int8"] == sizes["float32"] // 4 + 4  # and the number of steps


def wide():
    """A network whose first layers take most of the memory."""
    random = np.random.default_rng(7)

    def layer(x, name, *shape, strides=1):
        codes = random.integers(-127, 128, shape).astype(np.int8)
        weight = dsl.DequantizeLinear(codes, np.float32(0.01), np.int8(0))
        weight.value.name = f"{name}.weight"
        if len(shape) == 2:
            return x @ weight
        h = dsl.Relu(dsl.Conv(x, weight, pads=[1, 1, 1, 1], strides=[strides, strides]))
        h = dsl.QuantizeLinear(h, np.float32(0.05), np.int8(-128))
        return dsl.DequantizeLinear(h, np.float32(0.05), np.int8(-128))

    with dsl.building("wide") as g:
        x = g.input("x", dsl.i8[1, 24, 24, 3])
        h = dsl.DequantizeLinear(dsl.Transpose(x, perm=[0, 3, 1, 2]), np.float32(0.02), np.int8(-3))
        for n, (channels, strides) in enumerate([(3, 1), (8, 1), (8, 4)]):
            h = layer(h, f"conv{n}", 8, channels, 3, 3, strides=strides)
        h = layer(h, "conv3", 4, 8, 3, 3)
        h = dsl.ReduceMean(h, np.array([2, 3]), keepdims=0)
        g.output(y=dsl.Softmax(layer(h, "dense", 4, 5)))
    return g.graph


def test_a_budget_of_ram_is_kept_to():
    """First layers are executed by rows; weights become the same."""
    options = {"train": "last 2 layers", "tail": "int8", "cpu": "cortex-m4"}
    plain = joint_program(wide(), MicroC(**options))
    made = model_of(plain[0], MicroC().code(training=plain[1]))
    arena = plain[0].arena_bytes * 7 // 10
    ram = Budget.of(made).ram - plain[0].arena_bytes + arena
    small = joint_program(wide(), MicroC(ram=ram, **options))
    assert small[0].arena_bytes <= arena
    one, other = (HostTraining(*p, MicroC().code(), sanitize=True) for p in (plain, small))
    random = np.random.default_rng(8)
    for _ in range(3):
        x = random.integers(-128, 128, (1, 24, 24, 3)).astype(np.int8)
        y = np.array([2], np.int32)
        assert one.step([x], y, RATE) == pytest.approx(other.step([x], y, RATE), rel=1e-4)
    for name, array in one.state.items():
        assert np.abs(array.astype(float) - other.state[name]).max() < 1e-5


def test_what_is_refused():
    with dsl.building("floats") as g:
        x = g.input("x", dsl.f32[1, 4])
        g.output(y=x @ dsl.constant(np.ones((4, 2), np.float32), name="weight"))
    with pytest.raises(ModelError, match="int8 is of a quantised model"):
        joint_program(g.graph, MicroC(train="all", tail="int8", loss="mse"))
