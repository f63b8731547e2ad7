"""Loops and branches in compiled programs, against ONNX Runtime and the interpreter of kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from differential import assert_same, interpret_program
from programs import check_program

import graphc
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.driver import program_for, typed

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

HALVING = """g (float[4] x, float most) => (y) {
    n = Constant<value_int = 600>()
    yes = Constant<value = bool {1}>()
    y = Loop(n, yes, x) <body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t) {
        half = Constant<value = float {0.5}>()
        t = Mul(s, half)
        sum = ReduceSum<keepdims = 0>(t)
        on = Greater(sum, most)
    }>
}"""
COUNTING = """g (float[4] x) => (y, r, c) {
    n = Constant<value_int = 600>()
    y, r, c = Loop(n, , x) <
        body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t, float[4] u, int64 k) {
        on = Identity(go)
        f = Cast<to = 1>(i)
        t0 = Add(s, f)
        t = Sin(t0)
        u = Sub(t, s)
        k = Identity(i)
    }>
}"""
ASKED = """g (float[3] x, bool c) => (y) {
    n = Constant<value_int = 600>()
    y = Loop(n, c, x) <body = b (int64 i, bool go, float[3] s) => (bool on, float[3] t) {
        on = Identity(go)
        t = Cos(s)
    }>
}"""
SWAPPING = """g (float[3] x, float[3] y, float[3] z) => (a, b, c) {
    n = Constant<value_int = 601>()
    a, b, c = Loop(n, , x, y, z) <
        body = l (int64 i, bool go, float[3] p, float[3] q, float[3] r)
            => (bool on, float[3] s, float[3] t, float[3] u) {
        on = Identity(go)
        s = Identity(q)
        t = Identity(p)
        u = Identity(r)
    }>
}"""
ROTATING = """g (float[3] x, float[3] y, float[3] z) => (a, b, c) {
    n = Constant<value_int = 601>()
    a, b, c = Loop(n, , x, y, z) <
        body = l (int64 i, bool go, float[3] p, float[3] q, float[3] r)
            => (bool on, float[3] s, float[3] t, float[3] u) {
        on = Identity(go)
        s = Sin(r)
        t = Identity(p)
        u = Identity(q)
    }>
}"""
PART = """g (float[2,6] x) => (a) {
    n = Constant<value_int = 600>()
    a = Loop(n, , x) <body = l (int64 i, bool go, float[2,6] p) => (bool on, float[2,6] s) {
        on = Identity(go)
        shape = Constant<value = int64[2] {6, 2}>()
        turned = Reshape(p, shape)
        moved = Transpose(turned)
        s = Cos(moved)
    }>
}"""
NESTED = """g (float[3] x, float[3] w) => (y, r) {
    n = Constant<value_int = 30>()
    y, r = Loop(n, , x) <body = b (int64 i, bool go, float[3] s)
            => (bool on, float[3] t, float[3] v) {
        on = Identity(go)
        v = Add(s, w)
        z = Constant<value_int = 40>()
        yes = Constant<value = bool {1}>()
        t = Loop(z, yes, v) <body = c (int64 j, bool further, float[3] u)
                => (bool more, float[3] q) {
            both = Add(i, j)
            f = Cast<to = 1>(both)
            q0 = Add(u, f)
            q1 = Add(q0, s)
            q = Sin(q1)
            m = ReduceMax<keepdims = 0>(q)
            top = Constant<value = float {0.97}>()
            more = Less(m, top)
        }>
    }>
}"""
BRANCHES = """g (float[3] x, bool c) => (y, z) {
    h = Exp(x)
    y, z = If(c) <
        then_branch = t () => (float[3] a, float[3] b) { a = Sin(h)  b = Identity(x) },
        else_branch = e () => (float[3] d, float[3] f) { d = Identity(h)  f = Add(h, x) }>
}"""
BRANCH_IN_LOOP = """g (float[3] x, float[3] w) => (y, r) {
    n = Constant<value_int = 600>()
    h = Exp(w)
    y, r = Loop(n, , x) <body = b (int64 i, bool go, float[3] s)
            => (bool on, float[3] t, float[3] u) {
        on = Identity(go)
        sum = ReduceSum<keepdims = 0>(s)
        zero = Constant<value = float {0}>()
        big = Greater(sum, zero)
        t, u = If(big) <
            then_branch = t () => (float[3] a, float[3] v) { a = Sub(s, h) v = Identity(s) },
            else_branch = e () => (float[3] d, float[3] v2) { d = Add(s, w) v2 = Neg(d) }>
    }>
}"""
SCAN = """g (float[3] s, float[700,3] x, float[700] z) => (y, a, b) {
    w = Exp(s)
    y, a, b = Scan<num_scan_inputs = 2, scan_input_directions = [%d, %d],
                   scan_output_directions = [%d, %d],
                   body = l (float[3] p, float[3] row, float q)
                        => (float[3] t, float[3] u, float v) {
        t0 = Mul(p, q)
        t1 = Add(t0, row)
        t = Tanh(t1)
        u = Sub(t, w)
        v = Identity(q)
    }>(s, x, z)
}"""
ALONG = """g (float[3] z, float[3,700] a, float[2,3,700] b) => (s, u, v) {
    s, u, v = Scan<num_scan_inputs = 2, scan_input_axes = [1, -1], scan_output_axes = [1, 2],
            scan_input_directions = [0, %d], scan_output_directions = [%d, 0],
            body = l (float[3] p, float[3] row, float[2,3] pair)
                => (float[3] q, float[3] t, float[2,3] w) {
        q = Add(p, row)
        t = Mul(q, row)
        w = Sub(pair, row)
    }>(z, a, b)
}"""
MATRIX = """g (float[2,16] s, float[700,2,16] x, float[16,16] w) => (y, a) {
    y, a = Scan<num_scan_inputs = 1, body = l (float[2,16] p, float[2,16] row)
            => (float[2,16] t, float[2,16] u) {
        t0 = MatMul(p, w)
        t1 = Add(t0, row)
        t = Tanh(t1)
        u = Softmax(t)
    }>(s, x)
}"""


COUNTED = """g (float[3] x, int64 n, bool c) => (y) {
    y = Loop(n, c, x) <body = b (int64 i, bool go, float[3] s) => (bool on, float[3] t) {
        t = Cos(s)
        sum = ReduceSum<keepdims = 0>(t)
        top = Constant<value = float {2.9}>()
        on = Less(sum, top)
    }>
}"""
NESTED_COUNTS = """g (float[3] x, int64 n, int64 m) => (y) {
    y = Loop(n, , x) <body = b (int64 i, bool go, float[3] s) => (bool on, float[3] t) {
        on = Identity(go)
        v = Loop(m, , s) <body = c (int64 j, bool further, float[3] u) => (bool more, float[3] q) {
            more = Identity(further)
            q = Sin(u)
        }>
        t, r = Scan<num_scan_inputs = 1, body = l (float[3] p, float row)
                => (float[3] k, float copy) {
            k = Add(p, row)
            copy = Identity(row)
        }>(v, x)
    }>
}"""


def floats(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(np.float32)


def by_onnx_runtime(source: str, *inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model(source).SerializeToString())
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs)))


def agrees(source: str, *inputs: np.ndarray, kernels: bool = True) -> None:
    """A model is one program, which gives what ONNX Runtime gives, compiled and interpreted."""
    proto, expected = model(source), by_onnx_runtime(source, *inputs)
    compiled = graphc.compile(proto, threads=1)
    assert_same(compiled.run(list(inputs)), expected, 1e-5, "compiled")
    (executable,) = [info.run for info in compiled.executables()]
    assert isinstance(executable, NativeModel), "nothing runs on the host"
    program = program_for(typed(proto), "cpu")
    check_program(program)  # which verifies it, too
    if kernels:
        assert_same(interpret_program(program, inputs), expected, 1e-5, "interpreted")


@pytest.mark.parametrize("most", [1e-3, 1e9, -1.0])
def test_a_loop_ends_when_its_body_says_so(most):
    agrees(HALVING, np.ones(4, np.float32), np.array(most, np.float32))


def test_rows_of_a_loop_are_stacked():
    agrees(COUNTING, floats(4))


@pytest.mark.parametrize("going", [True, False])
def test_a_condition_may_be_false_at_the_start(going):
    agrees(ASKED, floats(3), np.array(going))


@pytest.mark.parametrize("source", [SWAPPING, ROTATING])
def test_carried_values_may_change_places(source):
    agrees(source, floats(3), floats(3) + 1, floats(3) + 2)


def test_views_of_carried_values():
    agrees(PART, floats(2, 6))


def test_loops_in_loops_read_what_lies_around_them():
    agrees(NESTED, floats(3), floats(3) + 1)


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken):
    agrees(BRANCHES, floats(3), np.array(taken))


def test_branches_in_loops():
    agrees(BRANCH_IN_LOOP, floats(3), floats(3) + 1)


@pytest.mark.parametrize("ways", [(0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 1, 1)])
def test_scans_walk_either_way(ways):
    agrees(SCAN % ways, floats(3), floats(700, 3), floats(700))


@pytest.mark.parametrize("ways", [(0, 0), (1, 1)])
def test_scans_along_other_axes(ways):
    agrees(ALONG % ways, floats(3), floats(3, 700), floats(2, 3, 700))


def test_products_in_a_scan():
    agrees(MATRIX, floats(2, 16), floats(700, 2, 16), floats(16, 16) / 4, kernels=False)


@pytest.mark.parametrize("going", [True, False])
@pytest.mark.parametrize("trips", [700, 1, 0, -3])
def test_trips_may_be_given_at_run_time(trips, going):
    agrees(COUNTED, floats(3), np.array(trips), np.array(going))


@pytest.mark.parametrize("outer, inner", [(9, 7), (0, 7), (9, 0)])
def test_loops_in_loops_of_so_many_trips(outer, inner):
    agrees(NESTED_COUNTS, floats(3), np.array(outer), np.array(inner))


def test_iterations_are_counted():
    compiled = graphc.compile(model(NESTED_COUNTS), threads=1, max_iterations=100)
    compiled.run([floats(3), np.array(10), np.array(9)])  # 10 * (1 + 9)
    (executable,) = [info.run for info in compiled.executables()]
    assert isinstance(executable, NativeModel)
    said = "Loop .*has not ended after 100 iterations"
    for outer, inner in ((10, 10), (11, 9), (1 << 62, 0), (1, 1 << 62)):
        with pytest.raises(graphc.ModelError, match=said):
            compiled.run([floats(3), np.array(outer), np.array(inner)])
