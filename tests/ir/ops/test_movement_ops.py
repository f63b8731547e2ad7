"""Views, slices, joins, pads, gathers and generated contents against numpy and ONNX Runtime."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from ort_compare import agree
from single_op import run_op

from graphc.errors import ModelError, NeedsValue
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.expr import Const, Sym
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.ir.types import TensorType

pytestmark = pytest.mark.suite("all")

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def same(got, want) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, (got.shape, want.shape)
    np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------- views


@pytest.mark.parametrize(
    "shape, allowzero, expected",
    [((60,), 0, (60,)), ((-1, 5), 0, (12, 5)), ((0, -1), 0, (3, 20)), ((0, 0, 5), 0, (3, 4, 5)),
     ((2, 1, -1, 3), 0, (2, 1, 10, 3)), ((3, 4, 5), 1, (3, 4, 5))],
)  # fmt: skip
def test_reshape(shape, allowzero, expected):
    same(run_op("Reshape", X, ints(*shape), allowzero=allowzero), X.reshape(expected))


def test_reshape_of_nothing():
    empty = np.zeros((0, 3), np.float32)
    assert run_op("Reshape", empty, ints(3, 0), allowzero=1).shape == (3, 0)
    assert run_op("Reshape", empty, ints(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    "shape, message",
    [((7, 9), "60 elements"), ((-1, -1), "one -1"), ((-1, 7), "does not fit"),
     ((3, 4, 5, 0), "copies a dimension")],
)  # fmt: skip
def test_reshape_errors(shape, message):
    with pytest.raises(ModelError, match=message):
        run_op("Reshape", X, ints(*shape))


def test_reshape_by_an_unknown_shape_says_which_value_is_needed():
    graph = new_graph(x=TensorType(dtypes.f32, (3, 4)), shape=TensorType(dtypes.i64, (2,)))
    with pytest.raises(NeedsValue) as caught:
        Builder(graph).Reshape(*graph.params)
    assert caught.value.value is graph.params[1]


def test_views_are_free():
    """A reshape there and back, and one that adds dimensions of 1, are identities."""
    graph = new_graph(x=TensorType(dtypes.f32, (4, 6)))
    b = Builder(graph)
    wide = b.Reshape(graph.params[0], ints(4, 1, 6))
    assert str(simplify(op_body(wide.producer))) == "$0[i0, i2]"
    symbol = Sym("N", 1, 8)
    graph = new_graph(x=TensorType(dtypes.f32, (symbol, 6)))
    flat = Builder(graph).Reshape(graph.params[0], ints(0, 2, 3))
    assert flat.tensor.shape == (symbol, 2, 3)
    assert str(simplify(op_body(flat.producer))) == "$0[i0, i1 * 3 + i2]"


@pytest.mark.parametrize("axis", range(-3, 4))
def test_flatten(axis):
    cut = axis + 3 if axis < 0 else axis
    same(run_op("Flatten", X, axis=axis), X.reshape(int(np.prod(X.shape[:cut])), -1))


def test_squeeze_and_unsqueeze():
    thin = X.reshape(3, 1, 20, 1)
    same(run_op("Squeeze", thin), X.reshape(3, 20))
    same(run_op("Squeeze", thin, ints(-1)), X.reshape(3, 1, 20))
    same(run_op("Unsqueeze", X, ints(0, -1)), X.reshape(1, 3, 4, 5, 1))
    with pytest.raises(ModelError, match="it is not 1"):
        run_op("Squeeze", thin, ints(0))


# ---------------------------------------------------------------- permutations, slices, repeats


@pytest.mark.parametrize("perm", [None, *itertools.permutations(range(3))])
def test_transpose(perm):
    same(run_op("Transpose", X, perm=perm), X.transpose(perm))


def test_blocks_of_channels_and_pixels():
    x = np.arange(2 * 8 * 2 * 3, dtype=np.float32).reshape(2, 8, 2, 3)
    for mode in ("DCR", "CRD"):
        agree("DepthToSpace", x, blocksize=2, mode=mode)
    back = run_op("SpaceToDepth", run_op("DepthToSpace", x, blocksize=2), blocksize=2)
    same(back, x)
    for mode in ("DCR", "CRD"):
        there = run_op("SpaceToDepth", x.reshape(2, 2, 4, 6), blocksize=2, mode=mode)
        same(run_op("DepthToSpace", there, blocksize=2, mode=mode), x.reshape(2, 2, 4, 6))


def test_random_slices():
    rng = random.Random(3)
    limits = (-(2**63), -9, -5, -2, -1, 0, 1, 2, 4, 9, 2**63 - 1)
    for _ in range(60):
        axes = rng.sample(range(3), rng.randint(1, 3))
        starts, ends = ([rng.choice(limits) for _ in axes] for _ in range(2))
        steps = [rng.choice((1, 2, 3, -1, -2)) for _ in axes]
        cut = [slice(None)] * 3
        for axis, start, end, step in zip(axes, starts, ends, steps):
            before = step < 0 and start < -X.shape[axis]  # Python: nothing; ONNX: from the first
            cut[axis] = slice(0 if before else start, end, step)
        signed = [a - 3 if rng.random() < 0.5 else a for a in axes]
        got = run_op("Slice", X, ints(*starts), ints(*ends), ints(*signed), ints(*steps))
        same(got, X[tuple(cut)])


@pytest.mark.parametrize("start, end, step", [(-9, -10, -1), (-9, -(2**63), -2), (-9, 0, -1)])
def test_slices_backwards_from_before_the_first_position(start, end, step):
    agree("Slice", X, ints(start), ints(end), ints(1), ints(step))


def test_slice_errors():
    with pytest.raises(ModelError, match="steps must not be 0"):
        run_op("Slice", X, ints(0), ints(2), ints(0), ints(0))
    with pytest.raises(ModelError, match="2, 1"):
        run_op("Slice", X, ints(0, 0), ints(2))


def test_expand_and_tile():
    same(run_op("Expand", X[:, :1], ints(2, 3, 4, 1)), np.broadcast_to(X[:, :1], (2, 3, 4, 5)))
    same(run_op("Expand", np.float32(3), ints()), np.float32(3).reshape(()))
    same(run_op("Tile", X, ints(2, 1, 3)), np.tile(X, (2, 1, 3)))
    assert run_op("Tile", X, ints(0, 1, 1)).shape == (0, 4, 5)


def test_split():
    for axis, sizes in ((0, (1, 2)), (-1, (2, 0, 3))):
        parts = run_op("Split", X, ints(*sizes), outputs=len(sizes), axis=axis)
        for got, want in zip(parts, np.split(X, np.cumsum(sizes)[:-1], axis)):
            same(got, want)
    uneven = run_op("Split", X, outputs=3, num_outputs=3, axis=2)
    assert [part.shape[2] for part in uneven] == [2, 2, 1]
    with pytest.raises(ModelError, match="do not split"):
        run_op("Split", X, ints(1, 1), outputs=2, axis=0)


# ---------------------------------------------------------------- joins, pads, crops


def test_concat_of_many_parts():
    parts = [X[:, :n] for n in (1, 0, 3, 4, 2, 1, 4)]
    same(run_op("Concat", *parts, axis=1), np.concatenate(parts, 1))
    same(run_op("Concat", X, axis=-1), X)
    same(run_op("Concat", X[:0], X[:0], axis=0), X[:0])
    words = np.array(["a", "b"], object)
    assert run_op("Concat", words, words[::-1], axis=0).tolist() == ["a", "b", "b", "a"]
    with pytest.raises(ModelError, match="differ outside axis 1"):
        run_op("Concat", X, X[:2], axis=1)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 3, 0), (2, 0, 0, 2, 0, 4), (1, 1, 1, 1, 1, 1)])
def test_pad(mode, pads):
    widths = list(zip(pads[:3], pads[3:]))
    same(run_op("Pad", X, ints(*pads), mode=mode), np.pad(X, widths, mode=mode))


def test_long_reflections_fold_more_than_once():
    x = np.arange(3, dtype=np.float32)
    same(run_op("Pad", x, ints(7, 9), mode="reflect"), np.pad(x, (7, 9), mode="reflect"))
    same(run_op("Pad", x[:1], ints(2, 2), mode="reflect"), np.pad(x[:1], 2, mode="reflect"))


def test_pad_value_axes_and_crops():
    fill = np.array(7, np.float32)
    agree("Pad", X, ints(0, -1, 2, 1, 0, -3), fill)
    agree("Pad", X, ints(1, 2), fill, ints(-1))
    same(run_op("Pad", np.zeros((0, 2), np.float32), ints(1, 0, 1, 0)), np.zeros((2, 2), "f4"))


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 4, 9), (4, 1, 1), (2, 3, 4)])
def test_center_crop_pad(shape):
    got = run_op("CenterCropPad", X, ints(*shape))
    assert got.shape == shape
    expected = X
    for axis, wanted in enumerate(shape):
        extent = X.shape[axis]
        if wanted <= extent:
            start = (extent - wanted) // 2
            expected = expected.take(range(start, start + wanted), axis)
        else:
            before = (wanted - extent) // 2
            widths = [(0, 0)] * 3
            widths[axis] = (before, wanted - extent - before)
            expected = np.pad(expected, widths)
    same(got, expected)


@pytest.mark.parametrize("k", [-6, -2, -1, 0, 1, 3, 6])
def test_trilu(k):
    same(run_op("Trilu", X, np.array(k)), np.triu(X, k))
    same(run_op("Trilu", X, np.array(k), upper=0), np.tril(X, k))


# ---------------------------------------------------------------- generated contents


def test_shape_and_size_are_constants_of_the_type():
    symbol = Sym("N", 1, 8)
    graph = new_graph(x=TensorType(dtypes.f32, (symbol, 4, 5)))
    b = Builder(graph)
    assert op_body(b.Size(graph.params[0]).producer) is symbol * 4 * 5
    one = b.Shape(graph.params[0], start=1, end=2)
    assert op_body(one.producer) is Const(4, dtypes.i64)
    assert run_op("Shape", X).tolist() == [3, 4, 5]
    assert run_op("Shape", X, start=-2).tolist() == [4, 5]
    assert run_op("Shape", X, start=2, end=1).tolist() == []
    assert run_op("Shape", np.float32(1)).shape == (0,)


def test_constant_of_shape():
    same(run_op("ConstantOfShape", ints(2, 3)), np.zeros((2, 3), np.float32))
    same(run_op("ConstantOfShape", ints(), value=ints(4)), np.array(4))
    assert run_op("ConstantOfShape", ints(0, 2), value=np.array([True])).shape == (0, 2)


@pytest.mark.parametrize(
    "start, limit, delta",
    [(0, 5, 1), (10, 4, -2), (3, 3, 1), (5, 0, 1), (0.0, 1.0, 0.3), (1.0, -1.0, -0.5)],
)
def test_range(start, limit, delta):
    kinds = (np.int64, np.int32, np.int16) if isinstance(start, int) else (np.float32, np.float64)
    for kind in kinds:
        operands = [np.array(v, kind) for v in (start, limit, delta)]
        got = run_op("Range", *operands)
        expected = np.arange(start, limit, delta)
        assert got.dtype == kind
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_long_half_precision_ranges_do_not_stall():
    got = run_op("Range", *(np.array(v, np.float16) for v in (0, 4000, 1)))
    assert got[3000] == 3000


def test_eye_like():
    x = np.zeros((3, 4), np.int32)
    for k in (-1, 0, 2):
        same(run_op("EyeLike", x, k=k), np.eye(3, 4, k, dtype=np.int32))
        same(run_op("EyeLike", x, k=k, dtype=1), np.eye(3, 4, k, dtype=np.float32))


# ---------------------------------------------------------------- gathers


@pytest.mark.parametrize("axis", range(-3, 3))
def test_gather(axis):
    n = X.shape[axis]
    for indices in (np.array(1), np.array([[0, -1], [n - 1, -n]]), np.zeros((0,), np.int64)):
        same(run_op("Gather", X, indices, axis=axis), X.take(indices, axis))


def test_gather_never_leaves_the_tensor():
    with pytest.raises(ModelError, match=r"index -99 .*must be in -5\.\.4"):
        run_op("Gather", X[0, 0], np.array([99, -99]))
    with pytest.raises(ModelError, match="empty"):
        run_op("Gather", X[:0], np.array([0]))


@pytest.mark.parametrize("axis", range(-3, 3))
def test_gather_elements(axis):
    rng = np.random.default_rng(1)
    indices = rng.integers(-X.shape[axis], X.shape[axis], (3, 2, 5))
    part = X[:, :2] if axis not in (1, -2) else X
    limit = part.shape[axis]
    indices = np.clip(indices, -limit, limit - 1)
    same(
        run_op("GatherElements", part, indices, axis=axis),
        np.take_along_axis(part, np.where(indices < 0, indices + limit, indices), axis),
    )


@pytest.mark.parametrize("batch_dims, depth", [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1)])
def test_gather_nd(batch_dims, depth):
    rng = np.random.default_rng(2)
    limits = X.shape[batch_dims : batch_dims + depth]
    lead = X.shape[:batch_dims]
    indices = np.stack([rng.integers(-n, n, (*lead, 2)) for n in limits], -1)
    agree("GatherND", X, indices, batch_dims=batch_dims)


def test_one_hot():
    indices, values = np.array([[0, 2], [-1, 7]]), np.array([5, 1], np.float32)
    for axis in (-1, 0, 1):
        agree("OneHot", indices, np.array(3), values, axis=axis)


def test_reverse_sequence():
    lengths = ints(2, 0, 3, 1)
    agree("ReverseSequence", X, lengths, time_axis=0, batch_axis=1)
    agree("ReverseSequence", X, ints(4, 1, 3), time_axis=1, batch_axis=0)


def test_hardmax_marks_the_first_largest():
    x = np.array([[1, 3, 3], [2, 0, 1]], np.float32)
    for axis in (-1, 0):
        agree("Hardmax", x, axis=axis)


def test_col2im_adds_overlapping_blocks():
    x = np.random.default_rng(5).standard_normal((2, 3 * 4, 20)).astype(np.float32)
    agree("Col2Im", x, ints(5, 6), ints(2, 2))
    x = x[:, :, :4]
    agree("Col2Im", x, ints(5, 6), ints(2, 2), strides=(2, 2), dilations=(1, 2))
