"""Rules for the sums that gradients are."""

from __future__ import annotations

import numpy as np
from differential import build, check, floats

from graphc import driver
from graphc.autodiff.reverse import gradients
from graphc.ir.graph import clone_graph
from graphc.ir.infer import op_body
from graphc.passes.analysis import structure


def test_the_gradient_of_a_transposed_table_is_computed_in_its_order():
    rng = np.random.default_rng(0)

    def function(b, x, table):
        scores = b.MatMul(x, b.Transpose(table, perm=[1, 0]))
        loss = b.ReduceSumSquare(scores, keepdims=0)
        (slope,) = gradients(b.region, {loss: b.constant(np.ones((), np.float32))}, [table])
        return b.Sub(table, slope)

    graph, arrays = build(function, x=floats(rng, 6, 8), table=floats(rng, 20, 8))
    check(graph, arrays)
    typed = clone_graph(graph)
    driver.optimise(typed, passes=driver.OPTIMISING.replace(", layout, fuse", ""))
    sums = [op for op in typed.ops if structure.has_body(op) and structure.is_contraction(op)]
    assert [op.output.tensor.dims for op in sums] == [(6, 20), (20, 8)]
    assert all(op_body(op) is not None for op in sums)
