"""Attention with integer products (`whole`), and the mixed form of products of weights alone."""

from __future__ import annotations

import numpy as np
import pytest
from saturation import exact_session

import graphc
from graphc import dsl
from graphc.frontend.onnx_export import export_onnx

RNG = np.random.default_rng(8)
TOKENS, HEADS, WIDTH = 6, 2, 16
EACH = WIDTH // HEADS


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def block():
    """A normalisation, attention and a residual sum."""
    with dsl.building("block") as g:
        x = g.input("x", dsl.f32[1, TOKENS, WIDTH])
        n = dsl.LayerNormalization(x, np.abs(f32(WIDTH)) + 0.5, f32(WIDTH))

        def heads(perm):
            flat = dsl.MatMul(n, f32(WIDTH, WIDTH) / 4) + f32(WIDTH)
            return dsl.Transpose(dsl.Reshape(flat, np.array([1, TOKENS, HEADS, EACH])), perm=perm)

        q, k, v = heads((0, 2, 1, 3)), heads((0, 2, 3, 1)), heads((0, 2, 1, 3))
        p = dsl.Softmax(dsl.MatMul(q, k) * np.float32(EACH**-0.5), axis=-1)
        o = dsl.Transpose(dsl.MatMul(p, v), perm=(0, 2, 1, 3))
        o = dsl.Reshape(o, np.array([1, TOKENS, WIDTH]))
        g.output(y=x + dsl.MatMul(o, f32(WIDTH, WIDTH) / 4))
    return export_onnx(g.graph), {"x": f32(16, TOKENS, WIDTH)}


def products(made):
    """How many products of two tensors are of quantised values, and how many there are."""
    producers = {name: node for node in made.graph.node for name in node.output}
    constant = {tensor.name for tensor in made.graph.initializer}
    found = [
        [producers.get(name) for name in node.input]
        for node in made.graph.node if node.op_type == "MatMul"
    ]  # fmt: skip
    both = [
        pair for pair in found
        if not any(p is not None and p.input[0] in constant for p in pair)
    ]  # fmt: skip
    integer = [p for p in both if all(x and x.op_type == "DequantizeLinear" for x in p)]
    return len(integer), len(both)


@pytest.mark.parametrize(("whole", "integer"), [(False, 0), (True, 2)])
def test_both_engines_are_near_the_float_model(block, whole, integer):
    source, data = block
    quantised = graphc.quantise(source, data, whole=whole, equalise=False)
    assert quantised.outputs["y"] > 28
    made = quantised.to_onnx()
    assert products(made) == (integer, 2)
    session, compiled = exact_session(made), graphc.compile(made)
    feeds = {"x": data["x"][:1]}
    want, found = session.run(None, feeds)[0], compiled.run(feeds)[0]
    step = 1 if whole else 1e-4  # an integer at a tie, or float rounding
    np.testing.assert_allclose(found.astype(np.float64), want, atol=step)
