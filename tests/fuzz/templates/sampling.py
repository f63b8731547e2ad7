"""Resizing, sampling at computed places, and windows put back together."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import is_f32, is_wide, template

TRANSFORMS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
              "half_pixel_symmetric", "tf_half_pixel_for_nn")  # fmt: skip


@template(0.8)
def resize(g: Generator) -> None:
    """By sizes. ONNX Runtime rounds the scales of nearest neighbours."""
    x = g.pick(is_f32, (3, 4), filled=True)
    mode = g.choice(("nearest", "linear", "cubic") if x.tensor.rank == 4 else ("nearest", "linear"))
    transform = g.choice(TRANSFORMS[:4])
    sizes = [*x.tensor.dims[:2], *(g.integer(1, 2 * d + 1) for d in x.tensor.dims[2:])]
    rounding = g.choice(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    g.for_onnxruntime &= mode != "nearest"
    g.emit("Resize", x, None, None, np.array(sizes, np.int64), mode=mode,
           coordinate_transformation_mode=transform, nearest_mode=rounding)  # fmt: skip


@template(0.8)
def resize_by_scales(g: Generator) -> None:
    """By scales that are exact in binary, of chosen axes, with all options."""
    x = g.pick(is_wide, (1, 5), filled=True)
    rank = x.tensor.rank
    axes = sorted(int(n) for n in g.rng.permutation(rank)[: g.integer(1, min(2, rank))])
    scales = [g.choice((0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)) for _ in axes]
    if any(int(x.tensor.dims[a] * s) < 1 for a, s in zip(axes, scales)):
        raise Decline
    mode = g.choice(("nearest", "linear", "cubic"))
    attrs = {"exclude_outside": g.integer(0, 1)} if mode == "cubic" else {}
    if mode != "nearest" and g.chance(0.4):
        attrs["antialias"] = 1
    g.for_onnxruntime = False  # it lacks most combinations, and deviates in some
    g.emit("Resize", x, None, np.array(scales, np.float32), mode=mode, axes=axes,
           coordinate_transformation_mode=g.choice(TRANSFORMS),
           nearest_mode=g.choice(("floor", "ceil", "round_prefer_floor")), **attrs)  # fmt: skip


@template(0.3)
def resize_crop(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    roi = np.array([0, 0, 0.25, 0.125, 1, 1, 0.75, 1.25], np.float32)
    sizes = [*x.tensor.dims[:2], g.integer(1, 9), g.integer(1, 9)]
    g.for_onnxruntime = False
    g.emit("Resize", x, roi, None, np.array(sizes, np.int64), mode="linear",
           coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0
           )  # fmt: skip


@template(0.4)
def upsample(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    scales = np.array([1, 1, g.choice((1, 2, 3)), g.choice((1, 2))], np.float32)
    g.emit("Resize", x, None, scales, mode="nearest", nearest_mode="floor",
           coordinate_transformation_mode="asymmetric", keeps=True)  # fmt: skip


def places(g: Generator, *shape: int) -> np.ndarray:
    """Coordinates from -1 to 1 and a little outside, no two elements apart by a hair."""
    return (g.rng.integers(-40, 41, shape) / 32).astype(np.float32) + np.float32(0.003)


@template(0.6)
def grid_sample(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    n = x.tensor.dims[0]
    grid = g.b.constant(places(g, n, g.integer(1, 5), g.integer(1, 5), 2))
    mode = g.choice(("linear", "nearest", "cubic"))
    g.for_onnxruntime &= mode == "linear"
    g.emit("GridSample", x, grid, mode=mode, align_corners=g.integer(0, 1),
           padding_mode=g.choice(("zeros", "border", "reflection")))  # fmt: skip


@template(0.3)
def affine_grid(g: Generator) -> None:
    n, h, w = (g.integer(1, 4) for _ in range(3))
    theta = g.operand(f32, (n, 2, 3))
    size = np.array([n, 3, h, w], np.int64)
    corners = g.integer(0, 1)
    g.for_onnxruntime &= not (corners and 1 in (h, w))  # it puts a lone point at the far end
    g.emit("AffineGrid", theta, size, align_corners=corners)


@template(0.4)
def regions_of_interest(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    batch, _, h, w = x.tensor.dims
    count = g.integer(1, 4)
    corners = g.rng.integers(0, 4, (count, 2)) + 0.25
    boxes = np.concatenate([corners, corners + g.rng.integers(1, 5, (count, 2))], 1)
    which = g.rng.integers(0, batch, count).astype(np.int64)
    mode, ratio = g.choice(("avg", "max")), g.integer(0, 2)
    g.for_onnxruntime &= mode == "avg"  # its maximum is of weighted corners
    g.emit("RoiAlign", x, boxes.astype(np.float32), which, mode=mode, sampling_ratio=ratio,
           output_height=g.integer(1, 3), output_width=g.integer(1, 3), spatial_scale=0.5,
           coordinate_transformation_mode=g.choice(("half_pixel", "output_half_pixel"))
           )  # fmt: skip


@template(0.3)
def largest_of_regions(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    batch, _, h, w = x.tensor.dims
    rows = [[g.integer(0, batch - 1), 0, 0, g.integer(0, w - 1), g.integer(0, h - 1)]
            for _ in range(g.integer(1, 3))]  # fmt: skip
    g.emit("MaxRoiPool", x, np.array(rows, np.float32), pooled_shape=[g.integer(1, 3)] * 2)


@template(0.5)
def largest_and_back(g: Generator) -> None:
    """MaxPool with indices, and MaxUnpool."""
    x = g.pick(is_f32, (3, 4), exact=True, filled=True)
    kernel = [g.integer(1, min(3, d)) for d in x.tensor.dims[2:]]
    y, where = g.emit("MaxPool", x, kernel_shape=kernel, strides=kernel, outputs=2, keeps=True)
    if g.chance(0.6):
        shape = np.array(x.tensor.dims, np.int64)
        if any(d % k for d, k in zip(x.tensor.dims[2:], kernel)):
            g.for_onnxruntime = False  # the standard counts in the part that windows cover
        g.emit("MaxUnpool", y, where, shape, kernel_shape=kernel, strides=kernel, keeps=True)


@template(0.4)
def put_back_windows(g: Generator) -> None:
    n, c = g.integer(1, 2), g.integer(1, 3)
    image, block = [g.integer(3, 6), g.integer(3, 6)], [g.integer(1, 3), g.integer(1, 3)]
    strides, dilations = [g.integer(1, 2), 1], [1, g.integer(1, 2)]
    pads = [g.integer(0, 1) for _ in range(4)]
    counts = [(image[d] + pads[d] + pads[d + 2] - dilations[d] * (block[d] - 1) - 1) // strides[d]
              + 1 for d in range(2)]  # fmt: skip
    if min(counts) < 1:
        raise Decline
    x = g.operand(f32, (n, c * block[0] * block[1], counts[0] * counts[1]))
    g.emit("Col2Im", x, np.array(image, np.int64), np.array(block, np.int64), strides=strides,
           dilations=dilations, pads=pads)  # fmt: skip


@template(0.4)
def deformed(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    n, c, h, w = x.tensor.dims
    kernel = [g.integer(1, min(3, h)), g.integer(1, min(3, w))]
    out = [h - kernel[0] + 1, w - kernel[1] + 1]
    points = kernel[0] * kernel[1]
    if n * points * out[0] * out[1] > 2000:
        raise Decline
    offsets = places(g, n, 2 * points, *out)
    mask = g.constant(f32, (n, points, *out)) if g.chance(0.5) else None
    weights = g.constant(f32, (g.integer(1, 3), c, *kernel))
    bias = g.constant(f32, weights.tensor.dims[:1]) if g.chance(0.5) else None
    g.emit("DeformConv", x, weights, offsets, bias, mask, kernel_shape=kernel)


@template(0.3)
def boxes_that_stand_out(g: Generator) -> None:
    count, classes = g.integer(1, 12), g.integer(1, 3)
    corners = g.rng.integers(0, 20, (1, count, 2))
    boxes = np.concatenate([corners, corners + g.rng.integers(1, 9, (1, count, 2))], 2)
    scores = g.rng.permutation(classes * count).reshape(1, classes, count) / 64
    g.emit("NonMaxSuppression", g.b.constant(boxes.astype(np.float32)),
           g.b.constant(scores.astype(np.float32)), np.array([g.integer(0, 6)], np.int64),
           np.array([g.choice((0.1, 0.33, 0.7))], np.float32),
           *([np.array([0.11], np.float32)] if g.chance(0.5) else []), final=True)  # fmt: skip


def spectrum_of(g: Generator) -> Value:
    return g.pick(is_f32, (2, 3), filled=True)


@template(0.3)
def spectrum(g: Generator) -> None:
    x = spectrum_of(g)
    x = g.emit("Unsqueeze", x, np.array([-1], np.int64), keeps=True)
    rank = x.tensor.rank
    axis = g.integer(1, rank - 2) if rank > 2 else 1
    if x.tensor.dims[axis] > 40:
        raise Decline
    length = np.array(g.integer(1, 12), np.int64) if g.chance(0.4) else None
    onesided = g.integer(0, 1)
    g.emit("DFT", x, length, np.array(axis, np.int64), onesided=onesided)


@template(0.2)
def short_spectra(g: Generator) -> None:
    length = g.integer(8, 24)
    x = g.operand(f32, (g.integer(1, 2), length, 1))
    frame = g.integer(2, 8)
    window = g.constant(f32, (frame,)) if g.chance(0.5) else None
    g.emit("STFT", x, np.array(g.integer(1, 4), np.int64), window, np.array(frame, np.int64),
           onesided=g.integer(0, 1))  # fmt: skip


@template(0.3)
def windows_of_signals(g: Generator) -> None:
    name = g.choice(("HannWindow", "HammingWindow", "BlackmanWindow"))
    kind = g.choice((f32, dtypes.f64)).onnx
    size = np.array(g.integer(2, 20), np.int64)  # of one, ONNX Runtime makes 0 / 0
    g.emit(name, size, periodic=g.integer(0, 1), output_datatype=kind)
