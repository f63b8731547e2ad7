"""Operators with very many operands are taken apart: a kernel has a parameter for each, and both
compilers and launches take only so many. Products of more than two are, where that saves work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphc.ir.graph import Op, Value
from graphc.ir.ops.contraction import EinsumPlan, in_pairs
from graphc.passes.pattern import P, rest, var
from graphc.passes.rewriter import Rewriter, rule

MOST = 64  # operands of one op
GROUP = "lowering"
MEAN = P.Mean(rest("operands"))

x, y, z = var("x y z")


def _has_many(op: Op) -> bool:
    return len(op.inputs) > MOST


@rule("many-extremes", P.one_of("Max", "Min")(rest("operands")).when(_has_many), group=GROUP)
def many_extremes(rw: Rewriter, op: Op, operands: list[Value]) -> Value | None:
    """max(a, b, c, d) == max(max(a, b), max(c, d)), for more operands than MOST."""
    return rw.op(op.name, *_joined(rw, op.name, operands))


@rule("many-terms", P.one_of("Sum", "Mean")(rest("operands")).when(_has_many), group=GROUP)
def many_terms(rw: Rewriter, op: Op, operands: list[Value]) -> Value | None:
    """sum(a, b, c, d) == sum(sum(a, b), sum(c, d)), for more operands than MOST; a mean is their
    number-th part. Narrow floats are added as float32, as one sum adds them."""
    dtype = op.output.tensor.dtype
    wide = dtype.compute
    if wide is not dtype:
        operands = [rw.Cast(x, to=wide.onnx) for x in operands]
    total = rw.Sum(*_joined(rw, "Sum", operands))
    if MEAN.admits(op.defn):
        total = rw.Div(total, rw.constant(len(operands), wide))
    return total if wide is dtype else rw.Cast(total, to=dtype.onnx)


@rule("many-parts", P.Concat(rest("parts")).when(_has_many), group=GROUP)
def many_parts(rw: Rewriter, op: Op, parts: list[Value]) -> Value | None:
    """concat(a, b, c, d) == concat(concat(a, b), concat(c, d)), for more parts than MOST."""
    axis = rw.attr(op, "axis")
    return rw.Concat(*_joined(rw, "Concat", parts, axis=axis), axis=axis)


@rule("paired-products", P.Einsum(x, y, z, rest("others")), group=GROUP)
def paired_products(
    rw: Rewriter, op: Op, x: Value, y: Value, z: Value, others: list[Value]
) -> Value | None:
    """sum(a * b * c) == sum(sum(a * b) * c), where the inner sum is over what only a and b have.
    Narrow floats are multiplied as float32, and rounded once."""
    operands = [x, y, z, *others]
    plan = EinsumPlan(rw.attr(op, "equation"), [v.tensor.static_shape for v in operands])
    steps = in_pairs(plan)
    if isinstance(steps, str):
        return rw.skip(steps)
    dtype = op.output.tensor.dtype
    wide = dtype.compute
    left = [v if wide is dtype else rw.Cast(v, to=wide.onnx) for v in operands]
    for step in steps:
        product = rw.Einsum(left[step.left], left[step.right], equation=step.equation)
        left = [v for n, v in enumerate(left) if n not in (step.left, step.right)] + [product]
    return left[0] if wide is dtype else rw.Cast(left[0], to=dtype.onnx)


def _joined(rw: Rewriter, name: str, operands: Sequence[Value], **attrs: Any) -> Sequence[Value]:
    """At most MOST results of ops that take so many of the operands each."""
    while len(operands) > MOST:
        runs = [operands[n : n + MOST] for n in range(0, len(operands), MOST)]
        operands = [rw.op(name, *run, **attrs) if len(run) > 1 else run[0] for run in runs]
    return operands
