"""Where ONNX's text is open, operators do as ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import pytest
from every_target import agree_everywhere
from onnx import TensorProto
from ort_compare import agree, one_node_model, run_both

from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.passes.specialise import specialise

RANDOM = np.random.default_rng(0)
NAN = np.nan


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- bounds that are NaN


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "bounds", [(NAN, None), (None, NAN), (NAN, 1), (-1, NAN), (NAN, NAN), (2, -2), (2, NAN)]
)
def test_a_bound_that_is_nan_is_none(bounds, dtype):
    x = np.array([-3, -1, 0, 1, 3, NAN], dtype)
    low, high = (None if v is None else np.array(v, dtype) for v in bounds)
    agree("Clip", x, low, high)


@pytest.mark.parametrize("bounds", [(NAN, 1), (-1, NAN)])
def test_a_bound_that_is_nan_is_none_on_every_target(bounds):
    x = floats(37)
    operands = [x, *(np.array(v, np.float32) for v in bounds)]
    _, expected = run_both("Clip", operands)
    graph = specialise(import_onnx(one_node_model("Clip", operands, {})))
    agree_everywhere(graph, operands, expected)


# ---------------------------------------------------------------- windows larger than the input

POOLS = ("MaxPool", "AveragePool", "LpPool")


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("pads", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", range(2, 9))
def test_windows_larger_than_the_input(kernel, stride, pads, ceil_mode, kind):
    if max(pads) >= kernel:
        pytest.skip("ONNX Runtime takes no padding as large as the window")
    attrs = {"kernel_shape": [kernel], "strides": [stride], "pads": pads, "ceil_mode": ceil_mode}
    model = one_node_model(kind, [floats(1, 2, 3)], attrs, opset=22)
    if 3 + sum(pads) - kernel <= -2 * stride:
        with pytest.raises(ModelError, match="does not fit into"):
            interpret(import_onnx(model), [floats(1, 2, 3)])
        return
    agree(kind, floats(1, 2, 3), opset=22, **attrs)


def test_a_window_over_padding_counts_it_if_asked_to():
    attrs = {"kernel_shape": [5, 4], "strides": [3, 2], "pads": [1, 0, 0, 0]}
    for counted in (0, 1):
        agree("AveragePool", floats(1, 2, 3, 3), opset=22, count_include_pad=counted, **attrs)


@pytest.mark.parametrize("kind", POOLS)
def test_a_window_larger_than_the_input_on_every_target(kind):
    x = floats(1, 3, 3, 5)
    attrs = {"kernel_shape": [5, 2], "strides": [3, 2]}
    _, expected = run_both(kind, [x], attrs, opset=22)
    graph = specialise(import_onnx(one_node_model(kind, [x], attrs, opset=22)))
    agree_everywhere(graph, [x], expected)


def test_convolutions_do_not_hang_over():
    with pytest.raises(ModelError, match="does not fit into"):
        interpret(import_onnx(one_node_model("Conv", [floats(1, 1, 3), floats(1, 1, 5)], {})),
                  [floats(1, 1, 3), floats(1, 1, 5)])  # fmt: skip


# ---------------------------------------------------------------- samples without steps

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(kind: str, steps: int, lengths: list[int] | None, ways: int) -> list:
    hidden, gates = 5, GATES[kind]
    operands = [
        floats(steps, 2, 4), floats(ways, gates * hidden, 4), floats(ways, gates * hidden, hidden),
        floats(ways, 2 * gates * hidden), None if lengths is None else np.array(lengths, np.int32),
    ]  # fmt: skip
    return operands + [floats(ways, 2, hidden) for _ in range(2 if kind == "LSTM" else 1)]


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [[0, 0], [0, 2], [3, 0]])
def test_the_last_state_of_a_sample_without_steps_is_zero(lengths, direction, kind):
    operands = layer(kind, 3, lengths, 2 if direction == "bidirectional" else 1)
    outputs = 3 if kind == "LSTM" else 2
    agree(kind, *operands, outputs=outputs, hidden_size=5, direction=direction)


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", GATES)
def test_no_steps_at_all(kind):
    """ONNX Runtime is no judge: it leaves states unwritten, or ends the process."""
    operands = layer(kind, 0, None, 1)
    model = one_node_model(kind, operands, {"hidden_size": 5}, 3 if kind == "LSTM" else 2)
    given = [x for x in operands if x is not None]
    y, *last = interpret(import_onnx(model), given)
    assert y.shape == (0, 1, 2, 5)
    assert all(state.shape == (1, 2, 5) and not state.any() for state in last)


# ---------------------------------------------------------------- attributes and axes


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_no_stash_type_is_float32(dtype):
    x, scale = floats(2, 4, 3).astype(dtype), floats(3).astype(dtype)
    tolerance = 2e-3 if dtype is np.float16 else 1e-5
    agree("LayerNormalization", x, scale, scale, stash_type=0, tolerance=tolerance)
    agree("RMSNormalization", x, scale, stash_type=0, opset=23, tolerance=tolerance)


@pytest.mark.suite("all")
@pytest.mark.parametrize("stash_type", [TensorProto.INT64, TensorProto.STRING, 99])
def test_a_stash_type_is_a_float_type(stash_type):
    x, scale = floats(2, 4, 3), floats(4)
    model = one_node_model("GroupNormalization", [x, scale, scale],
                           {"num_groups": 2, "stash_type": stash_type})  # fmt: skip
    with pytest.raises(ModelError, match=f"number of a float type, found {stash_type}"):
        interpret(import_onnx(model), [x, scale, scale])


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", ["Unsqueeze", "Squeeze", "ReduceSum"])
def test_axes_are_a_vector(kind):
    x, axes = floats(1, 1, 3), np.array([[0, 1]])
    with pytest.raises(ModelError, match=r"axes must be a vector, found shape \[1, 2\]"):
        interpret(import_onnx(one_node_model(kind, [x, axes], {})), [x, axes])


def test_a_scalar_is_one_axis():
    agree("Unsqueeze", floats(2, 3), np.array(1))
    (total,) = interpret(import_onnx(one_node_model("ReduceSum", [floats(2, 3), np.array(1)], {})),
                         [np.ones((2, 3), np.float32), np.array(1)])  # fmt: skip
    assert total.tolist() == [[3], [3]]
