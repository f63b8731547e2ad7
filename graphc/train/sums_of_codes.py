"""Sums of dequantised values, taken of their codes.

Sums of floats are rounded, and by their order, which targets choose. Where the result is quantised
next, it is at times rounded to different codes, and gradients differ by that much. Here scales are
taken out of sums. A sum of codes is one of small whole numbers, which float32 holds without error
up to 2^24, in any order. The scale, and then the bias, are applied to each result once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import infer_op
from graphc.passes.analysis.facts import is_linear_in
from graphc.passes.analysis.parts import dims_along
from graphc.passes.analysis.structure import has_body, is_movement, reductions
from graphc.passes.dce import remove_dead
from graphc.train.float_tail import DEQUANTISE, FAKE


@dataclass(frozen=True)
class _Coded:
    """A float value as `codes`, whole numbers in float32, times `scale`: a number, or a vector
    along `axis`. `is_state` if the codes are a parameter of the graph, as weights that are trained
    are."""

    codes: Value
    scale: np.ndarray
    axis: int
    is_state: bool = False


def with_sums_of_codes(graph: Graph) -> None:
    """Has sums of products with weights that are parameters of a typed graph be taken of codes,
    where all factors are dequantised. Those with constant weights have integer forms."""
    coded: dict[Value, _Coded] = {}
    for op in list(graph.ops):
        if op.name in (DEQUANTISE, FAKE):
            made = _dequantised(graph, op)
            if made is not None:
                coded[op.output] = made
        elif op.inputs and op.inputs[0] in coded and has_body(op) and is_movement(op):
            own = coded[op.operand(0)]
            if not own.scale.ndim:
                twin = _twin(graph, op, [own.codes, *op.inputs[1:]])
                coded[op.output] = _Coded(twin, own.scale, 0)
        else:
            _scaled_behind(graph, op, coded)
    remove_dead(graph)


def _dequantised(graph: Graph, op: Op) -> _Coded | None:
    """What an op dequantises, less the zero point; None if it is no code of 8 bits, or its scale is
    neither a number nor a vector."""
    scale = op.operand(1).constant
    zero = op.inputs[2] if len(op.inputs) > 2 else None
    if scale is None or scale.ndim > 1 or scale.dtype != np.float32:
        return None
    b = Builder(graph, graph.after(op), op.loc)
    x = op.operand(0)
    if op.name == FAKE:
        x = b.QuantizeLinear(x, op.operand(1), zero)
    if x.tensor.dtype.bits != 8:
        return None
    codes = b.op(DEQUANTISE, x, np.ones_like(scale), zero, **op.attrs)
    axis = op.attrs.get("axis", 1) % max(codes.tensor.rank, 1)
    scale = scale.reshape(()) if scale.size == 1 else scale
    return _Coded(codes, scale, axis, x in graph.params)


def _scaled_behind(graph: Graph, op: Op, coded: dict[Value, _Coded]) -> None:
    """Takes scales out of the sums of an op; not if an operand has none, or one that differs among
    the terms of a sum."""
    inputs = [v for v in op.inputs if v is not None]
    factors = inputs[:2] if op.name == "Conv" else inputs
    if not all(v in coded for v in factors) or not any(coded[v].is_state for v in factors):
        return
    if not has_body(op) or not reductions(op):
        return
    twin = _twin(graph, op, [coded[v].codes for v in factors]).producer
    assert twin is not None
    scale = _scale_of(twin, [coded[v] for v in factors])
    if scale is None:
        return
    b = Builder(graph, op, op.loc)
    result = b.Mul(twin.output, scale)
    for bias in inputs[len(factors) :]:
        result = b.Add(result, b.Reshape(bias, np.array([-1] + [1] * (result.tensor.rank - 2))))
    result.name = op.output.name
    op.output.replace_uses(result)


def _twin(graph: Graph, op: Op, inputs: Sequence[Value | None]) -> Value:
    """What an op gives of other operands."""
    twin = Op(op.defn, inputs, dict(op.attrs), 1, (), op.loc)
    infer_op(twin)
    return graph.insert_before(op, twin).output


def _scale_of(op: Op, factors: Sequence[_Coded]) -> np.ndarray | None:
    """What the result of an op of codes is to be multiplied by, as it is broadcast to it."""
    rank = op.output.tensor.rank
    scale = np.ones([1] * rank, np.float32)
    for number, own in enumerate(factors):
        if not is_linear_in(op, number):
            return None
        shape = [1] * rank
        if own.scale.ndim:
            axes = [a for a in range(rank) if _runs_along(op, number, own.axis, a)]
            if len(axes) != 1:
                return None
            shape[axes[0]] = -1
        scale = scale * own.scale.reshape(shape)
    return scale


def _runs_along(op: Op, operand: int, dim: int, axis: int) -> bool:
    """Whether a dim of an operand runs along an axis of the result."""
    dims = dims_along(op, axis)
    return dims is not None and dims[operand] == dim


__all__ = ["with_sums_of_codes"]
