"""Branches that give different shapes, chosen at run time: one program, against ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from differential import assert_same

import graphc
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.ir.verify.graphs import verify
from graphc.passes.specialise import specialise

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

RATES = """g (float[1,512] x, int64 rate, float[1,8] h, float[4,1,32] k, float[4,1,16] l,
           float[4,8] w) => (y, last) {
    fast = Constant<value_int = 16000>()
    is_fast = Equal(rate, fast)
    f = If(is_fast) <
        then_branch = t () => (float[1,4,31] a) {
            one = Constant<value_ints = [1]>()
            wide = Unsqueeze(x, one)
            c = Conv<strides = [16]>(wide, k)
            a = Relu(c)
        },
        else_branch = e () => (float[1,4,31] b) {
            one_ = Constant<value_ints = [1]>()
            from = Constant<value_ints = [0]>()
            to = Constant<value_ints = [256]>()
            part = Slice(x, from, to, one_)
            wide_ = Unsqueeze(part, one_)
            c_ = Conv<strides = [16]>(wide_, l)
            b = Relu(c_)
        }>
    turned = Tanh(h)
    two = Constant<value_ints = [2]>()
    m = ReduceMean<keepdims = 0>(f, two)
    g = MatMul(m, w)
    y = Add(g, turned)
    last = Neg(turned)
}"""
TWICE = """g (float[4,6] x, bool c, bool d) => (y) {
    p = If(c) <then_branch = t () => (float[2,6] a) {
                   from = Constant<value_ints = [0]>()
                   to = Constant<value_ints = [2]>()
                   a = Slice(x, from, to)
               },
               else_branch = e () => (float[4,6] b) { b = Neg(x) }>
    q = If(d) <then_branch = v () => (float[K,L] k) {
                   start = Constant<value_ints = [1]>()
                   stop = Constant<value_ints = [4]>()
                   axis = Constant<value_ints = [1]>()
                   k = Slice(p, start, stop, axis)
               },
               else_branch = u () => (float[M,N] l) { l = Exp(p) }>
    s = ReduceSum<keepdims = 0>(q)
    y = Tanh(s)
}"""
GIVEN = """g (float[4,6] x, int64 n) => (y) {
    one = Constant<value_int = 1>()
    c = Equal(n, one)
    p = If(c) <then_branch = t () => (float[2,6] a) {
                   from = Constant<value_ints = [0]>()
                   to = Constant<value_ints = [2]>()
                   a = Slice(x, from, to)
               },
               else_branch = e () => (float[4,6] b) { b = Neg(x) }>
    y = Exp(p)
}"""


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def rates() -> list[list[np.ndarray]]:
    shapes = ((1, 8), (4, 1, 32), (4, 1, 16), (4, 8))
    more = [floats(*shape) for shape in shapes]
    return [[floats(1, 512), np.array(rate), *more] for rate in (16000, 8000, 16000)]


FLAGS = [np.array(False), np.array(True)]
CASES = {
    "rates": (RATES, rates()),
    "twice": (TWICE, [[np.abs(floats(4, 6)), c, d] for c in FLAGS for d in FLAGS]),
}


def by_onnx_runtime(source: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model(source).SerializeToString())
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs)))


OPEN_RATES = (
    RATES.replace("float[1,512] x", "float[N,S] x")
    .replace("float[1,8] h", "float[N,8] h")
    .replace("float[1,4,31] a", "float[A,B,C] a")
    .replace("float[1,4,31] b", "float[D,E,F] b")
)


@pytest.mark.parametrize("target", ["cpu", "c"])
def test_one_program_has_both_at_all_sizes(target):
    compiled = graphc.compile(
        model(OPEN_RATES), target, dims={"N": (1, 8), "S": (512, 1024)}, specialise="any"
    )
    weights = [floats(4, 1, 32), floats(4, 1, 16), floats(4, 8)]
    for batch, samples in ((1, 512), (3, 601), (8, 1024)):
        for rate in (16000, 8000):
            inputs = [floats(batch, samples), np.array(rate), floats(batch, 8), *weights]
            assert_same(compiled.run(inputs), by_onnx_runtime(OPEN_RATES, inputs), 1e-5, target)
    assert [made.is_general for made in compiled.executables()] == [True]


@pytest.mark.parametrize("target", ["cpu", "c"])
@pytest.mark.parametrize("name", CASES)
def test_one_program_has_both(name, target):
    source, cases = CASES[name]
    programs: list = []
    compiled = graphc.compile(model(source), target, observe=programs.append)
    for inputs in cases:
        expected = by_onnx_runtime(source, inputs)
        assert_same(compiled.run(inputs), expected, 1e-5, target)
    assert len(programs) == 1 and not compiled.executables()[0].contents
    verify(specialise(graphc.import_onnx(model(source))))


def test_it_can_be_saved(tmp_path):
    source, cases = CASES["rates"]
    compiled = graphc.compile(model(source), threads=1)
    compiled.save(tmp_path / "rates.gcm")
    loaded = graphc.load(tmp_path / "rates.gcm")
    assert isinstance(compiled.executables()[0].run, NativeModel)
    for inputs in cases:
        assert_same(loaded.run(inputs), by_onnx_runtime(source, inputs), 1e-5, "loaded")


def test_results_of_different_shapes_are_those_of_the_branch():
    """The shape of a result depends on an input, which is specialised on."""
    compiled = graphc.compile(model(GIVEN), threads=1)
    for n in (1, 2, 1):
        inputs = [floats(4, 6), np.array(n)]
        assert_same(compiled.run(inputs), by_onnx_runtime(GIVEN, inputs), 1e-5, "compiled")


def test_many_branches_are_not_multiplied():
    """Each branch that follows would double the ops: so many are left to the host."""
    nodes = "".join(
        f"""
    p{n + 1} = If(c{n}) <
        then_branch = t{n} () => (float[A{n}] a{n}) {{ a{n} = Concat<axis = 0>(p{n}, x) }},
        else_branch = e{n} () => (float[B{n}] b{n}) {{ b{n} = Neg(p{n}) }}>"""
        for n in range(14)
    )
    flags = ", ".join(f"bool c{n}" for n in range(14))
    source = f"""g (float[2] x, {flags}) => (y) {{
    p0 = Neg(x) {nodes}
    y = ReduceSum<keepdims = 0>(p14)
}}"""
    compiled = graphc.compile(model(source), threads=1)
    inputs = [floats(2), *(np.array(n % 3 == 0) for n in range(14))]
    assert_same(compiled.run(inputs), by_onnx_runtime(source, inputs), 1e-5, "compiled")
