"""Shapes that data decides in models of open shape, and in what follows from other such shapes: one
program for all sizes, against ONNX Runtime."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
import test_counts as counts
from differential import assert_same

import graphc
from graphc.backends.cfamily.calls import pointers
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.micro_c.host import HostModel
from graphc.driver import configured, policy, to_program
from graphc.errors import UnsupportedError
from graphc.passes.counts import count_within
from graphc.passes.general import general
from graphc.passes.specialise import pin

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

KEPT = "g (float[N,17] x, bool[%s] c) => (y, d) { d = Compress%s(x, c) y = Mul(d, d) }"
RNG = np.random.default_rng(7)


def kept(rows: int, part: float) -> list[np.ndarray]:
    return [counts.sparse(1, rows, 17), RNG.random(rows) < part]


def boxes(count: int, part: float) -> list[np.ndarray]:
    corner, size = RNG.random((1, count, 2)), RNG.random((1, count, 2))
    found = np.concatenate([corner, corner + size], axis=2).astype(np.float32)
    return [found, RNG.random((1, 3, count)).astype(np.float32) * np.float32(part > 0)]


OPEN = {
    "values": (counts.VALUES.replace("[12,17]", "[N,M]"),
               lambda n, part: [counts.sparse(part, n, n + 3)]),
    "rows": (counts.ROWS.replace("[40", "[N"),
             lambda n, part: [counts.sparse(part, n), counts.sparse(1, n, 24)]),
    "columns": (counts.COLUMNS.replace("[40]", "[N]").replace("6,40", "6,N"),
                lambda n, part: [counts.sparse(part, n), counts.sparse(1, 6, n)]),
    "compress": (KEPT % ("N", "<axis = 0>"), kept),
    "square": (KEPT.replace("17", "N") % ("N", "<axis = 0>"),
               lambda n, part: [counts.sparse(1, n, n), RNG.random(n) < part]),
    "compress-flat": (KEPT % ("M", ""),
                      lambda n, part: [counts.sparse(1, n, 17), RNG.random(n + 9) < part]),
    "again": (counts.AGAIN.replace("[40]", "[N]"), lambda n, part: [counts.sparse(part, n)]),
    "boxes": (counts.BOXES.replace("1,40,4", "1,N,4").replace("1,3,40", "1,3,N"), boxes),
}  # fmt: skip
REST = """g (float[40] x) => (y, v) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    v = Gather(x, j)
    %s
}"""
AFTER = {
    "running": "a = Constant<value_int = 0>() y = CumSum(v, a)",
    "scattered": "n = Neg(v) y = ScatterElements(x, j, n)",
    "added": 'n = Neg(v) y = ScatterElements<reduction = "add">(x, j, n)',
    "rows": "n = Neg(v) t = Transpose<perm = [1, 0]>(i) y = ScatterND(x, t, n)",
    "places": "h = Constant<value_float = 0.5>() g = Greater(v, h) y = NonZero(g)",
    "kept": "h = Constant<value_float = 0.5>() g = Greater(v, h) y = Compress(v, g)",
}


def by_onnx_runtime(proto, inputs) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs)))


@pytest.mark.parametrize("name", OPEN)
def test_one_program_for_all_sizes(name, tmp_path):
    source, draw = OPEN[name]
    proto = model(source)
    compiled = graphc.compile(proto, threads=1, specialise="any")
    cases = [draw(n, part) for n in (5, 1, 23, 40, 2) for part in (0.4, 0.0, 1.0)]
    for inputs in cases:
        assert_same(compiled.run(inputs), by_onnx_runtime(proto, inputs), 1e-5, "compiled")
    (info,) = compiled.executables()
    assert info.is_general and compiled.why_exact == ""
    assert set(info.bounds) == {"N", "M"} & set(info.bounds)
    compiled.save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm", threads=1)
    for inputs in cases:
        assert_same(loaded.run(inputs), compiled.run(inputs), 0, "loaded")


@pytest.mark.parametrize("name", OPEN)
def test_c_code_takes_sizes_and_tells_counts(name):
    source, draw = OPEN[name]
    proto = model(source)
    graph = pin(graphc.import_onnx(proto), dims={"N": (1, 24), "M": (1, 40)} if "M]" in source
                else {"N": (1, 24)})  # fmt: skip
    target, settings = configured("c", None, {})
    program = to_program(general(graph, policy(target), further=count_within), target, settings)
    assert program.sizes and program.counts
    run = HostModel(program, sanitize=True)
    for n, part in ((5, 0.4), (1, 0.0), (24, 1.0), (17, 0.3)):
        inputs = draw(n, part)
        assert_same(run(inputs), by_onnx_runtime(proto, inputs), 1e-5, "in C")


def test_outputs_in_c_take_the_most_at_the_sizes_of_the_caller():
    """They may lie next to other tensors, which are not written and not said to overlap."""
    source, draw = OPEN["square"]
    graph = pin(graphc.import_onnx(model(source)), dims={"N": (1, 24)})
    target, settings = configured("c", None, {})
    program = to_program(general(graph, policy(target), further=count_within), target, settings)
    run, rows = HostModel(program, traced=True), 5
    x, c = draw(rows, 1.0)
    memory = np.zeros((4, rows * 24), np.float32)
    memory[0, : x.size], memory[3] = x.reshape(-1), 7
    arena = np.zeros(program.arena_bytes // 8 + 8, np.int64)
    start = arena.ctypes.data + -arena.ctypes.data % 16
    sizes = (ctypes.c_int64 * 2)(rows, 0)
    status = run.entry(sizes, pointers([memory[0], c]), pointers(memory[1:3]), start)
    assert status == 0 and list(sizes) == [rows, rows]
    expected = by_onnx_runtime(model(source), [x, c])
    for found, y in zip(memory[1:3], expected):
        np.testing.assert_array_equal(found[: y.size], y.reshape(-1))
    assert (memory[3] == 7).all()


@pytest.mark.parametrize("name", AFTER)
def test_what_follows_a_count_is_in_the_program(name):
    proto = model(REST % AFTER[name])
    compiled = graphc.compile(proto, threads=1)
    for part in counts.PARTS:
        x = counts.sparse(part, 40)
        assert_same(compiled.run([x]), by_onnx_runtime(proto, [x]), 1e-5, "compiled")
    (executable,) = [info.run for info in compiled.executables()]
    assert isinstance(executable, NativeModel) and executable.image.counts


def test_tensors_that_would_be_huge_are_refused():
    source = """g (float[N] x, float[M] w) => (p) {
        i = NonZero(x)
        j = NonZero(w)
        t = Transpose(i)
        p = Mul(t, j)
    }"""
    graph = pin(graphc.import_onnx(model(source)), dims={"N": (1, 10**6), "M": (1, 10**6)})
    with pytest.raises(UnsupportedError, match="at the largest sizes"):
        general(graph, further=count_within)


def test_of_nothing_there_is_nothing_to_count():
    proto = model(REST % "r = Round(v) y, b, c, d = Unique(r)")
    compiled = graphc.compile(proto, threads=1)
    for part in (0.4, 0.0):
        x = counts.sparse(part, 40)
        assert_same(compiled.run([x]), by_onnx_runtime(proto, [x]), 1e-5, "compiled")


def test_counts_of_what_turns_out_empty():
    """All but the last of one element at most is none, so the mask is a constant."""
    text = (
        "u, a, b, c = Unique(x) zero = Constant<value_ints = [0]>() "
        "last = Constant<value_ints = [-1]>() s = Slice(u, zero, last, zero) "
        "h = Constant<value_float = 0.0>() g = Greater(s, h) y = Compress<axis = 0>(s, g) "
    )
    proto = model("g (float[1] x) => (y) { " + text + "}")
    x = np.ones(1, np.float32)
    assert graphc.compile(proto, threads=1).run([x])[0].shape == (0,)
