"""Recurrent layers in pieces give what those give whose steps are written out."""

from __future__ import annotations

import numpy as np
import pytest
from every_target import agree_everywhere
from single_op import run_op

from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.ops import long_recurrent
from graphc.ir.types import type_of
from graphc.passes.specialise import specialise

rng = np.random.default_rng(5)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
BATCH, FEATURES, HIDDEN = 3, 2, 4


@pytest.fixture
def short_pieces(monkeypatch):
    monkeypatch.setattr(long_recurrent, "MOST_STEPS", 12)
    monkeypatch.setattr(long_recurrent, "PIECE", 5)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def operands(name: str, steps: int, ways: int, layout: int) -> list[np.ndarray]:
    """All that the operator takes."""
    rows = GATES[name] * HIDDEN
    x = floats(BATCH, steps, FEATURES) if layout else floats(steps, BATCH, FEATURES)
    state = (BATCH, ways, HIDDEN) if layout else (ways, BATCH, HIDDEN)
    found = [
        x, floats(ways, rows, FEATURES), floats(ways, rows, HIDDEN), floats(ways, 2 * rows),
        np.array([steps, 7, 0], np.int32), floats(*state),
    ]  # fmt: skip
    return [*found, floats(*state), floats(ways, 3 * HIDDEN)] if name == "LSTM" else found


CASES = {
    "LSTM": {"input_forget": 1},
    "GRU": {"linear_before_reset": 1, "clip": 0.8},
    "RNN": {"activations": ("LeakyRelu",), "activation_alpha": (0.3,)},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("steps, layout", [(15, 0), (18, 1)])
def test_pieces(name, direction, steps, layout, monkeypatch):
    ways = 2 if direction == "bidirectional" else 1
    attrs = {**CASES[name], "direction": direction, "layout": layout, "hidden_size": HIDDEN}
    if name == "RNN" and ways == 2:
        attrs |= {"activations": ("LeakyRelu", "Affine"), "activation_alpha": (0.3, 0.7)}
    given = operands(name, steps, ways, layout)
    outputs = 3 if name == "LSTM" else 2
    expected = run_op(name, *given, outputs=outputs, **attrs)
    monkeypatch.setattr(long_recurrent, "MOST_STEPS", 12)
    monkeypatch.setattr(long_recurrent, "PIECE", 5)
    for found, wanted in zip(run_op(name, *given, outputs=outputs, **attrs), expected):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    few = [*given[:3], None]  # no biases, nor what comes after them
    single = run_op(name, *few, outputs=outputs, **attrs)
    monkeypatch.undo()
    for found, wanted in zip(single, run_op(name, *few, outputs=outputs, **attrs)):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def long_lstm(steps: int) -> tuple[Graph, list[np.ndarray]]:
    x, w, r = operands("LSTM", steps, 1, 0)[:3]
    graph = new_graph(x=type_of(x))
    graph.set_results(list(Builder(graph).LSTM(*graph.params, w, r, outputs=2, hidden_size=HIDDEN)))
    graph.output_names = ["y", "h"]
    return graph, [x]


@pytest.mark.suite
def test_long_sequences_stay_loops(short_pieces):
    graph, inputs = long_lstm(203)
    typed = specialise(clone_graph(graph))
    assert [op.name for op in typed.ops if op.regions] == ["Scan"]
    expected = interpret(graph, inputs)
    graph.phase = "typed"
    agree_everywhere(graph, inputs, expected)


def test_layers_in_loops_count_as_their_steps(short_pieces):
    """Pieces are not written out one after the other instead, however few they are."""
    assert long_recurrent.holds_loop(long_lstm(13)[0].ops[-1])
    assert not long_recurrent.holds_loop(long_lstm(12)[0].ops[-1])
    assert long_recurrent.written_out(long_lstm(12)[0].ops[-1]) == 12
