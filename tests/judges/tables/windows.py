"""Convolutions, poolings and what else moves windows: PyTorch in float64."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from by_torch import array, by_torch, tensor
from judge import BETWEEN, WIDE, Case
from operands import integers, normal

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
BACK = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
LARGEST = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def sides(pads, rank: int) -> list[int]:
    """ONNX's pads as torch.nn.functional.pad takes them: the last axis first."""
    return [p for d in reversed(range(rank)) for p in (pads[d], pads[d + rank])]


def conv(x, w, b=None, *, pads=None, strides=1, dilations=1, group=1):
    rank = x.ndim - 2
    x = F.pad(tensor(x), sides(pads or [0] * 2 * rank, rank))
    return array(CONV[rank](x, tensor(w), tensor(b), strides, 0, dilations, group))


def conv_transpose(x, w, b=None, *, pads=None, strides=1, dilations=1, group=1, output_padding=0):
    rank = x.ndim - 2
    y = BACK[rank](tensor(x), tensor(w), None, strides, 0, output_padding, group, dilations)
    y = F.pad(y, [-p for p in sides(pads or [0] * 2 * rank, rank)])
    return array(y) + (0 if b is None else b.reshape(-1, *[1] * rank))


def max_pool(x, *, kernel_shape, pads=None, strides=1, dilations=1, ceil_mode=0):
    rank = x.ndim - 2
    pads = pads or [0] * 2 * rank
    if pads[:rank] == pads[rank:] and ceil_mode:
        return array(LARGEST[rank](tensor(x), kernel_shape, strides, pads[:rank], dilations, True))
    padded = F.pad(tensor(x), sides(pads, rank), value=-np.inf)
    return array(LARGEST[rank](padded, kernel_shape, strides, 0, dilations))


def max_pool_places(x, *, kernel_shape, strides):
    """Places are those in the whole input, not in its plane."""
    y, where = F.max_pool2d(tensor(x), kernel_shape, strides, return_indices=True)
    plane = x.shape[2] * x.shape[3]
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1, 1)
    return array(y), array(where) + planes * plane


def average_pool(x, *, kernel_shape, pads=None, strides=1, ceil_mode=0, count_include_pad=0):
    rank = x.ndim - 2
    begin = (pads or [0] * 2 * rank)[:rank]
    return array(MEAN[rank](tensor(x), kernel_shape, strides, begin, bool(ceil_mode),
                            bool(count_include_pad)))  # fmt: skip


def dilated_mean(x, *, kernel_shape, dilations):
    w = np.full((x.shape[1], 1, *kernel_shape), 1 / np.prod(kernel_shape))
    return array(F.conv2d(tensor(x), tensor(w), None, 1, 0, dilations, x.shape[1]))


def lp_pool(x, *, kernel_shape, p, strides=1):
    return array(F.avg_pool2d(tensor(np.abs(x) ** p), kernel_shape, strides)
                 * np.prod(kernel_shape)) ** (1 / p)  # fmt: skip


def fold(x, image, block, *, dilations=1, pads=(0, 0, 0, 0), strides=1):
    return array(F.fold(tensor(x), tuple(image), tuple(block), dilations, pads[:2], strides))


def unpool(x, where, *, kernel_shape, strides):
    plane = x.shape[2] * strides[0] * x.shape[3] * strides[1]
    y = F.max_unpool2d(tensor(x), tensor(where % plane), kernel_shape, strides)
    return array(y)


def places_of_windows(rng, dtype):
    """Distinct places in windows of 2 x 2 of 2 x 3 planes of 4 x 6."""
    rows, columns = np.meshgrid(np.arange(2), np.arange(3), indexing="ij")
    offset = rng.integers(0, 2, (2, 2, 3, 2, 3))
    inside = (rows * 2 + offset[0]) * 6 + columns * 2 + offset[1]
    return inside + np.arange(6).reshape(2, 3, 1, 1) * 24


def lrn(x, *, size, alpha, beta, bias):
    """torch.nn.functional.local_response_norm divides alpha by the size likewise."""
    return array(F.local_response_norm(tensor(x), size, alpha, beta, bias))


def deformed(x, w, offset, b, mask, *, pads):
    """Every tap of a 3 x 3 window sampled where its offset says, with zeros outside."""
    n, c, h, wide = x.shape
    padded_rows, padded_columns = h + 2 * pads[0] - 2, wide + 2 * pads[1] - 2
    rows, columns = np.meshgrid(np.arange(padded_rows), np.arange(padded_columns), indexing="ij")
    total = np.zeros((n, w.shape[0], padded_rows, padded_columns))
    for tap in range(9):
        at_row = rows - pads[0] + tap // 3 + offset[:, 2 * tap]
        at_column = columns - pads[1] + tap % 3 + offset[:, 2 * tap + 1]
        grid = np.stack([at_column * 2 / (wide - 1) - 1, at_row * 2 / (h - 1) - 1], -1)
        sampled = F.grid_sample(tensor(x), tensor(grid), align_corners=True)
        total += np.einsum("nchw,oc,nhw->nohw", array(sampled), w[:, :, tap // 3, tap % 3],
                           mask[:, tap])  # fmt: skip
    return total + b.reshape(-1, 1, 1)


CONVOLUTIONS = {
    "1d": (normal(2, 4, 11), normal(6, 4, 3), {"pads": [2, 1], "strides": [2]}),
    "2d": (normal(2, 3, 9, 7), normal(5, 3, 3, 2), {"pads": [1, 0, 2, 1]}),
    "2d_grouped": (normal(1, 6, 9, 10), normal(4, 3, 3, 2), {"group": 2, "dilations": [2, 3]}),
    "2d_depthwise": (normal(2, 4, 8, 8), normal(8, 1, 3, 3), {"group": 4, "strides": [2, 3]}),
    "2d_point": (normal(2, 16, 5, 5), normal(8, 16, 1, 1), {}),
    "3d": (normal(1, 3, 5, 6, 7), normal(2, 3, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1]}),
    "2d_no_images": (normal(0, 3, 5, 5), normal(2, 3, 3, 3), {}),
    "2d_deep": (normal(1, 300, 4, 4, offset=1), normal(3, 300, 3, 3, scale=0.1), {}),
}
TRANSPOSED = {
    "1d": (normal(2, 4, 7), normal(4, 3, 3), {"strides": [2], "output_padding": [1]}),
    "2d": (normal(1, 3, 5, 4), normal(3, 2, 3, 3), {"strides": [3, 2], "pads": [1, 0, 2, 1]}),
    "2d_grouped": (normal(2, 4, 5, 5), normal(4, 3, 2, 3), {"group": 2, "dilations": [2, 1]}),
    "3d": (normal(1, 2, 3, 4, 3), normal(2, 2, 2, 3, 2), {"strides": [2, 1, 2]}),
}
POOLED = {
    "1d": (normal(2, 3, 11), {"kernel_shape": [4], "strides": [3]}),
    "2d": (normal(2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
    "ceil": (normal(1, 2, 8, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "ceil_padded": (normal(1, 2, 8, 7), {"kernel_shape": [3, 3], "strides": [2, 2],
                                         "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    "3d": (normal(1, 2, 5, 4, 6), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
}  # fmt: skip
POOLINGS = [
    *(Case(f"MaxPool_{n}", "MaxPool", [x], max_pool, a, roundings=0)
      for n, (x, a) in POOLED.items()),
    Case("MaxPool_uneven", "MaxPool", [normal(1, 2, 7, 9)], max_pool,
         {"kernel_shape": [2, 3], "dilations": [2, 2], "pads": [0, 1, 1, 0]}, roundings=0),
    Case("MaxPool_integers", "MaxPool", [integers(-99, 99, 1, 2, 7, 9)],
         lambda x, *, kernel_shape: max_pool(x * 1.0, kernel_shape=kernel_shape),
         {"kernel_shape": [2, 3]}, types=("int8",)),
    Case("MaxPool_places", "MaxPool", [normal(2, 3, 6, 8)], max_pool_places,
         {"kernel_shape": [2, 2], "strides": [2, 2]}, outputs=2, roundings=0),
    *(Case(f"AveragePool_{n}", "AveragePool", [x], average_pool, a, share=1.0)
      for n, (x, a) in POOLED.items()),
    *(Case(f"AveragePool_{n}_with_pads", "AveragePool", [x], average_pool,
           {**a, "count_include_pad": 1}, share=1.0)
      for n, (x, a) in POOLED.items()),
    Case("AveragePool_dilated", "AveragePool", [normal(1, 2, 9, 9)], dilated_mean,
         {"kernel_shape": [3, 2], "dilations": [2, 3]}, share=1.0),
    *(Case(f"LpPool_{p}", "LpPool", [normal(1, 2, 8, 8)], lp_pool,
           {"kernel_shape": [3, 2], "p": p, "strides": [2, 2]}, share=1.0) for p in (1, 2, 3)),
    Case("GlobalAveragePool", "GlobalAveragePool", [normal(2, 3, 7, 5, offset=9)],
         lambda x: x.mean((2, 3), keepdims=True), share=1.0),
    Case("GlobalMaxPool", "GlobalMaxPool", [normal(2, 3, 7, 5)],
         lambda x: x.max((2, 3), keepdims=True), roundings=0),
    *(Case(f"GlobalLpPool_{p}", "GlobalLpPool", [normal(2, 3, 7, 5)],
           lambda x, *, p: (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p), {"p": p},
           share=1.0) for p in (1, 2, 3)),
]  # fmt: skip
CASES = [
    *(Case(f"Conv_{n}", "Conv", [x, w], conv, a, share=2.0)
      for n, (x, w, a) in CONVOLUTIONS.items()),
    Case("Conv_biased", "Conv", [normal(2, 3, 9, 7), normal(5, 3, 3, 2), normal(5)], conv,
         share=2.0, narrow=BETWEEN),
    *(Case(f"ConvTranspose_{n}", "ConvTranspose", [x, w], conv_transpose, a, share=2.0)
      for n, (x, w, a) in TRANSPOSED.items()),
    Case("ConvTranspose_biased", "ConvTranspose",
         [normal(2, 3, 5, 4), normal(3, 2, 3, 2), normal(2)], conv_transpose, share=2.0,
         narrow=BETWEEN),
    Case("ConvInteger", "ConvInteger", [integers(0, 127, 1, 3, 6, 6), integers(0, 127, 2, 3, 3, 3),
                                        integers(9, 99)],
         lambda x, w, p: conv(1.0 * x - p, 1.0 * w).astype(np.int32), types=("uint8", "int8")),
    *POOLINGS,
    Case("LRN", "LRN", [normal(2, 9, 4, 3)], lrn,
         {"size": 5, "alpha": 0.25, "beta": 0.75, "bias": 2.0}),
    Case("Col2Im", "Col2Im", [normal(2, 12, 12), np.array([5, 6]), np.array([2, 2])], fold,
         {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 1, 0]}, share=1.0),
    Case("MaxUnpool", "MaxUnpool", [normal(2, 3, 2, 3), places_of_windows], unpool,
         {"kernel_shape": [2, 2], "strides": [2, 2]}, roundings=0),
    Case("DeformConv", "DeformConv", [normal(2, 2, 6, 5), normal(3, 2, 3, 3),
                                      normal(2, 18, 6, 5, scale=0.6), normal(3),
                                      normal(2, 9, 6, 5)],
         deformed, {"pads": [1, 1, 1, 1]}, share=2.0, roundings=12, types=WIDE),
    Case("GlobalMaxPool_torch", "GlobalMaxPool", [normal(1, 2, 3)],
         by_torch(torch.amax, dim=2, keepdim=True), roundings=0),
]  # fmt: skip
