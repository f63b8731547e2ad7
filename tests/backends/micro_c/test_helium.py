"""Sums of products in vectors give what the reference gives, on any compiler, and need no loops."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from bundles import STRICT, checked, float_model, micro_program, reference, run_bundle
from differential import interpret_program
from onnx import helper
from quantised_models import QuantisedModel
from scheduled import proposals, with_schedule
from test_scalar_tiles import CASES, convolution

from graphc.backends.micro_c import BundleOptions, bundle, write_bundle
from graphc.backends.micro_c.boards import ARM
from graphc.backends.micro_c.cpus import CPUS
from graphc.backends.micro_c.intrinsics import in_plain_loops
from graphc.driver import optimise, program_for, typed
from graphc.errors import ModelError
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants, print_graph
from graphc.targets.micro_c import MicroC

CPU = "cortex-m55"
RNG = np.random.default_rng(7)


def chain(dtype, channels: int, weights, shape=(1, 5, 7, 9), **attrs):
    """A pointwise convolution, whose channels lie in a row, and a convolution of its result."""
    model = QuantisedModel(dtype)
    x = model.activation(shape)
    first = model.node("Conv", x, model.weights((channels, 5, 1, 1)))
    middle = model.dequantise(model.quantise(first, 0.03, 9), 0.03, 9 if dtype == np.int8 else 137)
    bias = model.weights(weights[:1], bits=32)
    result = model.node("Conv", middle, model.weights(weights), bias, **attrs)
    return model.build(model.quantise(model.node("Relu", result))), model.feeds


CHAINS = {
    "padded": (24, (10, 24, 3, 3), {"pads": [1] * 4}),
    "strided": (16, (7, 16, 3, 3), {"pads": [0, 1, 1, 1], "strides": [2, 2]}),
    "dilated": (5, (6, 5, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "grouped": (8, (12, 4, 3, 3), {"pads": [1] * 4, "group": 2}),
    "depthwise": (10, (10, 1, 3, 3), {"pads": [1] * 4, "group": 10}),
    "depthwise strided": (8, (8, 1, 5, 3), {"pads": [2, 1, 2, 1], "group": 8, "strides": [2, 1]}),
    "columns on the stack": (20, (130, 20, 1, 1), {}),
}


def second_layer(case) -> str:
    """The C function of a chain's second convolution."""
    channels, weights, attrs = case
    program = micro_program(chain(np.int8, channels, weights, **attrs)[0], CPU)
    text = bundle(program, BundleOptions("net", cpu=CPU))["net.c"]
    return re.findall(r"^static [^\n]*void net_.*?^}", text, re.M | re.S)[1]


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name, tmp_path):
    x, w, attrs = CASES[name]
    model, data = convolution(x, w, **attrs)
    run_bundle(model, [data], tmp_path, 1e-4, CPU)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CHAINS)
def test_integer_convolutions(name, dtype, tmp_path):
    channels, weights, attrs = CHAINS[name]
    model, feeds = chain(dtype, channels, weights, **attrs)
    run_bundle(model, feeds, tmp_path, 1.0, CPU)


@pytest.mark.parametrize("name", ["padded", "depthwise"])
def test_kernels_mean_what_they_print(name):
    channels, weights, attrs = CHAINS[name]
    model, feeds = chain(np.int8, channels, weights, **attrs)
    program = micro_program(model, CPU)
    kernels = {n: in_plain_loops(k) for n, k in program.kernels.items()}
    expected = reference(model, feeds)
    found = interpret_program(replace(program, kernels=kernels), feeds)
    assert np.abs(found[0].astype(int) - expected[0].astype(int)).max() <= 1


@pytest.mark.parametrize("shape", [(1, 7, 9), (3, 16, 4), (5, 33, 27), (1, 40, 50)])
def test_matrix_products(shape, tmp_path):
    rows, depth, columns = shape
    weights = {"w": RNG.standard_normal((depth, columns)).astype(np.float32)}
    data = RNG.standard_normal((rows, depth)).astype(np.float32)
    model = float_model(helper.make_node("MatMul", ["x", "w"], ["y"]), data, weights)
    run_bundle(model, [data], tmp_path, 1e-4, CPU)


@pytest.mark.parametrize("name", ["padded", "columns on the stack"])
def test_sixteen_products_are_one_instruction(name):
    body = second_layer(CHAINS[name])
    assert re.search(r"\bdots_\dx\d+x\d+\(", body)
    assert "vmulhq_s32" in body and "vstrbq_s32" in body
    assert not re.search(r"\bint64_t\b", body)  # no product of 64 bits is left to scalars


def test_depthwise_convolutions_have_lanes_of_channels():
    body = second_layer(CHAINS["depthwise"])
    assert "vmulq_s32" in body and "vmladavaq" not in body


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
def test_long_functions_stay_as_long_as_they_are(tmp_path):
    channels, weights, attrs = CHAINS["padded"]
    program = micro_program(chain(np.int8, channels, weights, **attrs)[0], CPU)
    write_bundle(program, tmp_path, BundleOptions("net", cpu=CPU))
    assert "static NET_KERNEL LONG_KERNEL void net_" in (tmp_path / "net.c").read_text()
    sizes = []
    for level in ("-O2", "-O3"):
        flags = [*CPUS[CPU].flags, "-std=c99", level, *STRICT]
        checked([ARM.compiler, *flags, "-c", "net.c"], tmp_path)
        sizes.append(int(checked(["arm-none-eabi-size", "net.o"], tmp_path).split()[6]))
    assert sizes[1] < 1.5 * sizes[0]


EVEN = {"shape": (1, 5, 8, 16), "pads": [1] * 4}
SCHEDULED = {
    "dots": ("cortex-m55", "speed", (24, (10, 24, 3, 3), EVEN), "helium"),
    "lanes": ("cortex-m55", "speed", (10, (10, 1, 3, 3), {"group": 10}), "helium"),
    "fewer products": ("cortex-m4", "fastest", (16, (8, 16, 3, 3), EVEN), "winograd"),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules(name):
    """Every schedule gives the same integers; what does not fit is refused."""
    cpu, goal, (channels, weights, attrs), strategy = SCHEDULED[name]
    model, feeds = chain(np.int8, channels, weights, **attrs)
    target = MicroC(cpu=cpu, opt=goal)
    graph = optimise(typed(model.SerializeToString()), target=target)
    given = proposals(graph, target, strategy)[::-1]  # those of the last product come first
    assert len(given) > 1
    expected = target.load(program_for(copied(graph), target))(feeds)
    for schedule in (given[0], given[1]):
        program = program_for(with_schedule(copied(graph), schedule.text), target)
        results = target.load(program)(feeds)
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted, err_msg=schedule.text)
    large = re.sub(r"tile\(rows, \d+\)", "tile(rows, 1000)", given[0].text)
    with pytest.raises(ModelError, match="a tile of"):
        program_for(with_schedule(copied(graph), large), target)


def copied(graph):
    """The same graph, read from its text."""
    return parse_graph(print_graph(graph), graph_constants(graph))
