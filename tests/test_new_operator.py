"""A new operator is one definition: it then types, interprets, fuses, and runs on every target.

The definitions below are all there is to these operators, and each is a few lines.
"""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import onnx.parser
import pytest

import graphc
from graphc import dsl
from graphc.backends.c99 import emit
from graphc.driver import optimise, program_for
from graphc.errors import ModelError
from graphc.ir.compare import agreements
from graphc.ir.expr import reduce, sin, sqrt
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.opdef import Float, axes, op
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants, print_graph
from graphc.passes.specialise import specialise

DOMAIN = "test.new"
# [definitions]


@op("Snake", domain=DOMAIN)
def snake(i, x: Float, *, alpha: float = 1.0):
    """x + sin(alpha x)^2 / alpha: Ziyin, Hartwig and Ueda, Neural Networks Fail to Learn
    Periodic Functions and How to Fix It (2020)."""
    wave = sin(x[i] * alpha)
    return x[i] + wave * wave / alpha


@op("Distances", domain=DOMAIN, infer=lambda x, y: (x.shape[0], y.shape[0]))
def distances(i, x: Float, y: Float):
    """Euclidean distances of the rows of x [N, K] from the rows of y [M, K]: [N, M]."""
    (k,) = axes(x.shape[1])
    difference = x[i[0], k] - y[i[1], k]
    return sqrt(reduce("sum", difference * difference, (k,)))


# [end of definitions]
POINTS = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)


SOURCE = """<ir_version: 10, opset_import: ["" : 22, "test.new" : 1]>
g (float[N, 6] x) => (float[N, 5] z) <float half = {0.5}, float one = {1.0}> {
  scaled = Mul(x, half)
  y = test.new.Snake <alpha = 2.0> (scaled)
  moved = Add(y, half)
  d = test.new.Distances(moved, points)
  near = Sub(one, d)
  z = Relu(near)
}"""


def onnx_model() -> onnx.ModelProto:
    """A model with a producer and a consumer around each of the new operators."""
    model = onnx.parser.parse_model(SOURCE)
    model.graph.initializer.append(onnx.numpy_helper.from_array(POINTS, "points"))
    return model


def by_hand(x: np.ndarray) -> np.ndarray:
    x = x * 0.5
    y = x + np.sin(2 * x) ** 2 / 2 + 0.5
    return np.maximum(1 - np.sqrt(((y[:, None] - POINTS[None]) ** 2).sum(-1)), 0)


def typed(rows: int = 7) -> Graph:
    return specialise(graphc.import_onnx(onnx_model()), dims={"N": rows})


def close(found, x: np.ndarray) -> None:
    (agreement,) = agreements(["z"], found, [by_hand(x).astype(np.float32)])
    assert agreement.within(1e-5), agreement


X = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)


def test_each_definition_is_short():
    source = inspect.getsource(inspect.getmodule(by_hand))
    definitions = source.split("# [definitions]")[1].split("# [end")[0].split("@op")[1:]
    assert len(definitions) == 2
    for text in definitions:
        assert len([line for line in text.splitlines() if line.strip()]) < 15


def test_it_is_typed():
    graph = typed()
    snake_op, distances_op = (o for o in graph.ops if o.defn.domain == DOMAIN)
    assert str(snake_op.output.type) == "f32[7,6]" and str(distances_op.output.type) == "f32[7,5]"
    text = "graph @g(%x: i64[3]) -> ? {\n  %y = test.new.Snake(%x)\n  return %y\n}"
    with pytest.raises(ModelError, match="Snake"):
        specialise(parse_graph(text))


def test_it_prints_and_parses():
    graph = typed()
    assert "test.new.Snake" in print_graph(graph)
    assert parse_graph(print_graph(graph), graph_constants(graph)) == graph


def test_it_is_interpreted():
    close(interpret(typed(), [X]), X)


def test_it_fuses():
    """The multiplication and addition around Snake make one kernel with it; the subtraction and
    Relu after Distances another, or the same."""
    program = program_for(typed())
    assert len(program.kernels) <= 2
    graph = optimise(typed())
    groups = [{o.name for o in f.regions[0].ops} for f in graph.ops if f.name == "fused"]
    assert any({"Mul", "Snake", "Add"} <= group for group in groups)
    assert any({"Distances", "Sub", "Relu"} <= group for group in groups)


@pytest.mark.parametrize("target", ["cpu", "c"])
def test_it_runs(target):
    model = graphc.compile(onnx_model(), target, threads=1)
    for rows in (7, 1, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
        close(model.run({"x": x}), x)


def test_it_prints_as_c():
    text = emit(program_for(typed(), "plain"))
    assert "sinf(" in text and "sqrtf(" in text


def test_it_is_an_operator_of_the_builder():
    with dsl.building("g") as g:
        x = g.input("x", dsl.f32[7, 6])
        g.output(y=dsl.apply(f"{DOMAIN}.Snake", x, alpha=2.0))
    (found,) = interpret(g.graph, [X])
    np.testing.assert_allclose(found, X + np.sin(2 * X) ** 2 / 2, rtol=1e-5, atol=1e-6)
