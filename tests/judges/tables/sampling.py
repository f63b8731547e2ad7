"""Resampling: PyTorch in float64."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from by_torch import array, tensor
from judge import BETWEEN, WIDE, Case
from operands import normal, uniform


def interpolated(mode: str, align=None, antialias: bool = False):
    """torch.nn.functional.interpolate to the sizes, or by the scales, of all but two axes."""

    def reference(x, _roi, scales=None, sizes=None):
        how = {"size": list(map(int, sizes[2:]))} if scales is None else {
            "scale_factor": list(map(float, scales[2:]))}  # fmt: skip
        return array(F.interpolate(tensor(x), **how, mode=mode, align_corners=align,
                                   antialias=antialias))  # fmt: skip

    return reference


PADDING = {"zeros": "zeros", "border": "border", "reflection": "reflection"}
MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def sampled(x, grid, *, mode, padding_mode, align_corners):
    return array(F.grid_sample(tensor(x), tensor(grid), MODES[mode], padding_mode,
                               bool(align_corners)))  # fmt: skip


def sampled_volume(x, grid, *, align_corners):
    return array(F.grid_sample(tensor(x), tensor(grid), "bilinear", "zeros", bool(align_corners)))


def affine(theta, size, *, align_corners):
    return array(F.affine_grid(tensor(theta), list(map(int, size)), bool(align_corners)))


def aligned_regions(x, boxes, which, *, output_height, output_width, sampling_ratio):
    """Means of samples on a grid in each cell of a region (He et al., "Mask R-CNN", 2017)."""
    _, _, height, width = x.shape
    cells = np.zeros((len(boxes), x.shape[1], output_height, output_width))
    for n, ((x1, y1, x2, y2), image) in enumerate(zip(boxes, which)):
        rows, columns = (
            low - 0.5 + (np.arange(count * sampling_ratio) + 0.5) * (high - low)
            / (count * sampling_ratio)
            for low, high, count in ((y1, y2, output_height), (x1, x2, output_width))
        )  # fmt: skip
        at = np.stack(np.meshgrid(columns * 2 / (width - 1) - 1, rows * 2 / (height - 1) - 1), -1)
        values = F.grid_sample(tensor(x[image : image + 1]), tensor(at[None]), "bilinear", "border",
                               True)  # fmt: skip
        cells[n] = array(F.avg_pool2d(values, sampling_ratio))[0]
    return cells


SCALES = {"up": [1, 1, 1.5, 2.25], "down": [1, 1, 0.625, 0.375], "mixed": [1, 1, 2, 0.5]}
TORCH = {
    "nearest": ("nearest", None, False, {"mode": "nearest", "nearest_mode": "floor",
                                         "coordinate_transformation_mode": "asymmetric"}),
    "nearest_exact": ("nearest-exact", None, False, {"nearest_mode": "round_prefer_ceil"}),
    "linear": ("bilinear", False, False, {"mode": "linear"}),
    "linear_corners": ("bilinear", True, False,
                       {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    "linear_antialias": ("bilinear", False, True,
                         {"mode": "linear", "antialias": 1, "exclude_outside": 1}),
    "cubic": ("bicubic", False, False, {"mode": "cubic"}),
    "cubic_corners": ("bicubic", True, False,
                      {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}),
    "cubic_antialias": ("bicubic", False, True, {"mode": "cubic", "antialias": 1,
                                                 "exclude_outside": 1, "cubic_coeff_a": -0.5}),
}  # fmt: skip
IMAGE = normal(2, 3, 9, 11)
RESIZES = [
    Case(f"Resize_{name}_{how}", "Resize", [IMAGE, None, np.array(scales, np.float32)],
         interpolated(mode, align, antialias), attrs, share=4.0, roundings=8)
    for name, (mode, align, antialias, attrs) in TORCH.items() for how, scales in SCALES.items()
]  # fmt: skip
GRID = uniform(-1.3, 1.3, 2, 4, 5, 2)
GRIDS = [
    Case(f"GridSample_{mode}_{padding}_{align}", "GridSample", [normal(2, 3, 6, 7), GRID], sampled,
         {"mode": mode, "padding_mode": padding, "align_corners": align}, types=WIDE, share=8.0,
         roundings=16)
    for mode in MODES for padding in PADDING for align in (0, 1)
]  # fmt: skip
CASES = [
    *RESIZES,
    *GRIDS,
    Case("GridSample_volume", "GridSample", [normal(1, 2, 4, 5, 3), uniform(-1, 1, 1, 2, 3, 4, 3)],
         sampled_volume, {"align_corners": 0}, types=WIDE, share=8.0, roundings=16),
    *(Case(f"AffineGrid_{n}_{align}", "AffineGrid", [normal(2, n, n + 1), np.array([2, 3, *size])],
           affine, {"align_corners": align}, share=2.0, narrow=BETWEEN)
      for n, size in ((2, (4, 5)), (3, (3, 4, 5))) for align in (0, 1)),
    Case("RoiAlign", "RoiAlign", [normal(2, 3, 9, 9),
                                  np.array([[1, 1, 6, 7], [2.5, 0.5, 7.5, 4]], np.float32),
                                  np.array([1, 0])],
         aligned_regions, {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
         types=["float32"], share=4.0, roundings=16),
]  # fmt: skip
