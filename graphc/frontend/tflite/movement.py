"""Operators that only move elements, and shapes."""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.values import TO_IMAGE
from graphc.ir.dtypes import i32
from graphc.ir.graph import Value

MOST_ROWS = 1 << 16  # of a resized image
SPECIAL_MASKS = ("EllipsisMask", "NewAxisMask")


@handles("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(node: Node) -> None:
    """The shape is that which the file gives for the result."""
    x, shape = node.tensor().shape, node.result().shape
    if math.prod(x) != math.prod(shape):
        raise ModelError(f"{list(x)} cannot become {list(shape)}")
    node.define(
        node.b.Reshape(node.value(), np.array(shape, np.int64)) if x != shape else node.value()
    )


@handles("TRANSPOSE")
def transpose(node: Node) -> None:
    order = node.known_ints(1)
    if sorted(order) != list(range(len(node.tensor().shape))):
        raise ModelError(f"{list(order)} is no order of {len(node.tensor().shape)} dims")
    node.define(node.b.Transpose(node.value(), perm=order))


@handles("CONCATENATION")
def concatenate(node: Node) -> None:
    """Integers as they are, so all are quantised alike."""
    rank, axis = len(node.result().shape), node.option("Axis")
    if not -rank <= axis < rank or not node.count:
        raise ModelError(f"axis {axis} does not belong to {rank} dims")
    for position in range(node.count):
        if (
            node.tensor(position).quantisation is not None
            and node.result().quantisation is not None
        ):
            _same(node, position)
    values, is_image = node.together(range(node.count))
    if node.option("FusedActivationFunction"):
        raise UnsupportedError("an activation of a concatenation is not supported")
    axis %= rank
    made = node.b.Concat(*values, axis=TO_IMAGE.index(axis) if is_image else axis)
    node.define_either(made, is_image)


def _same(node: Node, position: int) -> None:
    x, y = node.tensor(position), node.result()
    mine, other = ((node.scale(t), node.zero_point(t)) for t in (x, y))
    if mine != other:
        raise UnsupportedError(
            f"{x.where} and its result are quantised differently: {mine}, {other}"
        )


@handles("PAD", "PADV2")
def pad(node: Node) -> None:
    """Padding is 0, of quantised values the zero point, or what the third operand says."""
    x = node.tensor()
    pads = node.known(1)
    if pads.shape != (len(x.shape), 2) or pads.min(initial=0) < 0:
        raise ModelError(f"its padding must be {len(x.shape)} pairs from 0 on")
    (value,), is_image = node.together([0])
    if is_image:
        pads = pads[list(TO_IMAGE)]
    filling = 0 if x.quantisation is None else node.zero_point(x)
    if node.op.kind == "PADV2" and node.has(2):
        if node.known(2).size != 1:
            raise ModelError("its filling must be one number")
        filling = node.known(2).reshape(-1)[0]
    ends = pads.T.reshape(-1).astype(np.int64)
    node.define_either(
        node.b.Pad(value, ends, node.b.constant(filling, value.tensor.dtype)), is_image
    )


@handles("MIRROR_PAD")
def mirror_pad(node: Node) -> None:
    pads = node.known(1)
    if pads.shape != (len(node.tensor().shape), 2) or pads.min(initial=0) < 0:
        raise ModelError(f"its padding must be {len(node.tensor().shape)} pairs from 0 on")
    if node.option("Mode"):
        raise UnsupportedError("symmetric padding is not supported, only reflection")
    node.define(node.b.Pad(node.value(), pads.T.reshape(-1).astype(np.int64), mode="reflect"))


# ---------------------------------------------------------------- parts


@handles("SLICE")
def slice_(node: Node) -> None:
    shape, begin, size = node.tensor().shape, node.known_ints(1), node.known_ints(2)
    if len(begin) != len(shape) or len(size) != len(shape):
        raise ModelError(f"begin and size must have {len(shape)} numbers")
    ends = [extent if s < 0 else b + s for extent, b, s in zip(shape, begin, size)]
    if any(not 0 <= b <= e <= extent for b, e, extent in zip(begin, ends, shape)):
        raise ModelError(f"{list(begin)} to {ends} lies outside {list(shape)}")
    node.define(_part(node, node.value(), begin, tuple(ends)))


def _part(node: Node, x: Value, begin: tuple, end: tuple, step: tuple | None = None) -> Value:
    steps = np.ones(len(begin), np.int64) if step is None else np.array(step)
    return node.b.Slice(x, np.array(begin), np.array(end), np.arange(len(begin)), steps)


@handles("STRIDED_SLICE")
def strided_slice(node: Node) -> None:
    shape = node.tensor().shape
    if any(node.option(mask) for mask in SPECIAL_MASKS) or node.option("Offset", False):
        raise UnsupportedError(f"{' and '.join(SPECIAL_MASKS)} are not supported")
    begin, end, step = (node.known_ints(n) for n in (1, 2, 3))
    if not len(begin) == len(end) == len(step) <= len(shape) or 0 in step:
        raise ModelError(
            f"begin, end and strides must be up to {len(shape)} numbers, strides not 0"
        )
    masks = [node.option(f"{name}Mask") for name in ("Begin", "End", "ShrinkAxis")]
    starts, ends = list(begin), list(end)
    for axis, by in enumerate(step):
        if masks[2] >> axis & 1:
            starts[axis] %= max(shape[axis], 1)
            ends[axis] = starts[axis] + (1 if by > 0 else -1)
            if ends[axis] < 0:
                ends[axis] -= shape[axis]
            continue
        if masks[0] >> axis & 1:
            starts[axis] = 0 if by > 0 else shape[axis]
        if masks[1] >> axis & 1:
            ends[axis] = shape[axis] if by > 0 else -shape[axis] - 1
    made = _part(node, node.value(), tuple(starts), tuple(ends), step)
    node.define(node.b.Reshape(made, np.array(node.result().shape, np.int64)))


@handles("SPLIT", "SPLIT_V")
def split(node: Node) -> None:
    """SPLIT names its axis first, SPLIT_V its input, sizes and axis."""
    first = node.op.kind == "SPLIT"
    (axis,), x = node.known_ints(0 if first else 2), node.tensor(1 if first else 0)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ModelError(f"axis {axis} does not belong to {len(x.shape)} dims")
    axis %= len(x.shape)
    place = 0
    for n in range(len(node.op.outputs)):
        size = node.result(n).shape[axis] if len(node.result(n).shape) == len(x.shape) else -1
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[axis], end[axis] = place, place + size
        place += size
        if size < 0 or place > x.shape[axis]:
            raise ModelError(f"its parts do not fit {list(x.shape)}")
        node.define(_part(node, node.value(1 if first else 0), tuple(begin), tuple(end)), n)
    if place != x.shape[axis]:
        raise ModelError(f"its parts are {place} of {x.shape[axis]} along axis {axis}")


@handles("PACK")
def pack(node: Node) -> None:
    rank = len(node.result().shape)
    axis = node.option("Axis")
    if not -rank <= axis < rank or not node.count:
        raise ModelError(f"axis {axis} does not belong to {rank} dims")
    axis %= rank
    shape = list(node.result().shape)
    shape[axis] = 1
    parts = []
    for position in range(node.count):
        if math.prod(node.tensor(position).shape) != math.prod(shape):
            raise ModelError(f"operand {position} does not fit {shape}")
        parts.append(node.b.Reshape(node.value(position), np.array(shape, np.int64)))
    node.define(node.b.Concat(*parts, axis=axis))


@handles("UNPACK")
def unpack(node: Node) -> None:
    shape, axis = node.tensor().shape, node.option("Axis")
    if not -len(shape) <= axis < len(shape) or len(node.op.outputs) != shape[axis]:
        raise ModelError(f"axis {axis} of {list(shape)} does not give {len(node.op.outputs)} parts")
    axis %= len(shape)
    for n in range(len(node.op.outputs)):
        begin, end = [0] * len(shape), list(shape)
        begin[axis], end[axis] = n, n + 1
        part = _part(node, node.value(), tuple(begin), tuple(end))
        node.define(node.b.Reshape(part, np.array(node.result(n).shape, np.int64)), n)


@handles("GATHER")
def gather(node: Node) -> None:
    shape, axis = node.tensor().shape, node.option("Axis")
    if node.option("BatchDims"):
        raise UnsupportedError("batch dims are not supported")
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"axis {axis} does not belong to {len(shape)} dims")
    node.define(node.b.Gather(node.value(), node.value(1), axis=axis % len(shape)))


@handles("TILE")
def tile(node: Node) -> None:
    node.define(node.b.Tile(node.value(), np.array(node.known_ints(1), np.int64)))


@handles("BROADCAST_TO")
def broadcast(node: Node) -> None:
    node.define(node.b.Expand(node.value(), np.array(node.known_ints(1), np.int64)))


@handles("DEPTH_TO_SPACE")
def depth_to_space(node: Node) -> None:
    size = node.option("BlockSize")
    if size < 1:
        raise ModelError(f"blocks of {size} are not possible")
    node.define_image(node.b.DepthToSpace(node.image(), blocksize=size, mode="DCR"))


@handles("SPACE_TO_DEPTH")
def space_to_depth(node: Node) -> None:
    size = node.option("BlockSize")
    if size < 1:
        raise ModelError(f"blocks of {size} are not possible")
    node.define_image(node.b.SpaceToDepth(node.image(), blocksize=size))


@handles("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(node: Node) -> None:
    """Of each position the pixel at its lower end, the usual way, or at half its centre."""
    size = node.known_ints(1)
    if node.option("AlignCorners"):
        raise UnsupportedError("aligned corners are not supported")
    x = node.image()
    if len(size) != 2 or min(size) < 1:
        raise ModelError(f"its size must be two numbers above 0, found {list(size)}")
    if max(size) > MOST_ROWS:
        raise UnsupportedError(f"a size of {list(size)} is not supported, at most {MOST_ROWS}")
    for axis, to in zip((2, 3), size):
        extent = x.tensor.extent(axis)
        scale = np.float32(extent) / np.float32(to)
        half = np.float32(0.5 if node.option("HalfPixelCenters") else 0)
        rows = np.floor((np.arange(to, dtype=np.float32) + half) * scale).astype(np.int64)
        x = node.b.Gather(x, np.clip(rows, 0, extent - 1), axis=axis)
    node.define_image(x)


@handles("ARG_MAX", "ARG_MIN")
def arg_extreme(node: Node) -> None:
    """The place of the largest or smallest element, the first of several."""
    shape, (axis,) = node.tensor().shape, node.known_ints(1)
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"axis {axis} does not belong to {len(shape)} dims")
    function = node.b.ArgMax if node.op.kind == "ARG_MAX" else node.b.ArgMin
    place = function(node.value(), axis=axis % len(shape), keepdims=0)
    node.define(node.b.Cast(place, to=i32.onnx) if node.result_dtype() is i32 else place)


@handles("REVERSE_V2")
def reverse(node: Node) -> None:
    shape, x = node.tensor().shape, node.value()
    for axis in node.known_ints(1):
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"axis {axis} does not belong to {len(shape)} dims")
        back = np.array([-1]), np.array([-shape[axis] - 1]), np.array([axis]), np.array([-1])
        x = node.b.Slice(x, *back)
    node.define(x)


@handles("SPACE_TO_BATCH_ND")
def space_to_batch(node: Node) -> None:
    """Of an image: elements a block apart become images of their own, after padding."""
    (n, h, w, c), blocks, pads = _blocks(node)
    ends = np.array([0, *pads[:, 0], 0, 0, *pads[:, 1], 0])
    x = node.tensor()
    filling = 0 if x.quantisation is None else node.zero_point(x)
    padded = node.b.Pad(node.value(), ends, node.b.constant(filling, node.dtype()))
    h, w = h + int(pads[0].sum()), w + int(pads[1].sum())
    if h % blocks[0] or w % blocks[1]:
        raise ModelError(f"{h} x {w} does not divide into blocks of {list(blocks)}")
    parts = [n, h // blocks[0], blocks[0], w // blocks[1], blocks[1], c]
    apart = node.b.Transpose(node.b.Reshape(padded, np.array(parts)), perm=(2, 4, 0, 1, 3, 5))
    node.define(node.b.Reshape(apart, np.array(node.result().shape, np.int64)))


@handles("BATCH_TO_SPACE_ND")
def batch_to_space(node: Node) -> None:
    """The reverse, what was padding left out."""
    (n, h, w, c), blocks, crops = _blocks(node)
    if n % (blocks[0] * blocks[1]):
        raise ModelError(f"{n} images do not divide into blocks of {list(blocks)}")
    n //= blocks[0] * blocks[1]
    apart = node.b.Reshape(node.value(), np.array([*blocks, n, h, w, c]))
    joined = node.b.Transpose(apart, perm=(2, 3, 0, 4, 1, 5))
    h, w = h * blocks[0], w * blocks[1]
    whole = node.b.Reshape(joined, np.array([n, h, w, c]))
    begin, end = (0, *crops[:, 0], 0), (n, h - crops[0, 1], w - crops[1, 1], c)
    node.define(_part(node, whole, begin, end))


def _blocks(node: Node) -> tuple[tuple[int, ...], tuple[int, ...], np.ndarray]:
    """The shape of an image, the height and width of a block, and what is added or left out."""
    shape, blocks, ends = node.tensor().shape, node.known_ints(1), node.known(2)
    if len(shape) != 4 or len(blocks) != 2 or ends.shape != (2, 2):
        raise UnsupportedError("only images, with blocks of two dims, are supported")
    if min(blocks) < 1 or ends.min() < 0:
        raise ModelError("blocks must be positive, and padding not negative")
    return shape, blocks, ends.astype(np.int64)


# ---------------------------------------------------------------- constants


@handles("SHAPE")
def shape(node: Node) -> None:
    node.define(node.b.constant(np.array(node.tensor().shape, node.result_dtype().np)))


@handles("ZEROS_LIKE")
def zeros(node: Node) -> None:
    zero = node.b.constant(0, node.dtype())
    node.define(node.b.Expand(zero, np.array(node.tensor().shape, np.int64)))


@handles("FILL")
def fill(node: Node) -> None:
    node.define(node.b.Expand(node.value(1), np.array(node.known_ints(0), np.int64)))
