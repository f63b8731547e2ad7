"""State that a bundle keeps: a recurrent model run step by step, against the interpreter that is
given the state by hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import ok, refused, save

import graphc
from graphc import dsl

STEPS, INPUTS, HIDDEN = 5, 3, 4
rng = np.random.default_rng(0)
W, U, B = (
    rng.standard_normal(s).astype(np.float32) for s in ((INPUTS, HIDDEN), (HIDDEN, HIDDEN), HIDDEN)
)

MAIN = """\
#include "net.h"
#include <stdio.h>
int main(void)
{
    static net_state state;
    static double arena[NET_ARENA_SIZE / sizeof(double) + 3];
    void *const start = (void *)(((uintptr_t)arena + 15) / 16 * 16);
    float x[%(inputs)d], y[%(hidden)d];
    net_inputs in = {x};
    net_outputs out = {y};
    net_reset(&state);
    for (int step = 0; scanf("%%f %%f %%f", &x[0], &x[1], &x[2]) == 3; step++) {
        if (step == %(steps)d) {
            net_reset(&state);
        }
        const net_status status = net_run(&in, &out, &state, start);
        if (status != NET_OK) {
            return 1;
        }
        for (int n = 0; n < %(hidden)d; n++) {
            printf("%%.9g ", (double)y[n]);
        }
        printf("\\n");
    }
    return net_run(&in, &out, 0, start) == NET_NULL_POINTER ? 0 : 2;
}
"""


@dsl.graph
def cell(x: dsl.f32[1, INPUTS], h_in: dsl.f32[1, HIDDEN], c_in: dsl.f32[1, HIDDEN]):
    """Reads both parts of the state after either could have been replaced."""
    c = c_in * 0.5 + dsl.Tanh(x @ W + h_in @ U + B)
    h = dsl.Tanh(c) + h_in * 0.1 + dsl.Concat(c_in[:, 1:], c_in[:, :1], axis=1)
    return {"y": h * 2 + c_in, "h_out": h, "c_out": c}


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return save(tmp_path / "cell.onnx", graphc.export_onnx(cell))


def run(folder: str, samples: np.ndarray) -> np.ndarray:
    """What the bundle gives, sample by sample; the state starts again in the middle."""
    main = MAIN % {"inputs": INPUTS, "hidden": HIDDEN, "steps": STEPS}
    Path(folder, "main.c").write_text(main)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    sources = ["main.c", "net.c", "net_weights.c"]
    subprocess.run(["gcc", *flags, *sources, "-lm", "-o", "main"], cwd=folder, check=True)
    text = "\n".join(" ".join(map(str, row)) for row in samples)
    done = subprocess.run(["./main"], cwd=folder, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.array([line.split() for line in done.stdout.splitlines()], np.float32)


@pytest.mark.parametrize("cpu", ["generic", "cortex-m4"])
def test_a_stream(capsys, model, cpu):
    flags = ["--target", "c", "--cpu", cpu, "--name", "net", "--with-test"]
    ok(capsys, "compile", model, *flags, "--state", "h_in=h_out,c_in=c_out", "-o", "fw")
    samples = rng.standard_normal((2 * STEPS, INPUTS)).astype(np.float32)
    expected = []
    for number, x in enumerate(samples):
        if number % STEPS == 0:
            h = c = np.zeros((1, HIDDEN), np.float32)
        y, h, c = graphc.interpret(cell, [x[None], h, c])
        expected.append(y[0])
    np.testing.assert_allclose(run("fw", samples), expected, rtol=1e-4, atol=1e-5)
    header = Path("fw/net.h").read_text()
    assert f"#define NET_STATE_SIZE {8 * HIDDEN}" in header
    assert "h_in" not in header.split("net_inputs;")[0].split("typedef struct")[-1]
    assert "*h_out;" not in header and "net_reset" in Path("fw/README.md").read_text()
    sources = ["net.c", "net_weights.c", "net_test.c"]
    subprocess.run(["gcc", *sources, "-lm", "-o", "t"], cwd="fw", check=True)
    assert subprocess.run(["./t"], cwd="fw").returncode == 0


def test_one_part_of_two(capsys, model):
    flags = ["--target", "c", "--name", "net", "--state", "c_in=c_out", "-o", "fw"]
    ok(capsys, "compile", model, *flags)
    header = Path("fw/net.h").read_text()
    assert "*h_out;" in header and "*c_out;" not in header


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--state", "h_in"], "expected INPUT=OUTPUT"),
        (["--state", "hin=h_out"], "there is no input 'hin'"),
        (["--state", "h_in=hout"], "did you mean 'h_out'"),
        (["--state", "x=h_out"], "one fixed type"),
        (["--state", "h_in=h_out,c_in=h_out"], "belong to it alone"),
        (["--state", "h_in=h_out", "--io", "arena"], "goes without --io arena"),
        (["--state", "h_in=h_out", "--train", "all"], "goes without --train"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_does_not_go(capsys, model, more, told):
    assert told in refused(capsys, "compile", model, "--target", "c", *more, "-o", "fw")


def test_quantised_state_starts_at_its_zero_point(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @dsl.graph
    def summed(x: dsl.i8[1, 4], s_in: dsl.i8[1, 4]):
        scale, zero = np.float32(0.1), np.int8(-7)
        s = dsl.DequantizeLinear(s_in, scale, zero) + dsl.DequantizeLinear(x, scale, zero)
        return {"s_out": dsl.QuantizeLinear(s, scale, zero), "y": dsl.Relu(s)}

    path = save(tmp_path / "sum.onnx", graphc.export_onnx(summed))
    flags = ["--target", "c", "--name", "net", "--with-test", "--state", "s_in=s_out", "-o", "fw"]
    ok(capsys, "compile", path, *flags)
    assert f"memset(state->s_in, {-7 & 255}, sizeof" in Path("fw/net.c").read_text()
    sources = ["net.c", "net_weights.c", "net_test.c"]
    subprocess.run(["gcc", *sources, "-lm", "-o", "t"], cwd="fw", check=True)
    assert subprocess.run(["./t"], cwd="fw").returncode == 0
