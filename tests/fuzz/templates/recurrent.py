"""Recurrent layers with all their options."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import is_f32, template

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}


@template(0.8)
def recurrent(g: Generator) -> None:
    x = g.pick(is_f32, (3, 3), filled=True)
    hidden, name = g.integer(1, 5), g.choice(tuple(GATES))
    direction = g.choice(("forward", "reverse", "bidirectional"))
    ways, layout = 2 if direction == "bidirectional" else 1, int(g.chance(0.2))
    batch, length = x.tensor.dims[:2] if layout else x.tensor.dims[1::-1]
    if length > 8:
        raise Decline
    g.for_onnxruntime &= not layout  # it has only layout 0
    attrs = options(g, name, ways) | {"hidden_size": hidden, "direction": direction}
    rows = GATES[name] * hidden
    weights = [
        g.constant(f32, (ways, rows, x.tensor.dims[2])),
        g.constant(f32, (ways, rows, hidden)),
    ]
    bias = g.constant(f32, (ways, 2 * rows)) if g.chance(0.5) else None
    lengths = None
    if g.chance(0.3):
        lengths = g.b.constant(g.rng.integers(1, length + 1, batch).astype(np.int32))
        g.exact.add(lengths)
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    more = [initial(g, state) for _ in range(2 if name == "LSTM" else 1)]
    if name == "LSTM" and g.chance(0.3):
        more.append(g.constant(f32, (ways, 3 * hidden)))
    g.emit(name, x, *weights, bias, lengths, *more, layout=layout,
           outputs=3 if name == "LSTM" else 2, **attrs)  # fmt: skip


def initial(g: Generator, shape: tuple[int, ...]) -> Value | None:
    return g.operand(f32, shape) if g.chance(0.4) else None


def options(g: Generator, name: str, ways: int) -> dict:
    """Attributes that are rarely there."""
    attrs: dict = {}
    if g.chance(0.2):
        attrs["clip"] = 0.75
    if g.chance(0.2):
        picked = ("Sigmoid", "Tanh", "Softsign", "HardSigmoid")  # bounded: states must not explode
        attrs["activations"] = [g.choice(picked) for _ in range(FUNCTIONS[name] * ways)]
    if name == "GRU":
        attrs["linear_before_reset"] = g.integer(0, 1)
    if name == "LSTM" and g.chance(0.2):
        attrs["input_forget"] = 1
    return attrs
