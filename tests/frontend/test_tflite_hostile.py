"""TensorFlow Lite files that are damaged, absurd, or hold what graphc lacks: clear errors."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

import graphc
from graphc.errors import GraphcError

tflite = pytest.importorskip("tflite")

from tests.damage import damaged  # noqa: E402
from tests.frontend.tflite_cases import CASES  # noqa: E402  (needs package tflite)
from tests.frontend.tflite_models import VALID, Op, T, one, tflite_model  # noqa: E402

COPIES = 60  # of each file


def small_models() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    names = (
        "conv", "depthwise", "fully_connected", "add", "softmax", "mean", "strided_slice",
        "transposed_conv", "leaky_relu", "batch_to_space", "concatenation", "resize_nearest",
    )  # fmt: skip
    return {name: CASES[name](rng) for name in names}


@pytest.mark.parametrize("name", small_models())
def test_damaged_files_give_errors_or_graphs(name):
    for what, data in damaged(small_models()[name], COPIES, seed=len(name)):
        try:
            graph = graphc.import_tflite(data)
        except GraphcError as error:
            assert str(error), what
        else:
            assert all(value.type is not None for value in graph.results), what


def test_truncated_files_give_errors_unless_what_is_missing_means_nothing():
    data = CASES["relu"](np.random.default_rng(0))
    whole, refusals = graphc.import_tflite(data), 0
    for size in range(0, len(data), 7):
        try:
            assert graphc.import_tflite(data[:size]) == whole
        except GraphcError:
            refusals += 1
    assert refusals > len(data) // 7 * 3 // 4


def refused(data: bytes, text: str, kind: type = graphc.ModelError) -> None:
    with pytest.raises(kind) as caught:
        graphc.import_tflite(data)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value) or "nodes of the model" in str(caught.value)


def relu(x: T, y: T) -> bytes:
    return one("RELU", [x, y])


GOOD = T((1, 4), scale=0.1)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tflite", None)
    data = b"\x04\0\0\0TFL3\0\0\0\0"
    refused(data, "pip install 'graphc-compiler[tflite]'", graphc.UnsupportedError)


def test_what_is_no_model_is_told(tmp_path):
    refused(b"", "not a TensorFlow Lite model")
    refused(b"\x08\x07\x12\x08TFL3", "not a TensorFlow Lite model")
    for path, text in ((tmp_path, "a folder"), (tmp_path / "m.tflite", "no such file")):
        with pytest.raises(graphc.ModelError, match=text):
            graphc.import_tflite(path)


def test_vectors_that_claim_to_be_long_take_no_time():
    data = bytearray(CASES["relu"](np.random.default_rng(0)))
    for place in range(0, len(data) - 4, 4):
        copy = bytearray(data)
        struct.pack_into("<I", copy, place, 0x7FFFFFF0)
        try:
            graphc.import_tflite(bytes(copy))
        except GraphcError as error:
            assert str(error)


def test_a_vector_that_all_share_is_counted_for_each():
    """Each of many operators has the same many operands, which are stored once."""
    many = [T((1,), scale=0.1)] * 2
    data = tflite_model(many, [Op("RELU", [0] * 3000, [1])] * 40, [0], [1])
    with pytest.raises(GraphcError):
        graphc.import_tflite(data)


@pytest.mark.suite("all")
@pytest.mark.parametrize("shape", [(-1, 4), (1 << 30, 1 << 30), (1,) * 100])
def test_absurd_shapes(shape):
    with pytest.raises(GraphcError):
        graphc.import_tflite(relu(T(shape, scale=0.1), T(shape, scale=0.1)))


def test_contents_must_be_as_large_as_the_shape_says():
    short = T(data=np.zeros((2, 4), np.int8), scale=0.1)
    short.shape = (200, 4)
    refused(one("ADD", [T((200, 4), scale=0.1), short, T((200, 4), scale=0.1)]), "needs 800 bytes")


def test_numbers_of_tensors_must_exist():
    refused(tflite_model([GOOD, GOOD], [Op("RELU", [7], [1])], [0], [1]), "refers to tensor 7")
    refused(tflite_model([GOOD, GOOD], [Op("RELU", [0], [1])], [0], [9]), "no tensor's number")
    refused(tflite_model([GOOD, GOOD], [Op("RELU", [], [1])], [0], [1]), "operand 0 is missing")


def test_operators_come_in_an_order_in_which_they_can_be_computed():
    ops = [Op("RELU", [2], [1]), Op("RELU", [1], [2])]
    refused(tflite_model([GOOD, GOOD, GOOD], ops, [0], [2]), "before any operator computes it")
    twice = [Op("RELU", [0], [1]), Op("RELU", [0], [1])]
    refused(tflite_model([GOOD, GOOD], twice, [0], [1]), "has a value already")
    refused(tflite_model([GOOD, GOOD], [Op("RELU", [0], [0])], [0], [0]), "has a value already")


def test_all_operators_that_are_not_supported_are_named_at_once():
    ops = [
        Op("RELU", [0], [1]), Op("SVDF", [1], [2]), Op("CUSTOM", [2], [3], custom="Mine"),
        Op("RELU", [3], [4]), Op("WHILE", [4], [5]),
    ]  # fmt: skip
    data = tflite_model([GOOD] * 6, ops, [0], [5])
    with pytest.raises(graphc.UnsupportedError) as caught:
        graphc.import_tflite(data)
    text = str(caught.value)
    assert "3 nodes" in text and "SVDF" in text and "custom_'Mine'" in text and "WHILE" in text
    assert "docs/tflite.md" in text


def test_variables_are_told_what_to_be_instead():
    tensors = [GOOD, T((1, 4), scale=0.1, variable=True), GOOD]
    data = tflite_model(tensors, [Op("ADD", [0, 1], [2])], [0], [2])
    refused(data, "--state", graphc.UnsupportedError)


def test_shapes_of_results_are_compared():
    refused(relu(GOOD, T((1, 5), scale=0.1)), "t1")
    refused(relu(GOOD, T((1, 4), np.int16, 0.1)), "INT16", graphc.UnsupportedError)


@pytest.mark.suite("all")
@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf"), -1.0])
def test_scales_must_be_numbers_above_zero(scale):
    refused(relu(T((1, 4), scale=scale), GOOD), "scale")


def test_zero_points_must_fit():
    refused(relu(T((1, 4), scale=0.1, zero=300), GOOD), "zero point 300")


def test_what_once_ended_in_a_traceback():
    empty = T(data=np.zeros((6, 1, 1, 3), np.int8), scale=0.1)
    data = one("CONV_2D", [T((1, 2, 2, 0), scale=0.1), empty, T((1, 2, 2, 6), scale=0.1)],
               Padding=VALID, StrideH=1, StrideW=1)  # fmt: skip
    refused(data, "0 input channels")
    refused(one("LEAKY_RELU", [GOOD, GOOD], Alpha=float("inf")), "reach", graphc.UnsupportedError)
    refused(one("TRANSPOSE_CONV", [GOOD, GOOD], order=[0]), "operand 0 is missing")
    size = T(data=np.array([2, 1 << 30], np.int32))
    data = one("RESIZE_NEAREST_NEIGHBOR", [
        T((1, 2, 2, 1), scale=0.1), size, T((1, 2, 1 << 30, 1), scale=0.1)
    ])  # fmt: skip
    refused(data, "at most", graphc.GraphcError)


def test_windows_must_make_sense():
    def pool(**options):
        return one("MAX_POOL_2D", [T((1, 4, 4, 1), scale=0.1), T((1, 2, 2, 1), scale=0.1)],
                   **{"Padding": VALID, "StrideH": 2, "StrideW": 2, "FilterHeight": 2,
                      "FilterWidth": 2, **options})  # fmt: skip

    graphc.import_tflite(pool())
    refused(pool(StrideH=0), "must be positive")
    refused(pool(FilterHeight=-3), "must be positive")
    refused(pool(Padding=9), "its padding is number 9")
    refused(pool(FilterHeight=200), "MAX_POOL_2D")


def test_sums_that_may_overflow_are_refused():
    """The kernels' own int32 would overflow."""
    w = np.full((1, 80_000), 127, np.int8)
    data = one("FULLY_CONNECTED", [
        T((1, 80_000), scale=0.1), T(data=w, scale=0.1),
        T(data=np.array([2**31 - 1], np.int32), scale=0.01), T((1, 1), scale=0.1),
    ])  # fmt: skip
    refused(data, "may not fit int32", graphc.UnsupportedError)


def test_activations_that_are_not_limits_are_refused():
    data = one("ADD", [GOOD, GOOD, GOOD], 2, FusedActivationFunction=4)
    refused(data, "activation", graphc.UnsupportedError)


def test_random_bytes_behind_the_identifier():
    rng = np.random.default_rng(0)
    for size in (12, 40, 200, 1000):
        for _ in range(40):
            body = rng.integers(0, 64, size).astype(np.uint8).tobytes()
            with pytest.raises(GraphcError):
                graphc.import_tflite(struct.pack("<I", 8) + b"TFL3" + body)
