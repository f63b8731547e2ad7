"""Reductions and positions of extremes against ONNX Runtime and numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ort_compare import agree
from single_op import run_op

from graphc.errors import ModelError

pytestmark = pytest.mark.suite("all")

rng = np.random.default_rng(11)
X = rng.standard_normal((3, 4, 5)).astype(np.float32)
POSITIVE = np.abs(X) + 0.1
FLOAT_NAMES = "Sum Mean Max Min Prod L1 L2 SumSquare LogSum LogSumExp"
AXES = (None, (0,), (-1,), (0, 2), (1, -3), (0, 1, 2))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("name", FLOAT_NAMES.split())
def test_floats_over_all_choices_of_axes(name):
    for axes in AXES:
        for keepdims in (0, 1):
            operand = None if axes is None else ints(*axes)
            agree(f"Reduce{name}", POSITIVE, operand, keepdims=keepdims)


@pytest.mark.parametrize("name", FLOAT_NAMES.split())
def test_without_axes_the_rest_of_the_formula_remains(name):
    agree(f"Reduce{name}", POSITIVE, ints(), noop_with_empty_axes=1)
    agree(f"Reduce{name}", POSITIVE.astype(np.float64), noop_with_empty_axes=0)
    agree(f"Reduce{name}", np.float32(1.5))


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "SumSquare"])
def test_integers(name):
    x = rng.integers(-5, 6, (3, 4, 5)).astype(np.int32)
    agree(f"Reduce{name}", x, ints(1))
    assert run_op(f"Reduce{name}", x.astype(np.int64), ints(0), keepdims=0).dtype == np.int64


def test_extremes_of_small_integers_and_booleans():
    x = rng.integers(-128, 128, (3, 4)).astype(np.int8)
    agree("ReduceMax", x, ints(1))
    flags = x > 60
    assert run_op("ReduceMax", flags, ints(1), keepdims=0).tolist() == flags.any(1).tolist()
    assert run_op("ReduceMin", flags, ints(0), keepdims=0).tolist() == flags.all(0).tolist()


@pytest.mark.parametrize(
    "name, expected",
    [("Sum", 0), ("Prod", 1), ("Max", -np.inf), ("Min", np.inf), ("L1", 0), ("L2", 0),
     ("SumSquare", 0), ("LogSum", -np.inf), ("LogSumExp", -np.inf)],
)  # fmt: skip
def test_nothing_to_reduce(name, expected):
    got = run_op(f"Reduce{name}", np.zeros((2, 0, 3), np.float32), ints(1), keepdims=0)
    assert got.tolist() == [[expected] * 3] * 2
    assert run_op(f"Reduce{name}", np.zeros((0, 3), np.float32), ints(1)).shape == (0, 1)


def test_log_sum_exp_neither_overflows_nor_vanishes():
    x = np.array([[1000, 1001], [-1000, -1001], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    got = run_op("ReduceLogSumExp", x, ints(1), keepdims=0)
    np.testing.assert_allclose(got, [1001.3133, -999.6867, -np.inf, np.inf], rtol=1e-6)


def test_narrow_floats_accumulate_in_float32():
    ones = np.ones(5000, np.float16)
    assert run_op("ReduceSum", ones).item() == 5000
    assert run_op("ReduceMean", np.full(100, 60000, np.float16)).item() == 60000
    assert run_op("ReduceSum", np.ones(300, ml_dtypes.bfloat16)).astype(np.float32) == 300


def test_nan_reaches_sums_and_extremes():
    x = np.array([1, np.nan, 3], np.float32)
    for name in ("Sum", "Max", "Min", "Mean"):
        assert np.isnan(run_op(f"Reduce{name}", x)).all()


def test_axes_are_checked():
    with pytest.raises(ModelError, match="axis 3 is out of range for rank 3"):
        run_op("ReduceSum", X, ints(3))
    with pytest.raises(ModelError, match="name a dimension twice"):
        run_op("ReduceSum", X, ints(0, -3))


# ---------------------------------------------------------------- positions of extremes

NAN = np.nan
ROWS = [
    [1, 2, 3, 2], [3, 3, 1, 3], [1, NAN, 3, 2], [NAN, 1, 3, 2], [NAN, NAN, NAN], [1, 2, NAN],
    [-np.inf, -np.inf], [np.inf, NAN, np.inf], [NAN, -np.inf], [7],
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("last", [0, 1])
def test_ties_and_nan_as_in_onnx_runtime(row, last):
    x = np.array([row, row], np.float32)
    for name in ("ArgMax", "ArgMin"):
        agree(name, x, axis=1, select_last_index=last)
        agree(name, np.ascontiguousarray(x.T), axis=0, keepdims=0, select_last_index=last)


@pytest.mark.parametrize("axis", range(-3, 3))
def test_positions_along_every_axis(axis):
    for name in ("ArgMax", "ArgMin"):
        agree(name, X, axis=axis)
        agree(name, (X * 3).astype(np.int32), axis=axis, keepdims=0)


def test_position_in_an_empty_axis_is_an_error():
    with pytest.raises(ModelError, match="is empty"):
        run_op("ArgMax", np.zeros((2, 0), np.float32), axis=1)
    assert run_op("ArgMax", np.zeros((0, 2), np.float32), axis=1).shape == (0, 1)
