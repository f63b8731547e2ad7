"""Shapes that data decides, in one program with what follows: against ONNX Runtime, the graph's
interpreter and the interpreter of kernels."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from differential import assert_same, interpret_program
from programs import check_program

import graphc
from graphc.backends import c99
from graphc.backends.c99.build import FLAGS
from graphc.backends.c99.emit import OUT_OF_BOUNDS
from graphc.backends.cfamily.calls import Call, pointers
from graphc.backends.cfamily.hostcc import shared_library
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.driver import program_for
from graphc.errors import InternalError
from graphc.ir.graph import clone_graph
from graphc.ir.infer import infer_op
from graphc.ir.interp import interpret
from graphc.ir.program import Count
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants
from graphc.ir.verify.graphs import verify
from graphc.ir.verify.programs import verify_program
from graphc.passes import counts
from graphc.passes.specialise import specialise

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

PLACES = "g (float[12,17] x) => (y) { y = NonZero(x) }"
SHAPE = "g (float[12,17] x) => (s, n) { y = NonZero(x) s = Shape(y) n = Size(y) }"
VALUES = """g (float[12,17] x) => (y, i) {
    i = NonZero(x)
    j = Transpose<perm = [1, 0]>(i)
    v = GatherND(x, j)
    y = Tanh(v)
}"""
ROWS = """g (float[40] x, float[40,24] w) => (y) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    g = Gather<axis = 0>(w, j)
    t = Transpose(w)
    y = MatMul(g, t)
}"""
COLUMNS = """g (float[40] x, float[6,40] w) => (y, s) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    g = Gather<axis = 1>(w, j)
    y = Softmax<axis = 1>(g)
    one = Constant<value_ints = [1]>()
    s = ReduceSum<keepdims = 0>(g, one)
}"""
TWO = """g (float[12] x, float[17] w) => (p, s) {
    i = NonZero(x)
    j = NonZero(w)
    ti = Transpose(i)
    p = Mul(ti, j)
    axis = Constant<value_ints = [0]>()
    s = ReduceSum<keepdims = 0>(p, axis)
}"""
COUNTED = """g (float[12,17] x) => (r, c, e) {
    i = NonZero(x)
    s = Shape(i)
    one = Constant<value_int = 1>()
    n = Gather(s, one)
    zero = Constant<value_int = 0>()
    r0 = Range(zero, n, one)
    r = Mul(r0, r0)
    c = ConstantOfShape<value = float[1] {3.0}>(s)
    row = Constant<value_floats = [1.5]>()
    e = Expand(row, s)
}"""
JOINED = """g (float[40] x) => (y, a) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    more = Constant<value_ints = [1, 2]>()
    k = Concat<axis = 0>(j, more)
    y = Gather(x, k)
    a = ArgMax<keepdims = 0>(y)
}"""
KEPT = """g (float[12,17] x, bool[%d] c) => (y, d) {
    d = Compress%s(x, c)
    y = Mul(d, d)
}"""
DISTINCT = """g (float[12,17] x) => (u, y, i, n, c) {
    u, i, n, c = Unique<sorted = %d%s>(x)
    y = Neg(u)
}"""
BOXES = """g (float[1,40,4] b, float[1,3,40] s) => (y, v, k) {
    most = Constant<value_ints = [9]>()
    over = Constant<value_floats = [0.4]>()
    least = Constant<value_floats = [0.3]>()
    k = NonMaxSuppression(b, s, most, over, least)
    two = Constant<value_int = 2>()
    n = Gather<axis = 1>(k, two)
    zero = Constant<value_ints = [0]>()
    all = Squeeze(b, zero)
    y = Gather<axis = 0>(all, n)
    v = GatherND(s, k)
}"""
TOPMOST = """g (float[40] x) => (y) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    v = Gather(x, j)
    k = Constant<value_ints = [2]>()
    y, at = TopK(v, k)
}"""
AGAIN = """g (float[40] x) => (y) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    v = Gather(x, j)
    limit = Constant<value_float = 0.5>()
    m = Greater(v, limit)
    k = Compress(v, m)
    y = Exp(k)
}"""
BRANCH = """g (float[40] x, bool c) => (y) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    v = Gather(x, j)
    y = If(c) <
        then_branch = t () => (float[n] a) { s = Shape(v) f = Cast<to = 1>(s) a = Add(v, f) },
        else_branch = e () => (float[m] b) { b = Neg(v) }>
}"""
STACKED = """g (float[4] x, float most) => (y, e, s) {
    n = Constant<value_int = 600>()
    yes = Constant<value = bool {1}>()
    y, r, k = Loop(n, yes, x) <
        body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t, float[4] u, int64 j) {
        half = Constant<value = float {0.5}>()
        t = Mul(s, half)
        sum = ReduceSum<keepdims = 0>(t)
        on = Greater(sum, most)
        u = Neg(t)
        j = Identity(i)
    }>
    e = Exp(r)
    zero = Constant<value_ints = [0]>()
    s = ReduceSum<keepdims = 0>(k, zero)
}"""
FEW = np.random.default_rng(1)


def sparse(kept: float, *shape: int) -> np.ndarray:
    """Normal numbers, of which a part is kept; the others are zero."""
    x = FEW.standard_normal(shape).astype(np.float32)
    return np.where(FEW.random(shape) < kept, x, np.float32(0))


PARTS = (0.3, 0.0, 1.0, 0.02, 0.9)


def boxes(part: float) -> tuple[np.ndarray, np.ndarray]:
    corner, size = FEW.random((1, 40, 2)), FEW.random((1, 40, 2))
    found = np.concatenate([corner, corner + size], axis=2).astype(np.float32)
    return found, FEW.random((1, 3, 40)).astype(np.float32) * np.float32(part > 0)


CASES = {
    "places": (PLACES, [(sparse(p, 12, 17),) for p in PARTS]),
    "shape": (SHAPE, [(sparse(p, 12, 17),) for p in PARTS]),
    "values": (VALUES, [(sparse(p, 12, 17),) for p in PARTS]),
    "rows": (ROWS, [(sparse(p, 40), sparse(1, 40, 24)) for p in PARTS]),
    "columns": (COLUMNS, [(sparse(p, 40), sparse(1, 6, 40)) for p in PARTS]),
    "two": (TWO, [(sparse(p, 12), sparse(q, 17)) for p in (0, 0.5, 1) for q in (0, 0.2, 1)]),
    "counted": (COUNTED, [(sparse(p, 12, 17),) for p in PARTS]),
    "joined": (JOINED, [(sparse(p, 40),) for p in PARTS]),
    **{
        f"kept-{n}": (KEPT % (n, f"<axis = {axis}>" if n < 204 else ""),
                      [(sparse(1, 12, 17), FEW.random(n) < p) for p in PARTS])
        for n, axis in ((12, 0), (17, 1), (204, 0), (5, -1))
    },
    **{
        f"distinct-{way}-{axis}": (DISTINCT % (way, f", axis = {axis}" if axis < 2 else ""),
                                   [(np.round(sparse(p, 12, 17) * 2),) for p in PARTS])
        for way in (0, 1) for axis in (0, 1, 2)
    },
    "stacked": (STACKED, [(np.ones(4, np.float32), np.array(most, np.float32))
                          for most in (1e-3, 1.0, 1e9, -1.0)]),
    "boxes": (BOXES, [boxes(p) for p in (1.0, 0.0)]),
}  # fmt: skip


def judged(name):
    """The inputs of a case, each with what ONNX Runtime gives for them."""
    source, cases = CASES[name]
    session = onnxruntime.InferenceSession(model(source).SerializeToString())
    names = [param.name for param in session.get_inputs()]
    for inputs in cases:
        yield inputs, session.run(None, dict(zip(names, inputs)))


@pytest.mark.parametrize("name", CASES)
def test_one_program_gives_what_onnx_runtime_does(name):
    programs: list = []
    compiled = graphc.compile(model(CASES[name][0]), threads=1, observe=programs.append)
    for inputs, expected in judged(name):
        assert_same(compiled.run(list(inputs)), expected, 1e-5, "compiled")
        (program,) = programs
        if name != "rows":  # whose products take fused operations apart
            assert_same(interpret_program(program, inputs), expected, 1e-5, "interpreted")
    (executable,) = [info.run for info in compiled.executables()]
    assert isinstance(executable, NativeModel) and executable.image.counts
    if not name.startswith("kept"):  # whose kernel has a parallel loop inside another
        check_program(program)


@pytest.mark.parametrize("name", CASES)
def test_the_graph_means_the_same(name):
    """With counts and corners it is verified, printed and read back, and interpreted."""
    proto = model(CASES[name][0])
    graph = counts.counted(specialise(graphc.import_onnx(proto), partial=True), None, print)
    verify(graph)
    text = str(graph)
    assert str(parse_graph(text, graph_constants(graph))) == text == str(clone_graph(graph))
    for inputs, expected in judged(name):
        assert_same(interpret(graph, inputs), expected, 1e-5, "interpreted")


@pytest.mark.parametrize("source", [TOPMOST, AGAIN, BRANCH])
def test_what_is_made_for_one_shape_comes_after_the_program(source):
    proto = model(source)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    programs: list = []
    compiled = graphc.compile(proto, threads=1, observe=programs.append)
    for part in (0.3, 1.0, 0.6):
        for way in (True, False) if source is BRANCH else (True,):
            inputs = [sparse(part, 40), *([np.array(way)] if source is BRANCH else [])]
            expected = session.run(None, dict(zip("xc", inputs)))
            assert_same(compiled.run(inputs), expected, 1e-5, "compiled")
    assert programs[0].counts


def test_indices_that_data_makes_are_checked():
    source = """g (float[12] x, float[5] w) => (y) {
        i = NonZero(x)
        y = Gather(w, i)
    }"""
    compiled = graphc.compile(model(source), threads=1)
    x = np.zeros(12, np.float32)
    x[4] = 1
    compiled.run([x, np.ones(5, np.float32)])
    (executable,) = [info.run for info in compiled.executables()]
    assert isinstance(executable, NativeModel)
    x[5] = 1
    with pytest.raises(graphc.ModelError, match=r"index 5 .* must be in -5\.\.4"):
        compiled.run([x, np.ones(5, np.float32)])


def test_results_are_the_callers_own():
    compiled = graphc.compile(model(VALUES), threads=1)
    first, second = sparse(0.5, 12, 17), sparse(0.5, 12, 17)
    found = [np.copy(y) for y in compiled.run([first])]
    kept = compiled.run([first])
    compiled.run([second])
    assert_same(kept, found, 0, "kept")


def test_runs_may_overlap():
    compiled = graphc.compile(model(VALUES), threads=1)
    inputs = [sparse(part / 20, 12, 17) for part in range(20)]
    expected = [[np.copy(y) for y in compiled.run([x])] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for found, wanted in zip(pool.map(lambda x: compiled.run([x]), inputs), expected):
                assert_same(found, wanted, 0, "overlapping")


def test_saved_models_cut_their_results(tmp_path):
    compiled = graphc.compile(model(VALUES), threads=1)
    inputs = [sparse(part, 12, 17) for part in PARTS]
    expected = [[np.copy(y) for y in compiled.run([x])] for x in inputs]
    compiled.save(tmp_path / "values.gcm")
    loaded = graphc.load(tmp_path / "values.gcm")
    for x, wanted in zip(inputs, expected):
        assert_same(loaded.run([x]), wanted, 0, "loaded")


def test_huge_bounds_are_left_to_the_host():
    """The outer product of two selections would have 8 TB at most, and has 9 elements here."""
    source = """g (float[1000000] x, float[1000000] w) => (p) {
        i = NonZero(x)
        j = NonZero(w)
        t = Transpose(i)
        p = Mul(t, j)
    }"""
    x = np.zeros(1000000, np.float32)
    x[[3, 5, 9]] = 1
    (found,) = graphc.compile(model(source), threads=1).run([x, x])
    assert found.tolist() == np.outer([3, 5, 9], [3, 5, 9]).tolist()


def test_rows_without_room_are_left_to_the_host():
    source = STACKED.replace("600", "9000000").replace("[4]", "[64]")
    x = np.ones(64, np.float32)
    y, e, s = graphc.compile(model(source), threads=1).run([x, np.array(20, np.float32)])
    assert e.shape == (2, 64) and s == 1 and (y == 0.25).all()


def test_room_for_rows_is_that_of_all_trips():
    graph = specialise(graphc.import_onnx(model(STACKED)), partial=True)
    text = str(counts.counted(graph, None, print))
    assert "rows=600" in text
    graph = parse_graph(text.replace("rows=600", "rows=7"))
    with pytest.raises(graphc.ModelError, match="has room for 7 rows, but 600 trips"):
        infer_op(next(op for op in graph.ops if op.regions))
    with pytest.raises(graphc.ModelError, match="600 rows do not fit"):
        program_for(parse_graph(text.replace("f32[600,4]", "f32[7,4]")), "cpu")


def test_a_size_is_used_only_once_it_is_known():
    programs: list = []
    graphc.compile(model(VALUES), threads=1, observe=programs.append).run([sparse(0.5, 12, 17)])
    (program,) = programs
    (place,) = [n for n, step in enumerate(program.steps) if isinstance(step, Count)]
    program.steps.append(program.steps.pop(place))
    with pytest.raises(InternalError, match="uses count0 before it is counted"):
        verify_program(program)


@pytest.mark.parametrize("name", CASES)
def test_plain_c_tells_counts(name):
    programs: list = []
    compiled = graphc.compile(model(CASES[name][0]), target="plain", observe=programs.append)
    for inputs, expected in judged(name):
        assert_same(compiled.run(list(inputs)), expected, 1e-5, "plain C")
    (program,) = programs
    assert program.counts


def test_plain_c_tells_the_shapes_of_outputs():
    programs: list = []
    compiled = graphc.compile(model(PLACES), target="plain", observe=programs.append)
    compiled.prepare()
    (program,) = programs
    library = ctypes.CDLL(str(shared_library({"model.c": c99.emit(program)}, FLAGS)))
    x = sparse(0.3, 12, 17)
    call = Call(program, [x], program.outputs)
    memory = np.empty(program.arena_bytes // 8 + 1, np.int64)
    given = pointers(call.inputs), pointers(call.outputs), ctypes.c_void_p(memory.ctypes.data)
    assert library.run(*given, pointers([]), None) == -1
    assert library.run(*given, pointers([]), call.sizes) == 0
    shape = (ctypes.c_int64 * 2)()
    assert library.run_output_shape_0(call.sizes, shape) == 0
    assert list(shape) == [2, np.count_nonzero(x)]
    call.sizes[0] = 12 * 17 + 1
    assert library.run_output_shape_0(call.sizes, shape) == OUT_OF_BOUNDS
