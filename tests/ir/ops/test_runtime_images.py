"""ONNX Runtime's own operators on images: as its CPU kernels compute them."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check, runtime_model

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

pytestmark = pytest.mark.suite("all")

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_channels_last(dtype):
    x = RANDOM.integers(0, 100, (2, 7, 6, 3)).astype(dtype)
    check("NhwcMaxPool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    check("NhwcMaxPool", x, kernel_shape=[2, 2], dilations=[2, 1], ceil_mode=1)


@pytest.mark.parametrize("seed", range(12))
def test_max_pool_with_mask(seed):
    random = np.random.default_rng(seed)
    rank = 1 + seed % 3
    sizes = random.integers(4, 8, rank)
    kernel = [int(k) for k in random.integers(1, 4, rank)]
    pads = [int(min(k - 1, p)) for k, p in zip(kernel * 2, random.integers(0, 2, 2 * rank))]
    x = random.standard_normal((2, 3, *sizes)).astype(np.float32)
    x[0, 0].flat[0] = np.nan
    mask = (random.random((1, 1, *sizes)) > 0.4).astype(np.int32)
    strides = [int(s) for s in random.integers(1, 3, rank)]
    check("MaxpoolWithMask", x, mask, kernel_shape=kernel, pads=pads, strides=strides,
          compiled=seed < 3)  # fmt: skip


def test_masks_of_several_channels_are_refused():
    proto = runtime_model("MaxpoolWithMask", [floats(1, 3, 5), np.ones((1, 3, 5), np.int32)],
                          {"kernel_shape": [2]})  # fmt: skip
    with pytest.raises(UnsupportedError, match="the mask must be"):
        interpret(import_onnx(proto), [floats(1, 3, 5), np.ones((1, 3, 5), np.int32)])


def test_transposed_convolution():
    pads = np.array([1, 0, 2, 1])
    check("ConvTransposeWithDynamicPads", floats(1, 4, 5, 6), floats(4, 2, 3, 3), pads, floats(4),
          constants={2}, strides=[2, 1], group=2, output_padding=[1, 0])  # fmt: skip


@pytest.mark.parametrize("dim, size, step", [(0, 2, 1), (1, 3, 2), (-1, 4, 3)])
def test_unfolding(dim, size, step):
    check("UnfoldTensor", floats(3, 5, 7), dim=dim, size=size, step=step, compiled=dim == 1)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 3), (1, 5), (1, 1)])
def test_crops(mode, size):
    boxes = np.array(
        [[0, 0, 1, 1], [0.2, 0.1, 0.9, 0.7], [1, 1, 0, 0], [-0.5, 0.3, 0.4, 1.4], [0, 0, 0, 0]],
        np.float32,
    )
    images = np.array([0, 1, 1, 0, 1], np.int32)
    check("CropAndResize", floats(2, 3, 6, 8), boxes, images, np.array(size, np.int32),
          constants={3}, mode=mode, extrapolation_value=-7.5, compiled=size == (4, 3))  # fmt: skip


def test_crops_of_missing_images():
    operands = [floats(2, 1, 4, 4), np.zeros((1, 4), np.float32), np.array([2], np.int32),
                np.array([2, 2], np.int32)]  # fmt: skip
    graph = import_onnx(runtime_model("CropAndResize", operands, {}, constants={3}))
    with pytest.raises(ModelError, match="index 2"):
        interpret(graph, operands[:3])
