"""Gradients of branches and loops.

An If has a second If, of the same condition: each branch computes again what its gradients need. A
Scan, or a Loop of known length, keeps the state that each trip starts from, and is followed by a
Scan in the other direction: its trip computes the trip again from that state, and carries the
gradients of the state, and the sums of those of captured values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphc.autodiff.values import is_float, seeded, zeros_like
from graphc.errors import NeedsValue, UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.dtypes import boolean, i64
from graphc.ir.graph import Op, Region, Value, clone_region, constant_op, copy_ops
from graphc.ir.ops.control import split_captures, trip_count
from graphc.ir.types import TensorType

Gradients = Callable[[Region, Mapping[Value, Value], Sequence[Value]], list[Value]]
Cotangents = Sequence[Value | None]


def pulled(b: Builder, op: Op, cotangents: Cotangents, gradients: Gradients) -> list[Value | None]:
    """The gradients of the operands of an op with regions, from those of its results."""
    if op.name == "If":
        return _of_branches(b, op, cotangents, gradients)
    if op.name in ("Scan", "Loop"):
        return _OfLoop(b, op, gradients).pulled(cotangents)
    raise UnsupportedError(f"{op.where()}: {op.name} has no derivative")


def _is_wanted(value: Value | None) -> bool:
    """Whether the gradient of an operand may be asked for."""
    is_constant = value is not None and value.constant is not None
    return is_float(value) and not is_constant


def _given(b: Builder, op: Op, cotangents: Cotangents) -> list[Value | None]:
    """The gradients of results of floats, zeros where there are none."""
    return [
        (g if g is not None else zeros_like(b, v)) if is_float(v) else None
        for v, g in zip(op.outputs, cotangents)
    ]


# ---------------------------------------------------------------- branches


def _of_branches(
    b: Builder, op: Op, cotangents: Cotangents, gradients: Gradients
) -> list[Value | None]:
    given = _given(b, op, cotangents)
    floats = [g for g in given if g is not None]
    wanted = [n for n, v in enumerate(op.inputs[1:]) if _is_wanted(v)]
    regions = []
    for branch in op.regions:
        region = clone_region(branch)
        extra = iter([region.add_param(g.type) for g in floats])
        seeds = seeded(region, region.results, [g and next(extra) for g in given])
        captured = [region.params[n] for n in wanted]
        region.set_results(gradients(region, seeds, captured))
        regions.append(region)
    if not wanted:
        return [None] * len(op.inputs)
    made = b.op("If", *op.inputs, *floats, outputs=len(wanted), regions=regions)
    slopes = dict(zip(wanted, [made] if isinstance(made, Value) else made))
    return [None, *(slopes.get(n) for n in range(len(op.inputs) - 1))]


# ---------------------------------------------------------------- loops


def _numbers(op: Op) -> np.ndarray:
    """The numbers of the trips of a Loop."""
    trips = trip_count(op)
    if not isinstance(trips, int):
        raise UnsupportedError(
            f"{op.where()}: it has {trips} trips; a derivative requires a known number of them; "
            "give the sizes of inputs, with --dim or --shape"
        )
    return np.arange(trips)


class _OfLoop:
    """A Scan or a Loop: `states` carried, `rows` scanned, `outs` stacked, and captured values."""

    def __init__(self, b: Builder, op: Op, gradients: Gradients):
        self.b, self.op, self.gradients = b, op, gradients
        own, self.captured = split_captures(op)
        self.is_scan = op.name == "Scan"
        rows = op.attrs["num_scan_inputs"] if self.is_scan else 0
        self.header = 0 if self.is_scan else 2
        self.first_row = len(own) - rows
        self.states, self.rows = own[self.header : self.first_row], own[self.first_row :]
        self.outs = len(op.outputs) - len(self.states)
        self.wanted = [n for n, v in enumerate(self.captured) if _is_wanted(v)]

    def _attribute(self, name: str, count: int) -> tuple[int, ...]:
        return tuple(self.op.attrs.get(name) or (0,) * count)

    def pulled(self, cotangents: Cotangents) -> list[Value | None]:
        """The gradients of the operands."""
        saved = self._with_saved_states()
        given = _given(self.b, self.op, cotangents)
        ends, rows = given[: len(self.states)], given[len(self.states) :]
        carried = [g for g in ends if g is not None]
        sums = [zeros_like(self.b, self._capture(n)) for n in self.wanted]
        stacked = [g for g in rows if g is not None]
        trips = [] if self.is_scan else [_numbers(self.op)]
        made = self._backward(
            [*carried, *sums], [*trips, *saved, *self.rows, *stacked], self._body(ends, rows)
        )
        return self._by_operand(made, len(carried))

    def _capture(self, number: int) -> Value:
        value = self.captured[number]
        assert value is not None
        return value

    def _with_saved_states(self) -> list[Value]:
        """The states that the trips start from, which the op gives besides from now on."""
        op, count = self.op, len(self.states)
        region = clone_region(op.regions[0])
        params = region.params[self.header : self.header + count]
        region.set_results([*region.results, *params])
        attrs = dict(op.attrs)
        if self.is_scan:
            for name in ("scan_output_axes", "scan_output_directions"):
                attrs[name] = (*self._attribute(name, self.outs), *(0,) * count)
        assert op.region is not None
        before = Builder(op.region, op, op.loc)
        try:
            made = before.op(
                op.name, *op.inputs, outputs=len(op.outputs) + count, regions=[region], **attrs
            )
        except NeedsValue as error:
            raise UnsupportedError(
                f"{op.where()}: a loop whose length depends on data has no derivative ({error})"
            ) from error
        made = [made] if isinstance(made, Value) else list(made)
        for old, new in zip(op.outputs, made):
            old.replace_uses(new)
        return made[len(op.outputs) :]

    def _body(self, ends: Cotangents, rows: Cotangents) -> Region:
        """The trip of the Scan that goes back."""
        source = self.op.regions[0]
        count = len(self.states)
        region = Region()
        adjoint = [g and region.add_param(v.type) for g, v in zip(ends, self._state_params())]
        sums = [region.add_param(self._capture(n).type) for n in self.wanted]
        inner = self._inner_params(region, source)
        slopes = [
            g and region.add_param(v.type)
            for g, v in zip(rows, source.results[self._out_start() :])
        ]
        captured = [region.add_param(None if v is None else v.type) for v in self.captured]
        inner += captured
        mapping = dict(zip(source.params, inner))
        copy_ops(source, region, mapping)
        results = [mapping[v] for v in source.results[self.header // 2 :]]
        seeds = seeded(region, results, [*adjoint, *slopes])
        start = inner[self.header :]
        asked = [v for v, g in zip(start[:count], ends) if g is not None]
        asked += [captured[n] for n in self.wanted]
        asked += [v for v in start[count : count + len(self.rows)] if is_float(v)]
        made = self.gradients(region, seeds, asked)
        first, b = sum(g is not None for g in ends), Builder(region)
        added = [b.Add(s, g) for s, g in zip(sums, made[first : first + len(sums)])]
        region.set_results([*made[:first], *added, *made[first + len(sums) :]])
        return region

    def _state_params(self) -> list[Value]:
        return self.op.regions[0].params[self.header : self.header + len(self.states)]

    def _out_start(self) -> int:
        """Where the rows to stack begin among the results of the body."""
        return self.header // 2 + len(self.states)

    def _inner_params(self, region: Region, source: Region) -> list[Value]:
        """What stands for the parameters of the body, but for those captured."""
        if self.is_scan:
            return [
                region.add_param(p.type) for p in source.params[: self.first_row + len(self.rows)]
            ]
        number = region.add_param(TensorType(i64, ()))
        goes_on = region.append(constant_op(np.ones((), boolean.np))).output
        return [number, goes_on, *(region.add_param(p.type) for p in self._state_params())]

    def _backward(
        self, carried: Sequence[Value], scanned: Sequence[Value | np.ndarray | None], body: Region
    ) -> list[Value]:
        ahead = len(scanned) - len(self.rows)
        in_axes = self._attribute("scan_input_axes", len(self.rows))
        in_back = self._attribute("scan_input_directions", len(self.rows))
        out_axes = self._attribute("scan_output_axes", self.outs)
        out_back = self._attribute("scan_output_directions", self.outs)
        kept = [n for n, v in enumerate(self.op.outputs[len(self.states) :]) if is_float(v)]
        ahead -= len(kept)
        floats = [n for n, v in enumerate(self.rows) if is_float(v)]
        made = self.b.op(
            "Scan",
            *carried,
            *scanned,
            *self.captured,
            outputs=len(carried) + len(floats),
            regions=[body],
            num_scan_inputs=len(scanned),
            scan_input_axes=(*(0,) * ahead, *in_axes, *(out_axes[n] for n in kept)),
            scan_input_directions=(
                *(1,) * ahead, *(1 - d for d in in_back), *(1 - out_back[n] for n in kept)
            ),
            scan_output_axes=tuple(in_axes[n] for n in floats),
            scan_output_directions=tuple(1 - in_back[n] for n in floats),
            captures=len(self.captured),
        )  # fmt: skip
        return [made] if isinstance(made, Value) else list(made)

    def _by_operand(self, made: Sequence[Value], carried: int) -> list[Value | None]:
        states, rest = iter(made[:carried]), iter(made[carried:])
        sums = {n: next(rest) for n in self.wanted}
        result: list[Value | None] = [None] * self.header
        result += [next(states) if is_float(v) else None for v in self.states]
        result += [next(rest) if is_float(v) else None for v in self.rows]
        return result + [sums.get(n) for n in range(len(self.captured))]
