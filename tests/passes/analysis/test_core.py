"""Cores of computations: the roles of their indices, guards and constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.types import TensorType
from graphc.passes import run_pipeline
from graphc.passes.analysis.compose import computation
from graphc.passes.analysis.contraction import match_contraction
from graphc.passes.analysis.core import Core, Role, core_of, rows_of
from graphc.passes.analysis.windows import match_windows


def computed(build, **shapes):
    """The computation of the op that `build` makes of inputs of these shapes."""
    graph = new_graph("g", **{n: TensorType(f32, s) for n, s in shapes.items()})
    value = build(Builder(graph), *graph.params)
    graph.set_results([value])
    return computation(value.producer)


def roles(core: Core) -> list[Role]:
    return [core.role(x) for x in (*core.indices, *core.hole.axes)]


def test_roles_of_a_batch_of_products():
    core = core_of(computed(lambda b, x, y: b.MatMul(x, y), x=(3, 4, 5), y=(3, 5, 6)), "test")
    assert roles(core) == [Role.BATCH, Role.ROW, Role.COLUMN, Role.DEPTH]
    assert core.guards == [] and not core.is_constant(core.b)


def test_a_convolution_has_constant_weights_and_guards():
    weights = np.ones((8, 4, 3, 3), np.float32)
    part = computed(lambda b, x: b.Conv(x, weights, pads=(1, 1, 1, 1)), x=(1, 4, 9, 9))
    core = core_of(part, "test")
    assert {core.is_constant(core.a), core.is_constant(core.b)} == {True, False}
    assert len(core.guards) >= 4 and core.epilogue_loads() == []
    match = match_contraction(part)
    assert {match.role(x) for x in match.cols} == {Role.COLUMN}
    assert {match.role(x) for x in match.depth} == {Role.DEPTH}


def test_indices_that_slide_are_positions_and_taps():
    part = computed(lambda b, x: b.MaxPool(x, kernel_shape=(3, 3)), x=(1, 2, 9, 9))
    core = core_of(part, "test")
    assert core.b is None and Role.COLUMN not in roles(core)
    windows = match_windows(part)  # columns of the image are its channels here
    assert roles(windows) == [Role.ROW, Role.POSITION, Role.ROW, Role.TAP, Role.DEPTH]


def test_computations_without_one_reduction_say_why():
    assert "must have one reduction, found none" in core_of(
        computed(lambda b, x: b.Exp(x), x=(3,)), "test"
    )


def test_rows_of_reductions():
    """A softmax has reductions of rows, a product one per element; nested ones count where they do
    not depend on what is reduced around them."""

    def rows(part):
        loops, _, exprs = part.over_loops()
        return [sorted(loops.index(x) for x in row) for row in rows_of(exprs, loops).values()]

    graph = new_graph("g", x=TensorType(f32, (2, 3, 4)))
    graph.set_results([Builder(graph).Softmax(graph.params[0])])
    graph.phase = "typed"
    run_pipeline(graph, "decompose, fuse")
    softmax = rows(computation(graph.results[0].producer))
    assert len(softmax) == 2 and all(row == [0, 1] for row in softmax)
    assert rows(computed(lambda b, x, y: b.MatMul(x, y), x=(3, 4), y=(4, 5))) == [[0, 1]]
    assert rows(computed(lambda b, x: b.ReduceMax(x, np.array([1])), x=(3, 4))) == [[0]]
    assert rows(computed(lambda b, x: b.Exp(x), x=(3,))) == []


def test_matches_are_found_once_and_given_apart():
    """What a caller does to its match, another does not see."""
    part = computed(lambda b, x, y: b.MatMul(x, y), x=(3, 4), y=(4, 5))
    first, second = match_contraction(part), match_contraction(part)
    assert len(part.memo) and first is not second and first.hole is second.hole
    first.prepare.append(part)
    first.exprs, first.a = [], first.b
    third = match_contraction(part)
    assert third.prepare == [] and third.exprs == second.exprs and third.a is second.a
    assert (
        match_contraction(part, 100) == "contraction: at least 100 products must be summed, found 4"
    )
    assert replace(part, label="other").memo == {}
