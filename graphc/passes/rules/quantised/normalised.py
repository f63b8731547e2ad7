"""Softmax of quantised values: a table of exponentials, their sum, and one division.

Where ONNX Runtime does the same (see kernels.py) it multiplies by a whole number instead of
dividing by the scale of the result.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.passes.pattern import attribute
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.activations import Activated
from graphc.passes.rules.quantised.kernels import in_one_kernel
from graphc.passes.rules.quantised.per_channel_products import NO_OPERAND
from graphc.passes.rules.quantised.values import activation

FINEST = 24  # bits of the largest exponential where 64 bits hold the quotient
COARSEST = 18  # bits for which 32 bits are preferred


def softmax(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """exp(x - max) / sum(exp(x - max)) with exp(-n * scale) from a table."""
    x = activation(op.inputs[0])
    if x is None:
        return rw.skip(NO_OPERAND)
    if after.slope is not None:
        return rw.skip("a softmax has no slopes below zero")
    target = after.target
    inverse = 1 / target.step
    one_kernel = in_one_kernel(rw, op, after)
    if one_kernel:
        inverse = math.floor(np.float32(1) / np.float32(target.step))
    if not (inverse >= 1 or one_kernel) or inverse >= 1 << 16:
        return rw.skip("a scale of {} is out of reach", target.step)
    length = x.value.tensor.extent(attribute(op, "axis"))
    shift = 0 if abs(inverse - round(inverse)) < 1e-6 else 30 - math.frexp(inverse)[1]
    factor = round(math.ldexp(inverse, shift))
    bits = 30 - max(math.frexp(factor)[1], math.frexp(max(length, 1))[1] + shift)
    narrow = bits >= COARSEST
    bits = min(bits, FINEST) if narrow else FINEST
    table = np.rint(np.ldexp(np.exp(-np.arange(256) * x.step), bits)).astype(np.int32)
    return rw.op(
        "QuantisedSoftmax", x.value, rw.constant(table), domain=DOMAIN, axis=attribute(op, "axis"),
        factor=factor, shift=shift, wide=int(not narrow), zero_point=target.zero_point,
        **target.attrs(),
    )  # fmt: skip
