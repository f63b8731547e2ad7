"""From schedules to plans: lifetimes, in-place merges, views, and the order of execution."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memplan_cases import all_orders, live_peak, random_schedule

from graphc.memplan import (
    PlanError,
    ProblemError,
    Request,
    Step,
    best_order,
    layout_of,
    plan_steps,
    validate_steps,
)
from graphc.memplan.liveness import lifetimes, storage_of

KILO = 1024


def chain(*, inplace: bool) -> tuple[list[Step], list[Request]]:
    steps = [
        Step(f"s{i}", (f"t{i}",), (f"t{i + 1}",), ((f"t{i + 1}", f"t{i}"),) if inplace else ())
        for i in range(6)
    ]
    requests = [Request(f"t{i}", KILO, live_in=i == 0, live_out=i == 6) for i in range(7)]
    return steps, requests


def check(steps: list[Step], requests: list[Request], **options: bool) -> int:
    made = plan_steps(steps, requests, **options)  # type: ignore[arg-type]
    validate_steps(steps, requests, made)
    assert made.lower_bound <= made.peak
    return made.peak


def test_lifetimes() -> None:
    steps, requests = chain(inplace=False)
    times = lifetimes(steps, storage_of(requests))
    assert times["t0"] == (-1, 0) and times["t3"] == (2, 3) and times["t6"] == (5, 6)


def test_chain_in_place_takes_one_place() -> None:
    assert check(*chain(inplace=True)) == KILO
    assert check(*chain(inplace=True), in_place=False) == 2 * KILO
    assert check(*chain(inplace=False)) == 2 * KILO


def test_persistent_and_late_inputs_are_not_overwritten() -> None:
    steps, requests = chain(inplace=True)
    held = [replace(requests[0], persistent=True), *requests[1:]]
    assert check(steps, held) == 2 * KILO
    read_again = [*steps, Step("again", ("t0", "t6"), ("z",))]
    assert check(read_again, [*requests, Request("z", KILO, live_out=True)]) == 3 * KILO


def test_two_outputs_cannot_take_one_place() -> None:
    steps = [Step("split", ("x",), ("a", "b"), (("a", "x"), ("b", "x")))]
    requests = [
        Request("x", KILO, live_in=True),
        Request("a", KILO, live_out=True),
        Request("b", KILO, live_out=True),
    ]
    assert check(steps, requests) == 2 * KILO


def test_in_place_through_a_view() -> None:
    """relu of a reshape of conv's output works in conv's place."""
    steps = [
        Step("conv", ("x",), ("c",)),
        Step("relu", ("flat",), ("r",), (("r", "flat"),)),
        Step("sum", ("r",), ("y",)),
    ]
    requests = [
        Request("x", 64, live_in=True),
        Request("c", KILO),
        Request("flat", KILO, alias_of=("c", 0)),
        Request("r", KILO),
        Request("y", 64, live_out=True),
    ]
    made = plan_steps(steps, requests)
    validate_steps(steps, requests, made)
    assert made.offsets["r"] == made.offsets["c"] == made.offsets["flat"]
    assert made.peak == KILO + 64


def test_output_beside_a_sibling_view_is_refused() -> None:
    """split(x) -> a, b as views; out = a + b may not cover b."""
    steps = [Step("fill", (), ("x",)), Step("add", ("a", "b"), ("o",), (("o", "a"),))]
    requests = [
        Request("x", 2 * KILO),
        Request("a", KILO, alias_of=("x", 0)),
        Request("b", KILO, alias_of=("x", KILO)),
        Request("o", 2 * KILO, live_out=True),
    ]
    assert check(steps, requests) == 4 * KILO
    requests[-1] = Request("o", KILO, live_out=True)
    assert check(steps, requests) == 2 * KILO


def test_concat_through_views() -> None:
    steps = [
        Step("left", ("x",), ("l",)),
        Step("right", ("x",), ("r",)),
        Step("use", ("cat",), ("y",)),
    ]
    requests = [
        Request("x", KILO, live_in=True),
        Request("cat", 2 * KILO),
        Request("l", KILO, alias_of=("cat", 0)),
        Request("r", KILO, alias_of=("cat", KILO)),
        Request("y", 64, live_out=True),
    ]
    made = plan_steps(steps, requests, reorder=True)
    validate_steps(steps, requests, made)
    assert made.offsets["r"] == made.offsets["cat"] + KILO and made.peak == 3 * KILO


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("steps", "requests", "message"),
    [
        ([Step("s", ("a",), ())], [Request("a", 4)], "before any step writes"),
        ([Step("s", ("z",), ())], [Request("a", 4, live_in=True)], 'called "z"'),
        ([], [Request("a", 4)], "never used"),
        ([], [Request("a", 4, live_out=True)], "no step writes"),
        ([], [Request("a", 4, alias_of=("b", 0))], "not requested"),
        ([], [Request("a", 4, alias_of=("b", 0)), Request("b", 4, alias_of=("a", 0))], "cycle"),
        ([], [Request("a", 4, persistent=True), Request("b", 4, alias_of=("a", 2))], "covers"),
        (
            [Step("s", ("a",), (), (("a", "a"),))],
            [Request("a", 4, persistent=True)],
            "not one of its writes",
        ),
    ],
)
def test_malformed_schedules(steps: list[Step], requests: list[Request], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        layout_of(steps, requests)


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_random_schedules_plan_and_validate(seed: int) -> None:
    steps, requests = random_schedule(seed, 4 + seed)
    for options in ({}, {"in_place": False}, {"reorder": True}):
        made = plan_steps(steps, requests, budget=30_000, order_budget=5_000, **options)
        validate_steps(steps, requests, made)
        assert made.lower_bound <= made.peak
    merged, plain = live_peak(steps, requests), plan_steps(steps, requests, in_place=False)
    assert merged <= plain.peak


def diamond(wide: int, narrow: int) -> tuple[list[Step], list[Request]]:
    """Two branches from x, each through a wide tensor to a narrow one, given interleaved."""
    steps = [
        Step("src", (), ("x",)),
        Step("a1", ("x",), ("wa",)),
        Step("b1", ("x",), ("wb",)),
        Step("a2", ("wa",), ("na",)),
        Step("b2", ("wb",), ("nb",)),
        Step("join", ("na", "nb"), ("y",)),
    ]
    sizes = {"x": narrow, "wa": wide, "wb": wide, "na": narrow, "nb": narrow, "y": narrow}
    return steps, [Request(n, s, live_out=n == "y") for n, s in sizes.items()]


def test_diamond_runs_branch_by_branch() -> None:
    steps, requests = diamond(64 * KILO, KILO)
    found = best_order(steps, requests)
    names = [steps[i].name for i in found.order]
    assert names == ["src", "a1", "a2", "b1", "b2", "join"]
    assert found.given_peak == 129 * KILO and found.peak == 66 * KILO and found.optimal
    made = plan_steps(steps, requests, reorder=True)
    validate_steps(steps, requests, made)
    assert made.peak == 66 * KILO


def test_good_orders_stay() -> None:
    steps, requests = chain(inplace=True)
    assert best_order(steps, requests).order == tuple(range(6))
    equal = diamond(KILO, KILO)
    found = best_order(*equal)
    assert found.peak == found.given_peak and found.order == tuple(range(6)) and found.optimal


def test_stacked_diamonds_are_solved_segment_by_segment() -> None:
    steps: list[Step] = []
    requests: list[Request] = []
    for k in range(30):
        part, wants = diamond((40 + k) * KILO, KILO)

        def name(n: str, k: int = k) -> str:
            return f"{n}{k}"

        if k:
            part[0] = Step("src", (f"#y{k - 1}",), ("x",))
        steps += [
            Step(
                name(s.name),
                tuple(n[1:] if n.startswith("#") else name(n) for n in s.reads),
                tuple(map(name, s.writes)),
            )
            for s in part
        ]
        requests += [replace(r, name=name(r.name), live_out=False) for r in wants]
    found = best_order(steps, requests)
    assert found.optimal and found.peak == (69 + 2) * KILO
    made = plan_steps(steps, requests, reorder=True)
    validate_steps(steps, requests, made)


def plain_schedule(seed: int, count: int) -> tuple[list[Step], list[Request]]:
    """A random schedule without views (brute force knows none)."""
    steps, requests = random_schedule(seed, count)
    views = {r.name: r.alias_of[0] for r in requests if r.alias_of}
    steps = [
        Step(
            s.name,
            tuple(dict.fromkeys(views.get(n, n) for n in s.reads)),
            s.writes,
            tuple(dict.fromkeys((o, views.get(n, n)) for o, n in s.inplace)),
        )
        for s in steps
    ]
    return steps, [r for r in requests if not r.alias_of]


@pytest.mark.parametrize("budget", [0, 200_000])
def test_what_is_needed_late_is_computed_late(budget: int) -> None:
    """A large result beside a chain there and back, which reads what is live at the peak."""
    depth = 8
    steps = [Step("f0", (), ("a0",))]
    steps += [Step(f"f{i}", (f"a{i - 1}",), (f"a{i}",)) for i in range(1, depth)]
    steps += [
        Step("loss", (f"a{depth - 1}",), ("g",)),
        Step("large", ("g",), ("w",)),
        Step("dx", ("g",), (f"d{depth}",)),
    ]
    steps += [Step(f"b{i}", (f"d{i + 1}", f"a{i}"), (f"d{i}",)) for i in reversed(range(depth))]
    steps.append(Step("use", ("w", "d0"), ("out",)))
    sizes = {"g": 3, "w": 40, "out": 1}
    requests = [
        Request(name, 64 * sizes.get(name, 2), live_out=name == "out")
        for step in steps for name in step.writes
    ]  # fmt: skip
    ordered = best_order(steps, requests, budget)
    assert ordered.given_peak == 64 * 61 and ordered.peak == 64 * (40 + 3 + 2)
    assert live_peak([steps[i] for i in ordered.order], requests) == ordered.peak


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(40))
def test_order_is_optimal_on_small_graphs(seed: int) -> None:
    steps, requests = plain_schedule(seed, 6)
    found = best_order(steps, requests)
    ends = [sum(-(-r.size // 64) * 64 for r in requests if r.live_in or r.persistent)]
    ends.append(sum(-(-r.size // 64) * 64 for r in requests if r.live_out or r.persistent))
    best = min(live_peak(order, requests) for order in all_orders(steps))
    assert found.optimal and max(found.peak, *ends) == best
    assert live_peak([steps[i] for i in found.order], requests) == best


@pytest.mark.parametrize("seed", range(6))
def test_small_budgets_never_hurt(seed: int) -> None:
    steps, requests = random_schedule(seed, 80)
    for budget in (1, 500, 20_000):
        found = best_order(steps, requests, budget)
        assert found == best_order(steps, requests, budget)
        assert found.peak <= found.given_peak
        reordered = [steps[i] for i in found.order]
        assert live_peak(reordered, requests) <= live_peak(steps, requests)
        made = plan_steps(steps, requests, reorder=True, order_budget=budget, budget=0)
        validate_steps(steps, requests, made)


# ---------------------------------------------------------------- partial overlap


def chain_with_lag(most: int) -> tuple[list[Step], list[Request]]:
    """Two layers whose outputs may lie `most` bytes below their inputs, all of 1024 bytes."""
    steps = [
        Step("first", (), ("a",)),
        Step("second", ("a",), ("b",), overlaps=(("b", "a", most),)),
        Step("third", ("b",), ("c",), overlaps=(("c", "b", most),)),
        Step("last", ("c",), ()),
    ]
    return steps, [Request(name, 1024, align=64) for name in "abc"]


@pytest.mark.suite("all")
@pytest.mark.parametrize(("most", "peak"), [(-128, 1280), (-100, 1280), (-1024, 2048), (0, 1024)])
def test_outputs_trail_their_inputs(most, peak):
    steps, requests = chain_with_lag(most)
    plan = plan_steps(steps, requests)
    validate_steps(steps, requests, plan)
    assert plan.peak == peak


def test_overlap_needs_its_distance():
    steps, requests = chain_with_lag(-128)
    plan = plan_steps(steps, requests)
    nearer = {**plan.offsets, "a": plan.offsets["b"] + 64}
    with pytest.raises(PlanError, match="no allowance"):
        validate_steps(steps, requests, replace(plan, offsets=nearer))
    strict = [replace(s, overlaps=tuple((o, i, m - 64) for o, i, m in s.overlaps)) for s in steps]
    with pytest.raises(PlanError, match="no allowance"):
        validate_steps(strict, requests, plan)


def test_no_overlap_with_what_lives_on():
    steps, requests = chain_with_lag(-128)
    steps.append(Step("again", ("a",), ()))
    plan = plan_steps(steps, requests)
    validate_steps(steps, requests, plan)
    assert plan.peak == 2048 + 128, "b and c overlap, a stays"


def test_all_parts_of_an_input_must_allow_it():
    steps = [
        Step("first", (), ("a",)),
        Step("second", ("left", "right"), ("b",), overlaps=(("b", "left", -128),)),
        Step("last", ("b",), ()),
    ]
    requests = [
        Request("a", 1024),
        Request("left", 512, alias_of=("a", 0)),
        Request("right", 512, alias_of=("a", 512)),
        Request("b", 1024),
    ]
    assert plan_steps(steps, requests).peak == 2048
    both = (("b", "left", -128), ("b", "right", -640))
    steps[1] = replace(steps[1], overlaps=both)
    plan = plan_steps(steps, requests)
    validate_steps(steps, requests, plan)
    assert plan.peak == 1024 + 128


def test_overlaps_name_operands():
    steps, requests = chain_with_lag(-128)
    steps[1] = replace(steps[1], overlaps=(("c", "a", 0),))
    with pytest.raises(ProblemError, match="overlap"):
        plan_steps(steps, requests)


def test_what_two_steps_read_is_freed_early_where_no_order_is_proven():
    """Each layer makes a large tensor, which its norm and its update read at the end: neither frees
    it alone. The update also waits for what reads the weight."""
    count, large, small = 40, 1 << 16, 64
    steps, later = [], []
    requests = [Request("h0", small, live_in=True)]
    for n in range(count):
        requests += [Request(f"g{n}", large), Request(f"norm{n}", small),
                     Request(f"h{n + 1}", small), Request(f"w{n}", large, pool="around",
                                                          live_in=True, live_out=True)]  # fmt: skip
        steps.append(Step(f"gradient {n}", (f"h{n}",), (f"g{n}",)))
        steps.append(Step(f"before {n}", (f"h{n}", f"w{n}"), (f"h{n + 1}",)))
        later.append(Step(f"norm {n}", (f"g{n}",), (f"norm{n}",)))
        later.append(Step(f"update {n}", (f"g{n}", f"w{n}"), (f"w{n}",)))
    requests.append(Request("norm", small, live_out=True))
    total = Step("norm", tuple(f"norm{n}" for n in range(count)), ("norm",))
    steps += [*later[::2], total, *later[1::2]]
    found = best_order(steps, requests, budget=0)
    assert found.given_peak >= 2 * count * large
    assert found.peak < (count + 2) * large  # the weights, and a gradient or two
    planned = plan_steps(steps, requests, reorder=True, order_budget=0)
    validate_steps(steps, requests, planned)
