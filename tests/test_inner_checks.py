"""Indices read inside loops and branches: native code checks them, as ONNX Runtime does."""

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

LOOP = """g (float[8,4] w, int64[300] ids, float[4] z) => (y, r) {
    n = Constant<value_int = 300>()
    y, r = Loop(n, , z) <body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t, float[4] u) {
        on = Identity(go)
        id = Gather(ids, i)
        row = Gather(w, id)
        t = Add(s, row)
        u = Mul(row, row)
    }>
}"""  # noqa: E501
SCAN = """g (float[8,4] w, int64[300] ids, float[4] z) => (y, r) {
    y, r = Scan<num_scan_inputs = 1, body = b (float[4] s, int64 id) => (float[4] t, float[4] u) {
        row = Gather(w, id)
        t = Add(s, row)
        u = Mul(row, row)
    }>(z, ids)
}"""
BRANCH = """g (float[8,4] w, int64[300] ids, bool c) => (y) {
    y = If(c) <
        then_branch = t () => (float[300,4] a) { a = Gather(w, ids) },
        else_branch = e () => (float[300,4] b) {
            shape = Constant<value_ints = [300, 4]>()
            zero = Constant<value = float[1] {0.0}>()
            b = Expand(zero, shape)
        }>
}"""
NESTED = """g (float[8,4] w, int64[300] ids, float[4] z, bool c) => (y) {
    n = Constant<value_int = 300>()
    y = Loop(n, , z) <body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t) {
        on = Identity(go)
        t = If(c) <
            then_branch = p () => (float[4] a) {
                id = Gather(ids, i)
                row = Gather(w, id)
                a = Add(s, row)
            },
            else_branch = q () => (float[4] b) { b = Neg(s) }>
    }>
}"""


def operands(source: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    w, ids = rng.standard_normal((8, 4)).astype(np.float32), rng.integers(-8, 8, 300)
    more = [] if source is BRANCH else [np.zeros(4, np.float32)]
    return [w, ids, *more, *([np.array(True)] if source in (BRANCH, NESTED) else [])]


@pytest.mark.parametrize("source", [LOOP, SCAN, BRANCH, NESTED])
def test_one_program_checks_them(source):
    proto, inputs = model(source), operands(source)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [param.name for param in session.get_inputs()]
    expected = session.run(None, dict(zip(names, inputs)))
    compiled = graphc.compile(proto, threads=1)
    assert_same(compiled.run(inputs), expected, 1e-5, "compiled")
    (executable,) = [info.run for info in compiled.executables()]
    assert isinstance(executable, NativeModel), "nothing runs on the host"
    program = program_for(typed(proto), "cpu")
    check_program(program)
    assert_same(interpret_program(program, inputs), expected, 1e-5, "interpreted")
    for place, wrong in ((0, 8), (299, -9), (150, 1 << 40)):
        bad = [inputs[0], inputs[1].copy(), *inputs[2:]]
        bad[1][place] = wrong
        with pytest.raises(graphc.ModelError, match=rf"index {wrong} .*must be in -8\.\.7"):
            compiled.run(bad)
        if source in (BRANCH, NESTED):
            compiled.run([*bad[:-1], np.array(False)])  # what is not taken is not checked
    assert_same(compiled.run(inputs), expected, 1e-5, "after errors")


@pytest.mark.parametrize("source", [LOOP, NESTED])
def test_c_has_a_status(source):
    proto, inputs = model(source), operands(source)
    expected = graphc.compile(proto, threads=1).run(inputs)
    compiled = graphc.compile(proto, "c")
    assert_same(compiled.run(inputs), expected, 1e-5, "C")
    inputs[1][7] = 8
    with pytest.raises(graphc.ModelError, match="index 8 "):
        compiled.run(inputs)


def test_checks_may_be_left_out():
    inputs = operands(LOOP)
    inputs[1][7] = 8
    programs: list = []
    compiled = graphc.compile(model(LOOP), threads=1, checks="off", observe=programs.append)
    compiled.run(inputs)
    assert not programs[0].checks and len(programs) == 1
