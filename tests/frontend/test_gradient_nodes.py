"""ONNX's Gradient: what it gives is PyTorch's, whatever it is given for the tensors it names."""

import numpy as np
import onnx
import pytest

import graphc
from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.frontend.onnx_export import export_onnx
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.ir.verify.graphs import verify
from graphc.passes.specialise import specialise

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3)).astype(np.float32)
W = RNG.standard_normal((3, 2)).astype(np.float32)
TWICE = """g (float[N,3] x, float[3,2] w) => (float[3,2] dw, float[N,3] dx)
    <float[2] b = {1.0, 2.0}, int64[1] flat = {-1}> {
    h = MatMul(x, w) c = Add(h, b) s = Shape(c) r = Reshape(c, flat) q = Reshape(r, s)
    t = Tanh(q) y = ReduceSum<keepdims = 0>(t)
    dw, unused = ai.onnx.preview.training.Gradient<xs = ["w", "x"], y = "y">(w, x)
    n = ReduceSumSquare<keepdims = 0>(dw)
    dx = ai.onnx.preview.training.Gradient<xs = ["x"], zs = ["w"], y = "n">(x, w)
}"""


def model(text):
    header = '<ir_version: 9, opset_import: ["": 20, "ai.onnx.preview.training": 1]>'
    return onnx.parser.parse_model(f"{header}\n{text}")


def test_gradients_of_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    x, w = (torch.tensor(a, requires_grad=True) for a in (X, W))
    loss = torch.tanh(x @ w + torch.tensor([1.0, 2.0])).sum()
    (slope,) = torch.autograd.grad(loss, w, create_graph=True)
    (second,) = torch.autograd.grad((slope * slope).sum(), x)
    wanted = [slope.detach().numpy(), second.numpy()]
    for found in (
        graphc.compile(model(TWICE)).run([X, W]),
        graphc.compile(model(TWICE), target="c").run([X, W]),
        interpret(import_onnx(model(TWICE)), [X, W]),
    ):
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_graphs_that_hold_it_print_verify_and_export():
    graph = import_onnx(model(TWICE))
    verify(graph)
    assert parse_graph(str(graph)) == graph
    wanted = interpret(graph, [X, W])
    made = export_onnx(specialise(graph, {"x": X.shape}))
    assert "Gradient" not in {node.op_type for node in made.graph.node}
    for one, other in zip(interpret(import_onnx(made), [X, W]), wanted):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_other_values_than_the_tensors_hold():
    text = """g (float[3] x, float[3] other) => (float[3] d) {
        y = Mul(x, x)
        d = ai.onnx.preview.training.Gradient<xs = ["x"], y = "y">(other)
    }"""
    other = np.array([1, 2, 3], np.float32)
    (found,) = graphc.compile(model(text)).run([other * 10, other])
    np.testing.assert_array_equal(found, 2 * other)


def test_what_the_tensor_does_not_depend_on_and_a_tensor_by_itself():
    text = """g (float[3] x, float[3] z) => (float[3] a, float[3] b) {
        y = Neg(x)
        a = ai.onnx.preview.training.Gradient<xs = ["z"], y = "y">(z)
        b = ai.onnx.preview.training.Gradient<xs = ["x"], y = "x">(x)
    }"""
    x = np.ones(3, np.float32)
    zeros, ones = graphc.compile(model(text)).run([x, x])
    assert not zeros.any() and (ones == 1).all()


WRONG = {
    "no value": ('Gradient<xs = ["x", "z"], y = "y">(x)', ModelError, "a value for each"),
    "no tensor": ('Gradient<xs = ["w"], y = "y">(x)', ModelError, "never defined"),
    "later": ('Gradient<xs = ["x"], y = "out">(x)', ModelError, "before it is defined"),
    "indices": ('Gradient<xs = ["i"], y = "y">(i)', ModelError, "floats by floats"),
    "shapes": ('Gradient<xs = ["x"], y = "k">(x)', UnsupportedError, "no derivative"),
}


@pytest.mark.suite("all")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(case):
    node, kind, message = WRONG[case]
    text = f"""g (float[3] x, float[3] z, int64[3] i) => (float[3] out) {{
        y = Mul(x, z) u = Gelu(x) k, n = Unique(y)
        d = ai.onnx.preview.training.{node} out = Neg(d)
    }}"""
    with pytest.raises(GraphcError, match=message) as error:
        x = np.ones(3, np.float32)
        graphc.compile(model(text)).run([x, x, np.arange(3)])
    assert isinstance(error.value, kind) and "Gradient" in str(error.value)
