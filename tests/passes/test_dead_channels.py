"""Channels that are constant for every input go, and results stay as they were: shown with all
inputs where these are few, with random ones elsewhere."""

import copy

import numpy as np
import pytest

from graphc.ir.build import Builder
from graphc.ir.dtypes import f32, i8, u8
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.passes import Context, run_pipeline
from graphc.passes.analysis.channels import channels
from graphc.passes.manager.journal import Journal

PASS = "dead-channels"
LIMITS = {"low": -128, "high": 127, "to": i8.onnx}


class Net:
    """A quantised network of int8 maps, built layer by layer."""

    def __init__(self, shape, seed=0):
        self.graph = Graph("net")
        self.graph.phase = "typed"
        self.b = Builder(self.graph)
        self.x = self.graph.add_param(TensorType(i8, tuple(shape)), "x")
        self.rng = np.random.default_rng(seed)

    def conv(self, x, weights, bias, shift=3, zero=0, by=1, **attrs):
        """A convolution, a bias per channel, and a requantisation by by / 2**shift to a ReLU's -128
        and more."""
        weights, bias = np.array(weights, np.int8), np.array(bias, np.int32)
        total = self.b.ConvInteger(x, weights, np.int8(zero), **attrs)
        return self.limited(
            self.b.Add(total, bias.reshape(-1, *[1] * (x.tensor.rank - 2))), shift, by
        )

    def limited(self, total, shift=3, by=1):
        factors = np.full(total.tensor.extent(1), by, np.int32)
        return self.b.Requantize(
            total, factors, domain="graphc", axis=1, shift=shift, zero_point=-128, **LIMITS
        )

    def added(self, a, b):
        return self.b.RescaledSum(
            a, b, domain="graphc", a_multiplier=1, b_multiplier=1, offset=128, shift=1, **LIMITS
        )

    def ending(self, y):
        """The graph, and it after the pass, which removed something or not."""
        self.graph.set_results([y])
        after = copy.deepcopy(self.graph)
        run_pipeline(after, PASS)
        return self.graph, after


def _weights(graph):
    """The shapes of what convolutions and matrix products multiply by."""
    products = ("ConvInteger", "MatMulInteger", "Conv")
    return [op.operand(1).tensor.static_shape for op in graph.ops if op.name in products]


def _same(before, after, x):
    one, other = interpret(before, [x]), interpret(after, [x])
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other))


def _pairs():
    """All images of two int8 pixels."""
    codes = np.arange(-128, 128, dtype=np.int8)
    return np.stack(np.meshgrid(codes, codes), -1).reshape(-1, 1, 1, 2)


def _of_pairs(
    middle_bias, weights=((1,), (1,), (1,)), zero=-128, pads=(0, 1, 0, 1), depthwise=True
):
    """Two pixels through three channels, of which the second is constant, windows over these, and
    a sum of the channels."""
    net = Net((1 << 16, 1, 1, 2))
    first = net.conv(net.x, np.array(weights).reshape(3, 1, 1, 1), (0, middle_bias, 40))
    windows = {"pads": pads, "zero": zero}
    if depthwise:
        second = net.conv(first, np.full((3, 1, 1, 3), 2), (9, -2, 3), group=3, **windows)
        last = net.conv(second, [[[[1]], [[-3]], [[2]]]], [50], zero=0)
    else:
        taps = np.arange(9).reshape(1, 3, 1, 3) - 4
        last = net.conv(first, taps, [70], **windows)
    return net.ending(last)


def test_a_channel_that_is_always_clamped_goes_through_a_depthwise_window():
    before, after = _of_pairs(-4000)
    assert _weights(before) == [(3, 1, 1, 1), (3, 1, 1, 3), (1, 3, 1, 1)]
    assert _weights(after) == [(2, 1, 1, 1), (2, 1, 1, 3), (1, 2, 1, 1)]
    _same(before, after, _pairs())


def test_a_constant_unlike_the_padding_stays_where_borders_see_it():
    weights = ((1,), (0,), (1,))  # the second channel is -78, padded by -128
    before, after = _of_pairs(400, weights)
    assert _weights(after) == _weights(before)
    _same(before, after, _pairs())


@pytest.mark.parametrize("bias, kept", [(-4000, 2), (400, 3)])
def test_a_padded_sum_of_channels_loses_those_that_are_the_padding(bias, kept):
    before, after = _of_pairs(bias, ((1,), (0,), (1,)), depthwise=False)
    assert _weights(after) == [(kept, 1, 1, 1), (1, kept, 1, 3)]
    _same(before, after, _pairs())


def test_a_constant_that_clamps_to_one_number_goes_in_spite_of_borders():
    """At borders the window sees other sums, which are clamped to the same number."""
    net = Net((1 << 16, 1, 1, 2))
    first = net.conv(net.x, [[[[1]]], [[[0]]]], (0, 400))
    second = net.conv(
        first, np.full((2, 1, 1, 3), 2), (9, -4000), group=2, zero=-128, pads=(0, 1, 0, 1)
    )
    before, after = net.ending(net.conv(second, [[[[1]], [[-3]]]], [50]))
    assert _weights(after) == [(1, 1, 1, 1), (1, 1, 1, 3), (1, 1, 1, 1)]
    _same(before, after, _pairs())


def test_a_sum_without_padding_takes_constants_as_a_bias():
    net = Net((1 << 16, 1, 1, 2))
    first = net.conv(net.x, [[[[1]]], [[[0]]], [[[-1]]]], (0, 400, 3))
    before, after = net.ending(net.conv(first, np.arange(6).reshape(1, 3, 1, 2) - 2, [90]))
    assert _weights(after) == [(2, 1, 1, 1), (1, 2, 1, 2)]
    assert sum(op.name == "Add" for op in after.ops) == 2  # biases are joined
    _same(before, after, _pairs())


def test_a_residual_sum_needs_what_either_side_has():
    net = Net((2000, 1, 2, 2))
    bias = np.array([0, -4000, -4000, 9])
    first = net.conv(net.x, np.array([3, 2, 1, -9]).reshape(4, 1, 1, 1), bias)
    second = net.conv(first, net.rng.integers(-3, 4, (4, 4, 1, 1)), [5, -40000, 900, 0])
    total = net.added(first, second)
    before, after = net.ending(net.conv(total, net.rng.integers(-3, 4, (2, 4, 2, 2)), [5, 0]))
    assert _weights(after) == [(3, 1, 1, 1), (3, 3, 1, 1), (2, 3, 2, 2)]
    _same(before, after, net.rng.integers(-128, 128, (2000, 1, 2, 2)).astype(np.int8))


def test_a_channel_that_is_multiplied_by_zeros_is_not_made():
    net = Net((1 << 16, 1, 1, 2))
    first = net.conv(net.x, [[[[1]]], [[[2]]], [[[-1]]]], (0, -4000, 3))
    middle = net.conv(first, [[[[2]], [[1]], [[0]]]], [9])
    before, after = net.ending(middle)
    assert _weights(after) == [(1, 1, 1, 1), (1, 1, 1, 1)]
    _same(before, after, _pairs())


def test_one_channel_is_left_of_none():
    net = Net((1 << 16, 1, 1, 2))
    first = net.conv(net.x, [[[[1]]], [[[2]]]], (-4000, -5000))
    before, after = net.ending(net.conv(first, [[[[2]], [[1]]]], [9]))
    assert _weights(after) == [(1, 1, 1, 1), (1, 1, 1, 1)]
    _same(before, after, _pairs())


def test_pooling_and_flattening_keep_channels_apart():
    net = Net((500, 2, 4, 4))
    bias = np.array([0, -40000, 7, -40000, 90])
    first = net.conv(net.x, net.rng.integers(-9, 9, (5, 2, 3, 3)), bias, pads=(1, 1, 1, 1))
    pooled = net.b.MaxPool(first, kernel_shape=(2, 2), strides=(2, 2))
    mean = net.limited(net.b.ChannelSum(pooled, domain="graphc"), shift=2)
    flat = net.b.Reshape(mean, np.array([500, 5]))
    weights = net.rng.integers(-9, 9, (5, 3)).astype(np.int8)
    total = net.b.MatMulInteger(flat, weights)
    before, after = net.ending(total)
    assert _weights(after) == [(3, 2, 3, 3), (3, 3)]
    _same(before, after, net.rng.integers(-128, 128, (500, 2, 4, 4)).astype(np.int8))


def test_what_is_an_output_keeps_its_channels():
    net = Net((1 << 16, 1, 1, 2))
    before, after = net.ending(net.conv(net.x, [[[[1]]], [[[2]]]], (-4000, 5)))
    assert _weights(after) == _weights(before) == [(2, 1, 1, 1)]


def test_grouped_sums_keep_their_channels():
    net = Net((9, 4, 3, 3))
    first = net.conv(net.x, net.rng.integers(-9, 9, (4, 4, 1, 1)), [0, -9000, -9000, 4])
    second = net.conv(first, net.rng.integers(-9, 9, (4, 2, 1, 1)), [0, 1, 2, 3], group=2)
    before, after = net.ending(second)
    assert _weights(after) == _weights(before)
    _same(before, after, net.rng.integers(-128, 128, (9, 4, 3, 3)).astype(np.int8))


@pytest.mark.parametrize("seed", range(30))
def test_random_networks_stay_as_they_were(seed):
    net = Net((40, 3, 5, 4), seed)
    rng, x, earlier = net.rng, net.x, None
    for _ in range(int(rng.integers(2, 6))):
        many, depthwise = x.tensor.extent(1), rng.random() < 0.4
        rows = many if depthwise or rng.random() < 0.4 else int(rng.integers(1, 9))
        kernel = (3, 3) if rng.random() < 0.6 else (1, 1)
        shape = (rows, 1 if depthwise else many, *kernel)
        weights = rng.integers(-20, 21, shape) * (rng.random(shape) < rng.random((rows, 1, 1, 1)))
        bias = np.where(rng.random(rows) < 0.4, -60000, rng.integers(-500, 500, rows))
        pads = (kernel[0] // 2,) * 4
        y = net.conv(
            x, weights, bias, shift=int(rng.integers(3, 8)), pads=pads,
            zero=int(rng.choice([-128, -128, 0, 7])), group=many if depthwise else 1,
        )  # fmt: skip
        if earlier is not None and earlier.tensor == y.tensor and rng.random() < 0.7:
            y = net.added(earlier, y)
        x, earlier = y, y if rng.random() < 0.7 else earlier
    weights = rng.integers(-9, 9, (2, x.tensor.extent(1), 1, 1))
    before, after = net.ending(net.conv(x, weights, [3, -5], shift=5))
    _same(before, after, rng.integers(-128, 128, (40, 3, 5, 4)).astype(np.int8))
    _same(before, after, rng.choice(np.array([-128, 127], np.int8), (40, 3, 5, 4)))
    known = channels(before)
    outputs = interpret(before, [rng.integers(-128, 128, (40, 3, 5, 4)).astype(np.int8)])
    ends = known[before.results[0]].ends
    assert (outputs[0].min((0, 2, 3)) >= ends.low).all()
    assert (outputs[0].max((0, 2, 3)) <= ends.high).all()


def test_the_random_networks_lose_channels():
    """The sweep above would show nothing if there were none to lose."""
    net = Net((40, 3, 5, 4))
    first = net.conv(net.x, net.rng.integers(-20, 21, (4, 3, 3, 3)), [-60000, 0, 3, -60000])
    before, after = net.ending(net.conv(first, net.rng.integers(-9, 9, (2, 4, 1, 1)), [3, -5]))
    assert _weights(after)[0] == (2, 3, 3, 3)


# ---------------------------------------------------------------- floats


def _floats(shape=(1, 3, 4, 4), dtype=f32):
    graph = Graph("floats")
    graph.phase = "typed"
    return graph, Builder(graph), graph.add_param(TensorType(dtype, shape), "x")


def _operators(graph):
    return [op.name for op in graph.ops if op.name != "Constant"]


def test_limits_that_are_never_reached_go():
    graph, b, x = _floats()
    weights = np.full((2, 3, 1, 1), 0.1, np.float32)
    inner = b.Conv(b.Clip(x, np.float32(0), np.float32(6)), weights, np.float32([1, 1]))
    graph.set_results([b.Clip(inner, np.float32(-1), np.float32(3))])
    before = copy.deepcopy(graph)
    assert run_pipeline(graph, PASS) is graph
    assert _operators(graph) == ["Clip", "Conv"]
    numbers = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32) * 9
    for x in (numbers, np.full_like(numbers, np.nan), np.full_like(numbers, np.inf)):
        (one,), (other,) = interpret(before, [x]), interpret(graph, [x])
        np.testing.assert_array_equal(one, other)


def test_limits_that_may_be_reached_stay():
    graph, b, x = _floats()
    weights = np.full((2, 3, 1, 1), 0.1, np.float32)
    inner = b.Conv(b.Clip(x, np.float32(0), np.float32(6)), weights, np.float32([1, 1]))
    graph.set_results([b.Clip(inner, np.float32(-1), np.float32(2.7))])
    run_pipeline(graph, PASS)
    assert _operators(graph) == ["Clip", "Conv", "Clip"]


def test_floats_that_may_be_nan_are_not_constant():
    """A ReLU of numbers below zero is 0, but of NaN it is NaN."""
    graph, b, x = _floats()
    inner = b.Sub(b.Clip(x, np.float32(0), np.float32([6])), np.float32([[[9]], [[5]], [[8]]]))
    graph.set_results([b.Relu(inner)])
    assert not channels(graph)[graph.results[0]].constant.any()
    graph, b, x = _floats(dtype=u8)
    inner = b.Sub(b.Cast(x, to=f32.onnx), np.float32([[[256]], [[5]], [[300]]]))
    graph.set_results([b.Relu(inner)])
    assert channels(graph)[graph.results[0]].constant.tolist() == [True, False, True]


def test_float_sums_keep_their_order():
    graph, b, x = _floats(dtype=u8)
    inner = b.Relu(b.Sub(b.Cast(x, to=f32.onnx), np.float32([[[256]], [[5]], [[300]]])))
    graph.set_results([b.Conv(inner, np.ones((1, 3, 1, 1), np.float32))])
    run_pipeline(graph, PASS)
    assert _weights(graph) == [(1, 3, 1, 1)]


# ---------------------------------------------------------------- the pass


def test_large_networks_are_left_alone(monkeypatch):
    monkeypatch.setattr("graphc.passes.analysis.channels.BUDGET", 5)
    before, after = _of_pairs(-4000)
    assert _weights(after) == _weights(before)


def test_fuel_and_journal():
    net = Net((1 << 16, 1, 1, 2))
    first = net.conv(net.x, [[[[1]]], [[[2]]]], (-4000, 7))
    net.graph.set_results([net.conv(first, [[[[2]], [[1]]]], [9])])
    refused = copy.deepcopy(net.graph)
    run_pipeline(refused, PASS, Context(fuel=1))
    assert refused == net.graph
    context = Context(journal=Journal())
    run_pipeline(net.graph, PASS, context)
    assert context.diagnostics.fired[PASS] == 1
    assert any(change.rule == PASS for change in context.journal.changes)
