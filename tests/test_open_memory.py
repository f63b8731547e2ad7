"""The memory of programs of open shape: plans at other sizes than the largest, and reports."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import driver, memplan
from graphc.analysis.memory import arena_use
from graphc.analysis.open_memory import (
    interface_bytes,
    live_bytes,
    memory_at,
    open_memory,
    rows_of,
)
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Sym
from graphc.ir.program import Program, at_sizes
from graphc.ir.trials import trials
from graphc.ir.types import at
from graphc.memplan.validate import PlanError
from graphc.passes.general import general

ATTENTION = """graph @a(%x: f32[N,S,8]) -> ? where N: 1..4, S: 1..16 {
  const %w : f32[8,8] = random(seed=1)
  %q = MatMul(%x, %w)
  %t = Transpose(%q) {perm=[0, 2, 1]}
  %s = MatMul(%x, %t)
  %p = Softmax(%s) {axis=2}
  %y = MatMul(%p, %q)
  return %y
}
"""


def attention() -> Program:
    return driver.program_for(general(graphc.parse(ATTENTION)), "cpu")


def test_trials_are_corners_and_sizes_between():
    sizes = [Sym("a", 2, 9), Sym("b", 1, 1), Sym("c", 5, 7)]
    tried = trials(sizes)
    assert tried[:2] == [(2, 1, 5), (9, 1, 7)] and {(2, 1, 7), (9, 1, 5)} < set(tried)
    assert all(s.lo <= n <= s.hi for values in tried for s, n in zip(sizes, values))
    assert len(trials(sizes, corners=2, between=0)) == 2 and trials([]) == []
    assert len(trials([Sym(f"s{n}", 1, 9) for n in range(30)])) <= 19


def test_plans_are_validated_at_other_sizes(monkeypatch):
    tried = []
    validate = memplan.validate_steps

    def watched(steps, requests, plan):
        tried.append(tuple(r.size for r in requests))
        validate(steps, requests, plan)

    monkeypatch.setattr(memplan, "validate_steps", watched)
    program = attention()
    assert len(tried) == 1 + len(trials(program.sizes))
    assert len(set(tried)) >= 5  # at some sizes the vectors are as long as at others
    largest, others = tried[0], tried[1:]
    assert largest in others and all(a <= b for sizes in others for a, b in zip(sizes, largest))


def test_a_plan_that_fails_at_one_size_is_refused(monkeypatch):
    validate = memplan.validate_steps

    def larger_at_the_least(steps, requests, plan):
        if requests[0].size < 4 * 8 * 4:
            requests = [memplan.Request(r.name, 1 << 30, pool=r.pool) for r in requests]
        validate(steps, requests, plan)

    monkeypatch.setattr(memplan, "validate_steps", larger_at_the_least)
    with pytest.raises(PlanError):
        attention()


def test_memory_is_that_of_the_program_at_each_size():
    program = attention()
    for sizes in [(1, 1), (4, 16), (3, 7)]:
        memory = memory_at(program, sizes)
        n, s = sizes
        assert memory.inputs == memory.outputs == 4 * n * s * 8
        assert memory.live == max(arena_use(at_sizes(program, sizes)).live)
        assert memory.live <= memory.touched <= program.arena_bytes
        known = {size: Const(value, i64) for size, value in zip(program.sizes, sizes)}
        assert at(interface_bytes(program.inputs), known) == memory.inputs
        assert at(live_bytes(program), known) <= memory.live
    assert memory_at(program, (4, 16)).live == at(
        live_bytes(program), {s: Const(m, i64) for s, m in zip(program.sizes, (4, 16))}
    )


def test_the_report_goes_from_the_least_to_the_largest():
    program = attention()
    rows = rows_of(program)
    assert rows[0] == (1, 1) and rows[-1] == (4, 16) and rows == sorted(rows)
    text = open_memory(program)
    assert "N = 1, S = 1" in text and "N = 4, S = 16" in text
    assert np.all([word in text for word in ("arena touched", "live bytes", "of outputs")])
