"""Layouts where weights change from run to run: those of convolutions and of their gradients."""

from __future__ import annotations

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
