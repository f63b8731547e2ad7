"""Recurrent layers: PyTorch's in float64, whose gates are in another order, and numpy."""

from __future__ import annotations

import numpy as np
import torch
from by_torch import array, tensor
from judge import BETWEEN, WIDE, Case
from operands import normal
from scipy.special import expit

ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # PyTorch's gates among ONNX's
KIND = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}

CLOSE = {"roundings": 16.0, "terms": 1.0, "narrow": 2 * BETWEEN}


def by_layer(name: str):
    """Y and the last states of a layer, all steps of every sample."""
    gates = len(ORDER[name])

    def reference(x, w, r, b=None, lengths=None, h=None, c=None, *, direction="forward"):
        hidden, ways = r.shape[-1], w.shape[0]
        layer = KIND[name](x.shape[2], hidden, bidirectional=ways == 2).double()
        b = np.zeros((ways, 2 * gates * hidden)) if b is None else b
        for way, suffix in enumerate(("", "_reverse")[:ways]):
            halves = b[way, : gates * hidden], b[way, gates * hidden :]
            for kind, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
                                   (w[way], r[way], *halves)):  # fmt: skip
                parts = value.reshape(gates, hidden, *value.shape[1:])[list(ORDER[name])]
                getattr(layer, f"{kind}_l0{suffix}").data = tensor(parts.reshape(value.shape))
        states = [np.zeros((ways, x.shape[1], hidden)) if s is None else s for s in (h, c)]
        given = tuple(map(tensor, states)) if name == "LSTM" else tensor(states[0])
        flipped = x[::-1] if direction == "reverse" else x
        with torch.no_grad():
            y, last = layer(tensor(flipped), given)
        y = array(y).reshape(*x.shape[:2], ways, hidden).transpose(0, 2, 1, 3)
        y = y[::-1] if direction == "reverse" else y
        return (y, *map(array, last if name == "LSTM" else [last]))

    return reference


def by_sample(name: str):
    """Samples of different lengths, one at a time; what comes after them is 0."""
    run = by_layer(name)

    def reference(x, w, r, b, lengths, *rest, direction="forward"):
        y = np.zeros((x.shape[0], w.shape[0], x.shape[1], r.shape[-1]))
        last = []
        for n, length in enumerate(lengths):
            states = [s[:, n : n + 1] for s in rest]
            own = run(x[:length, n : n + 1], w, r, b, None, *states, direction=direction)
            y[:length, :, n : n + 1] = own[0]
            last.append(own[1:])
        return (y, *(np.concatenate(s, 1) for s in zip(*last)))

    return reference


def gru_reset_first(x, w, r, b, *, hidden_size):
    """The hidden gate of linear_before_reset=0: U (reset * h) instead of reset * (U h)."""
    n, (wz, wr, wh), (rz, rr, rh) = hidden_size, np.split(w[0], 3), np.split(r[0], 3)
    input_bias, state_bias = np.split(b[0, : 3 * n], 3), np.split(b[0, 3 * n :], 3)
    h, steps = np.zeros((x.shape[1], n)), []
    for step in x:
        z = expit(step @ wz.T + h @ rz.T + input_bias[0] + state_bias[0])
        reset = expit(step @ wr.T + h @ rr.T + input_bias[1] + state_bias[1])
        new = np.tanh(step @ wh.T + (reset * h) @ rh.T + input_bias[2] + state_bias[2])
        h = (1 - z) * new + z * h
        steps.append(h)
    return np.stack(steps)[:, None], h[None]


def lstm_peephole(x, w, r, b, lengths, h, c, p, *, clip):
    """Cells that gates look at, in order i, o, f; every gate's argument is clipped."""
    hidden, (pi, po, pf) = r.shape[-1], np.split(p[0], 3)
    h, c, steps = h[0], c[0], []

    def near(v):
        return np.clip(v, -clip, clip)

    for step in x:
        total = step @ w[0].T + h @ r[0].T + b[0, : 4 * hidden] + b[0, 4 * hidden :]
        i, o, f, g = np.split(total, 4, 1)
        c = expit(near(f + pf * c)) * c + expit(near(i + pi * c)) * np.tanh(near(g))
        h = expit(near(o + po * c)) * np.tanh(c)
        steps.append(h)
    return np.stack(steps)[:, None], h[None], c[None]


def layer(name: str, ways: int, how: str, reference, lengths=None, **attrs) -> Case:
    gates, hidden, batch, steps, width = len(ORDER[name]), 4, 3, 5, 6
    inputs = [
        normal(steps, batch, width), normal(ways, gates * hidden, width, scale=0.5),
        normal(ways, gates * hidden, hidden, scale=0.5), normal(ways, 2 * gates * hidden),
        lengths, normal(ways, batch, hidden),
    ]  # fmt: skip
    if name == "LSTM":
        inputs.append(normal(ways, batch, hidden))
    if name == "GRU":
        attrs["linear_before_reset"] = 1
    return Case(f"{name}_{how}", name, inputs, reference, {"hidden_size": hidden, **attrs},
                outputs=3 if name == "LSTM" else 2, **CLOSE)  # fmt: skip


LENGTHS = np.array([5, 1, 3], np.int32)
CASES = [
    *(layer(n, 1, "forward", by_layer(n)) for n in ORDER),
    *(layer(n, 1, "reverse", by_layer(n), direction="reverse") for n in ORDER),
    *(layer(n, 2, "both", by_layer(n), direction="bidirectional") for n in ORDER),
    *(layer(n, 2, "lengths", by_sample(n), LENGTHS, direction="bidirectional") for n in ORDER),
    *(layer(n, 1, "lengths_back", by_sample(n), LENGTHS, direction="reverse") for n in ORDER),
    Case("GRU_reset_first", "GRU", [normal(5, 2, 3), normal(1, 12, 3), normal(1, 12, 4, scale=0.5),
                                    normal(1, 24)],
         gru_reset_first, {"hidden_size": 4}, outputs=2, **CLOSE),
    Case("LSTM_peephole", "LSTM",
         [normal(5, 2, 3), normal(1, 16, 3), normal(1, 16, 4, scale=0.5), normal(1, 32), None,
          normal(1, 2, 4), normal(1, 2, 4), normal(1, 12)],
         lstm_peephole, {"hidden_size": 4, "clip": 1.5}, outputs=3, types=WIDE, **CLOSE),
]  # fmt: skip
