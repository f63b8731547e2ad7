"""The validator: it accepts good plans (see the other files) and catches every planted fault."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from memplan_cases import random_problem, random_schedule

from graphc.memplan import (
    Buffer,
    Overlap,
    Plan,
    PlanError,
    Problem,
    Request,
    Step,
    plan,
    plan_steps,
    validate,
    validate_steps,
)


def simple_plan(**offsets: int) -> Plan:
    return Plan(offsets, {"arena": 1024}, {"arena": 0})


def rejects(problem: Problem, plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        validate(problem, plan)


def test_overlap_is_named_in_full() -> None:
    problem = Problem((Buffer("a", 128, 1, 5), Buffer("b", 128, 3, 9)))
    with pytest.raises(PlanError) as error:
        validate(problem, simple_plan(a=0, b=64))
    for part in ('"a" bytes [0, 128)', '"b" bytes [64, 192)', "steps 3..5", "1..5", "3..9"):
        assert part in str(error.value)


def test_single_faults() -> None:
    problem = Problem((Buffer("a", 128, 0, 1), Buffer("b", 128, 2, 3)))
    validate(problem, simple_plan(a=0, b=0))
    rejects(problem, simple_plan(a=0), '"b" is not placed')
    rejects(problem, simple_plan(a=0, b=32), "not aligned")
    rejects(problem, simple_plan(a=0, b=960), "leave pool")
    rejects(problem, simple_plan(a=-64, b=0), "leave pool")
    rejects(problem, simple_plan(a=0, b=0, c=0), 'places "c"')
    rejects(problem, replace(simple_plan(a=0, b=0), peaks={}), "no pool")
    rejects(problem, replace(simple_plan(a=0, b=0), lower_bounds={"arena": 2048}), "bound")


def test_allowances_are_exact() -> None:
    pair = (Buffer("a", 128, 0, 2), Buffer("b", 128, 2, 3))
    in_place = Problem(pair, (Overlap("a", "b"),))
    validate(in_place, simple_plan(a=64, b=64))
    rejects(in_place, simple_plan(a=64, b=128), "overlap")
    rejects(Problem(pair), simple_plan(a=64, b=64), "overlap")
    shifted = Problem(pair, (Overlap("a", "b", 64, 64),))
    validate(shifted, simple_plan(a=0, b=64))
    rejects(shifted, simple_plan(a=64, b=0), "overlap")


def test_third_party_under_an_in_place_pair_is_caught() -> None:
    """The output is larger than the input it replaces and runs into a bystander."""
    problem = Problem(
        (
            Buffer("in", 64, 0, 1),
            Buffer("by", 64, 0, 5),
            Buffer("out", 128, 1, 2),
        ),
        (Overlap("in", "out"),),
    )
    rejects(problem, simple_plan(**{"in": 0, "by": 64, "out": 0}), '"by".*"out"')
    made = plan(problem)
    validate(problem, made)
    assert made.peak == 192


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(30))
def test_moved_buffers_are_caught(seed: int) -> None:
    """Move one buffer onto another that is live with it."""
    problem = random_problem(2 * seed, 40, 20, 6)
    made = plan(problem, budget=0)
    dice = random.Random(seed)
    pairs = [
        (a, b)
        for a in problem.buffers
        for b in problem.buffers
        if a.name < b.name and a.size and b.size and a.first <= b.last and b.first <= a.last
    ]
    a, b = dice.choice(pairs)
    moved = {**made.offsets, a.name: made.offsets[b.name]}
    room = {pool: peak + 2048 for pool, peak in made.peaks.items()}
    with pytest.raises(PlanError, match="overlap"):
        validate(problem, replace(made, offsets=moved, peaks=room))


STEPS = [
    Step("load", ("x",), ("a",)),
    Step("relu", ("a",), ("b",), (("b", "a"),)),
    Step("add", ("b", "x"), ("y",), (("y", "b"), ("y", "x"))),
]
REQUESTS = [
    Request("x", 256, live_in=True),
    Request("a", 256),
    Request("b", 256),
    Request("y", 256, live_out=True),
]


def steps_plan(order: tuple[int, ...] = (0, 1, 2), **offsets: int) -> Plan:
    return Plan(offsets, {"arena": 4096}, {"arena": 0}, order)


def test_schedule_faults() -> None:
    good = {"x": 0, "a": 256, "b": 256, "y": 0}
    validate_steps(STEPS, REQUESTS, steps_plan(**good))

    def bad(message: str, order: tuple[int, ...] = (0, 1, 2), **changed: int) -> None:
        with pytest.raises(PlanError, match=message):
            validate_steps(STEPS, REQUESTS, steps_plan(order, **{**good, **changed}))

    bad("overlap", a=0)
    bad("overlap", b=320)
    bad("opposite order", order=(1, 0, 2))
    bad("permutation", order=(0, 1))
    persistent = [replace(REQUESTS[0], persistent=True), *REQUESTS[1:]]
    with pytest.raises(PlanError, match="overlap"):
        validate_steps(STEPS, persistent, steps_plan(**good))
    unlicensed = [*STEPS[:2], replace(STEPS[2], inplace=())]
    with pytest.raises(PlanError, match="overlap"):
        validate_steps(unlicensed, REQUESTS, steps_plan(**good))


def test_views_must_lie_in_their_root() -> None:
    requests = [*REQUESTS, Request("v", 64, alias_of=("a", 64))]
    offsets = {"x": 0, "a": 256, "b": 256, "y": 0}
    validate_steps(STEPS, requests, steps_plan(**offsets, v=320))
    with pytest.raises(PlanError, match='view "v"'):
        validate_steps(STEPS, requests, steps_plan(**offsets, v=256))


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(25))
def test_moved_roots_are_caught(seed: int) -> None:
    """Without in-place rights, sharing the bytes of an operand of the same step is an error."""
    steps, requests = random_schedule(seed, 15)
    bare = [replace(step, inplace=()) for step in steps]
    made = plan_steps(bare, requests, budget=0)
    validate_steps(bare, requests, made)
    roots = {r.name: r for r in requests if r.alias_of is None and r.size}
    step = next(s for s in bare if s.writes[0] in roots and any(n in roots for n in s.reads))
    source = next(n for n in step.reads if n in roots)
    shift = made.offsets[source] - made.offsets[step.writes[0]]
    family = {step.writes[0]} | {
        r.name for r in requests if r.alias_of and r.alias_of[0] == step.writes[0]
    }
    moved = {n: o + (shift if n in family else 0) for n, o in made.offsets.items()}
    with pytest.raises(PlanError, match="overlap"):
        room = {"arena": made.peak + 4096}
        validate_steps(bare, requests, replace(made, offsets=moved, peaks=room))
