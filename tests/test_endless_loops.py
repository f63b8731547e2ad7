"""Loops that would not end: after max_iterations they are an error, and Ctrl-C ends them before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import ok, refused, save

import graphc
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.ops import control

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

MOST = (1 << 63) - 1
ENDLESS = """g (float[2] x) => (y) {
    n = Constant<value_int = %d>()
    y = Loop(n, , x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] t) {
        on = Identity(go)
        t = Neg(s)
    }>
}"""
CONDITION = """g (float[2] x, bool c) => (y) {
    y = Loop(, c, x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] t) {
        on = Identity(go)
        t = Neg(s)
    }>
}"""
NESTED = """g (float[2] x, int64 n) => (y) {
    y = Loop(n, , x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] t) {
        on = Identity(go)
        t = Loop(n, , s) <body = c (int64 j, bool further, float[2] u) => (bool more, float[2] v) {
            more = Identity(further)
            v = Neg(u)
        }>
    }>
}"""
EMPTY_ROWS = """g (float[N,0] x, float z) => (y) {
    y, r = Scan<num_scan_inputs = 1, body = b (float s, float[0] row) => (float t, float q) {
        t = Sqrt(s)
        q = Neg(s)
    }>(z, x)
}"""
X = np.ones(2, np.float32)


def runs(source: str, *inputs, **options) -> list:
    return graphc.compile(model(source), threads=1, **options).run(list(inputs))


@pytest.mark.parametrize(
    "source, inputs",
    [
        (ENDLESS % MOST, (X,)),
        (CONDITION, (X, np.array(True))),
        (NESTED, (X, np.array(1 << 40))),
        (NESTED, (X, np.array(60))),  # each is short
        (EMPTY_ROWS, (np.zeros((1 << 40, 0), np.float32), np.float32(2))),
    ],
)
def test_loops_end_in_an_error(source, inputs):
    said = "(Loop|Scan) .*has not ended after 2000 iterations.* max_iterations .--max-iterations."
    with pytest.raises(graphc.ModelError, match=said):
        runs(source, *inputs, max_iterations=2000)
    with control.at_most(2000), pytest.raises(graphc.ModelError, match=said):
        graphc.interpret(import_onnx(model(source)), inputs)


def test_loops_that_are_long_enough():
    source = ENDLESS.replace("n = Constant<value_int = %d>()", "").replace("x)", "x, int64 n)", 1)
    compiled = graphc.compile(model(source), threads=1, max_iterations=3000)
    for _ in range(2):  # each run counts anew
        assert compiled.run([X, np.array(2999)])[0].tolist() == [-1, -1]
    with pytest.raises(graphc.ModelError, match="3000 iterations"):
        compiled.run([X, np.array(3001)])
    assert compiled.run([X, np.array(3000)])[0].tolist() == [1, 1]


def test_the_option_is_a_positive_number():
    for wrong in (0, -1, "many", 1.5):
        with pytest.raises(graphc.ModelError, match="max_iterations must be a positive integer"):
            graphc.compile(model(ENDLESS % 1), max_iterations=wrong)


def test_on_the_command_line(capsys, tmp_path):
    path = save(tmp_path / "m.onnx", model(ENDLESS % 900))
    for target in ("cpu", "interpreter"):
        options = ("run", path, "--target", target, "--max-iterations")
        assert "--max-iterations" in refused(capsys, *options, "899")
        ok(capsys, *options, "900")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_ends_a_command(tmp_path):
    path = save(tmp_path / "m.onnx", model(ENDLESS % MOST))
    command = [sys.executable, "-m", "graphc", "run", path, "--max-iterations", str(MOST)]
    where = {**os.environ, "PYTHONPATH": str(Path(graphc.__file__).parents[1])}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=where,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(6)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130 and told.strip().splitlines() == ["graphc: interrupted"]


def test_an_interrupt_ends_a_run_and_nothing_else():
    compiled = graphc.compile(model(NESTED), threads=1, max_iterations=MOST)
    assert compiled.run([X, np.array(3)])[0].tolist() == [-1, -1]
    threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled.run([X, np.array(1 << 40)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert compiled.run([X, np.array(3)])[0].tolist() == [-1, -1]
