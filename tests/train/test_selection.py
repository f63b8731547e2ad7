"""Which values are computed again: against all choices, and the bound where there are many."""

from __future__ import annotations

import random
from itertools import product

import pytest

from graphc.errors import ModelError
from graphc.train.recompute import _Search
from graphc.train.selection import Candidate, cost, selected


def candidates(seed, count):
    rng = random.Random(seed)
    made = []
    for n in range(count):
        sources = sorted(rng.sample(range(n), min(n, rng.randint(0, 2))))
        if n and rng.random() < 0.5:
            sources = sorted({*sources, n - 1})
        work = rng.choice([0, rng.randint(1, 9), rng.randint(1, 400)])
        made.append(Candidate(rng.randint(1, 60), work, tuple(sources)))
    return made


def plain_cost(values, chosen):
    """The same by sets."""

    def chain(n):
        return {n}.union(*(chain(s) for s in values[n].sources if s in chosen))

    return sum(values[m].work for n in chosen for m in chain(n))


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_is_cheaper(seed):
    values = candidates(seed, 9)
    total = sum(v.nbytes for v in values)
    for wanted in (0, 1, total // 3, total // 2, total * 9 // 10, total, 2 * total):
        made = selected(values, wanted)
        choices = ({n for n, bit in enumerate(bits) if bit} for bits in product((0, 1), repeat=9))
        enough = min(wanted, total)
        best = min(
            plain_cost(values, c) for c in choices if sum(values[n].nbytes for n in c) >= enough
        )
        assert made.cost == made.bound == best == plain_cost(values, set(made.chosen))
        assert sum(values[n].nbytes for n in made.chosen) >= enough


@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_where_the_search_ends_early(seed):
    values = candidates(seed, 14)
    wanted = sum(v.nbytes for v in values) // 2
    best = selected(values, wanted, work=10**9)
    assert best.cost == best.bound
    for work in (0, 5, 50, 500):
        made = selected(values, wanted, work=work)
        assert made.bound <= best.cost <= made.cost
        assert sum(values[n].nbytes for n in made.chosen) >= wanted
        assert made == selected(values, wanted, work=work)


def test_values_in_a_row_are_dear():
    """Of a chain of equal values, every second one is dropped, not half of it."""
    values = [Candidate(8, 100, (n - 1,) if n else ()) for n in range(12)]
    made = selected(values, 6 * 8)
    assert made.cost == made.bound == 600
    assert all(b - a > 1 for a, b in zip(made.chosen, made.chosen[1:]))


def test_hundreds_of_values():
    """What is found is near the bound, and in little time."""
    values = candidates(3, 300)
    made = selected(values, sum(v.nbytes for v in values) // 2)
    assert made.bound <= made.cost <= 1.5 * made.bound
    assert made.cost == cost(values, sum(1 << n for n in made.chosen))


class Values:
    """The values of a graph whose program gets smaller if values 1 and 3 are dropped."""

    def __init__(self, count):
        tensor = type("Tensor", (), {"most_bytes": 10})
        self.values = [type("Value", (), {"tensor": tensor})] * count
        self.candidates = [Candidate(10, 1 + n) for n in range(count)]

    def applied(self, chosen):
        return {1, 3} & set(chosen), chosen


def test_values_are_chosen_one_by_one_where_bytes_alone_do_not_tell():
    def measure(graph):
        useful, chosen = graph
        return 100 - 10 * len(useful) + 40 * (len(chosen) > 3)

    made = _Search(Values(6), 80, 100, measure).run()
    assert made.chosen == (1, 3)
    assert made.cost == 6
    with pytest.raises(ModelError, match="take 100 bytes, and 80 if more is computed again"):
        _Search(Values(6), 79, 100, measure).run()
