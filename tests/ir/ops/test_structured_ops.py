"""Convolutions, poolings, contractions and resampling against ONNX Runtime."""

from __future__ import annotations

import string

import numpy as np
import pytest
from every_target import agree_everywhere
from ort_compare import agree, run_both
from saturation import LARGEST_WEIGHT
from single_op import run_op

from graphc.backends.llvm_cpu.codegen import compile_program
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.driver import program_for
from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.expr import Reduce, walk
from graphc.ir.infer import op_body
from graphc.ir.kernel import Alloc, walk_stmts
from graphc.ir.text.expr_printer import to_text
from graphc.ir.types import TensorType

pytestmark = pytest.mark.suite("all")

rng = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def body_of(name: str, *shapes: tuple[int, ...], **attrs):
    types = {f"x{n}": TensorType(dtypes.f32, s) for n, s in enumerate(shapes)}
    graph = new_graph(**types)
    value = getattr(Builder(graph), name)(*graph.params, **attrs)
    return op_body(value.producer)


# ---------------------------------------------------------------- shape of the bodies


def test_unpadded_convolution_is_a_bare_sum_of_products():
    text = to_text(body_of("Conv", (1, 8, 9, 9), (4, 8, 3, 3), (4,)))
    assert text == (
        "sum(k0<8, k1<3, k2<3: $0[i0, k0, i2 + k1, i3 + k2] * $1[i1, k0, k1, k2]) + $2[i1]"
    )


def test_depthwise_convolution_has_no_group_arithmetic():
    text = to_text(body_of("Conv", (1, 8, 9, 9), (8, 1, 3, 3), group=8))
    assert "$0[i0, i1, " in text and "//" not in text


def test_guards_appear_only_where_padding_can_be_read():
    text = to_text(body_of("Conv", (1, 8, 8, 8), (4, 8, 3, 3), pads=(1, 0, 0, 1), strides=(2, 1)))
    assert "i2 * 2 + k1 - 1 >= 0" in text and "i3 + k2 < 8" in text
    assert "< 8 &&" not in text.replace("i3 + k2 < 8", "") and "i3 + k2 >= 0" not in text


def test_upsampling_by_two_is_a_shift():
    graph = new_graph(x=TensorType(dtypes.f32, (1, 3, 4, 4)))
    b = Builder(graph)
    scales = np.array([1, 1, 2, 2], np.float32)
    for coordinates, mode in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        y = b.Resize(
            graph.params[0], None, scales,
            coordinate_transformation_mode=coordinates, nearest_mode=mode,
        )  # fmt: skip
        assert to_text(op_body(y.producer)) == "$0[i0, i1, i2 // 2, i3 // 2]"


def test_oversized_average_window_reads_no_padding():
    body = body_of(
        "AveragePool", (1, 2, 7, 7), kernel_shape=(99, 99), strides=(99, 99), ceil_mode=1
    )
    (total,) = [n for n in walk(body) if isinstance(n, Reduce)]
    assert [a.extent for a in total.axes] == [7, 7] and "select" not in to_text(body)


# ---------------------------------------------------------------- convolutions

CONVOLUTIONS = [
    ((2, 4, 11), (6, 4, 3), {"pads": [2, 1], "strides": [2]}),
    ((1, 6, 9, 10), (4, 3, 3, 2), {"group": 2, "dilations": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 4, 9, 9), (8, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 5, 6, 7), (2, 3, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1], "strides": [1, 2, 2]}),
    ((1, 2, 8, 8), (2, 2, 4, 4), {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ((1, 2, 1, 1), (2, 2, 3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize("x, w, attrs", CONVOLUTIONS)
def test_convolution(x, w, attrs):
    agree("Conv", floats(*x), floats(*w), floats(w[0]), **attrs)
    agree("Conv", floats(*x), floats(*w), **attrs)


TRANSPOSED = [
    ((1, 4, 5), (4, 3, 3), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    ((1, 4, 5, 6), (4, 2, 3, 3), {"group": 2, "strides": [2, 3], "dilations": [2, 1]}),
    ((2, 3, 4, 4), (3, 2, 2, 2), {"strides": [2, 2]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), {"strides": [2, 2], "output_shape": [8, 7]}),
    ((1, 2, 4, 5), (2, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 4, 5), (2, 2, 1, 4), {"auto_pad": "SAME_LOWER", "strides": [3, 3]}),
]


@pytest.mark.parametrize("x, w, attrs", TRANSPOSED)
def test_transposed_convolution(x, w, attrs):
    bias = floats(w[1] * attrs.get("group", 1))
    agree("ConvTranspose", floats(*x), floats(*w), bias, **attrs)


def test_integer_convolution_with_zero_points():
    x = rng.integers(0, 255, (1, 2, 6, 6), dtype=np.uint8)
    w = rng.integers(0, 255, (3, 2, 3, 3), dtype=np.uint8)
    agree("ConvInteger", x, w, np.uint8(3), np.uint8(120), pads=[1, 1, 1, 1])
    agree("ConvInteger", x, w)


def test_quantised_convolution():
    x = rng.integers(0, 255, (1, 4, 6, 6), dtype=np.uint8)
    w = rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT, (6, 4, 3, 3), dtype=np.int8)
    scales = rng.uniform(0.001, 0.02, 6).astype(np.float32)
    ours, theirs = run_both(
        "QLinearConv",
        [x, np.float32(0.1), np.uint8(7), w, scales, np.zeros(6, np.int8), np.float32(0.4),
         np.uint8(128), rng.integers(-500, 500, 6, dtype=np.int32)],
        {"pads": [1, 1, 1, 1]},
    )  # fmt: skip
    difference = np.abs(ours[0].astype(int) - theirs[0])
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01  # halves may round apart


def test_channel_mismatch_is_explained():
    with pytest.raises(ModelError, match=r"input has 4 channels, weight expects 3"):
        body_of("Conv", (1, 4, 5, 5), (2, 3, 3, 3))


# ---------------------------------------------------------------- poolings

POOLS = [
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 0]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "dilations": [2, 2], "pads": [0, 1, 1, 1]},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
]


@pytest.mark.parametrize("attrs", POOLS)
def test_pools(attrs):
    x = floats(2, 3, 10, 11)
    agree("MaxPool", x, outputs=2, **attrs)
    agree("LpPool", x, p=3, **attrs)
    if "ceil_mode" not in attrs:
        agree("AveragePool", x, count_include_pad=1, **attrs)
    agree("AveragePool", x, **attrs)


@pytest.mark.parametrize("extent, kernel, stride", [(6, 1, 3), (8, 1, 4), (8, 3, 4), (9, 2, 4)])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_windows_further_apart_than_they_are_long_are_centred(extent, kernel, stride, auto_pad):
    attrs = {"kernel_shape": [kernel], "strides": [stride], "auto_pad": auto_pad}
    x = floats(2, 3, extent)
    agree("LpPool", x, **attrs)
    agree("AveragePool", x, **attrs)
    agree("AveragePool", x, count_include_pad=1, **attrs)
    if kernel == 1:  # ONNX Runtime refuses MaxPool
        np.testing.assert_array_equal(
            run_op("MaxPool", x, **attrs), run_op("AveragePool", x, **attrs)
        )


def test_convolutions_are_not_cropped():
    x, w = floats(1, 1, 6), np.ones((1, 1, 1), np.float32)
    y = run_op("Conv", x, w, auto_pad="SAME_UPPER", strides=(3,))
    np.testing.assert_array_equal(y[0, 0], x[0, 0, ::3])


def test_max_pool_of_bytes_and_column_major_offsets():
    agree("MaxPool", rng.integers(0, 255, (1, 2, 6, 6), dtype=np.uint8), kernel_shape=[2, 2])
    agree("MaxPool", floats(1, 2, 5, 6), kernel_shape=[2, 2], outputs=2, storage_order=1)


def test_global_pools():
    x = floats(2, 3, 4, 5)
    for name in ("GlobalAveragePool", "GlobalMaxPool"):
        agree(name, x)
    agree("GlobalLpPool", x, p=3)


def test_regions_of_interest():
    x = floats(2, 3, 12, 12)
    boxes = np.array([[1, 1, 7, 9], [0, 0, 11, 11], [3, 2, 4, 3]], np.float32)
    which = np.array([0, 1, 1], np.int64)
    for ratio in (0, 2):
        agree(
            "RoiAlign", x, boxes, which,
            output_height=3, output_width=2, sampling_ratio=ratio, spatial_scale=0.9,
        )  # fmt: skip
    rois = np.concatenate([which[:, None].astype(np.float32), boxes], axis=1)
    agree("MaxRoiPool", x, rois, pooled_shape=[3, 2], spatial_scale=0.7)


def test_regions_that_leave_the_image_or_lie_in_it_wholly():
    x = floats(2, 3, 20, 17)
    corners = rng.uniform(-5, 40, (9, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 30, (9, 2))], axis=1)
    rois = np.concatenate([rng.integers(0, 2, (9, 1)), boxes], axis=1).astype(np.float32)
    attrs = {"pooled_shape": (3, 2), "spatial_scale": 0.5}
    agree("MaxRoiPool", x, rois, **attrs)
    graph = new_graph(x=TensorType(dtypes.f32, x.shape), rois=TensorType(dtypes.f32, rois.shape))
    graph.set_results([Builder(graph).MaxRoiPool(*graph.params, **attrs)])
    graph.phase = "typed"
    agree_everywhere(graph, [x, rois], [run_op("MaxRoiPool", x, rois, **attrs)])


def test_regions_that_are_far_larger_than_the_image():
    """Samples outside of it are not taken one by one, be they more than anybody could count."""
    x, which = np.abs(floats(1, 2, 5, 6)) + 1, np.zeros(4, np.int64)
    boxes = [[-9, -7, 50, 3], [1, -30, 4, 30], [-40, 2, 40, 3], [7, 7, 60, 60]]
    boxes = np.array(boxes, np.float32)
    agree("RoiAlign", x, boxes, which, output_height=3, output_width=2, sampling_ratio=0)
    for end in (1e7, 1e30, np.inf):
        endless = np.array([[2, 2, end, end]], np.float32)
        (mean,) = run_op("RoiAlign", x, endless, which[:1], mode="avg", sampling_ratio=0)
        assert (mean >= 0).all() and (mean < 1e-6).all()
    (largest,) = run_op("RoiAlign", -x, boxes[3:], which[:1], mode="max", sampling_ratio=0)
    assert (largest == 0).all()


# ---------------------------------------------------------------- contractions

PRODUCTS = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)),
]  # fmt: skip


@pytest.mark.parametrize("a, b", PRODUCTS)
def test_matmul(a, b):
    agree("MatMul", floats(*a), floats(*b))


@pytest.mark.parametrize("count, size", [(8, 5), (51, 2)])
def test_chains_of_products(count, size):
    """One sum over all labels would take size ** (count - 1) steps for an element."""
    letters = string.ascii_letters
    terms = ",".join(letters[n : n + 2] for n in range(count))
    equation = f"{terms}->{letters[0]}{letters[count]}"
    matrices = [floats(size, size) for _ in range(count)]
    graph = new_graph(**{f"x{n}": TensorType(dtypes.f32, m.shape) for n, m in enumerate(matrices)})
    graph.set_results([Builder(graph).Einsum(*graph.params, equation=equation)])
    graph.phase = "typed"
    expected = np.linalg.multi_dot([m.astype(np.float64) for m in matrices]).astype(np.float32)
    agree_everywhere(graph, matrices, [expected])


def test_sums_of_three_factors():
    agree("Einsum", floats(2, 3, 4), floats(4, 5), floats(2, 5), equation="bij,jk,bk->ik")
    agree("Einsum", floats(4, 4), floats(4, 5), floats(5, 5), equation="ii,ij,jj->i")
    agree("Einsum", floats(3, 1), floats(3, 5), floats(5, 2), equation="ij,ij,jk->ik")


def test_gemm():
    a, b = floats(3, 4), floats(5, 4)
    agree("Gemm", a, b, floats(5), transB=1)
    agree("Gemm", a.T.copy(), b, floats(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0)
    agree("Gemm", a, b, transB=1, alpha=0.5)


def test_integer_products():
    a = rng.integers(0, 255, (2, 3, 4), dtype=np.uint8)
    b = rng.integers(0, 255, (4, 5), dtype=np.uint8)
    agree("MatMulInteger", a, b, np.uint8(100), rng.integers(0, 255, 5, dtype=np.uint8))


EQUATIONS = [
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("...ij,...jk", (2, 3, 4), (2, 4, 5)),
    ("ii->i", (4, 4)), ("ij->", (3, 4)), ("bhd,bkd,bk->bh", (2, 3, 4), (2, 5, 4), (2, 5)),
    ("ab,cb->ca", (1, 3), (4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("equation, shapes", [(e, s) for e, *s in EQUATIONS])
def test_einsum(equation, shapes):
    agree("Einsum", *(floats(*s) for s in shapes), equation=equation)


def test_einsum_rejects_unknown_labels():
    with pytest.raises(ModelError, match="output label 'z'"):
        body_of("Einsum", (2, 3), equation="ij->z")


# ---------------------------------------------------------------- resampling


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_by_scale_and_by_size(coordinates, mode):
    x = floats(1, 2, 5, 6)
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.7], [1, 1, 1.7, 0.5]):
        agree("Resize", x, None, np.array(scales, np.float32), tolerance=1e-4, **attrs)
    agree("Resize", x, None, None, np.array([1, 2, 7, 4]), tolerance=1e-4, **attrs)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_without_aliases(mode):
    x = floats(1, 1, 13, 16)
    agree("Resize", x, None, None, np.array([1, 1, 5, 7]), mode=mode, antialias=1,
          exclude_outside=1, tolerance=1e-4)  # fmt: skip


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(padding, mode, align):
    grid = rng.uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    agree("GridSample", floats(2, 3, 6, 7), grid, padding_mode=padding, mode=mode,
          align_corners=align, tolerance=1e-4)  # fmt: skip


def test_affine_grid():
    size = np.array([2, 3, 4, 5])
    for align in (0, 1):
        agree("AffineGrid", floats(2, 2, 3), size, align_corners=align)


def test_determinant_needs_pivots():
    x = np.array([[[0, 2, 1], [1, 0, 3], [4, 1, 0]], [[1, 2, 3], [2, 4, 6], [1, 0, 1]]])
    agree("Det", x.astype(np.float32))


def test_determinants_of_matrices_that_no_stack_holds():
    graph = new_graph(x=TensorType(dtypes.f32, (2, 1100, 1100)))
    graph.set_results([Builder(graph).Det(*graph.params)])
    graph.phase = "typed"
    program = program_for(graph)
    (kernel,) = program.kernels.values()
    assert not any(isinstance(s, Alloc) and s.buffer.size > 1 for s in walk_stmts(kernel.body))
    x = np.eye(1100, dtype=np.float32) + floats(2, 1100, 1100) / 300
    found = NativeModel(compile_program(program), 1)([x])[0]
    np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=1e-4)


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("inverse, onesided, parts", [(0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 2)])
@pytest.mark.parametrize("length", [None, 6, 12])
def test_dft(inverse, onesided, parts, length):
    length = None if length is None else np.int64(length)
    agree("DFT", floats(2, 9, 3, parts), length, np.int64(1), inverse=inverse,
          onesided=onesided, tolerance=1e-4)  # fmt: skip


def test_real_signal_from_half_a_spectrum():
    signal = floats(2, 10)
    spectrum = np.fft.rfft(signal)
    x = np.stack([spectrum.real, spectrum.imag], axis=-1).astype(np.float32)
    graph = new_graph(x=TensorType(dtypes.f32, x.shape))
    y = Builder(graph).DFT(graph.params[0], None, np.int64(1), inverse=1, onesided=1)
    graph.set_results([y])
    from graphc.ir.interp import interpret

    (got,) = interpret(graph, [x])
    np.testing.assert_allclose(got[..., 0], signal, atol=1e-5)


def test_stft():
    window = np.hanning(16).astype(np.float32)
    agree("STFT", floats(2, 70, 1), np.int64(8), window, np.int64(16), tolerance=1e-4)
    agree("STFT", floats(1, 40, 2), np.int64(5), None, np.int64(12), onesided=0, tolerance=1e-4)


@pytest.mark.parametrize("kind, tolerance", [(1, 4e-8), (11, 1e-15)])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows_are_exact_to_the_last_digits(kind, tolerance, periodic):
    size, count = np.int64(1000), 1000 + periodic
    for name, window in (("Hann", np.hanning), ("Blackman", np.blackman)):
        found = run_op(f"{name}Window", size, periodic=periodic, output_datatype=kind)
        np.testing.assert_allclose(found, window(count)[:1000], atol=tolerance, rtol=0)


def test_windows_and_mel_scale():
    for name in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic in (0, 1):
            agree(name, np.int64(25), periodic=periodic)
    scalars = [np.int64(8), np.int64(64), np.int64(8192), np.float32(0), np.float32(4096)]
    agree("MelWeightMatrix", *scalars)
