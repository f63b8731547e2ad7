"""Offsets: every plan validates, bounds hold, the exact search is exact, and all of it repeats."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from memplan_cases import brute_force_peak, random_problem, unit_problem

from graphc.memplan import (
    Buffer,
    Overlap,
    Plan,
    Problem,
    ProblemError,
    exact,
    greedy,
    plan,
    validate,
)
from graphc.memplan.greedy import Packed, pack_greedily
from graphc.memplan.in_place import choose_matching, matched_weight
from graphc.memplan.packing import Packing, live_bound, packing_of, shared_at_best


@pytest.mark.suite(10)
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_random_plans_are_valid(seed: int, overlaps: bool) -> None:
    problem = random_problem(seed, 5 + seed * 2, 10 + seed, 2 + seed % 9, overlaps=overlaps)
    made = plan(problem, budget=50_000)
    validate(problem, made)
    assert made.lower_bound <= made.peak
    assert made == plan(problem, budget=50_000)


def stacked(packing: Packing, bound: int | None = None) -> Packed:
    """The worst start: everything on top of everything."""
    ends = list(itertools.accumulate(packing.sizes, initial=0))
    return Packed(tuple(ends[:-1]), ends[-1], "stacked")


@pytest.mark.parametrize("in_place", [False, True])
def test_exact_reaches_the_optimum(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "pack_greedily", stacked)
    for seed in range(120):
        problem = unit_problem(seed, 6, in_place=in_place)
        best = brute_force_peak(problem)
        packing = packing_of(problem, "arena")
        solved = exact.solve(packing, stacked(packing))
        assert solved.packed.peak == best == solved.bound, f"seed {seed}"
        offsets = dict(zip(packing.names, solved.packed.offsets, strict=True))
        validate(problem, Plan(offsets, {"arena": best}, {"arena": best}))


def gap_problem() -> Problem:
    """Found by random search: nine buffers whose optimum lies above the live-bytes bound."""
    rows = [(4, 1, 1), (1, 7, 7), (1, 0, 2), (2, 5, 6), (4, 7, 7)]
    rows += [(3, 2, 5), (4, 6, 7), (3, 4, 6), (3, 1, 4)]
    return Problem(tuple(Buffer(f"b{i}", s, a, b, 1) for i, (s, a, b) in enumerate(rows)))


def test_a_gap_above_the_bound_is_proven() -> None:
    problem = gap_problem()
    made, live = plan(problem), live_bound(packing_of(problem, "arena"))
    validate(problem, made)
    assert made.optimal and made.peak == brute_force_peak(problem) > live


def test_search_narrows_the_gap_of_greedy() -> None:
    closed = 0
    for seed in range(8):
        problem = random_problem(2 * seed, 24, 14, 8, 2000)
        with_search, without = plan(problem), plan(problem, budget=0)
        validate(problem, with_search)
        assert with_search.peak <= without.peak
        assert with_search.lower_bound >= without.lower_bound
        closed += with_search.optimal
    assert closed == 8


def test_mixed_alignment_optimum() -> None:
    """Brute force over multiples of each alignment agrees with the search."""
    buffers = (
        Buffer("a", 3, 0, 2, 1),
        Buffer("b", 4, 1, 3, 4),
        Buffer("c", 2, 2, 4, 2),
        Buffer("d", 5, 0, 1, 4),
    )
    made = plan(Problem(buffers))
    validate(Problem(buffers), made)
    assert made.peak == 12 and made.optimal


def test_empty_buffers_and_empty_problems() -> None:
    problem = Problem((Buffer("a", 0, 0, 9), Buffer("b", 100, 0, 9), Buffer("c", 0, 3, 3)))
    made = plan(problem)
    validate(problem, made)
    assert made.peak == 128
    assert plan(Problem(())).peak == 0
    assert plan(Problem((Buffer("a", 0, 0, 0),))).peak == 0


def test_pools_are_separate() -> None:
    problem = Problem((Buffer("a", 64, 0, 1), Buffer("b", 128, 0, 1, pool="fast")))
    made = plan(problem)
    validate(problem, made)
    assert made.peaks == {"arena": 64, "fast": 128} and made.peak == 192
    assert made.offsets == {"a": 0, "b": 0}


def test_in_place_chain_counts_once() -> None:
    chain = tuple(Buffer(f"b{i}", 1000, i, i + 1) for i in range(9))
    problem = Problem(chain, tuple(Overlap(f"b{i - 1}", f"b{i}") for i in range(1, 9)))
    made = plan(problem)
    validate(problem, made)
    assert made.peak == made.lower_bound == 1024


def test_shifted_overlap_saves_its_share() -> None:
    """The output may trail its input by 256 bytes or more."""
    pair = (Buffer("in", 4096, 0, 1), Buffer("out", 2048, 1, 2))
    problem = Problem(pair, (Overlap("out", "in", 256, 1 << 30),))
    made = plan(problem)
    validate(problem, made)
    assert made.peak < 4096 + 2048 and made.lower_bound <= made.peak


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("sizes", "low", "high", "shared"),
    [
        ((8, 8), 0, 0, 8),
        ((8, 4), 2, 2, 4),
        ((8, 4), 6, 9, 2),
        ((4, 8), -2, 5, 4),
        ((4, 4), 9, 9, 0),
    ],
)
def test_shared_at_best(sizes: tuple[int, int], low: int, high: int, shared: int) -> None:
    assert shared_at_best(*sizes, low, high) == shared


def test_matching() -> None:
    edges = [(0, 10, 5), (0, 11, 4), (1, 10, 4)]
    assert matched_weight(edges) == 8 and choose_matching(edges) == (1, 2)
    many = [(i, 100 + j, i + j) for i in range(5) for j in range(5)]
    chosen = choose_matching(many)
    assert len(chosen) == 5 and sum(many[i][2] for i in chosen) <= matched_weight(many)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("buffers", "overlaps", "message"),
    [
        ((Buffer("a", -1, 0, 0),), (), "negative"),
        ((Buffer("a", 1, 0, 0, 24),), (), "power of two"),
        ((Buffer("a", 1, 2, 1),), (), "empty"),
        ((Buffer("a", 1, 0, 0), Buffer("a", 1, 0, 0)), (), "twice"),
        ((Buffer("a", 1, 0, 0),), (Overlap("a", "z"),), 'called "z"'),
        ((Buffer("a", 1, 0, 0),), (Overlap("a", "a"),), "itself"),
        ((Buffer("a", 1, 0, 0), Buffer("b", 1, 0, 0, pool="p")), (Overlap("a", "b"),), "differ"),
    ],
)
def test_malformed_problems(
    buffers: tuple[Buffer, ...], overlaps: tuple[Overlap, ...], message: str
) -> None:
    with pytest.raises(ProblemError, match=message):
        Problem(buffers, overlaps)


def test_greedy_is_fast_on_many_buffers() -> None:
    problem = random_problem(0, 1500, 1500, 8)
    start = time.process_time()
    packed = pack_greedily(packing_of(problem, "arena"))
    assert time.process_time() - start < 3, "usually under 0.1 s"
    assert packed.peak > 0


def test_many_buffers_are_placed_like_few(monkeypatch):
    dice = random.Random(3)
    for count in range(1, 60):
        firsts = [dice.randint(-1, 70) for _ in range(count)]
        spans = [dice.choice([0, 1, 2, 60]) for _ in range(count)]
        packing = Packing(
            tuple(map(str, range(count))), 1,
            tuple(dice.randint(1, 9) for _ in range(count)),
            tuple(dice.choice([1, 1, 2, 4]) for _ in range(count)),
            tuple(firsts), tuple(f + n for f, n in zip(firsts, spans)), ({},) * count,
        )  # fmt: skip
        order = dice.sample(range(count), count)
        for best_fit in (False, True):
            found = []
            for few in (0, count):
                monkeypatch.setattr(greedy, "FEW", few)
                found.append(greedy.place_in_order(packing, order, best_fit=best_fit))
            assert found[0] == found[1]
