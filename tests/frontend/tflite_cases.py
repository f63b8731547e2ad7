"""Models of one operator each, for which TensorFlow Lite Micro's results are known or computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.frontend.tflite_models import RELU, RELU6, SAME, VALID, T, one

CASES: dict[str, Callable[[np.random.Generator], bytes]] = {}


def case(function: Callable) -> Callable:
    CASES[function.__name__] = function
    return function


def _weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-127, 128, shape).astype(np.int8)


def _bias(rng: np.random.Generator, size: int, kind: type = np.int32) -> np.ndarray:
    return rng.integers(-3000, 3000, size).astype(kind)


def _conv(
    rng: np.random.Generator, activation: int, padding: int, stride: int = 1, dilation: int = 1,
    kernel: tuple[int, int] = (3, 3), depth: int = 4, out_scale: float = 0.3, zero: int = 5,
) -> bytes:  # fmt: skip
    scales = rng.uniform(0.001, 0.02, 6)
    size = (9, 7)
    extents = [
        -(-n // stride) if padding == SAME else (n - (k - 1) * dilation - 1) // stride + 1
        for n, k in zip(size, kernel)
    ]
    return one("CONV_2D", [
        T((1, *size, depth), scale=0.05, zero=-7),
        T(data=_weights(rng, 6, *kernel, depth), scale=scales),
        T(data=_bias(rng, 6), scale=scales * 0.05),
        T((1, *extents, 6), scale=out_scale, zero=zero),
    ], Padding=padding, StrideH=stride, StrideW=stride, DilationHFactor=dilation,
        DilationWFactor=dilation, FusedActivationFunction=activation)  # fmt: skip


@case
def conv(rng):
    return _conv(rng, 0, SAME)


@case
def conv_relu(rng):
    return _conv(rng, RELU, VALID, stride=2, zero=-128)


@case
def conv_relu6(rng):
    return _conv(rng, RELU6, SAME, stride=2, out_scale=6 / 255, zero=-128)


@case
def conv_dilated(rng):
    return _conv(rng, 0, SAME, dilation=2)


@case
def conv_pointwise(rng):
    return _conv(rng, 0, VALID, kernel=(1, 1), depth=16, out_scale=0.15)


@case
def conv_of_large_factors(rng):
    """Factors above 1 are shifted left."""
    return one("CONV_2D", [
        T((1, 3, 3, 2), scale=1.0, zero=3), T(data=_weights(rng, 4, 1, 1, 2) // 40, scale=1.5),
        T(data=np.array([3, -2, 1, 0], np.int32), scale=1.5), T((1, 3, 3, 4), scale=0.7, zero=-1),
    ], Padding=VALID, StrideH=1, StrideW=1)  # fmt: skip


@case
def conv_in_groups(rng):
    scales = rng.uniform(0.001, 0.02, 6)
    return one("CONV_2D", [
        T((1, 5, 5, 4), scale=0.05, zero=-7), T(data=_weights(rng, 6, 3, 3, 2), scale=scales),
        T(data=_bias(rng, 6), scale=scales * 0.05), T((1, 3, 3, 6), scale=0.3, zero=5),
    ], Padding=VALID, StrideH=1, StrideW=1)  # fmt: skip


@case
def conv_of_16_bits(rng):
    scales = rng.uniform(0.001, 0.02, 6)
    return one("CONV_2D", [
        T((1, 5, 5, 4), np.int16, 0.002, 0), T(data=_weights(rng, 6, 3, 3, 4), scale=scales),
        T(data=_bias(rng, 6, np.int64), scale=scales * 0.002),
        T((1, 5, 5, 6), np.int16, 0.03, 0),
    ], Padding=SAME, StrideH=1, StrideW=1)  # fmt: skip


@case
def depthwise(rng):
    scales = rng.uniform(0.001, 0.02, 8)
    return one("DEPTHWISE_CONV_2D", [
        T((1, 6, 8, 8), scale=0.05, zero=9),
        T(data=_weights(rng, 1, 3, 3, 8), scale=scales, axis=3),
        T(data=_bias(rng, 8), scale=scales * 0.05), T((1, 3, 4, 8), scale=0.1, zero=-128),
    ], Padding=SAME, StrideH=2, StrideW=2, DepthMultiplier=1,
        FusedActivationFunction=RELU)  # fmt: skip


@case
def depthwise_with_multiplier(rng):
    scales = rng.uniform(0.001, 0.02, 6)
    return one("DEPTHWISE_CONV_2D", [
        T((1, 6, 8, 3), scale=0.05, zero=9),
        T(data=_weights(rng, 1, 3, 5, 6), scale=scales, axis=3),
        T(data=_bias(rng, 6), scale=scales * 0.05), T((1, 4, 4, 6), scale=0.2, zero=3),
    ], Padding=VALID, StrideH=1, StrideW=1, DepthMultiplier=2)  # fmt: skip


@case
def fully_connected(rng):
    return one("FULLY_CONNECTED", [
        T((3, 40), scale=0.05, zero=-7), T(data=_weights(rng, 10, 40), scale=0.01),
        T(data=_bias(rng, 10), scale=0.0005), T((3, 10), scale=0.25, zero=4),
    ])  # fmt: skip


@case
def fully_connected_without_bias(rng):
    return one("FULLY_CONNECTED", [
        T((1, 2, 20), scale=0.05, zero=-7), T(data=_weights(rng, 10, 40), scale=0.01),
        T((1, 10), scale=0.125, zero=-128),
    ], FusedActivationFunction=RELU)  # fmt: skip


@case
def fully_connected_of_16_bits(rng):
    return one("FULLY_CONNECTED", [
        T((2, 600), np.int16, 0.001, 0), T(data=_weights(rng, 5, 600), scale=0.01),
        T(data=_bias(rng, 5, np.int64), scale=0.00001), T((2, 5), np.int16, 0.02, 0),
    ])  # fmt: skip


def _binary(kind, scales, zeros, shapes=((1, 4, 5, 3), (1, 4, 5, 3)), dtype=np.int8, **options):
    out = np.broadcast_shapes(*shapes)
    tensors = [T(s, dtype, a, z) for s, a, z in zip((*shapes, out), scales, zeros)]
    return one(kind, tensors, 2, **options)


@case
def add(rng):
    return _binary("ADD", (0.05, 0.031, 0.07), (3, -20, -128), FusedActivationFunction=RELU)


@case
def add_channels(rng):
    return _binary("ADD", (0.05, 0.031, 0.06), (3, -20, 7), ((1, 4, 5, 3), (3,)))


@case
def add_of_16_bits(rng):
    return _binary("ADD", (0.0005, 0.0003, 0.0007), (0, 0, 0), dtype=np.int16)


@case
def sub(rng):
    return _binary("SUB", (0.05, 0.031, 0.06), (3, -20, 7))


@case
def mul(rng):
    return _binary("MUL", (0.05, 0.031, 0.06), (3, -20, 7))


@case
def mul_of_16_bits(rng):
    return _binary("MUL", (0.0005, 0.0003, 0.0007), (0, 0, 0), dtype=np.int16)


@case
def average_pool(rng):
    return one("AVERAGE_POOL_2D", [
        T((1, 7, 6, 5), scale=0.1, zero=3), T((1, 4, 3, 5), scale=0.1, zero=3),
    ], Padding=SAME, StrideH=2, StrideW=2, FilterHeight=3, FilterWidth=2)  # fmt: skip


@case
def average_of_all(rng):
    return one("AVERAGE_POOL_2D", [
        T((1, 7, 6, 5), scale=0.1, zero=3), T((1, 1, 1, 5), scale=0.1, zero=3),
    ], Padding=VALID, StrideH=1, StrideW=1, FilterHeight=7, FilterWidth=6,
        FusedActivationFunction=RELU)  # fmt: skip


@case
def max_pool(rng):
    return one("MAX_POOL_2D", [
        T((1, 7, 6, 5), scale=0.1, zero=3), T((1, 4, 3, 5), scale=0.1, zero=3),
    ], Padding=SAME, StrideH=2, StrideW=2, FilterHeight=3, FilterWidth=2,
        FusedActivationFunction=RELU)  # fmt: skip


def _reduction(kind, keep, axes, shape, out_scale=0.05, dtype=np.int8):
    zeros = (3, -9) if dtype is np.int8 else (0, 0)
    return one(kind, [
        T((2, 7, 6, 5), dtype, 0.1, zeros[0]), T(data=np.array(axes, np.int32)),
        T(shape, dtype, out_scale, zeros[1]),
    ], KeepDims=keep)  # fmt: skip


@case
def mean_of_16_bits(rng):
    return _reduction("MEAN", True, (1, 2), (2, 1, 1, 5), dtype=np.int16)


@case
def average_pool_of_16_bits(rng):
    return one("AVERAGE_POOL_2D", [
        T((1, 7, 6, 5), np.int16, 0.1, 0), T((1, 4, 3, 5), np.int16, 0.1, 0),
    ], Padding=SAME, StrideH=2, StrideW=2, FilterHeight=3, FilterWidth=2)  # fmt: skip


@case
def max_pool_of_16_bits(rng):
    return one("MAX_POOL_2D", [
        T((1, 7, 6, 5), np.int16, 0.1, 0), T((1, 4, 3, 5), np.int16, 0.1, 0),
    ], Padding=VALID, StrideH=2, StrideW=2, FilterHeight=1, FilterWidth=2)  # fmt: skip


@case
def sub_of_16_bits(rng):
    return _binary("SUB", (0.0005, 0.0003, 0.0007), (0, 0, 0), dtype=np.int16)


@case
def fully_connected_of_16_bits_in_32(rng):
    return one("FULLY_CONNECTED", [
        T((2, 60), np.int16, 0.001, 0), T(data=_weights(rng, 5, 60), scale=0.01),
        T(data=_bias(rng, 5), scale=0.00001), T((2, 5), np.int16, 0.002, 0),
    ])  # fmt: skip


@case
def mean(rng):
    return _reduction("MEAN", True, (1, 2), (2, 1, 1, 5))


@case
def mean_of_channels(rng):
    return _reduction("MEAN", False, (3,), (2, 7, 6))


@case
def sum_(rng):
    return _reduction("SUM", False, (1, 2), (2, 5), 1.5)


@case
def softmax(rng):
    return one("SOFTMAX", [T((4, 12), scale=0.09, zero=5), T((4, 12), scale=1 / 256, zero=-128)],
               Beta=1.0)  # fmt: skip


@case
def softmax_of_wide_range(rng):
    return one("SOFTMAX", [T((4, 3), scale=0.9, zero=5), T((4, 3), scale=1 / 256, zero=-128)],
               Beta=0.7)  # fmt: skip


@case
def softmax_to_16_bits(rng):
    tensors = [T((4, 12), scale=0.05, zero=5), T((4, 12), np.int16, 1 / 65536, -32768)]
    return one("SOFTMAX", tensors, Beta=1.0)


def _unary(kind, scale, out_scale, out_zero, zero=-11, dtype=np.int8, **options):
    return one(kind, [
        T((1, 256), dtype, scale, zero), T((1, 256), dtype, out_scale, out_zero)
    ], **options)  # fmt: skip


@case
def logistic(rng):
    return _unary("LOGISTIC", 0.047, 1 / 256, -128)


@case
def tanh(rng):
    return _unary("TANH", 0.033, 1 / 128, 0)


@case
def hard_swish(rng):
    return _unary("HARD_SWISH", 0.05, 0.03, -30)


@case
def hard_swish_of_wide_range(rng):
    return _unary("HARD_SWISH", 0.3, 0.2, -30)


@case
def leaky_relu(rng):
    return _unary("LEAKY_RELU", 0.05, 0.04, -90, Alpha=0.13)


@case
def elu(rng):
    return _unary("ELU", 0.05, 0.04, -90)


@case
def relu(rng):
    return _unary("RELU", 0.05, 0.03, -128)


@case
def relu6(rng):
    return _unary("RELU6", 0.05, 0.05, -11)


@case
def prelu(rng):
    return one("PRELU", [
        T((1, 5, 5, 3), scale=0.05, zero=4), T(data=_weights(rng, 1, 1, 3), scale=0.01, zero=2),
        T((1, 5, 5, 3), scale=0.06, zero=-20),
    ])  # fmt: skip


@case
def requantise(rng):
    return _unary("QUANTIZE", 0.05, 0.033, -30)


@case
def quantise(rng):
    return one("QUANTIZE", [T((3, 50), np.float32), T((3, 50), scale=0.03, zero=-7)])


@case
def dequantise(rng):
    return one("DEQUANTIZE", [T((3, 50), scale=0.03, zero=-7), T((3, 50), np.float32)])


@case
def requantise_to_16_bits(rng):
    return one("QUANTIZE", [T((3, 50), scale=0.03, zero=-7), T((3, 50), np.int16, 0.0001, 0)])


@case
def requantise_to_32_bits(rng):
    return one("QUANTIZE", [T((3, 50), scale=0.03, zero=-7), T((3, 50), np.int32, 0.0001, 0)])


@case
def requantise_from_16_bits(rng):
    return one("QUANTIZE", [T((3, 50), np.int16, 0.0003, 0), T((3, 50), scale=0.05, zero=-7)])


def _transposed(rng, padding, dtype=np.int8, scale=0.2):
    floats = dtype is np.float32
    scales = rng.uniform(0.001, 0.02, 5)
    weights = _weights(rng, 5, 3, 2, 4)
    size = (7, 9) if padding == SAME else (9, 10)
    return one("TRANSPOSE_CONV", [
        T((1, 4, 5, 4), dtype, () if floats else 0.05, 0 if floats else -7),
        T(data=np.array([1, *size, 5], np.int32)),
        T(data=weights.astype(np.float32) if floats else weights, scale=() if floats else scales),
        T(data=rng.standard_normal(5).astype(np.float32)) if floats
        else T(data=_bias(rng, 5), scale=scales * 0.05),
        T((1, *size, 5), dtype, () if floats else scale, 0 if floats else 5),
    ], order=[1, 2, 0, 3], Padding=padding, StrideH=2, StrideW=2)  # fmt: skip


@case
def transposed_conv(rng):
    return _transposed(rng, SAME)


@case
def transposed_conv_valid(rng):
    return _transposed(rng, VALID)


@case
def transposed_conv_of_floats(rng):
    return _transposed(rng, VALID, np.float32)


@case
def batch_matmul(rng):
    tensors = [T((2, 5, 8), scale=0.05, zero=3), T((2, 6, 8), scale=0.04, zero=-9),
               T((2, 5, 6), scale=0.3, zero=2)]  # fmt: skip
    return one("BATCH_MATMUL", tensors, 2, AdjY=True)


@case
def reverse(rng):
    tensors = [T((2, 3, 4), scale=0.1), T(data=np.array([2], np.int32)), T((2, 3, 4), scale=0.1)]
    return one("REVERSE_V2", tensors)


@case
def space_to_batch(rng):
    return one("SPACE_TO_BATCH_ND", [
        T((1, 4, 6, 3), scale=0.1), T(data=np.array([2, 2], np.int32)),
        T(data=np.zeros((2, 2), np.int32)), T((4, 2, 3, 3), scale=0.1),
    ])  # fmt: skip


@case
def batch_to_space(rng):
    return one("BATCH_TO_SPACE_ND", [
        T((4, 3, 4, 3), scale=0.1), T(data=np.array([2, 2], np.int32)),
        T(data=np.array([[1, 0], [0, 2]], np.int32)), T((1, 5, 6, 3), scale=0.1),
    ])  # fmt: skip


# ---------------------------------------------------------------- moves, and floats


@case
def pad(rng):
    return one("PAD", [
        T((1, 4, 5, 3), scale=0.1, zero=3),
        T(data=np.array([[0, 0], [1, 2], [0, 3], [0, 0]], np.int32)),
        T((1, 7, 8, 3), scale=0.1, zero=3),
    ])  # fmt: skip


@case
def concatenation(rng):
    return one("CONCATENATION", [
        T((1, 4, 5, 3), scale=0.1, zero=3), T((1, 4, 5, 2), scale=0.1, zero=3),
        T((1, 4, 5, 5), scale=0.1, zero=3),
    ], 2, Axis=3)  # fmt: skip


@case
def transpose(rng):
    return one("TRANSPOSE", [
        T((2, 3, 4), scale=0.1), T(data=np.array([2, 0, 1], np.int32)), T((4, 2, 3), scale=0.1)
    ])  # fmt: skip


@case
def strided_slice(rng):
    numbers = [T(data=np.array(n, np.int32)) for n in ((0, 1, -1), (2, 9, -4), (1, 2, -1))]
    return one("STRIDED_SLICE", [
        T((2, 5, 6), scale=0.1), *numbers, T((2, 2, 3), scale=0.1)
    ], EndMask=2)  # fmt: skip


@case
def slice_(rng):
    numbers = [T(data=np.array(n, np.int32)) for n in ((0, 1, 2), (2, -1, 3))]
    return one("SLICE", [T((2, 5, 6), scale=0.1), *numbers, T((2, 4, 3), scale=0.1)])


@case
def pack(rng):
    return one("PACK", [T((2, 3), scale=0.1), T((2, 3), scale=0.1), T((2, 2, 3), scale=0.1)], 2,
               Axis=1, ValuesCount=2)  # fmt: skip


@case
def gather(rng):
    return one("GATHER", [
        T((5, 3), scale=0.1), T(data=np.array([4, 0, 0], np.int32)), T((3, 3), scale=0.1)
    ], Axis=0)  # fmt: skip


@case
def maximum(rng):
    return _binary("MAXIMUM", (0.1, 0.1, 0.1), (3, 3, 3), ((1, 4, 5, 3), (1, 1, 1, 3)))


@case
def space_to_depth(rng):
    return one("SPACE_TO_DEPTH", [T((1, 4, 6, 3), scale=0.1), T((1, 2, 3, 12), scale=0.1)],
               BlockSize=2)  # fmt: skip


@case
def depth_to_space(rng):
    return one("DEPTH_TO_SPACE", [T((1, 2, 3, 12), scale=0.1), T((1, 4, 6, 3), scale=0.1)],
               BlockSize=2)  # fmt: skip


@case
def resize_nearest(rng):
    return one("RESIZE_NEAREST_NEIGHBOR", [
        T((1, 3, 4, 2), scale=0.1), T(data=np.array([7, 6], np.int32)), T((1, 7, 6, 2), scale=0.1)
    ], HalfPixelCenters=True)  # fmt: skip


@case
def arg_max(rng):
    return one("ARG_MAX", [
        T((4, 9), scale=0.1), T(data=np.array([1], np.int32)), T((4,), np.int32)
    ], OutputType=2)  # fmt: skip


@case
def conv_of_floats(rng):
    return one("CONV_2D", [
        T((1, 9, 7, 4), np.float32),
        T(data=rng.standard_normal((6, 3, 3, 4)).astype(np.float32)),
        T(data=rng.standard_normal(6).astype(np.float32)), T((1, 5, 4, 6), np.float32),
    ], Padding=SAME, StrideH=2, StrideW=2, FusedActivationFunction=RELU6)  # fmt: skip


@case
def depthwise_of_floats(rng):
    return one("DEPTHWISE_CONV_2D", [
        T((1, 9, 7, 4), np.float32),
        T(data=rng.standard_normal((1, 3, 3, 4)).astype(np.float32)),
        T(data=rng.standard_normal(4).astype(np.float32)), T((1, 7, 5, 4), np.float32),
    ], Padding=VALID, StrideH=1, StrideW=1, DepthMultiplier=1)  # fmt: skip


@case
def softmax_of_floats(rng):
    return one("SOFTMAX", [T((4, 12), np.float32), T((4, 12), np.float32)], Beta=1.5)


@case
def average_pool_of_floats(rng):
    return one("AVERAGE_POOL_2D", [
        T((1, 7, 6, 5), np.float32), T((1, 4, 3, 5), np.float32)
    ], Padding=SAME, StrideH=2, StrideW=2, FilterHeight=3, FilterWidth=2)  # fmt: skip
