"""Intervals hold all that scalar operations give for the numbers in them, and no more where these
are integers and the operation keeps order."""

import itertools

import numpy as np
import pytest

from graphc.ir.dtypes import boolean, f32, i8, i32, u8
from graphc.ir.expr import Call, Const, Ref, call, cast, minimum, select
from graphc.ir.scalar.ops import apply
from graphc.passes.analysis.intervals import (
    Interval,
    called,
    of_array,
    point,
    products_summed,
    summed,
    whole,
)

pytestmark = pytest.mark.suite("all")

ENDS = (-128, -77, -3, -1, 0, 1, 2, 5, 126, 127)
EXACT = ("add", "sub", "mul", "min", "max")
BY_NUMBER = ("shr", "shr_rounded", "div", "floordiv", "mod", "shl")


def _interval(low, high):
    return Interval(np.asarray(low), np.asarray(high))


def _all(node, *ranges):
    """All that an operation gives for whole numbers in ranges."""
    arrays = np.meshgrid(*(np.arange(low, high + 1) for low, high in ranges))
    given = [x.astype(arg.dtype.np) for x, arg in zip(arrays, node.args)]
    return apply(node.op, node.dtype, *given)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [i8, i32])
def test_ends_of_integers_are_reached(name, dtype):
    node = call(name, Ref("a", dtype), Ref("b", dtype))
    ranges = [(a, b) for a, b in itertools.combinations_with_replacement(ENDS, 2) if b - a < 70]
    for one, other in itertools.product(ranges[::2], ranges[::3]):
        found = called(node, [_interval(*one), _interval(*other)])
        numbers = _all(node, one, other)
        assert found.low <= numbers.min() and numbers.max() <= found.high
        if dtype is i32:
            assert (found.low, found.high) == (numbers.min(), numbers.max())


def test_what_may_wrap_is_all_of_the_type():
    node = call("add", Ref("a", i8), Ref("b", i8))
    found = called(node, [_interval([100, 1], [101, 2]), _interval([26, 3], [27, 4])])
    assert found.low.tolist() == [-128, 4] and found.high.tolist() == [127, 6]


@pytest.mark.parametrize("name", BY_NUMBER)
@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_shifts_and_quotients_by_a_number(name, number):
    node = call(name, Ref("a", i32), Ref("b", i32))
    for low, high in itertools.combinations_with_replacement(ENDS, 2):
        found = called(node, [_interval(low, high), point(np.asarray(number))])
        numbers = _all(node, (low, high), (number, number))
        assert found.low <= numbers.min() and numbers.max() <= found.high
        if name != "mod":
            assert (found.low, found.high) == (numbers.min(), numbers.max())


@pytest.mark.parametrize("name", ["shr_to_even", "shr_to_odd"])
def test_halves_keep_order(name):
    from graphc.ir.dtypes import i64

    node = call(name, Ref("a", i64), Ref("b", i64))
    numbers = _all(node, (-300, 300), (3, 3)).reshape(-1)
    assert (np.diff(numbers) >= 0).all()


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_are_decided_where_ranges_are_apart(name):
    node = call(name, Ref("a", i8), Ref("b", i8))
    ranges = list(itertools.combinations_with_replacement((-4, -1, 0, 2), 2))
    for one, other in itertools.product(ranges, ranges):
        found = called(node, [_interval(*one), _interval(*other)])
        numbers = _all(node, one, other)
        assert (found.low, found.high) == (numbers.min(), numbers.max())


def test_nothing_is_decided_of_nan():
    node = call("lt", Ref("a", f32), Ref("b", f32))
    unordered = Interval(np.float64(-2), np.float64(-1), True)
    found = called(node, [unordered, point(np.float64(0))])
    assert (found.low, found.high) == (0, 1)
    chosen = select(node, Ref("b", f32), Ref("a", f32))
    assert called(chosen, [found, point(np.float64(0)), unordered]).nan


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("swapped", [False, True])
def test_sides_of_a_choice_are_narrowed_by_its_condition(name, swapped):
    a, b = Ref("a", f32), Ref("b", f32)
    sides = (b, a) if swapped else (a, b)
    node = select(call(name, a, b), *sides)
    ranges = [(-2, 0), (-1, 1), (-1, -1), (1, 3)]
    for one, other, nan in itertools.product(ranges, ranges, range(4)):
        ends = [Interval(*map(np.float64, pair), bool(nan >> n & 1))
                for n, pair in enumerate((one, other))]  # fmt: skip
        numbers = [[*np.linspace(*pair, 7), *([np.nan] if x.nan else [])]
                   for x, pair in zip(ends, (one, other))]  # fmt: skip
        x, y = (grid.astype(np.float32) for grid in np.meshgrid(*numbers))
        condition = apply(node.args[0].op, boolean, x, y)
        given = {a: x, b: y}
        results = np.where(condition, *(given[side] for side in sides))
        compared = called(node.args[0], ends)
        found = called(node, [compared, *(dict(zip((a, b), ends))[side] for side in sides)])
        assert found.low <= np.nanmin(results) and np.nanmax(results) <= found.high
        assert found.nan or not np.isnan(results).any()


def test_a_limit_holds_of_what_may_be_infinite():
    x = Ref("x", f32)
    node = select(x < 0.0, Const(0.0, f32), x)
    found = called(node, [called(node.args[0], [whole(f32), point(np.float64(0))]),
                          point(np.float64(0)), whole(f32)])  # fmt: skip
    assert found.low == 0 and found.high == np.inf and found.nan


def test_conversions_fit_or_can_be_anything():
    narrow = cast(Ref("a", i32), i8)
    found = called(narrow, [_interval([-128, 100], [127, 128])])
    assert found.low.tolist() == [-128, -128] and found.high.tolist() == [127, 127]
    whole_numbers = cast(Ref("x", f32), i32)
    assert called(whole_numbers, [Interval(np.float64(-2.5), np.float64(2.5))]).low == -2
    assert called(whole_numbers, [Interval(np.float64(0), np.float64(np.inf))]).low == i32.min
    assert called(cast(Ref("b", boolean), u8), [whole(boolean)]).high == 1


def test_a_zero_of_two_may_be_either():
    node = call("max", Ref("x", f32), Ref("y", f32))
    assert isinstance(node, Call)
    found = called(node, [Interval(np.float64(-1), np.float64(-0.0)), point(np.float64(0.0))])
    assert not found.is_point
    below = called(node, [Interval(np.float64(-2), np.float64(-1)), point(np.float64(0.0))])
    assert below.is_point


@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max", "floor", "exp", "tanh"])
def test_floats_lie_between_their_ends(name):
    rng = np.random.default_rng(3)
    count = 1 if name in ("floor", "exp", "tanh") else 2
    node = call(name, *(Ref(letter, f32) for letter in "ab"[:count]))
    for _ in range(200):
        ends = np.sort(rng.standard_normal((count, 2)).astype(np.float32) * 9)
        found = called(node, [Interval(*pair.astype(np.float64)) for pair in ends])
        drawn = [rng.uniform(*pair, 50).astype(np.float32) for pair in ends]
        drawn = [np.clip(x, *pair) for x, pair in zip(drawn, ends)]
        numbers = apply(node.op, f32, *drawn)
        assert (found.low <= numbers).all() and (numbers <= found.high).all() and not found.nan


def test_unknown_numbers_are_unknown():
    assert whole(f32).nan and of_array(np.array([np.nan, 1], np.float32), f32).nan
    nothing = called(call("add", Ref("a", f32), Ref("b", f32)), [whole(f32), point(np.float64(1))])
    assert nothing.low == -np.inf and nothing.nan
    assert called(minimum(Ref("a", i8), 3), [None, point(np.asarray(3))]).high == 127


@pytest.mark.parametrize("dtype", [i32, f32])
def test_sums_of_products(dtype):
    rng = np.random.default_rng(4)
    for _ in range(40):
        weights = rng.integers(-9, 10, (3, 2, 4)).astype(dtype.np)
        ends = np.sort(rng.integers(-5, 6, (2, 1, 2, 1)), 0).astype(dtype.np)
        found = products_summed(Interval(*ends), weights, (1, 2), 2, dtype)
        corners = [np.where(weights > 0, a, b) * weights for a, b in (ends, ends[::-1])]
        low, high = (2 * x.sum((1, 2), keepdims=True) for x in corners)
        high, low = np.maximum(low, high), np.minimum(low, high)
        assert (found.low <= low).all() and (high <= found.high).all()
        if dtype is i32:
            assert (found.low == low).all() and (found.high == high).all()


def test_sums_of_what_varies_alike():
    """Bytes are added up by themselves, -128 too."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        weights = rng.integers(-128, 128, (3, 2, 4)).astype(np.int8)
        weights[0, 0, 0] = -128
        low, high = np.sort(rng.integers(-255, 256, 2))
        found = products_summed(
            _interval([[[low], [low]]], [[[high], [high]]]), weights, (1, 2), 3, i32
        )
        terms = [weights.astype(int) * end for end in (low, high)]
        expected = [f(*terms).sum((1, 2), keepdims=True) * 3 for f in (np.minimum, np.maximum)]
        np.testing.assert_array_equal((found.low, found.high), expected)
    alone = products_summed(_interval([[[1], [1]]], [[[2], [2]]]), weights[:, :1], (1, 2), 1, i32)
    both = np.repeat(weights[:, :1].astype(int), 2, 1)
    expected = np.minimum(both, both * 2).sum((1, 2), keepdims=True)
    np.testing.assert_array_equal(alone.low, expected)


def test_a_sum_that_may_wrap_is_all_of_the_type():
    terms = Interval(np.full((1, 3), 0), np.full((1, 3), 2**30))
    assert summed(terms, (1,), 1, i32).high.tolist() == [[i32.max]]
    assert summed(terms, (1,), 1, i32).low.tolist() == [[i32.min]]
