"""Recurrent layers of very many steps, in pieces: a Scan whose body is the layer itself.

Steps are written out one by one, which takes long to compile for more than MOST_STEPS of them. Such
a sequence is divided into pieces, each of which starts from the state of the one before; the
remaining steps are a layer of their own. Backwards, the pieces are taken from the last one on, and
the remaining steps come first. Each direction has a Scan of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Op, Region, Value
from graphc.ir.ops.helpers import filled, joined, shaped, sliced
from graphc.ir.ops.recurrent_layers import with_steps
from graphc.records import dataclass

MOST_STEPS = 1 << 13  # that are written out
PIECE = 1 << 7  # steps of a piece


def steps_of(x: Value | None, layout: int) -> int:
    """The steps of a recurrent layer's input; 0 if they are not known."""
    if x is None or x.type is None or x.tensor.shape is None or x.tensor.rank != 3:
        return 0
    steps = x.tensor.dims[1 if layout else 0]
    return steps if isinstance(steps, int) else 0


def written_out(op: Op) -> int:
    """How many steps the graph of an op has; 0 if it is not recurrent."""
    if "recurrent" not in op.defn.traits:
        return 0
    return steps_of(op.inputs[0], op.attrs.get("layout", 0))


def holds_loop(op: Op) -> bool:
    """Whether the graph of a composite op holds a loop, which runs on the host."""
    return written_out(op) > MOST_STEPS


@dataclass
class LongLayer:
    """One direction of a recurrent layer: its operator's name and attributes, and operands.

    x (steps, batch, features), lengths (batch) or None, state (1, batch, hidden) each, and the
    others as the operator takes them, with a first dimension of 1.
    """

    b: Builder
    name: str
    attrs: dict[str, Any]
    x: Value
    weights: list[Value | None]  # W, R, B
    lengths: Value | None
    state: list[Value]
    peepholes: Value | None

    def run(self) -> list[Value]:
        """Y (steps, 1, batch, hidden) and the last state."""
        steps = self.x.tensor.extent(0)
        whole = steps // PIECE * PIECE
        backwards = self.attrs["direction"] == "reverse"
        rows, state = [], self.state
        for is_rest in (True, False) if backwards else (False, True):
            if is_rest and whole == steps:
                continue
            y, *state = self.rest(whole, state) if is_rest else self.pieces(whole, state)
            rows.append(y)
        ordered = rows[::-1] if backwards else rows
        return [joined(self.b, ordered, 0), *state]

    def rest(self, start: int, state: list[Value]) -> list[Value]:
        """The steps from `start` on."""
        b, steps = self.b, self.x.tensor.extent(0)
        x = sliced(b, self.x, start, steps, 0)
        lengths = None
        if self.lengths is not None:
            lengths = self.within(self.lengths, np.array([start]), steps - start)
        return self.layer(b, x, self.weights, lengths, state, self.peepholes)

    def within(self, lengths: Value, starts: np.ndarray, steps: int) -> Value:
        """How much of each sample lies in the `steps` from each start on."""
        b, dtype = self.b, lengths.tensor.dtype
        left = b.Sub(lengths, b.constant(starts, dtype))
        return b.Min(b.Max(left, b.constant(0, dtype)), b.constant(steps, dtype))

    def layer(
        self, b: Builder, x: Value, weights: Sequence[Value | None], lengths: Value | None,
        state: Sequence[Value], peepholes: Value | None,
    ) -> list[Value]:  # fmt: skip
        """The operator on some steps; samples that have none of them keep their state."""
        operands = [x, *weights, lengths, *state, peepholes]
        outputs = b.op(self.name, *operands, outputs=1 + len(state), **self.attrs)
        y, *last = outputs  # type: ignore[misc]
        if lengths is None:
            return [y, *last]
        some = with_steps(b, lengths, (1, -1, 1))
        return [y, *(b.Where(some, new, old) for new, old in zip(last, state))]

    def pieces(self, steps: int, state: list[Value]) -> list[Value]:
        """The first steps, piece by piece."""
        b, count = self.b, steps // PIECE
        first = sliced(b, self.x, 0, steps, 0)
        scanned = [shaped(b, first, count, PIECE, *self.x.tensor.dims[1:])]
        if self.lengths is not None:
            starts = np.arange(count)[:, None] * PIECE
            scanned.append(self.within(self.lengths, starts, PIECE))
        captured = [*self.weights, self.peepholes]
        given = [v for v in captured if v is not None]
        backwards = int(self.attrs["direction"] == "reverse")
        *last, y = b.op(  # type: ignore[misc]
            "Scan", *state, *scanned, *given, outputs=len(state) + 1,
            regions=[self.body(state, scanned, captured)], num_scan_inputs=len(scanned),
            scan_input_directions=(backwards,) * len(scanned),
            scan_output_directions=(backwards,), captures=len(given),
        )  # fmt: skip
        return [shaped(b, y, steps, 1, *y.tensor.dims[-2:]), *last]

    def body(
        self, state: list[Value], scanned: list[Value], captured: list[Value | None]
    ) -> Region:
        """The layer on one piece: the state and a piece in, the state and Y out."""
        region = Region()
        inner = [region.add_param(v.type) for v in state]
        x, *lengths = [region.add_param(v.tensor.with_shape(v.tensor.dims[1:])) for v in scanned]
        *weights, peepholes = [v and region.add_param(v.type) for v in captured]
        b = Builder(region, loc=self.b.loc)
        y, *last = self.layer(b, x, weights, next(iter(lengths), None), inner, peepholes)
        region.set_results([*last, y])
        return region


def in_pieces(
    b: Builder, name: str, x: Value, weights: list[Value | None], lengths: Value | None,
    initial: Sequence[Value | None], peepholes: Value | None, *, ways: list[dict[str, Any]],
    layout: int, hidden: int,
) -> list[Value]:  # fmt: skip
    """A recurrent layer: Y, and the last value of each state. `ways` are the attributes of the
    operator of each direction."""
    if layout:
        x = b.Transpose(x, perm=(1, 0, 2))
    batch, dtype = x.tensor.dims[1], x.tensor.dtype
    results = []
    for number, attrs in enumerate(ways):

        def own(value: Value | None, number: int = number) -> Value | None:
            alone = value is None or len(ways) == 1
            return value if alone else sliced(b, value, number, number + 1, 0)

        state = []
        for value in initial:
            if value is None:
                state.append(filled(b, 0, (1, batch, hidden), dtype))
                continue
            turned = b.Transpose(value, perm=(1, 0, 2)) if layout else value
            state.append(own(turned))
        layer = LongLayer(
            b, name, attrs, x, [own(v) for v in weights], lengths, state, own(peepholes)
        )
        results.append(layer.run())
    whole = [joined(b, values, 1 if n == 0 else 0) for n, values in enumerate(zip(*results))]
    if not layout:
        return whole
    y, *last = whole
    return [b.Transpose(y, perm=(2, 0, 1, 3)), *(b.Transpose(v, perm=(1, 0, 2)) for v in last)]
