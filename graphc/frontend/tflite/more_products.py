"""Transposed convolutions, and products of two matrices that are both computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.products import LIMIT, convolve, filter_of, image_extents, padding
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.rescaling import NO_OFFSET, Factors, Span, rescaled
from graphc.ir.dtypes import f32, i8
from graphc.ir.graph import Value
from graphc.ir.window import WindowAxis, same_padding


@handles("TRANSPOSE_CONV")
def transposed_convolution(node: Node) -> None:
    """A convolution of the input with gaps between its elements, by the filter turned around.

    Operands are the result's shape, the filter [output channels, height, width, input channels],
    the input and the bias.
    """
    _, by, x, bias = (*node.op.inputs, *[-1] * 4)[:4]
    node = replace(node, op=replace(node.op, inputs=(x, by, bias)))
    weights, strides = filter_of(node, 0), (node.option("StrideH"), node.option("StrideW"))
    channels, *extents = image_extents(node)
    if node.dtype() not in (f32, i8):
        raise UnsupportedError(f"of {node.tensor().kind} it is not supported")
    out = node.result().shape
    if len(out) != 4 or min(*strides, *weights.shape) < 1 or weights.shape[3] != channels:
        raise ModelError(
            f"an input of {list(node.tensor().shape)}, a filter of {list(weights.shape)} and "
            f"strides {list(strides)} do not fit a result of {list(out)}"
        )
    kernel, pads = weights.shape[1:3], []
    for n in range(2):
        axis = WindowAxis(out[1 + n], kernel[n], strides[n])
        same = padding(node) == "SAME"
        before = int(same_padding(axis, extents[n], upper=True, crops=False)[0]) if same else 0  # type: ignore[arg-type]
        begin = kernel[n] - 1 - before
        spread = (extents[n] - 1) * strides[n] + 1
        pads.append((begin, out[1 + n] - spread - begin + kernel[n] - 1))
    if min(min(pair) for pair in pads) < 0:
        raise UnsupportedError("a result that is cropped by more than its filter is not supported")
    turned = weights[:, ::-1, ::-1].transpose(0, 3, 1, 2)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "group": 1,
             "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1])}  # fmt: skip
    convolve(node, _spread(node, strides), turned, attrs)


def _spread(node: Node, strides: tuple[int, int]) -> Value:
    """The image with so many places for each element less one, which hold what means zero."""
    b, x = node.b, node.image()
    zero = 0 if node.dtype() is f32 else node.zero_point(node.tensor())
    for axis, stride in zip((2, 3), strides):
        dims = [int(d) for d in x.tensor.static_shape]
        if stride == 1:
            continue
        apart = b.Reshape(x, np.array([*dims[: axis + 1], 1, *dims[axis + 1 :]]))
        ends = np.zeros(2 * len(dims) + 2, np.int64)
        ends[len(dims) + 1 + axis + 1] = stride - 1
        apart = b.Pad(apart, ends, b.constant(zero, x.tensor.dtype))
        dims[axis] *= stride
        x = b.Reshape(apart, np.array(dims))
        last = dims[axis] - stride + 1
        x = b.Slice(x, np.array([0]), np.array([last]), np.array([axis]))
    return x


@handles("BATCH_MATMUL")
def matrix_product(node: Node) -> None:
    """Of the last two dims of both operands, either of them transposed if asked for."""
    b = node.b
    values = [node.value(n) for n in range(2)]
    for n, option in enumerate(("AdjX", "AdjY")):
        rank = values[n].tensor.rank
        if rank < 2:
            raise ModelError(f"operand {n} must have 2 dims or more")
        if node.option(option):
            order = (*range(rank - 2), rank - 1, rank - 2)
            values[n] = b.Transpose(values[n], perm=order)
    if node.dtype() is f32 and node.dtype(1) is f32:
        node.define(b.MatMul(*values))
        return
    if node.dtype() is not i8 or node.dtype(1) is not i8 or node.result_dtype() is not i8:
        kinds = node.tensor().kind, node.tensor(1).kind
        raise UnsupportedError("a product of {} and {} is not supported".format(*kinds))
    x, y = node.tensor(0), node.tensor(1)
    zeros = [node.zero_point(tensor) for tensor in (x, y)]
    ends = [[int(i8.min) - zero, int(i8.max) - zero] for zero in zeros]
    corners = [p * q * values[0].tensor.extent(-1) for p in ends[0] for q in ends[1]]
    if max(map(abs, corners)) >= LIMIT:
        raise UnsupportedError("its sums may not fit int32")
    points = [b.constant(zero, i8) if zero else None for zero in zeros]
    scale = float(np.float32(node.scale(x)) * np.float32(node.scale(y)))
    factors = Factors.of(scale / node.scale(node.result()))
    span = Span(np.array([min(corners)]), np.array([max(corners)]))
    total = b.MatMulInteger(*values, *points)
    node.define(rescaled(b, total, NO_OFFSET, factors, span, 0, node.limits()))
