"""What imperative operators do in vectors is what they do element after element."""

import numpy as np
import pytest
from differential import build, check, program_of

import graphc
from graphc.ir import dtypes
from graphc.ir.expr import Index, Load
from graphc.ir.interp import evaluate
from graphc.ir.ops.sorting import better, order_of

RNG = np.random.default_rng(5)


def boxes_of(count: int, odd: float | None = None) -> np.ndarray:
    """Boxes on a coarse grid, many of them equal or empty; some coordinates are `odd`."""
    boxes = RNG.integers(0, 12, (2, count, 4)).astype(np.float32)
    if odd is not None:
        boxes[RNG.random(boxes.shape) < 0.02] = odd
    return boxes


def suppressed(boxes, scores, limit=1000, overlap=0.3, least=0.2, **attrs):
    constants = np.int64(limit), np.float32(overlap), np.float32(least)
    return build(
        lambda b, x, s: b.NonMaxSuppression(x, s, *map(b.constant, constants), **attrs),
        boxes=boxes, scores=scores,
    )  # fmt: skip


@pytest.mark.parametrize("odd", [None, float("nan"), float("inf"), -3.0])
@pytest.mark.parametrize("center", [0, 1])
def test_boxes_are_compared_with_vectors_of_others(odd, center):
    scores = np.round(RNG.random((2, 2, 150)), 1).astype(np.float32)
    graph, inputs = suppressed(boxes_of(150, odd), scores, center_point_box=center)
    check(graph, inputs, (64, 32, 16, 0))


def test_scores_that_are_no_numbers_come_last():
    scores = np.round(RNG.random((2, 1, 150)), 1).astype(np.float32)
    scores[RNG.random(scores.shape) < 0.2] = np.nan
    boxes = boxes_of(150)
    graph, inputs = build(
        lambda b, x, s: b.NonMaxSuppression(x, s, b.constant(np.int64(200))),
        boxes=boxes, scores=scores,
    )  # fmt: skip
    check(graph, inputs)


@pytest.mark.parametrize("count", [31, 32, 37, 200])
def test_infinite_scores_are_above_what_is_no_number(count):
    scores = RNG.choice(np.array([-np.inf, np.inf, np.nan, -np.nan, -0.0, 0.0]), (2, 1, count))
    graph, inputs = build(
        lambda b, x, s: b.NonMaxSuppression(x, s, b.constant(np.int64(count))),
        boxes=boxes_of(count), scores=scores.astype(np.float32),
    )  # fmt: skip
    check(graph, inputs, (64, 32, 16, 0))


@pytest.mark.parametrize("limit", [1, 64, 65])
def test_no_more_boxes_than_asked_for(limit):
    scores = RNG.random((2, 1, 150)).astype(np.float32)
    check(*suppressed(boxes_of(150), scores, limit, 1.0, 0.0))


def test_traits_of_picked_boxes_lie_side_by_side():
    graph, _ = suppressed(boxes_of(500), np.zeros((2, 1, 500), np.float32))
    (kernel,) = program_of(graph, 64).kernels.values()
    assert "vector" in str(kernel)
    (plain,) = program_of(graph, 0).kernels.values()
    assert "vector" not in str(plain)


# ---------------------------------------------------------------- elements that are kept


@pytest.mark.parametrize("axis, shape", [(0, (600, 5)), (1, (2, 300, 3)), (1, (3, 70)), (0, (9,))])
@pytest.mark.parametrize("kept", [0, 0.01, 0.4, 1])
def test_rows_that_are_kept(axis, shape, kept):
    graph, inputs = build(
        lambda b, x, c: b.Compress(x, c, axis=axis),
        x=RNG.standard_normal(shape).astype(np.float32), c=RNG.random(shape[axis]) < kept,
    )  # fmt: skip
    check(graph, inputs, (64, 32, 16, 0))


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(64,), (1, 65), (3, 127), (2, 3, 31), (9, 1), (2, 0)])
def test_positions_by_the_bits_of_masks(shape, dtype):
    for kept in (0, 0.05, 1):
        x = (RNG.random(shape) < kept).astype(dtype)
        graph, inputs = build(lambda b, x: b.NonZero(x), x=x)
        check(graph, inputs, (64, 16, 0))


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_positions_of_lines_of_open_size(size):
    graph = graphc.parse("graph @g(%x: f32[2,S]) -> ? where S: 1..200 { %r = NonZero(%x) "
                         "return %r }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    x = (RNG.random((2, size)) < 0.2).astype(np.float32)
    np.testing.assert_array_equal(model.run([x])[0], np.stack(np.nonzero(x)))
    assert model.why_exact == ""


# ---------------------------------------------------------------- regions of images


def regions(count: int, size: float) -> np.ndarray:
    """Corners of regions, some of which reach beyond images of this size."""
    low = RNG.random((count, 2)) * size - 3
    return np.concatenate([low, low + RNG.random((count, 2)) * size], 1).astype(np.float32)


def images(channels: int) -> np.ndarray:
    return RNG.standard_normal((2, channels, 9, 13)).astype(np.float32)


@pytest.mark.parametrize("channels", [16, 21, 3])
@pytest.mark.parametrize("mode, ratio", [("avg", 0), ("avg", 2), ("max", 0), ("max", 3)])
def test_channels_of_regions_lie_side_by_side(channels, mode, ratio):
    graph, inputs = build(
        lambda b, x, r, n: b.RoiAlign(
            x, r, n, output_height=3, output_width=4, mode=mode, sampling_ratio=ratio
        ),
        x=images(channels), r=regions(6, 12), n=np.array([0, 1, 1, 0, 1, 0]),
    )  # fmt: skip
    check(graph, inputs, (64, 32, 0))
    copied = [b for k in program_of(graph).kernels.values() for b in k.params if b.name == "pixels"]
    assert bool(copied) == (channels >= 16)


def test_largest_of_regions():
    rois = np.concatenate([RNG.integers(0, 2, (5, 1)), regions(5, 12)], 1).astype(np.float32)
    graph, inputs = build(
        lambda b, x, r: b.MaxRoiPool(x, r, pooled_shape=[4, 3], spatial_scale=0.8),
        x=images(19), r=rois,
    )  # fmt: skip
    check(graph, inputs, (64, 32, 0))


def test_few_regions_are_not_worth_a_copy():
    graph, _ = build(
        lambda b, x, r, n: b.RoiAlign(x, r, n, output_height=1, output_width=1),
        x=images(16), r=regions(1, 12), n=np.array([0]),
    )  # fmt: skip
    (kernel,) = program_of(graph).kernels.values()
    assert "pixels" not in [b.name for b in kernel.params]


# ---------------------------------------------------------------- the best of many


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("wanted", [1, 5, 40])
def test_vectors_without_a_leader_are_passed_over(wanted, largest, axis):
    x = np.round(RNG.standard_normal((83, 83)), 1).astype(np.float32)
    x[RNG.random(x.shape) < 0.05] = np.nan
    x[:, 3] = np.nan
    graph, inputs = build(
        lambda b, x: b.TopK(x, b.constant(np.array([wanted])), axis=axis, largest=largest), x=x
    )
    check(graph, inputs, (64, 32, 0), interpreted=())
    (kernel,) = program_of(graph).kernels.values()
    assert ("vector" in str(kernel)) == (axis == 1 or wanted == 40)


def test_leaders_of_narrow_integers():
    x = RNG.integers(-128, 128, (3, 150)).astype(np.int8)
    check(*build(lambda b, x: b.TopK(x, b.constant(np.array([7]))), x=x))


def items(dtype, *shape: int) -> np.ndarray:
    """Numbers among which there are many ties, and those that are hard to compare."""
    x = RNG.integers(0, 50, shape).astype(dtype)
    hard = [0, 1]
    if np.dtype(dtype).kind == "f":
        x = ((x - 25) / 8).astype(dtype)
        hard = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0]
    elif np.dtype(dtype).kind in "iu":
        hard = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    flat = x.reshape(-1)
    flat[RNG.random(flat.size) < 0.1] = hard[0]
    for value in hard[1:]:
        flat[RNG.random(flat.size) < 0.02] = value
    return x


SORTED = [(17, 17), (33, 20), (100, 60), (257, 257), (600, 30), (600, 100), (100, 30), (40, 24)]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("count, wanted", SORTED)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.float16, np.uint32])
def test_leaders_that_are_sorted(dtype, count, wanted, largest):
    graph, inputs = build(
        lambda b, x: b.TopK(x, b.constant(np.array([wanted])), largest=largest, outputs=2),
        x=items(dtype, 3, count),
    )  # fmt: skip
    check(graph, inputs, (64, 16), interpreted=(64,) if count < 200 else (), tolerance=0)


@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, np.inf, -np.inf])
def test_leaders_of_equal_items_are_the_first(value):
    x = np.full((2, 500), value, np.float32)
    x[1, 400:420] = 1.0
    for wanted in (30, 300):
        check(*build(lambda b, x, n=wanted: b.TopK(x, b.constant(np.array([n])), outputs=2), x=x))


@pytest.mark.parametrize("wanted", [500, 12000])
def test_many_items_are_sorted_in_memory_of_their_own(wanted):
    x = items(np.float32, 2, 12000)
    graph, inputs = build(lambda b, x: b.TopK(x, b.constant(np.array([wanted])), outputs=2), x=x)
    check(graph, inputs, (64,), interpreted=())
    (kernel,) = program_of(graph).kernels.values()
    assert [b.name for b in kernel.params if b.name.startswith("a")]


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_])
def test_unique_items_are_sorted(dtype):
    for count in (17, 300):
        graph, inputs = build(lambda b, x: b.Unique(x, outputs=4), x=items(dtype, count))
        check(graph, inputs, (64, 16), interpreted=(64,) if count < 100 else ())


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.i32, dtypes.u8], ids=str)
@pytest.mark.parametrize("largest", [0, 1])
def test_orders_are_larger_where_values_are_better(dtype, largest):
    order = order_of(dtype, largest)
    assert order is not None
    here = Index("i0", 300)
    a, b = (Load(name, (here,), dtype) for name in "ab")
    arrays = {name: items(dtype.np, 300) for name in "ab"}
    for found, wanted in ((order(a) > order(b), better(a, b, largest)),
                          (order(a) < order(b), better(b, a, largest))):  # fmt: skip
        np.testing.assert_array_equal(*(evaluate(x, (300,), arrays) for x in (found, wanted)))


def test_wide_numbers_have_no_order_of_32_bits():
    for dtype in (dtypes.i64, dtypes.u32, dtypes.f64):
        assert order_of(dtype, 1) is None


@pytest.mark.parametrize("count, chosen", [(1000, True), (5000, False)])
def test_hardly_any_of_very_many_items_get_into_a_heap(count, chosen):
    graph, _ = build(lambda b, x: b.TopK(x, b.constant(np.array([30]))), x=items(np.float32, count))
    (kernel,) = program_of(graph).kernels.values()
    assert ("bitcast" in str(kernel)) == chosen
