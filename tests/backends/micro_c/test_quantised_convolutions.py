"""Quantised convolutions give the same integers in fewer products, or with weights stored in pairs,
at borders and extremes too."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from programs import check_program

from graphc import driver
from graphc.ir.build import Builder
from graphc.ir.dtypes import i8, u8
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.kernel import Alloc, Intrin, walk_stmts
from graphc.ir.types import TensorType

FULL = {"low": -128, "high": 127, "to": i8.onnx}
FASTEST = {"cpu": "cortex-m4", "opt": "fastest"}


def convolution(
    shape, channels, zero, dtype=i8, seed=0, residual=False, extreme=False, taps=(3, 3), **attrs
):
    """A quantised convolution of images whose channels lie innermost, which a residual sum follows
    or not."""
    rng = np.random.default_rng(seed)
    graph = Graph("net")
    graph.phase = "typed"
    images = graph.add_param(TensorType(dtype, tuple(shape[n] for n in (0, 2, 3, 1))), "x")
    b = Builder(graph)
    x = b.Transpose(images, perm=(0, 3, 1, 2))
    weights = rng.integers(-128, 128, (channels, shape[1] // attrs.get("group", 1), *taps))
    if extreme:
        weights = np.where(weights < 0, -128, 127)
    total = b.ConvInteger(x, weights.astype(np.int8), np.array(zero, dtype.np), **attrs)
    total = b.Add(total, rng.integers(-999, 999, (channels, 1, 1)).astype(np.int32))
    by = rng.integers(1 << 20, 1 << 22, channels).astype(np.int32)
    y = b.Requantize(total, by, domain="graphc", axis=1, shift=31, zero_point=3, **FULL)
    if residual:
        y = b.RescaledSum(x, y, domain="graphc", a_multiplier=3, b_multiplier=5, offset=9, shift=3,
                          **FULL)  # fmt: skip
    graph.set_results([y])
    return graph


CASES = {
    "padded": ((1, 8, 8, 8), 12, -128, {"pads": (1, 1, 1, 1)}),
    "not padded": ((1, 8, 6, 10), 8, 5, {}),
    "padded at one end": ((2, 8, 5, 9), 10, 0, {"pads": (1, 0, 0, 1)}),
    "wide padding": ((1, 12, 4, 8), 8, 127, {"pads": (2, 1, 2, 1)}),
    "of uint8": ((1, 8, 4, 4), 8, 130, {"pads": (1, 1, 1, 1), "dtype": u8}),
    "a residual": ((2, 8, 4, 8), 8, 7, {"pads": (1, 1, 1, 1), "residual": True}),
    "in parts": ((1, 64, 4, 16), 8, -3, {"pads": (1, 1, 1, 1)}),
    "extremes": ((1, 32, 4, 4), 8, 127, {"pads": (1, 1, 1, 1), "extreme": True}),
}


def check(graph, options):
    """Compares C with the graph, for numbers at random and for the least and the largest."""
    model = driver.compile(copy.deepcopy(graph), target="c", **options)
    rng, tensor = np.random.default_rng(1), graph.inputs[0].tensor
    ends = np.iinfo(tensor.dtype.np)
    drawn = rng.integers(ends.min, ends.max + 1, tensor.static_shape).astype(ends.dtype)
    for x in (drawn, rng.choice([ends.min, ends.max], drawn.shape).astype(ends.dtype)):
        (expected,), (found,) = interpret(graph, [x]), model(x)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_sums_are_the_same(name):
    shape, channels, zero, more = CASES[name]
    graph = convolution(shape, channels, zero, **more)
    program = driver.program_for(copy.deepcopy(graph), "c", **FASTEST)
    assert [k.name.split("_")[0] for k in program.kernels.values()].count("winograd") == 1
    check(graph, FASTEST)


TILES = {
    "of three channels": ((1, 3, 9, 11), 6, -128, {"pads": (1, 1, 1, 1)}),
    "strided": ((2, 3, 10, 12), 5, 7, {"pads": (0, 0, 1, 1), "strides": (2, 2)}),
    "with one channel": ((1, 1, 13, 10), 8, 83, {"pads": (4, 1, 5, 1), "taps": (10, 4)}),
    "of six channels": ((1, 6, 5, 7), 4, 0, {"pads": (1, 2, 1, 0)}),
    "of four channels": ((1, 4, 6, 6), 4, 9, {"pads": (1, 1, 1, 1), "strides": (2, 1)}),
    "pointwise": ((1, 13, 5, 5), 7, 3, {"taps": (1, 1)}),
    "dilated": ((1, 3, 9, 9), 4, 3, {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    "depthwise": ((1, 6, 7, 7), 6, 3, {"pads": (1, 1, 1, 1), "group": 6}),
    "of uint8": ((1, 3, 6, 9), 4, 130, {"pads": (1, 1, 1, 1), "dtype": u8}),
    "depthwise in pairs": ((2, 5, 6, 8), 5, -128, {"pads": (1, 1, 1, 1), "group": 5}),
    "depthwise, strided": (
        (1, 4, 9, 12), 4, 5, {"pads": (0, 0, 1, 1), "group": 4, "strides": (2, 2)}),
    "depthwise of uint8": ((1, 2, 5, 5), 2, 131, {"pads": (1, 2, 0, 1), "group": 2, "dtype": u8}),
    "depthwise, even": ((1, 6, 7, 9), 6, 3, {"taps": (2, 4), "group": 6, "pads": (1, 1, 1, 2)}),
    "depthwise, wide": ((1, 4, 40, 48), 4, 1, {"pads": (1, 1, 1, 1), "group": 4}),
    "depthwise, by threes": (
        (1, 4, 9, 9), 4, 9, {"taps": (2, 5), "group": 4, "pads": (0, 2, 1, 2), "strides": (1, 3)}),
    "depthwise, one row": ((1, 6, 3, 7), 6, 3, {"pads": (0, 1, 0, 1), "group": 6}),
    "depthwise, one column": ((1, 4, 9, 3), 4, 5, {"pads": (1, 0, 1, 0), "group": 4}),
    "fewer rows than a block": ((1, 13, 1, 5), 7, 3, {"taps": (1, 1)}),
    "in blocks": ((1, 24, 7, 9), 9, 11, {"taps": (1, 1), "extreme": True}),
    "strided windows": ((2, 8, 9, 9), 6, 4, {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "in place": ((1, 8, 6, 6), 8, 2, {"pads": (1, 1, 1, 1), "residual": True}),
    "with a deep sum": ((1, 80, 4, 4), 6, 3, {"taps": (1, 1), "dtype": u8}),
    "of groups": ((1, 16, 5, 5), 6, 3, {"pads": (1, 1, 1, 1), "group": 2}),
}  # fmt: skip
TILES |= {
    "one row": ((1, 37, 1, 1), 9, 5, {"taps": (1, 1)}),
    "one row of uint8": ((1, 48, 1, 1), 4, 250, {"taps": (1, 1), "dtype": u8, "extreme": True}),
}


@pytest.mark.parametrize(
    "name", ["of three channels", "in place", "with a deep sum", "one row", "of groups"]
)
def test_weights_are_stored_unsigned(name):
    """Where the processor loads such bytes in fewer instructions."""
    shape, channels, zero, more = TILES[name]
    graph = convolution(shape, channels, zero, **more)
    program = driver.program_for(copy.deepcopy(graph), "c", cpu="cortex-m0plus")
    stored = [b.dtype for k in program.kernels.values() for b in k.params if b.name == "weights"]
    assert stored == [u8]
    check(graph, {"cpu": "cortex-m0plus"})


DENSE = {"spread_row", "dot_1x4"}
DEPTHWISE = {"pair_up", "dot2", "dot_low_high", "dot_high_low"}
PANELS = {"spread", "spread_pairs", "dot_2x2"}


@pytest.mark.parametrize("opt", ["speed", "fastest"])
@pytest.mark.parametrize("name", TILES)
def test_pairs_are_multiplied(name, opt):
    shape, channels, zero, more = TILES[name]
    graph, options = convolution(shape, channels, zero, **more), {"cpu": "cortex-m4", "opt": opt}
    program = driver.program_for(copy.deepcopy(graph), "c", **options)
    named = {s.name for k in program.kernels.values() for s in walk_stmts(k.body)
             if isinstance(s, Intrin)}  # fmt: skip
    kinds = {"depthwise": DEPTHWISE, "one": DENSE}
    expected = kinds.get(re.split("[ ,]", name)[0], PANELS)
    assert named and named <= expected | ({"dot4_wide"} if opt == "fastest" else set())
    check(graph, options)


@pytest.mark.parametrize("rows, block", [(18, 10), (20, 10), (32, 16), (36, 12)])
def test_blocks_of_rows_overlap_by_few(rows, block):
    """20 rows are two blocks of 10, not of 16."""
    graph = convolution((1, 16, rows, 1), 8, 3, taps=(1, 1))
    program = driver.program_for(copy.deepcopy(graph), "c", cpu="cortex-m4")
    held = [s.buffer for k in program.kernels.values() for s in walk_stmts(k.body)
            if isinstance(s, Alloc) and s.buffer.name == "rows"]  # fmt: skip
    assert [b.shape for b in held] == [(block * 8,)]  # words of a row: 16 elements, two in each
    check(graph, {"cpu": "cortex-m4"})


def test_size_keeps_tiles_of_four_products():
    graph = convolution((1, 6, 5, 7), 4, 0, pads=(1, 2, 1, 0))
    program = driver.program_for(graph, "c", cpu="cortex-m4", opt="size")
    named = {s.name for k in program.kernels.values() for s in walk_stmts(k.body)
             if isinstance(s, Intrin)}  # fmt: skip
    assert named == {"dot4"}


@pytest.mark.parametrize("channels, copied", [(32, True), (8, False)])
@pytest.mark.parametrize("opt", ["size"])
def test_small_images_are_copied_with_their_padding(channels, copied, opt):
    """If the copy is small next to the result: no sum then has a guard."""
    shape, zero, more = (2, 1, 13, 10), 83, {"pads": (4, 1, 5, 1), "taps": (10, 4)}
    graph, options = convolution(shape, channels, zero, **more), {"cpu": "cortex-m4", "opt": opt}
    program = driver.program_for(copy.deepcopy(graph), "c", **options)
    assert len(program.steps) == 2 + copied  # the last one lays the result out
    check(graph, options)


@pytest.mark.parametrize(
    "shape, channels, more",
    [
        ((1, 8, 8, 8), 8, {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 8, 8, 8), 8, {"dilations": (2, 2), "pads": (2, 2, 2, 2)}),
        ((1, 6, 8, 8), 8, {"pads": (1, 1, 1, 1)}),
        ((1, 8, 7, 8), 8, {"pads": (1, 1, 1, 1)}),
        ((1, 8, 8, 6), 8, {"pads": (1, 1, 1, 1)}),
        ((1, 80, 4, 4), 8, {"pads": (1, 1, 1, 1)}),
    ],
)
def test_others_are_tiles(shape, channels, more):
    graph = convolution(shape, channels, 3, **more)
    program = driver.program_for(graph, "c", **FASTEST)
    assert not any(k.name.startswith("winograd") for k in program.kernels.values())


@pytest.mark.parametrize("options", [{"cpu": "cortex-m4"}, {**FASTEST, "cpu": "cortex-m0plus"}])
def test_it_is_asked_for_and_needs_pairs(options):
    graph = convolution(*CASES["padded"][:3], **CASES["padded"][3])
    program = driver.program_for(graph, "c", **options)
    assert not any(k.name.startswith("winograd") for k in program.kernels.values())


def test_texts_of_programs_parse_back():
    shape, channels, zero, more = CASES["a residual"]
    check_program(driver.program_for(convolution(shape, channels, zero, **more), "c", **FASTEST))
