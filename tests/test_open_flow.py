"""Loops and branches over open sizes: one program for all of them, against ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from differential import assert_same
from open_shapes import run_at

import graphc
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.micro_c.host import HostModel
from graphc.driver import configured, policy, to_program
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.text.program_parser import parse_program
from graphc.passes.counts import count_within
from graphc.passes.general import general
from graphc.passes.specialise import pin

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(5)
BODY = """body = l (float[B,3] p, float[B,3] row) => (float[B,3] t, float[B,3] u) {
        t1 = Add(p, row)
        t = Tanh(t1)
        u = Sub(t, row)
    }"""
SCAN = f"""g (float[B,3] s, float[T,B,3] x) => (y, a) {{
    y, a = Scan<num_scan_inputs = 1, {BODY}>(s, x)
}}"""
BACK = f"""g (float[B,3] s, float[B,T,3] x) => (y, a) {{
    y, a = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
        scan_input_directions = [%d], scan_output_directions = [%d], {BODY}>(s, x)
}}"""
ROWS = """g (float[T,3] x, float[B] z) => (y, r) {
    shape = Shape(x)
    zero = Constant<value_int = 0>()
    n = Gather(shape, zero)
    y, r = Loop(n, , z) <body = b (int64 i, bool go, float[B] s)
            => (bool on, float[B] t, float[B] u) {
        on = Identity(go)
        row = Gather(x, i)
        m = ReduceSum<keepdims = 0>(row)
        t0 = Add(s, m)
        t = Sin(t0)
        u = Sub(t, s)
    }>
}"""
FIXED = """g (float[B,T] x) => (y, r) {
    n = Constant<value_int = 600>()
    y, r = Loop(n, , x) <body = b (int64 i, bool go, float[B,T] s)
            => (bool on, float[B,T] t, float[B] u) {
        on = Identity(go)
        shape = Shape(s)
        one = Constant<value_int = 1>()
        width = Gather(shape, one)
        f = Cast<to = 1>(width)
        t0 = Div(s, f)
        t = Cos(t0)
        axis = Constant<value_ints = [1]>()
        u = ReduceSum<keepdims = 0>(t, axis)
    }>
}"""
ASKING = """g (float[B] x, float most) => (y) {
    n = Constant<value_int = 600>()
    yes = Constant<value = bool {1}>()
    y = Loop(n, yes, x) <body = b (int64 i, bool go, float[B] s) => (bool on, float[B] t) {
        half = Constant<value = float {0.5}>()
        t = Mul(s, half)
        sum = ReduceSum<keepdims = 0>(t)
        on = Greater(sum, most)
    }>
}"""
NESTED = """g (float[T,B] x, float[B] z) => (y, r) {
    y, r = Scan<num_scan_inputs = 1, body = l (float[B] p, float[B] row)
            => (float[B] t, float[B] v) {
        shape = Shape(x)
        zero = Constant<value_int = 0>()
        n = Gather(shape, zero)
        t = Loop(n, , p) <body = c (int64 j, bool go, float[B] u) => (bool on, float[B] q) {
            on = Identity(go)
            other = Gather(x, j)
            w = Mul(other, row)
            q0 = Add(u, w)
            q = Sin(q0)
        }>
        v = Add(t, z)
    }>(z, x)
}"""
SWAPPING = """g (float[B] x, float[B] y) => (a, b) {
    n = Constant<value_int = 601>()
    a, b = Loop(n, , x, y) <body = l (int64 i, bool go, float[B] p, float[B] q)
            => (bool on, float[B] s, float[B] t) {
        on = Identity(go)
        s = Identity(q)
        t = Sin(p)
    }>
}"""
BRANCHES = """g (float[B,T] x, bool c) => (y, z) {
    h = Exp(x)
    y, z = If(c) <
        then_branch = t () => (a, b) { a = Sin(h) b = Transpose(x) },
        else_branch = e () => (d, f) { d = Identity(h) f0 = Add(h, x) f = Transpose(f0) }>
}"""
BRANCH_INSIDE = """g (float[B,3] s, float[T,B,3] x) => (y, a) {
    y, a = Scan<num_scan_inputs = 1, body = l (float[B,3] p, float[B,3] row)
            => (float[B,3] t, float[B,3] u) {
        sum = ReduceSum<keepdims = 0>(p)
        zero = Constant<value = float {0}>()
        big = Greater(sum, zero)
        t = If(big) <then_branch = t () => (v) { v = Sub(row, p) },
                     else_branch = e () => (w) { w1 = Add(row, p) w = Cos(w1) }>
        u = Neg(t)
    }>(s, x)
}"""


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def scanned(t: int, b: int) -> list[np.ndarray]:
    return [floats(b, 3), floats(t, b, 3)]


def along(t: int, b: int) -> list[np.ndarray]:
    return [floats(b, 3), floats(b, t, 3)]


CASES = {
    "scan": (SCAN, scanned),
    "along": (BACK % (0, 0), along),
    "read-back": (BACK % (1, 0), along),
    "written-back": (BACK % (0, 1), along),
    "both-back": (BACK % (1, 1), along),
    "rows": (ROWS, lambda t, b: [floats(t, 3), floats(b)]),
    "fixed": (FIXED, lambda t, b: [floats(b, t)]),
    "asking": (ASKING, lambda t, b: [np.abs(floats(b)), np.array(0.01 * t, np.float32)]),
    "nested": (NESTED, lambda t, b: [floats(t, b), floats(b)]),
    "swapping": (SWAPPING, lambda t, b: [floats(b), floats(b)]),
    "branches": (BRANCHES, lambda t, b: [floats(b, t), np.array(t % 2 == 0)]),
    "branch-inside": (BRANCH_INSIDE, scanned),
}
BOUNDS = {"T": (1, 40), "B": (1, 9)}
SIZES = [(1, 1), (5, 3), (2, 9), (40, 1), (40, 9), (7, 8)]


def by_onnx_runtime(proto, inputs) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs)))


def opened(proto, bounds, target="cpu"):
    aim, settings = configured(target, None, {})
    graph = pin(import_onnx(proto), dims=bounds)
    return to_program(general(graph, policy(aim), further=count_within), aim, settings)


def bounds_of(source: str) -> dict[str, tuple[int, int]]:
    head = source.split("=>")[0]
    return {name: b for name, b in BOUNDS.items() if f"[{name}" in head or f",{name}" in head}


@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_sizes(name, tmp_path):
    source, draw = CASES[name]
    proto = model(source)
    bounds = bounds_of(source)
    compiled = graphc.compile(proto, specialise="any", dims=bounds)
    compiled.save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm")
    for sizes in SIZES:
        inputs = draw(*sizes)
        found = compiled.run(inputs)
        assert_same(found, by_onnx_runtime(proto, inputs), 1e-4, f"{name} at {sizes}")
        assert_same(loaded.run(inputs), found, 0, "loaded")
    (made,) = compiled.executables()
    assert made.bounds == bounds


@pytest.mark.parametrize("name", CASES)
def test_c_code(name):
    source, draw = CASES[name]
    proto = model(source)
    run = HostModel(opened(proto, bounds_of(source), "c"), sanitize=True)
    for sizes in SIZES:
        inputs = draw(*sizes)
        assert_same(run(inputs), by_onnx_runtime(proto, inputs), 1e-4, f"{name} at {sizes}")


@pytest.mark.parametrize("name", CASES)
def test_text_and_interpreter(name):
    source, draw = CASES[name]
    proto = model(source)
    program = opened(proto, bounds_of(source))
    again = parse_program(str(program))
    assert str(again) == str(program)
    for sizes in ((1, 1), (4, 2)):
        inputs = draw(*sizes)
        assert_same(run_at(again, inputs), by_onnx_runtime(proto, inputs), 1e-4, name)


STACKING = """g (float[N] z, int64 n%s) => (y, b) {
    top = Constant<value_int = 50>()
    m = Min(n, top)
    y, a = Loop(m, %s, z) <body = b (int64 i, bool go, float[N] s)
            => (bool on, float[N] t, float[N] u) {
        f = Cast<to = 1>(i)
        on = %s
        t0 = Add(s, f)
        t = Sin(t0)
        u = Sub(t, s)
    }>
    b = Exp(a)
}"""
RUN_TIME = {
    "trips": STACKING % ("", "", "Identity(go)"),
    "trips-and-condition": STACKING % (", bool c", "c", "Identity(go)"),
    "ended": STACKING % (", float most", "", "Less(f, most)"),
}
GIVEN = {"trips": [], "trips-and-condition": [np.array(True)], "ended": [np.array(3, np.float32)]}


@pytest.mark.parametrize("size", ["N", "3"])
@pytest.mark.parametrize("name", RUN_TIME)
def test_trips_that_data_decides(name, size):
    """Trips of which a bound is known: the rows are a size that data decides."""
    proto = model(RUN_TIME[name].replace("N", size))
    compiled = graphc.compile(proto, specialise="any", dims={"N": (1, 9)} if size == "N" else None)
    for trips, extent in ((4, 3), (1, 9), (77, 2), (50, 1)):
        inputs = [floats(extent if size == "N" else 3), np.array(trips), *GIVEN[name]]
        assert_same(compiled.run(inputs), by_onnx_runtime(proto, inputs), 1e-4, name)
    state = floats(3)
    for trips in (0, -4):
        last, rows = compiled.run([state, np.array(trips), *GIVEN[name]])
        assert np.array_equal(last, state) and rows.shape == (0, 3)
    (made,) = compiled.executables()
    assert isinstance(made.run, NativeModel) and made.run.image.counts


def test_rows_up_to_a_size():
    """A body that ends a loop over the rows of an input: there are no more rows than these."""
    source = """g (float[B] z, float[T] x, float most) => (y, b) {
        n = Size(x)
        yes = Constant<value = bool {1}>()
        y, a = Loop(n, yes, z) <body = b (int64 i, bool go, float[B] s)
                => (bool on, float[B] t, float[B] u) {
            f = Cast<to = 1>(i)
            on = Less(f, most)
            t0 = Add(s, f)
            t = Sin(t0)
            u = Sub(t, s)
        }>
        b = Exp(a)
    }"""
    proto = model(source)
    compiled = graphc.compile(proto, specialise="any", dims=BOUNDS)
    program = opened(proto, BOUNDS)
    assert str(parse_program(str(program))) == str(program)
    in_c = HostModel(opened(proto, BOUNDS, "c"), sanitize=True)
    for b, t, most in ((4, 5, 3), (1, 9, 2), (2, 30, 50), (9, 1, 0)):
        inputs = [floats(b), floats(t), np.array(most, np.float32)]
        expected = by_onnx_runtime(proto, inputs)
        assert_same(compiled.run(inputs), expected, 1e-4, "compiled")
        assert_same(in_c(inputs), expected, 1e-4, "in C")
    (made,) = compiled.executables()
    assert made.bounds == BOUNDS and made.run.image.counts


def test_no_trips():
    """A Scan of no rows gives the state as it was, and no rows."""
    compiled = graphc.compile(model(SCAN), specialise="any", dims={"T": (0, 9), "B": (1, 9)})
    state = floats(2, 3)
    last, rows = compiled.run([state, floats(0, 2, 3)])
    assert np.array_equal(last, state) and rows.shape == (0, 2, 3)
    assert len(compiled.run([state, floats(9, 2, 3)])[1]) == 9
    assert [made.bounds["T"] for made in compiled.executables()] == [(0, 9)]


def test_state_that_grows_is_told():
    source = """g (float[N] x, float[T] z) => (y) {
        n = Size(z)
        y = Loop(n, , x) <body = b (int64 i, bool go, float[M] s) => (bool on, float[K] t) {
            on = Identity(go)
            one = Constant<value_floats = [1.0]>()
            t = Concat<axis = 0>(s, one)
        }>
    }"""
    compiled = graphc.compile(model(source), specialise="any", dims={"N": (1, 9), "T": (1, 9)})
    (found,) = compiled.run([floats(3), floats(2)])
    assert found.shape == (5,)
    made = compiled.executables()[0]
    assert "a loop-carried value changes its type" in made.why


def by_data(source: str) -> str:
    """The source after an op whose rows data decides."""
    kept = "g (float[12,3] x0, bool[12] c, float[3] s) => (y, a) { x = Compress<axis = 0>(x0, c)"
    return kept + source.partition("{")[2].replace("B,3", "3")


COUNTED = {
    "scan": by_data(SCAN),
    "back": by_data(SCAN.replace("inputs = 1,", "inputs = 1, scan_input_directions = [1],")),
    "loop": by_data(ROWS.replace("z)", "s)").replace("float[B]", "float[3]")
                    .replace("y, r =", "y, a =").replace("ReduceSum<keepdims = 0>", "Cos")),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_over_rows_that_data_decides(name):
    proto = model(COUNTED[name])
    compiled = graphc.compile(proto)
    for part in (0.5, 1.0, 0.2):
        kept = RNG.random(12) < part
        kept[3] = True  # as ONNX Runtime takes no Scan without rows
        inputs = [floats(12, 3), kept, floats(3)]
        assert_same(compiled.run(inputs), by_onnx_runtime(proto, inputs), 1e-4, name)
    last, rows = compiled.run([floats(12, 3), np.zeros(12, bool), state := floats(3)])
    assert np.array_equal(last, state) and rows.shape == (0, 3)
    (made,) = compiled.executables()
    assert isinstance(made.run, NativeModel) and made.run.image.counts
