"""Recurrent layers: a kernel per step, for both directions; right in the simulator."""

import numpy as np
import pytest
from cuda_programs import (
    chosen_architectures,
    cuda_of,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.driver import program_for
from graphc.ir.interp import interpret

STEPS = 4


def layer(op: str, gates: int, hidden: int = 40, batch: int = 1, ways: int = 2, more: str = ""):
    """A recurrent layer over a few steps; `more` are attributes, `ways` its directions."""
    way = "forward" if ways == 1 else "bidirectional"
    return f"""graph @g(%x: f32[{STEPS},{batch},9], %h: f32[{ways},{batch},{hidden}]) -> (?, ?) {{
  const %w : f32[{ways},{gates * hidden},9] = random(seed=1)
  const %r : f32[{ways},{gates * hidden},{hidden}] = random(seed=2)
  const %b : f32[{ways},{2 * gates * hidden}] = random(seed=3)
  %y, %last = {op}(%x, %w, %r, %b, _, %h) {{hidden_size={hidden}, direction="{way}"{more}}}
  return %y, %last
}}"""


LENGTHS = """graph @g(%x: f32[5,3,4], %n: i32[3], %p: f32[2,90]) -> (?, ?, ?) {
  const %w : f32[2,120,4] = random(seed=1)
  const %r : f32[2,120,30] = random(seed=2)
  const %b : f32[2,240] = random(seed=3)
  %y, %h, %c = LSTM(%x, %w, %r, %b, %n, _, _, %p) {hidden_size=30, direction="bidirectional"}
  return %y, %h, %c
}"""
AFTER = ", linear_before_reset=1"
GRAPHS = {
    "lstm": layer("LSTM", 4),
    "lstm forward": layer("LSTM", 4, ways=1),
    "lstm, odd sizes": layer("LSTM", 4, hidden=33, batch=3),
    "lstm, many samples": layer("LSTM", 4, batch=20),
    "lstm, lengths and peepholes": LENGTHS,
    "gru": layer("GRU", 3),
    "gru forward": layer("GRU", 3, batch=2, ways=1),
    "gru, reset after": layer("GRU", 3, more=AFTER),
    "gru forward, reset after": layer("GRU", 3, ways=1, more=AFTER),
    "rnn": layer("RNN", 1),
    "rnn of two functions": layer("RNN", 1, more=', activations=["Sigmoid", "Tanh"]'),
}


def per_step(source: CudaSource) -> int:
    """Launches of kernels of rows."""
    return sum(step.function.startswith("rows") for step in source.steps) // STEPS


@needs_compiler
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_agrees_with_the_interpreter(name, precision):
    graph = graph_of(GRAPHS[name])
    source = emit(program_for(graph, "cuda", precision=precision))
    inputs = inputs_of(source.program)
    if name == "lstm, lengths and peepholes":
        inputs[1] = np.array([5, 0, 3], np.int32)
    for found, wanted in zip(simulate(source)(inputs), interpret(graph, inputs)):
        np.testing.assert_allclose(found, wanted, atol=1e-5 if precision == "f32" else 1e-2)


def test_launches_per_step():
    def steps(name: str, precision: str = "f32") -> int:
        return per_step(emit(program_for(graph_of(GRAPHS[name]), "cuda", precision=precision)))

    assert steps("lstm") == steps("lstm forward") == steps("lstm, odd sizes") == 1
    assert steps("lstm", "f16") == steps("lstm forward", "f16") == 1  # the state stays float32
    assert steps("gru") == steps("gru forward") == 2
    assert steps("gru, reset after") == steps("rnn") == 1
    assert steps("rnn of two functions") == 2
    small, large = (len(cuda_of(GRAPHS[n]).steps) for n in ("lstm", "lstm, many samples"))
    assert small < large


@needs_compiler
@pytest.mark.parametrize("planted", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_sample(planted):
    graph = graph_of(GRAPHS["lstm, odd sizes"])
    source = emit(program_for(graph, "cuda"))
    inputs = inputs_of(source.program)
    inputs[0][1, 2, 0] = planted
    with np.errstate(all="ignore"):
        wanted = interpret(graph, inputs)
    for found, expected in zip(simulate(source, (0,))(inputs), wanted):
        assert np.isfinite(expected[:, :, :2] if expected.ndim == 4 else expected[:, :2]).all()
        np.testing.assert_allclose(found, expected, atol=1e-5)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_them(arch):
    for name in ("lstm", "gru, reset after"):
        assert compile_cuda(cuda_of(GRAPHS[name]).text, arch, strict=True)
