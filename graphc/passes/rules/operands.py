"""Operators with very many operands are taken apart: a kernel has a parameter for each, and both
compilers and launches take only so many.
"""

from __future__ import annotations

from graphc.passes.pattern import P, rest
from graphc.passes.rewriter import rule

MOST = 64  # operands of one op
GROUP = "lowering"


@rule("many-extremes", P.one_of("Max", "Min")(rest("operands")), group=GROUP)
def many_extremes(rw, op, operands):
    """max(a, b, c, d) == max(max(a, b), max(c, d)), for more operands than MOST."""
    if len(operands) <= MOST:
        return None
    return rw.op(op.name, *_joined(rw, op.name, operands))


@rule("many-terms", P.one_of("Sum", "Mean")(rest("operands")), group=GROUP)
def many_terms(rw, op, operands):
    """sum(a, b, c, d) == sum(sum(a, b), sum(c, d)), for more operands than MOST; a mean is their
    number-th part. Narrow floats are added as float32, as one sum adds them."""
    if len(operands) <= MOST:
        return None
    dtype = op.output.tensor.dtype
    wide = dtype.compute
    if wide is not dtype:
        operands = [rw.Cast(x, to=wide.onnx) for x in operands]
    total = rw.Sum(*_joined(rw, "Sum", operands))
    if op.name == "Mean":
        total = rw.Div(total, rw.constant(len(operands), wide))
    return total if wide is dtype else rw.Cast(total, to=dtype.onnx)


@rule("many-parts", P.Concat(rest("parts")), group=GROUP)
def many_parts(rw, op, parts):
    """concat(a, b, c, d) == concat(concat(a, b), concat(c, d)), for more parts than MOST."""
    if len(parts) <= MOST:
        return None
    axis = rw.attr(op, "axis")
    return rw.Concat(*_joined(rw, "Concat", parts, axis=axis), axis=axis)


def _joined(rw, name, operands, **attrs):
    """At most MOST results of ops that take so many of the operands each."""
    while len(operands) > MOST:
        runs = [operands[n : n + MOST] for n in range(0, len(operands), MOST)]
        operands = [rw.op(name, *run, **attrs) if len(run) > 1 else run[0] for run in runs]
    return operands
