"""Images in blocks of channels, as ONNX Runtime's optimiser lays them out (com.microsoft.nchwc).

Models that it saves with all optimisations hold convolutions whose operands it has reordered: in
memory, 8 or 16 channels lie together, and channels are padded to a multiple of that. No kernel here
needs such a layout. So an image keeps its shape, with the padding, and lies as every other does;
weights, which are constants, are put back in order when they are read. Reference: ONNX Runtime's
nchwc_transformer.cc and MLAS's reorder.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, composite
from graphc.ir.ops.convolution import CONV
from graphc.ir.ops.onnxruntime.fused import activated_by_list

BLOCKED = "com.microsoft.nchwc"


@composite("ReorderInput", domain=BLOCKED, traits=("alias",))
def reorder_input(b: Builder, x: Float, *, block: int, channels_last: int = 0) -> Value:
    """An image with channels of zeros behind its own, up to a multiple of the block."""
    x = b.Transpose(x, perm=(0, 3, 1, 2)) if channels_last else x
    missing = -x.tensor.static_shape[1] % block
    if not missing:
        return x
    return b.Pad(x, np.array((0, missing)), None, np.array([1]))


@composite("ReorderOutput", domain=BLOCKED, traits=("alias",))
def reorder_output(b: Builder, x: Float, *, channels: int, channels_last: int = 0) -> Value:
    """The first channels of an image."""
    if channels < x.tensor.static_shape[1]:
        x = b.Slice(x, np.array([0]), np.array([channels]), np.array([1]))
    return b.Transpose(x, perm=(0, 2, 3, 1)) if channels_last else x


@composite("Conv", domain=BLOCKED, traits=("alias",))
def blocked_conv(
    b: Builder, x: Float, w: Float, bias: Float | None = None, z: Float | None = None, *,
    activation: str | None = None, activation_params: Sequence[float] | None = None, block: int,
    **attrs: CONV,
) -> Value:  # fmt: skip
    """The activation of Conv plus z; the weights are in blocks of output channels, and of input
    channels if there are as many as a block has."""
    result = b.Conv(x, _in_order(b, w, block), bias, **attrs)
    if z is not None:
        result = b.Add(result, z)
    return activated_by_list(b, result, activation, activation_params)


def _in_order(b: Builder, w: Value, block: int) -> Value:
    """Weights (outputs, inputs, height, width) that lie in blocks, in the order of their dims."""
    outputs, inputs, *kernel = w.tensor.static_shape
    within = block if inputs >= block else 1
    if outputs % block or inputs % within:
        raise ModelError(f"weights {w.type} do not divide into blocks of {block} channels")
    shape = (outputs // block, inputs // within, *kernel, within, block)
    blocks = b.Reshape(w, np.array(shape))
    rank = len(shape)
    ordered = b.Transpose(blocks, perm=(0, rank - 1, 1, rank - 2, *range(2, rank - 2)))
    return b.Reshape(ordered, np.array(w.tensor.static_shape))
