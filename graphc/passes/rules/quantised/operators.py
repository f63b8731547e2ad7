"""Operators on quantised values (QLinearConv and the like), as q(op(d(x), d(w))).

The graphs that the rules of this package recognise. Those of ONNX Runtime's domain are defined in
these terms anyhow (graphc.ir.ops.onnxruntime.quantised).
"""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.passes.pattern import P, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of
from graphc.passes.rules.quantised.values import BYTES, GROUP

x, xs, xz, w, ws, wz, ys, yz, b = var("x xs xz w ws wz ys yz b")
NOT_CONSTANT = "a scale or zero point is not constant, or the values are not of 8 bits"


def _known(rw: Rewriter, *parameters: Value) -> bool:
    return all(array_of(v) is not None for v in parameters)


@rule("qlinear-conv", P.QLinearConv(x, xs, xz, w, ws, wz, ys, yz, opt(b)), group=GROUP)
def qlinear_conv(
    rw: Rewriter, op: Op, x: Value, xs: Value, xz: Value, w: Value, ws: Value, wz: Value,
    ys: Value, yz: Value, b: Value | None,
) -> Value | None:  # fmt: skip
    """qlinearconv(x, w, b) == q(conv(d(x), d(w), d(b))), b scaled as the products are."""
    if not _known(rw, xs, xz, w, ws, wz, ys, yz) or x.tensor.dtype not in BYTES:
        return rw.skip(NOT_CONSTANT)
    weights = rw.DequantizeLinear(w, ws, wz, axis=0)
    bias = None
    if b is not None:
        units = array_of(xs).reshape(-1) * array_of(ws).reshape(-1)  # type: ignore[union-attr]
        scale = units if units.size > 1 else units.reshape(())
        bias = rw.DequantizeLinear(b, rw.constant(scale), axis=0)
    result = rw.Conv(rw.DequantizeLinear(x, xs, xz), weights, bias, **op.attrs)
    return rw.QuantizeLinear(result, ys, yz)


@rule("qlinear-matmul", P.QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz), group=GROUP)
def qlinear_matmul(
    rw: Rewriter, op: Op, x: Value, xs: Value, xz: Value, w: Value, ws: Value, wz: Value,
    ys: Value, yz: Value,
) -> Value | None:  # fmt: skip
    """qlinearmatmul(x, w) == q(matmul(d(x), d(w)))."""
    if not _known(rw, xs, xz, ws, wz, ys, yz) or x.tensor.dtype not in BYTES:
        return rw.skip(NOT_CONSTANT)
    if xs.tensor.size != 1 or xs.tensor.dtype != ys.tensor.dtype:
        return rw.skip("the rows have scales of their own")
    scale, shift = _column_parameters(rw, ws), _column_parameters(rw, wz)
    weights = rw.DequantizeLinear(w, scale, shift, axis=1)
    return rw.QuantizeLinear(rw.MatMul(rw.DequantizeLinear(x, xs, xz), weights), ys, yz)


def _column_parameters(rw: Rewriter, parameter: Value) -> Value:
    """Parameters as a DequantizeLinear takes them: a number, or a vector."""
    array = array_of(parameter)
    assert array is not None
    return parameter if array.ndim < 2 else rw.constant(np.ascontiguousarray(array.reshape(-1)))
