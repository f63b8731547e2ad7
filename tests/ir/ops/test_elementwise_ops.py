"""Elementwise operators, activations, casts and quantisation against ONNX Runtime and numpy.

The inputs hold the values that break formulas: signed zeros, infinities, NaN, denormals, values
that overflow exp, halves to round, and the ends of every integer range.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from ort_compare import agree, run_both
from single_op import run_op

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph
from graphc.ir.infer import op_body
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType

SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, -3, 1e-8, -1e-8, 20, -20, 50, -50, 89, -89, 100,
     -100, 1e4, -1e4, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-40, 0.3, -0.7, 0.999]
)  # fmt: skip
FLOATS = (np.float32, np.float64, np.float16)
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def same_where_supported(op_type: str, *inputs, **attrs) -> None:
    """Element by element as ONNX Runtime gives them; its missing kernels are passed over."""
    try:
        ours, theirs = run_both(op_type, inputs, attrs)
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "INVALID_GRAPH" in str(error):
            return
        raise
    got, want = ours[0], theirs[0]
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind == "f":
        tolerance = {2: 2e-3, 4: 1e-5, 8: 1e-7}[got.dtype.itemsize]
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


def ends_of(dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    values = [info.min, info.max, 0, 1, 2, 3, 5, 7, info.max - 1, info.min + 1, 100]
    return np.array(values + ([-1, -2, -7] if info.min else []), dtype)


# ---------------------------------------------------------------- floats

UNARY = (
    "Abs Neg Floor Ceil Round Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh "
    "Acosh Atanh IsNaN IsInf Reciprocal Relu LeakyRelu ThresholdedRelu Elu Celu Selu Sigmoid "
    "HardSigmoid HardSwish Softplus Mish Softsign Gelu Shrink"
)
BINARY = "Add Sub Mul Div Min Max Pow Less Greater Equal LessOrEqual GreaterOrEqual"
INTEGER_BINARY = "Add Sub Mul Min Max Less Equal BitwiseAnd BitwiseOr BitwiseXor"


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", UNARY.split())
def test_unary_on_special_values(name):
    for dtype in FLOATS:
        with np.errstate(over="ignore"):
            same_where_supported(name, SPECIAL.astype(dtype))


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "name, attrs",
    [("Gelu", {"approximate": "tanh"}), ("IsInf", {"detect_negative": 0}), ("Elu", {"alpha": 2.0}),
     ("IsInf", {"detect_positive": 0}), ("Shrink", {"lambd": 1.0, "bias": 0.5}),
     ("LeakyRelu", {"alpha": 0.3}), ("Celu", {"alpha": 0.5}), ("Selu", {"alpha": 2.0}),
     ("HardSigmoid", {"alpha": 0.5, "beta": 0.1}), ("ThresholdedRelu", {"alpha": -1.0})],
)  # fmt: skip
def test_attributes_of_activations(name, attrs):
    same_where_supported(name, SPECIAL.astype(np.float32), **attrs)


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", BINARY.split())
def test_binary_on_all_pairs_of_special_values(name):
    for dtype in FLOATS:
        with np.errstate(over="ignore"):
            x = SPECIAL.astype(dtype)
        same_where_supported(name, x[:, None], x[None])


def test_fmod_and_mod_of_floats():
    x = SPECIAL.astype(np.float32)
    same_where_supported("Mod", x[:, None], x[None], fmod=1)
    with np.errstate(invalid="ignore"):
        expected = np.mod(x[:, None], x[None])
    np.testing.assert_array_equal(run_op("Mod", x[:, None], x[None]), expected)


def test_activations_stay_finite_far_out():
    x = np.array([-1e4, -200, 200, 1e4], np.float32)
    for name in ("Softplus", "Mish", "Swish", "Sigmoid", "HardSwish", "Gelu"):
        assert np.isfinite(run_op(name, x)).all(), name
    assert run_op("Softplus", x).tolist() == [0, 0, 200, 1e4]
    assert run_op("SwiGLU", x, x, alpha=1.0)[2] == 4e4


def test_softplus_is_exact_where_it_is_small():
    x = np.linspace(-87, 20, 999, dtype=np.float32)
    expected = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x.astype(np.float64))))
    np.testing.assert_allclose(run_op("Softplus", x), expected, rtol=1e-6)


def test_narrow_floats_round_once():
    x = np.array([-12, -8, 3.5], np.float16)
    expected = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float16)
    assert run_op("Sigmoid", x).tolist() == expected.tolist()
    x = np.full(3, 300, ml_dtypes.bfloat16)
    assert run_op("Mean", x, x).tolist() == [300, 300, 300]


# ---------------------------------------------------------------- integers and booleans


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype):
    x = ends_of(dtype)
    rows, columns = x[:, None], x[None]
    for name in ("Abs", "Sign", "BitwiseNot"):
        same_where_supported(name, x)
    for name in INTEGER_BINARY.split():
        same_where_supported(name, rows, columns)
    safe = x[(x != 0) & (x.astype(object) != -1)][None]
    for name in ("Div", "Mod"):
        same_where_supported(name, rows, safe)
    same_where_supported("Clip", x, np.array(2, dtype), np.array(50, dtype))


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(dtype):
    bits = np.iinfo(dtype).bits
    x, amounts = ends_of(dtype), [0, 1, bits - 1, bits, bits + 3]
    for amount in amounts:
        y = np.full_like(x, amount)
        fill = np.where(x < 0, -1, 0)
        left = np.left_shift(x, y) if amount < bits else np.zeros_like(x)
        right = np.right_shift(x, y) if amount < bits else fill.astype(dtype)
        np.testing.assert_array_equal(run_op("BitShift", x, y, direction="LEFT"), left)
        np.testing.assert_array_equal(run_op("BitShift", x, y, direction="RIGHT"), right)


def test_integer_division_by_zero_is_zero():
    x = np.array([5, -5, 0], np.int32)
    for name in ("Div", "Mod"):
        assert run_op(name, x, np.zeros(3, np.int32)).tolist() == [0, 0, 0]


@pytest.mark.suite("all")
@pytest.mark.parametrize("base", [np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.float32, np.float64, np.uint8])
def test_mixed_powers(base, exponent):
    x = np.array([0, 1, 2, 3, -1, -2], base)[:, None]
    same_where_supported("Pow", x, np.array([0, 1, 2, 3], exponent)[None])


def test_logic():
    a, b = np.array([[True], [False]]), np.array([[True, False]])
    for name in ("And", "Or", "Xor", "Equal"):
        agree(name, a, b)
    agree("Not", a)
    agree("Where", a, np.array([[1, 2]]), np.array([[3, 4], [5, 6]]))


def test_variadic_broadcast_and_nan():
    rows = np.array([[1], [np.nan], [5]], np.float32)
    for name in ("Min", "Max", "Sum", "Mean"):
        agree(name, rows, np.array([2, 4], np.float32), np.array(3, np.float32))
        agree(name, rows)


def test_clip_bounds_are_optional():
    x = np.array([-3, 0, 9], np.float32)
    agree("Clip", x)
    agree("Clip", x, np.array(-1, np.float32))
    agree("Clip", x, None, np.array(5, np.float32))
    agree("Clip", x, np.array(3, np.float32), np.array(2, np.float32))


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ModelError, match=r"\[2, 3\], \[4\]"):
        run_op("Add", np.zeros((2, 3), np.float32), np.zeros(4, np.float32))


# ---------------------------------------------------------------- identities


def test_identity_and_inference_dropout_are_their_operand():
    graph = new_graph(x=TensorType(dtypes.f32, (2, 3)))
    kept, mask = Builder(graph).Dropout(graph.params[0], outputs=2)
    graph.set_results([kept, mask, Builder(graph).Identity(kept)])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, held, second = interpret(graph, [x])
    assert np.array_equal(first, x) and np.array_equal(second, x)
    assert held.dtype == bool and held.shape == (2, 3) and held.all()


def test_training_dropout_keeps_the_expected_share():
    x = np.ones((100, 100), np.float32)
    y, mask = run_op("Dropout", x, np.array(0.25, np.float32), np.array(True), outputs=2, seed=1)
    assert abs(mask.mean() - 0.75) < 0.02
    np.testing.assert_allclose(y, np.where(mask, 1 / 0.75, 0), rtol=1e-6)


# ---------------------------------------------------------------- casts

NUMBERS = [d for d in dtypes.BY_NAME.values() if d.is_number]


def cast_graph(source: dtypes.DType, count: int, **attrs) -> Graph:
    graph = new_graph(x=TensorType(source, (count,)))
    graph.set_results([Builder(graph).Cast(graph.params[0], **attrs)])
    return graph


@pytest.mark.suite("all")
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_small_numbers_survive_casts_between_all_types(source):
    values = np.array([1, 2], source.np) if source.max >= 2 else np.array([1, 1], source.np)
    for target in NUMBERS:
        expected = values.astype(np.float32) if source.is_float else values.astype(np.int32)
        if float(target.max) < float(expected.max()):
            continue
        (got,) = interpret(cast_graph(source, 2, to=target.onnx), [values])
        assert dtypes.of(got.dtype) is target
        assert got.astype(np.float32).tolist() == expected.tolist()


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "to", [np.int8, np.uint8, np.int32, np.int64, np.float32, np.float16, bool]
)
def test_casts_of_numbers_agree(to):
    number = {bool: TensorProto.BOOL}.get(to) or dtypes.of(to).onnx
    agree("Cast", np.array([-3.7, -0.2, 0, 0.2, 2.9, 100], np.float32), to=number)
    agree("Cast", np.array([-3, 0, 7, 100, 127], np.int64), to=number)
    agree("Cast", np.array([True, False]), to=number)


def test_float8_saturation():
    x = np.array([1e6, -1e6, np.inf, np.nan, 0.3], np.float32)
    saturated = run_op("Cast", x, to=dtypes.f8e4m3fn.onnx).astype(np.float32)
    assert saturated[:3].tolist() == [448, -448, 448] and np.isnan(saturated[3])
    free = run_op("Cast", x, to=dtypes.f8e5m2.onnx, saturate=0).astype(np.float32)
    assert free[:3].tolist() == [np.inf, -np.inf, np.inf] and free[4] == 0.3125


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "mode, codes", [("up", [127, 128, 129, 128]), ("down", [127, 127, 128, 127]),
                    ("nearest", [127, 127, 129, 128])],
)  # fmt: skip
def test_powers_of_two_round_as_asked(mode, codes):
    x = np.array([1, 1.25, 3, 1.5], np.float32)
    got = run_op("Cast", x, to=dtypes.f8e8m0.onnx, round_mode=mode)
    assert got.view(np.uint8).tolist() == codes


def test_bitcast_keeps_bits_and_refuses_other_widths():
    x = np.array([1.0, -2.0], np.float32)
    assert run_op("BitCast", x, to=dtypes.u32.onnx).tolist() == [0x3F800000, 0xC0000000]
    with pytest.raises(ModelError, match="one width"):
        run_op("BitCast", x, to=dtypes.f64.onnx)


def test_strings_cast_both_ways():
    agree("Cast", np.array(["1.5", "-INF", "nan"], object), to=TensorProto.FLOAT)
    agree("Cast", np.array([1.0, 0.1, 1e20, np.inf], np.float32), to=TensorProto.STRING)


# ---------------------------------------------------------------- quantisation

X = np.linspace(-3, 5, 24).astype(np.float32).reshape(2, 4, 3)


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_per_tensor_and_axis(kind):
    scale, shift = np.array(0.013, np.float32), np.array(7, kind)
    agree("QuantizeLinear", X, scale, shift)
    scales = np.array([0.01, 0.02, 0.5, 1], np.float32)
    shifts = np.array([0, 3, 1, 2], kind)
    agree("QuantizeLinear", X, scales, shifts, axis=1)
    quantized = np.arange(24, dtype=kind).reshape(2, 4, 3)
    agree("DequantizeLinear", quantized, scales, shifts, axis=-2)
    agree("DequantizeLinear", quantized, scale)


def test_blocked_quantisation():
    scales = np.array([[[0.1] * 3, [0.2] * 3]] * 2, np.float32)
    agree("QuantizeLinear", X, scales, np.zeros((2, 2, 3), np.uint8), axis=1, block_size=2)
    agree(
        "DequantizeLinear", np.arange(24, dtype=np.uint8).reshape(2, 4, 3), scales,
        np.full((2, 2, 3), 3, np.uint8), axis=1, block_size=2,
    )  # fmt: skip


def test_dynamic_quantisation():
    agree("DynamicQuantizeLinear", X, outputs=3)
    agree("DynamicQuantizeLinear", np.abs(X) + 1, outputs=3)


def test_quantisation_errors_say_what_does_not_fit():
    with pytest.raises(ModelError, match="5 elements, axis 1 extent 4"):
        run_op("QuantizeLinear", X, np.ones(5, np.float32), np.zeros(5, np.uint8))


# ---------------------------------------------------------------- ai.onnx.ml


def test_scaler_and_normalizer():
    x = np.array([[3, 4], [0, 0]], np.float32)
    ml = "ai.onnx.ml"
    got = run_op("Scaler", x, domain=ml, offset=(1.0, 2.0), scale=(0.5,))
    assert got.tolist() == [[1, 1], [-0.5, -1]]
    got = run_op("Normalizer", x, domain=ml, norm="L2")
    np.testing.assert_allclose(got, [[0.6, 0.8], [0, 0]])


def test_linear_classifier_with_one_row_of_coefficients():
    x = np.array([[1, 0], [0, 2]], np.float32)
    label, scores = run_op(
        "LinearClassifier", x, outputs=2, domain="ai.onnx.ml", coefficients=(1.0, -1.0),
        classlabels_ints=(5, 6), post_transform="LOGISTIC",
    )  # fmt: skip
    assert label.tolist() == [6, 5]
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-6)


def test_bodies_of_broadcasts_read_extent_one_at_zero():
    graph = new_graph(a=TensorType(dtypes.f32, (4, 1)), b=TensorType(dtypes.f32, (3,)))
    total = Builder(graph).Add(*graph.params)
    assert str(op_body(total.producer)) == "$0[i0, 0] + $1[i1]"
