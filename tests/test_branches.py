"""Branches and loop bodies that do not fit: an error where they are run, nothing where they are
not. Against ONNX Runtime, which takes it so where only actual shapes show that they do not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.ops.failing import failure
from graphc.ir.text.parser import parse_graph
from graphc.ir.verify.graphs import verify
from graphc.passes.specialise import specialise

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TRUE, FALSE = np.array(True), np.array(False)
MISFIT = 'MatMul "mm": .2, 3. times .2, 3.: 3 against 2'
IF = """g ({inputs}, float[A,B] x, float[C,D] y) => (w) {{
    {before}
    z = If(c) <then_branch = t () => (float[P,Q] a) {{ {then} }},
               else_branch = e () => (float[R,S] b) {{ {orelse} }}>
    w = Neg(z)
}}"""
MATMUL, NEG = "[mm] a = MatMul(x, y)", "b = Neg(x)"


def text(then=MATMUL, orelse=NEG, inputs="bool c", before="") -> str:
    return IF.format(then=then, orelse=orelse, inputs=inputs, before=before)


def results(source: str, *inputs: np.ndarray) -> list:
    """What ONNX Runtime and the CPU give, which must be the same."""
    made = model(source)
    (found,) = graphc.compile(made, threads=1).run(list(inputs))
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    names = [i.name for i in session.get_inputs()]
    (wanted,) = session.run(None, dict(zip(names, inputs)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    return found.tolist()


def refused(source: str, *inputs: np.ndarray, match: str = MISFIT) -> None:
    compiled = graphc.compile(model(source), threads=1)
    with pytest.raises(graphc.ModelError, match=match):
        compiled.run(list(inputs))


def test_a_branch_that_does_not_fit_may_be_there():
    assert results(text(), FALSE, X, X) == X.tolist()
    assert results(text(), TRUE, X, X.T) == (-X @ X.T).tolist()


def test_a_branch_that_does_not_fit_must_not_be_taken():
    refused(text(), TRUE, X, X)


def test_one_compiled_model_takes_both_ways():
    compiled = graphc.compile(model(text()), threads=1)
    for inputs, works in (((FALSE, X, X), True), ((TRUE, X, X), False), ((TRUE, X, X.T), True)):
        if works:
            compiled.run(list(inputs))
        else:
            with pytest.raises(graphc.ModelError, match=MISFIT):
                compiled.run(list(inputs))


@pytest.mark.parametrize("rate, works", [(8000, True), (16000, False)])
def test_a_sample_rate_that_picks_a_network(rate, works):
    """As in a published voice detector: the condition follows from a small input."""
    before = "k = Constant<value_int = 16000>() c = Equal(sr, k)"
    source = text(inputs="int64 sr", before=before)
    if works:
        assert results(source, np.array(rate), X, X) == X.tolist()
    else:
        refused(source, np.array(rate), X, X)


def test_a_condition_on_shapes():
    before = """s = Shape(x) one = Constant<value_ints = [1]>() n = Gather<axis = 0>(s, one)
                t = Shape<end = 1>(y) c = Equal(n, t)"""
    source = text(inputs="float[1] unused", before=before)
    assert results(source, np.zeros(1, np.float32), X, X) == X.tolist()
    assert results(source, np.zeros(1, np.float32), X, X.T) == (-X @ X.T).tolist()


def test_what_follows_from_a_branch_of_unknown_shape():
    """The other branch's results have no static shape either: the If runs on its own."""
    source = text(orelse="n = NonZero(x) b = Cast<to = 1>(n)")
    assert results(source, FALSE, X, X) == (-np.array(X.nonzero())).tolist()
    refused(source, TRUE, X, X)


def test_branches_of_different_ranks():
    source = text(orelse="b = Flatten<axis = 0>(x)", then="a = Unsqueeze(x, o)",
                  before="o = Constant<value_ints = [0]>()")  # fmt: skip
    assert np.shape(results(source, FALSE, X, X)) == (1, 6)
    assert np.shape(results(source, TRUE, X, X)) == (1, 2, 3)


def test_a_branch_within_a_branch():
    inner = text(inputs="bool d").split("{", 1)[1].split("w = Neg")[0]
    inner = inner.replace("z = If(c)", "b = If(d)").replace("(float[R,S] b)", "(float[R,S] u)")
    source = text(then="a = Exp(x)", orelse=inner.replace("b = Neg(x)", "u = Neg(x)"),
                  inputs="bool c, bool d")  # fmt: skip
    assert results(source, FALSE, FALSE, X, X) == X.tolist()
    results(source, TRUE, TRUE, X, X)
    refused(source, FALSE, TRUE, X, X)


LOOP = """g (int64 n, float[A,B] x, float[C,D] y) => (w) {
    z = Loop(n, , x) <body = t (int64 i, bool go, float[P,Q] s) => (bool on, float[P,Q] a) {
        on = Identity(go)
        [mm] a = MatMul(s, y)
    }>
    w = Neg(z)
}"""


def test_loops_without_trips():
    assert results(LOOP, np.array(0), X, X) == (-X).tolist()
    square = np.eye(3, dtype=np.float32) * 2
    assert results(LOOP, np.array(2), X, square) == (-4 * X).tolist()
    refused(LOOP, np.array(1), X, X)


def test_a_branch_that_does_not_fit_in_a_loop():
    source = """g (int64 n, float[A,B] x, float[C,D] y) => (w) {
        w = Loop(n, , x) <body = t (int64 i, bool go, float[P,Q] s) => (bool on, float[P,Q] r) {
            on = Identity(go)
            four = Constant<value_int = 4>()
            c = Less(four, i)
            r = If(c) <then_branch = t () => (float[G,H] a) { [mm] a = MatMul(s, y) },
                       else_branch = e () => (float[I,J] b) { b = Add(s, s) }>
        }>
    }"""
    assert results(source, np.array(5), X, X) == (32 * X).tolist()
    refused(source, np.array(6), X, X)


@pytest.mark.parametrize(
    "branch, said",
    [
        ("a = NoSuchThing(x)", "NoSuchThing .* has neither"),
        ("a = Neg<slope = 2>(x)", "has no attribute 'slope'"),
        ("a = Neg(x, x)", "takes 1 operands, found 2"),
    ],
)
def test_branches_that_cannot_be_read_are_warned_of(branch, said):
    made = model(text(then=branch))
    with pytest.warns(
        graphc.ModelWarning, match=f"then_branch of If 'z' must not be taken: .*{said}"
    ):
        compiled = graphc.compile(made, threads=1)
    assert compiled.run([FALSE, X, X])[0].tolist() == X.tolist()
    with pytest.raises(graphc.GraphcError, match=said):
        compiled.run([TRUE, X, X])
    with pytest.raises(graphc.GraphcError, match=said):
        graphc.interpret(compiled.graph, [TRUE, X, X])


def test_names_that_are_never_defined_are_wrong_wherever_they_are():
    with pytest.raises(graphc.ModelError, match="'nothing' is used but never defined"):
        graphc.compile(model(text(then="a = Neg(nothing)")))


def test_two_branches_that_do_not_fit():
    refused(text(orelse="b = Gemm(x, y)"), FALSE, X, X, match="2 against 3|3 against 2")


def test_graphs_with_such_branches_verify_and_print():
    graph = import_onnx(model(text()))
    typed = specialise(graph, {"c": (), "x": (2, 3), "y": (2, 3)})
    verify(typed)
    (branching,) = (op for op in typed.ops if op.name == "If")
    assert "MatMul" in str(failure(branching.regions[0])) and not failure(branching.regions[1])
    assert parse_graph(str(typed)) == typed
