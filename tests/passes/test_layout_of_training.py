"""Layouts where weights change from run to run: those of convolutions and of their gradients."""

from __future__ import annotations

import re

import numpy as np
import pytest
from differential import build, check, program_of

from graphc import driver
from graphc.autodiff.reverse import gradients
from graphc.ir.graph import clone_graph
from graphc.ir.program import shared_places
from graphc.ir.types import Layout

LAST = Layout((0, 2, 3, 1))


def step(groups: int):
    """The updated weights of a convolution, by the gradient of the sum of squares of its result."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 24, 9, 9)).astype(np.float32)
    w = random.standard_normal((24, 24 // groups, 3, 3)).astype(np.float32)
    v = random.standard_normal((24, 24, 1, 1)).astype(np.float32)

    def function(b, x, w, v):
        first = b.Conv(b.Conv(x, v), w, pads=[1, 1, 1, 1], group=groups)
        loss = b.ReduceSumSquare(first, keepdims=0)
        one = b.constant(np.ones((), np.float32))
        (slope,) = gradients(b.region, {loss: one}, [w])
        return first, b.Sub(w, b.Mul(slope, b.constant(np.float32(1e-3))))

    return build(function, x=x, w=w, v=v)


@pytest.mark.parametrize("groups", [1, 24])
def test_convolutions_of_inputs_have_channels_last(groups):
    graph, arrays = step(groups)
    check(graph, arrays)
    assert (1, 1) in set(shared_places(program_of(clone_graph(graph))))
    typed = clone_graph(graph)
    driver.optimise(typed)
    layouts = {v.tensor.layout for op in typed.ops for v in op.outputs if v.tensor.rank == 4}
    assert LAST in layouts
    assert typed.results[1].tensor.layout is None


def test_gradients_of_weights_are_over_output_channels_and_stored_once():
    """An average moves towards a gradient and one towards its square: both read the gradient."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 24, 9, 9)).astype(np.float32)
    w = random.standard_normal((16, 24, 3, 3)).astype(np.float32)
    v = random.standard_normal((24, 24, 1, 1)).astype(np.float32)

    def function(b, x, w, v, m):
        loss = b.ReduceSumSquare(b.Conv(b.Conv(x, v), w, pads=[1, 1, 1, 1]), keepdims=0)
        (slope,) = gradients(b.region, {loss: b.constant(np.ones((), np.float32))}, [w])
        half = b.constant(np.float32(0.5))
        mean = b.Add(m, b.Mul(slope, half))
        square = b.Add(w, b.Mul(b.Mul(slope, slope), half))
        return mean, square, b.ReduceSumSquare(slope, keepdims=0)

    graph, arrays = build(function, x=x, w=w, v=v, m=np.zeros_like(w))
    check(graph, arrays)
    typed = clone_graph(graph)
    driver.optimise(typed)
    laid_out = [
        v.tensor.layout for op in typed.ops for v in op.outputs
        if v.tensor.dims == w.shape and v.tensor.layout is not None
    ]  # fmt: skip
    assert laid_out == [Layout((2, 3, 1, 0))]


def product_over_positions(shape):
    random = np.random.default_rng(0)
    a = random.standard_normal((*shape, 75)).astype(np.float32)
    c = random.standard_normal((*shape, 40)).astype(np.float32)

    def function(b, a, c):
        rows = b.Transpose(b.Reshape(a, np.array([-1, 75])), perm=[1, 0])
        return b.Relu(b.MatMul(rows, b.Reshape(c, np.array([-1, 40]))))

    return build(function, a=a, c=c)


@pytest.mark.parametrize(
    ("shape", "short"),
    [((3, 40, 30), (3, 20, 14)), ((1, 1, 2500), (1, 1, 1000)), ((7, 391, 1), (7, 117, 1))],
)
def test_long_depths_are_taken_in_blocks(shape, short):
    """Sums over so many positions that tiles take a part of them in turn; fewer positions, for
    which there is the same kernel up to numbers, are for the interpreter of kernels."""
    texts = []
    for extents, options in ((shape, {"interpreted": ()}), (short, {"machines": (64,)})):
        graph, arrays = product_over_positions(extents)
        check(graph, arrays, tolerance=1e-5, **options)
        kernels = program_of(graph).kernels.values()
        (kernel,) = [k for k in kernels if k.name.startswith("contract")]
        assert "stack" in str(kernel)
        texts.append(re.sub(r"\d+", "", str(kernel)))
    assert texts[0] == texts[1]
