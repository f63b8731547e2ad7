"""ONNX Runtime's LSTM of quantised weights, DynamicQuantizeLSTM.

Its products are those of DynamicQuantizeMatMul: all steps of the input are quantised as one, and
the state of all samples at each step. What is quantised is what ONNX Runtime holds then: steps
beyond the longest sample count as zeros, and so does the state of a sample that has ended; each
sample of a reverse direction starts from its own last step. ONNX Runtime divides large batches
among threads and quantises these parts on their own; here a batch is one.

Reference: docs/ContribOperators.md of ONNX Runtime, and its CPU kernel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS
from graphc.ir.ops.in_range import require
from graphc.ir.ops.long_recurrent import MOST_STEPS
from graphc.ir.ops.recurrent import (
    RECURRENT,
    Recurrence,
    by_way,
    collect,
    column,
    function_names,
    layer_of,
    pick,
    started,
    ways_of,
)
from graphc.ir.ops.recurrent_layers import (
    Layer,
    Step,
    activations_of,
    lstm_coupled_step,
    lstm_step,
)
from graphc.records import dataclass

GATES = 4


@dataclass(kw_only=True)
class QuantisedLayer(Layer):
    """A direction whose w (input, gates * hidden) and r (hidden, gates * hidden) are codes, with a
    scale and a zero point for all or per column."""

    w_scale: Value
    w_zero: Value
    r_scale: Value
    r_zero: Value

    def share_of(self, x: Value) -> Value:
        return self.product(x, self.w, self.w_scale, self.w_zero, self.bias)

    def add_product(self, h: Value, r: Value, x: Value | None) -> Value:
        return self.product(h, r, self.r_scale, self.r_zero, x)

    def product(
        self, x: Value, codes: Value, scale: Value, zero: Value, added: Value | None
    ) -> Value:
        return self.b.DynamicQuantizeMatMul(x, codes, scale, zero, added, domain=RUNTIME)


class EndingRecurrence(Recurrence):
    """A recurrence whose state h is 0 once a sample has ended; the last h is kept behind the other
    states."""

    def advance(
        self, layer: Layer, step: Step, x: Value, state: list[Value], time: np.ndarray
    ) -> tuple[Value, list[Value]]:
        row, (_, *kept) = super().advance(layer, step, x, state, time)
        return row, [row, *kept]


@composite("DynamicQuantizeLSTM", domain=RUNTIME, outputs=None,
           traits=(*RUNTIME_TRAITS, "recurrent"))  # fmt: skip
def dynamic_quantize_lstm(
    b: Builder, x: Float, w: Int, r: Int, bias: Float | None, sequence_lens: Int | None,
    initial_h: Float | None, initial_c: Float | None, p: Float | None, w_scale: Float, w_zero: Int,
    r_scale: Float, r_zero: Int, *, input_forget: int = 0, **attrs: RECURRENT,
) -> list[Value]:  # fmt: skip
    """An LSTM whose products are of integers: Y, the last h and the last cell."""
    hidden, steps = attrs["hidden_size"] or r.tensor.static_shape[1], x.tensor.static_shape[0]
    ways = ways_of(attrs["direction"])
    if steps > MOST_STEPS:
        raise UnsupportedError(f"takes at most {MOST_STEPS} steps, found {steps}")
    for name, codes, inner in (("W", w, x.tensor.static_shape[2]), ("R", r, hidden)):
        expected = (len(ways), inner, GATES * hidden)
        if codes.tensor.static_shape != expected:
            raise ModelError(f"{name} must be {list(expected)}, found {codes.type}")
    if sequence_lens is not None:
        require(b, sequence_lens, 0, steps, "length")
    whole = EndingRecurrence(b, x, column(b, sequence_lens), hidden, GATES, layout=0)
    given = [started(b, v, x, sequence_lens) for v in (initial_c, initial_h)]
    states = [initial_h, *given]  # the first is quantised, also for samples without steps
    names = function_names(attrs["activations"], ("Sigmoid", "Tanh", "Tanh"), attrs["direction"])
    functions = activations_of(names, attrs["activation_alpha"], attrs["activation_beta"])
    step = _remembering(lstm_coupled_step if input_forget else lstm_step)
    results = []
    for n, (backwards, own) in enumerate(zip(ways, by_way(functions, len(ways)))):
        plain = layer_of(b, n, w, r, bias, p, own, hidden, GATES, attrs["clip"])
        layer = QuantisedLayer(
            **vars(plain), w_scale=pick(b, w_scale, n), w_zero=pick(b, w_zero, n),
            r_scale=pick(b, r_scale, n), r_zero=pick(b, r_zero, n),
        )  # fmt: skip
        state = [whole.initial(v, n) for v in states]
        results.append(_run(whole, layer, step, state, backwards, sequence_lens))
    return collect(whole, results, 2)


def _remembering(step: Step) -> Step:
    """The step with h behind the other states as well (see EndingRecurrence)."""

    def remembered(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
        h, cell = step(layer, x, state[:2])
        return [h, cell, h]

    return remembered


def _run(
    whole: Recurrence, layer: Layer, step: Step, state: list[Value], backwards: bool,
    lengths: Value | None,
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """Per time step h, and the last h and cell."""
    b, turned = whole.b, backwards and lengths is not None
    if lengths is not None:
        x = _up_to_the_longest(b, whole.x, lengths)
        x = _reversed(b, x, lengths) if turned else x
        whole = replace(whole, x=x)
    outputs, (_, cell, last) = whole.run(layer, step, state, backwards and not turned)
    if turned:
        rows = b.Concat(*(b.Unsqueeze(row, np.array([0])) for row in outputs), axis=0)
        rows = _reversed(b, rows, lengths)
        outputs = [pick(b, rows, t) for t in range(whole.sequence)]
    return outputs, [last, cell]


def _up_to_the_longest(b: Builder, x: Value, lengths: Value) -> Value:
    """x (steps, batch, input) with zeros beyond the longest sample."""
    longest = b.ReduceMax(lengths, np.array([0]), keepdims=1)
    time = np.arange(x.tensor.static_shape[0], dtype=lengths.tensor.dtype.np)
    within = b.Less(b.constant(time.reshape(-1, 1, 1)), longest)
    return b.Where(within, x, b.constant(0, x.tensor.dtype))


def _reversed(b: Builder, x: Value, lengths: Value) -> Value:
    """The steps of each sample from its last one on; what follows stays."""
    own = b.Cast(lengths, to=dtypes.i64.onnx)
    return b.ReverseSequence(x, own, time_axis=0, batch_axis=1)
