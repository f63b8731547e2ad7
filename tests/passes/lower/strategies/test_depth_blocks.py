"""Long depths summed in blocks: every division of a depth, and errors that do not grow with it."""

import numpy as np
import pytest
from differential import build, check, floats

import graphc
from graphc.ir.expr import Index, Sym
from graphc.passes.lower.strategies.depth_blocks import STEPS, depth_blocks


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "extents, outside, piece",
    [
        ([511], None, 0),
        ([512], 0, 256),
        ([1031], 0, 256),  # a prime number: the last block is shorter
        ([64, 3, 3], 0, 16),
        ([3, 3, 64], 0, 1),
        ([2, 300], 1, 150),
        ([2, 257], 1, 256),
        ([600, 300], 1, 150),
        ([2, 255], None, 0),
        ([1, 600, 1], 1, 200),
        ([Sym("n", 1, 4000)], 0, 256),
        ([Sym("n", 1, 500)], None, 0),
        ([Sym("n", 1, 5), 400], 1, 200),
        ([400, Sym("n", 1, 5)], None, 0),  # the last is short, but not known
        ([], None, 0),
    ],
)
def test_divisions(extents, outside, piece):
    depth = [Index(f"k{n}", extent) for n, extent in enumerate(extents)]
    blocks = depth_blocks(depth)
    if outside is None:
        assert blocks is None
        return
    assert [*blocks.outside, blocks.split, *blocks.inside] == depth
    assert (len(blocks.outside), blocks.piece) == (outside, piece)
    assert np.prod([piece, *(x.count for x in blocks.inside)]) <= STEPS


@pytest.mark.parametrize("depth", [512, 513, 600, 1031])
@pytest.mark.parametrize("rows", [1, 7])
def test_products(depth, rows):
    r = np.random.default_rng(depth)
    w, c = floats(r, depth, 37), floats(r, 37)
    graph, inputs = build(
        lambda b, x: b.Tanh(b.Add(b.MatMul(x, w), c)), x=floats(r, rows, depth) / 16
    )
    check(graph, inputs, (64, 32, 16), interpreted=(64,) if rows == 1 else ())


@pytest.mark.parametrize("channels, kernel", [(64, 3), (60, 3), (600, 1), (6, 11)])
def test_convolutions(channels, kernel):
    r = np.random.default_rng(channels)
    w = floats(r, 19, channels, kernel, kernel)
    graph, inputs = build(
        lambda b, x: b.Relu(b.Conv(x, w, pads=[kernel // 2] * 4)), x=floats(r, 1, channels, 6, 7)
    )
    check(graph, inputs, (64, 16))


@pytest.mark.parametrize("depth", [512, 1031, 8192])
@pytest.mark.parametrize("rows", [1, 7])
def test_errors_do_not_grow(depth, rows):
    w = np.ones((depth, 40), np.float32)
    x = np.full((rows, depth), 0.1, np.float32)
    graph, inputs = build(lambda b, v: b.MatMul(v, w), v=x)
    check(graph, inputs, (64,))
    (result,) = graphc.compile(graph, threads=1).run([x])
    exact = depth * float(x[0, 0])
    assert np.abs(result - exact).max() < 4e-6 * exact  # one after the other: 6e-5 for 8192
