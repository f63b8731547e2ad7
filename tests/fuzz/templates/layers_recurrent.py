"""Recurrent layers with hidden states as large as those of models, alone and stacked."""

from __future__ import annotations

import numpy as np
from generator import Generator

from graphc.ir.dtypes import f32, i32
from graphc.ir.graph import Value
from templates.recurrent import GATES, options
from templates.table import template

FAMILY = "recurrent"


def layer(g: Generator, name: str, x: Value, direction: str, hidden: int, layout: int) -> tuple:
    ways = 2 if direction == "bidirectional" else 1
    batch, length = x.tensor.dims[:2] if layout else x.tensor.dims[1::-1]
    rows = GATES[name] * hidden
    weights = [g.weights(ways, rows, x.tensor.dims[2]), g.weights(ways, rows, hidden)]
    bias = g.weights(ways, 2 * rows) if g.chance(0.6) else None
    lengths = None
    if g.chance(0.3):
        lengths = g.input(i32, (batch,))
        g.inputs[-1] = g.rng.integers(0, length + 1, batch).astype(np.int32)
        g.pool.remove(lengths)
        g.for_onnxruntime &= bool((g.inputs[-1] > 0).all())  # of no steps it keeps no state
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    more: list = [
        g.data(*state) if g.chance(0.4) else None for _ in range(2 if name == "LSTM" else 1)
    ]
    if name == "LSTM" and g.chance(0.25):
        more.append(g.weights(ways, 3 * hidden))
    attrs = options(g, name, ways) if g.chance(0.6) else {}
    outputs = 3 if name == "LSTM" else 2
    return g.emit(name, x, *weights, bias, lengths, *more, layout=layout, outputs=outputs,
                  hidden_size=hidden, direction=direction, **attrs)  # fmt: skip


@template(3, family=FAMILY)
def recurrent(g: Generator) -> None:
    name, layout = g.choice(("LSTM", "LSTM", "GRU", "RNN")), int(g.chance(0.2))
    g.for_onnxruntime &= not layout  # it has only layout 0
    direction = g.choice(("forward", "reverse", "bidirectional"))
    hidden = g.choice((1, 3, 8, 16, 17, 31, 32, 33, 64, 65, 100))
    batch, length = g.choice((1, 1, 1, 2, 3, 4, 5, 9, 33)), g.choice((1, 2, 3, 5))
    dims = (batch, length) if layout else (length, batch)
    x = g.data(*dims, g.choice((1, 3, 8, 16, 31, 33, 64)))
    layer(g, name, x, direction, hidden, layout)


@template(1, family=FAMILY)
def stacked(g: Generator) -> None:
    """Two layers; what the first gives is brought together as exporters do it."""
    name, direction = g.choice(("LSTM", "GRU")), g.choice(("forward", "bidirectional"))
    hidden = g.choice((4, 16, 33))
    x = g.data(g.integer(1, 4), g.choice((1, 2, 5)), g.choice((3, 16)))
    y = layer(g, name, x, direction, hidden, 0)[0]
    length, ways, batch, _ = y.tensor.dims
    y = g.emit("Transpose", y, perm=[0, 2, 1, 3])
    y = g.emit("Reshape", y, np.array([length, batch, ways * hidden], np.int64))
    y = layer(g, name, y, "forward", hidden, 0)[0]
    y = g.emit("Squeeze", y, np.array([1], np.int64))
    g.emit("MatMul", y, g.constant(f32, (hidden, g.choice((1, 5, 17)))))
