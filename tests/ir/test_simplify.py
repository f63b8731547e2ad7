"""The simplifier keeps values, tightens forms and is idempotent; index maps of views vanish."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index
from graphc.ir.dtypes import boolean, i8, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Sym,
    call,
    maximum,
    minimum,
    select,
    walk,
)
from graphc.ir.interp import evaluate
from graphc.ir.simplify import bounds, simplify

DIVISORS = (1, 2, 3, 4, 6, 8, 12)
ODD_DIVISORS = (0, -1, -2, -3)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def random_index(rng: random.Random, leaves: list[Index], depth: int) -> Expr:
    """A random i64 expression over the given indices."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(leaves) if rng.random() < 0.7 else Const(rng.randint(-6, 12), i64)

    def sub() -> Expr:
        return random_index(rng, leaves, depth - 1)

    a = sub()
    kind = rng.randrange(12)
    if kind < 4:
        return a + sub() if kind < 3 else a - sub()
    if kind == 4:
        return a * rng.choice((-3, -1, 2, 3, 4, 6))
    if kind in (5, 6):
        return a // rng.choice(DIVISORS)
    if kind in (7, 8):
        return a % rng.choice(DIVISORS)
    if kind == 9:
        by = rng.choice(ODD_DIVISORS) if rng.random() < 0.5 else sub()
        return a // by if rng.random() < 0.5 else a % by
    if kind == 10:
        return rng.choice((minimum, maximum))(a, sub())
    b = sub()
    return select(call(rng.choice(COMPARISONS), a, b), a * b, sub())


@pytest.mark.suite("all")
@pytest.mark.parametrize("start", range(0, 1200, 100))
def test_random_expressions_keep_their_values(start):
    for seed in range(start, start + 100):
        rng = random.Random(seed)
        shape = tuple(rng.choice(DIVISORS) for _ in range(rng.randint(1, 3)))
        leaves = [Index(f"i{d}", extent) for d, extent in enumerate(shape)]
        original = random_index(rng, leaves, rng.randint(1, 6))
        simple = simplify(original)
        expected = evaluate(original, shape, {})
        assert np.array_equal(expected, evaluate(simple, shape, {})), (seed, original, simple)
        assert simplify(simple) is simple, (seed, simple)
        for form in (original, simple):
            low, high = bounds(form)
            assert low <= expected.min() and expected.max() <= high, (seed, form)


SHAPES = [(5,), (2, 3), (4, 1, 6), (3, 2, 2, 5), (1, 1, 1), (7, 8, 9)]


@pytest.mark.suite("all")
@pytest.mark.parametrize("shape", SHAPES)
def test_unflatten_of_flatten_is_the_index(shape):
    index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(shape))
    expected = tuple(Const(0, i64) if x.extent == 1 else x for x in index)
    assert unflatten_index(flatten_index(index, shape), shape) == expected


@pytest.mark.suite("all")
@pytest.mark.parametrize("shape", SHAPES)
def test_flatten_of_unflatten_is_the_offset(shape):
    offset = Index("n", int(np.prod(shape)))
    expected = Const(0, i64) if offset.extent == 1 else offset
    assert flatten_index(unflatten_index(offset, shape), shape) is expected


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "old, new",
    [((4, 6), (24,)), ((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 4)), ((2, 12), (2, 3, 2, 2)),
     ((3, 4, 5), (3, 1, 4, 5))],
)  # fmt: skip
def test_reshape_there_and_back_vanishes(old, new):
    index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(old))
    there = unflatten_index(flatten_index(index, old), new)
    assert unflatten_index(flatten_index(there, new), old) == index


def test_unflatten_of_symbolic_dims_stays_exact():
    batch = Sym("N", 1, 8)
    index = (Index("i0", batch), Index("i1", 6))
    assert unflatten_index(flatten_index(index, (batch, 6)), (batch, 6))[1] is index[1]


I, J = Index("i", 8), Index("j", 4)  # noqa: E741


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "before, after",
    [
        ((I * 4 + J) // 4, I),
        ((I * 4 + J) % 4, J),
        ((I // 4) * 4 + I % 4, I),
        (I // 2 // 2, I // 4),
        (I % 8, I),
        (I + I, I * 2),
        (I - I, Const(0, i64)),
        ((I * 6) // 4, (I * 3) // 2),
        ((I + 16) % 8, I),
        (minimum(I, 100), I),
        (maximum(I, -1), I),
        (I % 0, Const(0, i64)),
        (call("lt", I, 8), Const(True, boolean)),
        (call("ge", I, 8), Const(False, boolean)),
        (select(call("lt", I, 8), J, I), J),
        (Load("x", (I * 4 // 4,), i64), Load("x", (I,), i64)),
    ],
)
def test_rewrites(before, after):
    assert simplify(before) is simplify(after)


def test_undecided_comparison_stays():
    condition = call("lt", I, 4)
    assert simplify(condition) is condition


def test_affine_strides():
    assert is_affine_in(I * 3 + J, I) == 3
    assert is_affine_in(I * 3 + J, Index("k", 5)) == 0
    assert is_affine_in((I * 4 + J) // 4, I) == 1
    assert is_affine_in(I // 3, I) is None
    assert is_affine_in(I * J, I) is None


N8 = Load("n", (Index("i0", 8),), i64)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "wraps", [(N8 * 4) // 2, (N8 * 6 + 3) % 4, call("gt", N8 + 1, N8), maximum(N8 + 1, N8)]
)
def test_loaded_numbers_may_wrap(wraps):
    n = np.array([2**62, -(2**62), 2**63 - 1, -(2**63), 5, -5, 0, 1])
    assert np.array_equal(
        evaluate(wraps, (8,), {"n": n}), evaluate(simplify(wraps), (8,), {"n": n})
    )


def test_bounded_loads_simplify():
    clamped = minimum(maximum(N8, 0), 9)
    assert simplify((clamped * 4 + J) // 4) is simplify(clamped)
    narrow = Load("n", (I,), i8).cast(i64)
    assert simplify((narrow * 4 + J) % 4) is J
    assert simplify(call("lt", narrow, 128)) is Const(True, boolean)


def test_arithmetic_on_data_is_not_multiplied_out():
    x = Load("x", (Index("i", 8),), i64)
    y = Load("y", (Index("i", 8),), i64)
    power: Expr = x + y
    total: Expr = Const(0, i64)
    for _ in range(64):
        power = power * power + x
        total = total + power * y
    assert simplify(total).dtype is i64
    assert bounds(total) == (-math.inf, math.inf)
    assert not isinstance(simplify(power < total), Const)


# ---------------------------------------------------------------- sizes at run time

S, T = Sym("S", 1, 512), Sym("T", 1, 64)


def test_index_arithmetic_over_sizes_needs_no_division():
    i, j, k = Index("i", T), Index("j", S), Index("k", 768)
    assert simplify((i * S + j) // S) is i
    assert simplify((i * S + j) % S) is j
    assert simplify(((i * S + j) * 768 + k) // (S * 768)) is i
    assert simplify(((i * S + j) * 768 + k) % (S * 768)) is simplify(j * 768 + k)
    half = (S - 1) // 2 + 1
    h = Index("h", half)
    assert simplify((i * half + h) // half) is i
    assert simplify((i * half + h) % half) is h
    p = Index("p", simplify(T * S))
    assert simplify((p // S) * S * 768 + (p % S) * 768) is simplify(p * 768)
    assert simplify((T * S - 1) // S) is simplify(T - 1)


@pytest.mark.parametrize(
    "low, high, holds",
    [(1, 512, True), (0, 512, False)],
)
def test_divisions_by_a_size_that_may_be_zero_stay(low, high, holds):
    size = Sym("S", low, high)
    e = (Index("i", 4) * size + Index("j", 3)) // size
    assert (simplify((Index("i", 4) * size) // size) is Index("i", 4)) is holds
    assert any(isinstance(n, Call) and n.op.name == "floordiv" for n in walk(simplify(e)))


def test_comparisons_are_decided_for_all_sizes_or_not_at_all():
    i, j = Index("i", T), Index("j", S)
    assert simplify(i * S + j < T * S) is Const(True)
    assert not isinstance(simplify(i * S + j < T * S - 1), Const)
    assert simplify(S * T - S >= 0) is Const(True)
    assert not isinstance(simplify(S * T - S > 0), Const)
    assert simplify(minimum(j, S - 1)) is j


def test_simplified_arithmetic_over_sizes_has_the_same_value():
    dice = random.Random(1)
    for _ in range(300):
        e = _random_over_sizes(dice, 3)
        simple = simplify(e)
        for s, t in ((1, 1), (2, 64), (512, 1), (512, 64), (7, 5)):
            values = {
                S: s,
                T: t,
                Index("i", T): dice.randrange(t),
                Index("j", S): dice.randrange(s),
            }
            mapping = {k: Const(v) for k, v in values.items()}
            assert simplify(e, mapping) is simplify(simple, mapping), (e, simple, values)


def _random_over_sizes(dice, depth):
    if depth == 0:
        leaves = (S, T, Index("i", T), Index("j", S), Const(dice.randrange(-3, 9)))
        return dice.choice(leaves)
    a, b = (_random_over_sizes(dice, dice.randrange(depth)) for _ in range(2))
    size = dice.choice((S, T, S * T, (S - 1) // 2 + 1, S * 4))
    kinds = (lambda: a + b, lambda: a - b, lambda: a * b, lambda: a // size, lambda: a % size,
             lambda: minimum(a, b), lambda: (a * size + b) // size, lambda: (a * size + b) % size,
             lambda: (a // size) * size + a % size)  # fmt: skip
    return dice.choice(kinds)()


def test_divisions_of_sizes_in_a_row_become_one():
    assert simplify(((S + 1) // 2 + 1) // 2) is simplify((S + 3) // 4)
    assert simplify((S * 2 // 3 - 5) // 7) is simplify((S * 2 - 15) // 21)
    for apart in ((S // 2 + T) // 2, (S // 2 * 3 + 1) // 4, (I // 3 + 1) // 2):
        assert (
            sum(isinstance(x, Call) and x.op.name == "floordiv" for x in walk(simplify(apart))) == 2
        )
    rng = random.Random(0)
    for _ in range(50):
        a, b, c = (rng.choice(DIVISORS) for _ in range(3))
        size, shift = rng.randint(1, 512), rng.randint(-20, 20)
        chain = ((S + shift) // a - shift * b) // b + (S // c + shift) // a
        expected = ((size + shift) // a - shift * b) // b + (size // c + shift) // a
        assert simplify(simplify(chain), {S: Const(size, i64)}) is Const(expected, i64)
