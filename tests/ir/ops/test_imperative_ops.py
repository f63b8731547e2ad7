"""Imperative operators (scans, sorting, scatter, selection) against numpy."""

import numpy as np
import pytest

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.graph import Op, Value
from graphc.ir.imperative.lowering import imperative_kernel, is_bounded
from graphc.ir.infer import infer_op
from graphc.ir.interp import concrete, run_op
from graphc.ir.opdef import lookup
from graphc.ir.types import type_of

pytestmark = pytest.mark.suite("all")

RNG = np.random.default_rng(7)


def run(name, *arguments, outputs=1, **attrs):
    """The outputs of one operator on arrays."""
    inputs = [None if a is None else Value(type_of(a)) for a in arguments]
    return run_op(Op(lookup(name), inputs, attrs, outputs), arguments)


def kernel_of(name, *arguments, outputs=1, **attrs):
    inputs = [None if a is None else Value(type_of(a)) for a in arguments]
    op = concrete(Op(lookup(name), inputs, attrs, outputs), arguments)
    infer_op(op)
    return op, imperative_kernel(op)


# ---------------------------------------------------------------- the contract


def test_kernel_parameters():
    x, size = np.zeros((2, 5), np.float32), np.array([3])
    op, kernel = kernel_of("TopK", x, size, outputs=2)
    assert [(b.name, str(b.dtype), b.shape, b.access) for b in kernel.params] == [
        ("in0", "f32", (2, 5), "in"),
        ("out0", "f32", (2, 3), "out"),
        ("out1", "i64", (2, 3), "out"),
    ]
    assert not is_bounded(op)


def test_bounded_kernels_store_their_sizes():
    op, kernel = kernel_of("NonZero", np.zeros((2, 5), np.float32))
    assert [(b.name, b.shape) for b in kernel.params[1:]] == [("out0", (2, 10)), ("sizes", (2,))]
    assert is_bounded(op)


# ---------------------------------------------------------------- scans


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumsum(axis, exclusive, reverse):
    x = RNG.integers(-5, 5, (3, 4)).astype(np.int32)
    turned = np.flip(x, axis) if reverse else x
    expected = np.cumsum(turned, axis, dtype=x.dtype) - (turned if exclusive else 0)
    expected = np.flip(expected, axis) if reverse else expected
    (found,) = run("CumSum", x, np.array(axis), exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == x.dtype


def test_cumprod_of_half_floats_rounds_once():
    x = np.full(20, 1.1, np.float16)
    (found,) = run("CumProd", x, np.array(0))
    np.testing.assert_array_equal(found, np.cumprod(x.astype(np.float32)).astype(np.float16))


def test_axis_out_of_range():
    with pytest.raises(ModelError, match="axis 2 is out of range for rank 1"):
        run("CumSum", np.zeros(3, np.float32), np.array(2))


# ---------------------------------------------------------------- sorting


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 3, 17])
@pytest.mark.parametrize("axis", [0, 1])
def test_top_k_is_stable(largest, size, axis):
    x = np.moveaxis(RNG.integers(0, 6, (2, 17)).astype(np.float32), 1, axis)
    order = np.argsort(-x if largest else x, axis, kind="stable")
    order = np.take(order, range(size), axis)
    values, indices = run("TopK", x, np.array([size]), outputs=2, axis=axis, largest=largest)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


def test_top_k_values_alone():
    (values,) = run("TopK", np.float32([1, 5, 3]), np.array([2]))
    np.testing.assert_array_equal(values, [5, 3])


@pytest.mark.parametrize("largest, expected", [(1, [0, 4, 2, 3, 1]), (0, [1, 3, 2, 0, 4])])
def test_top_k_takes_nan_as_the_largest(largest, expected):
    x = np.float32([np.nan, -1, 5, 2, np.nan])
    values, indices = run("TopK", x, np.array([5]), outputs=2, largest=largest)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, x[indices])


def test_top_k_checks_its_size():
    with pytest.raises(ModelError, match="k is 4, but the axis has 3 elements"):
        run("TopK", np.zeros(3, np.float32), np.array([4]), outputs=2)


def _unique_by_occurrence(x, axis):
    y, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.argsort(first)
    rank = np.argsort(order)
    y = y[order] if axis is None else np.take(y, order, axis)
    return y, first[order], rank[inverse.reshape(-1)], counts[order]


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_unique(axis, ordered, outputs):
    x = RNG.integers(0, 2, (6, 3)).astype(np.int64)
    expected = _unique_by_occurrence(x, axis)
    if ordered:
        expected = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
    attrs = {} if axis is None else {"axis": axis}
    found = run("Unique", x, outputs=outputs, sorted=ordered, **attrs)
    for got, want in zip(found, expected):
        np.testing.assert_array_equal(got, want.reshape(got.shape))


def test_unique_puts_one_nan_last():
    (y,) = run("Unique", np.float32([np.nan, 1, np.nan, -1]))
    np.testing.assert_array_equal(y, [-1, 1, np.nan])


def test_unique_of_nothing_and_of_strings():
    y, first, inverse, counts = run("Unique", np.zeros(0, np.float32), outputs=4)
    assert y.shape == first.shape == inverse.shape == counts.shape == (0,)
    (words,) = run("Unique", np.array(["b", "a", "b"], object))
    assert words.tolist() == ["a", "b"]


# ---------------------------------------------------------------- scatter


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_elements(reduction):
    data = RNG.normal(size=(3, 4)).astype(np.float32)
    indices = np.array([[0, -1, 1, 0], [2, 0, 2, 0]])
    updates = RNG.normal(size=indices.shape).astype(np.float32)
    combine = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum,
               "max": np.maximum}[reduction]  # fmt: skip
    expected = data.copy()
    for (row, column), update in np.ndenumerate(updates):
        target = indices[row, column], column
        expected[target] = combine(expected[target], update)
    (found,) = run("ScatterElements", data, indices, updates, axis=0, reduction=reduction)
    np.testing.assert_array_equal(found, expected)


def test_scatter_nd_of_slices_refuses_indices_outside():
    data = np.zeros((3, 2), np.float32)
    updates = np.ones((3, 2), np.float32)
    with pytest.raises(ModelError, match=r"index 7 of indices .*-3\.\.2"):
        run("ScatterND", data, np.array([[1], [7], [-1]]), updates, reduction="add")
    (sums,) = run("ScatterND", data, np.array([[1], [1], [-1]]), updates, reduction="add")
    np.testing.assert_array_equal(sums, [[0, 0], [2, 2], [1, 1]])


def test_scatter_checks_shapes():
    with pytest.raises(ModelError, match=r"updates has shape \[3\], expected \[2\]"):
        run("ScatterElements", np.zeros(4), np.zeros(2, np.int64), np.zeros(3))


@pytest.mark.parametrize("mode, start, expected", [
    ("linear", [1, 0], [[0, 1, 1, 0], [1, 1, 0, 0]]),
    ("circular", [3, 0], [[1, 0, 0, 1], [1, 1, 0, 0]]),
])  # fmt: skip
def test_tensor_scatter(mode, start, expected):
    past, update = np.zeros((2, 4, 1), np.float32), np.ones((2, 2, 1), np.float32)
    (found,) = run("TensorScatter", past, update, np.array(start), mode=mode)
    np.testing.assert_array_equal(found[..., 0], expected)


def test_max_unpool_into_a_larger_output():
    x, indices = np.float32([[[[1, 2]]]]), np.array([[[[1, 6]]]])
    (found,) = run(
        "MaxUnpool", x, indices, np.array([1, 1, 2, 5]), kernel_shape=(2, 2), strides=(2, 2)
    )
    np.testing.assert_array_equal(found[0, 0], [[0, 1, 0, 0, 0], [0, 0, 2, 0, 0]])


# ---------------------------------------------------------------- selection


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (0, 2)])
def test_non_zero(shape):
    x = RNG.integers(0, 2, shape).astype(np.float32)
    (found,) = run("NonZero", x)
    expected = np.array(np.nonzero(x)) if shape else np.zeros((0, int(x != 0)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress(axis):
    x = np.arange(12).reshape(3, 4)
    condition = np.array([False, True, True])
    attrs = {} if axis is None else {"axis": axis}
    (found,) = run("Compress", x, condition, **attrs)
    np.testing.assert_array_equal(found, np.compress(condition, x, axis))


def test_non_max_suppression():
    boxes = np.float32([[[0, 0, 1, 1], [0, 0.05, 1, 1.05], [0, 2, 1, 3], [1, 3, 0, 2]]])
    scores = np.float32([[[0.5, 0.9, 0.4, 0.4]]])

    def kept(limit, *thresholds, **attrs):
        rest = [np.float32(t) for t in thresholds]
        return run("NonMaxSuppression", boxes, scores, np.array([limit]), *rest, **attrs)[0][
            :, 2
        ].tolist()

    assert kept(9, 0.5) == [1, 2]
    assert kept(1, 0.5) == [1]
    assert kept(9, 1.0) == [1, 0, 2, 3]
    assert kept(9, 0.5, 0.45) == [1]
    assert run("NonMaxSuppression", boxes, scores)[0].shape == (0, 3)


def test_narrow_types():
    data = np.arange(4).astype(dtypes.bf16.np)
    (found,) = run(
        "ScatterElements", data, np.array([1]), np.ones(1, dtypes.bf16.np), reduction="add"
    )
    np.testing.assert_array_equal(found.astype(np.float32), [0, 2, 2, 3])
