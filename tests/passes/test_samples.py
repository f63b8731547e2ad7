"""Layers of a batch in a loop over its samples: when, which, and that results stay the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from differential import CpuOf, assert_same, build, floats, native
from open_shapes import run_at

from graphc.driver import program_for
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.program import Program, While
from graphc.ir.types import TensorType
from graphc.passes.samples import batch_of

CACHE = 1 << 14
N = Sym("N", 1, 64)


@dataclass(frozen=True)
class SmallCache(CpuOf):
    """This machine's CPU with a second level of cache of 16 KiB."""

    @cached_property
    def machine(self):
        return replace(super().machine, caches=(0, CACHE))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


W, V, F = floats(rng(1), 8, 3, 3, 3), floats(rng(2), 8, 8, 1, 1), floats(rng(3), 8, 5)


def network(b: Builder, x):
    """Convolutions, a mean over images, and a matrix product."""
    y = b.Relu(b.Conv(x, W, pads=[1, 1, 1, 1]))
    z = b.Add(b.Relu(b.Conv(y, V)), y)
    means = b.ReduceMean(z, np.array([2, 3]), keepdims=0)
    return b.MatMul(means, F)


def names(graph: Graph, cache: int = CACHE) -> list[str]:
    """The ops of a graph that are put into a loop."""
    batch = batch_of(graph, cache)
    return [] if batch is None else [op.name for op in batch.inside]


def loops(program: Program) -> list[While]:
    return [step for step in program.steps if isinstance(step, While)]


def test_the_loop_ends_with_what_is_small():
    graph, _ = build(network, x=floats(rng(), 6, 3, 24, 24))
    assert names(graph) == ["Conv", "Relu", "Conv", "Relu", "Add", "ReduceMean"]


@pytest.mark.parametrize("samples, cache", [(1, CACHE), (6, 1 << 20)])
def test_no_loop_over_one_sample_or_of_what_a_cache_holds(samples, cache):
    graph, _ = build(network, x=floats(rng(), samples, 3, 24, 24))
    assert not names(graph, cache)


def test_no_loop_where_weights_are_more_than_what_is_written():
    big = floats(rng(4), 576, 576)
    graph, _ = build(lambda b, x: b.Relu(b.MatMul(x, big)), x=floats(rng(), 6, 20, 576))
    assert not names(graph)
    small = floats(rng(4), 576, 8)
    graph, _ = build(lambda b, x: b.Sin(b.MatMul(b.Exp(x), small)), x=floats(rng(), 6, 20, 576))
    assert names(graph) == ["Exp", "MatMul", "Sin"]


def test_what_mixes_samples_stays_outside():
    def across(b, x):
        y = b.Relu(b.Conv(x, W, pads=[1, 1, 1, 1]))
        z = b.Conv(y, V)
        low = b.ReduceMax(z, np.array([2, 3]), keepdims=1)
        return b.Sub(low, b.ReduceMean(low, np.array([0]), keepdims=1))

    graph, inputs = build(across, x=floats(rng(), 6, 3, 24, 24))
    assert names(graph) == ["Conv", "Relu", "Conv", "ReduceMax"]
    program = program_for(clone_graph(graph), SmallCache())
    assert len(loops(program)) == 1
    assert_same(native(program, inputs), interpret(graph, inputs), 1e-5, "native")


def test_no_loop_where_most_of_it_is_read_outside():
    def keeps(b, x):
        y = b.Relu(b.Conv(x, W, pads=[1, 1, 1, 1]))
        return y, b.Conv(y, V)

    graph, _ = build(keeps, x=floats(rng(), 6, 3, 24, 24))
    assert not names(graph)


def test_shapes_that_name_the_batch_stay_outside():
    def reshaped(b, x):
        y = b.Relu(b.Conv(x, W, pads=[1, 1, 1, 1]))
        means = b.ReduceMean(b.Conv(y, V), np.array([2, 3]), keepdims=1)
        return b.MatMul(b.Reshape(means, np.array([6, 8])), F)

    graph, inputs = build(reshaped, x=floats(rng(), 6, 3, 24, 24))
    program = program_for(clone_graph(graph), SmallCache())
    assert len(loops(program)) == 1
    assert_same(native(program, inputs), interpret(graph, inputs), 1e-5, "native")


def test_results_and_memory():
    graph, inputs = build(network, x=floats(rng(), 6, 3, 24, 24))
    whole, one = (program_for(clone_graph(graph), target) for target in (CpuOf(), SmallCache()))
    assert not loops(whole) and len(loops(one)) == 1
    assert one.arena_bytes * 3 < whole.arena_bytes
    assert_same(native(one, inputs), interpret(graph, inputs), 1e-5, "native")


def test_batches_of_any_size():
    graph = new_graph("main", x=TensorType(f32, (N, 3, 24, 24)))
    graph.set_results([network(Builder(graph), graph.params[0])])
    graph.output_names, graph.phase, graph.symbols = ["y"], "typed", {"N": N}
    program = program_for(clone_graph(graph), SmallCache())
    (loop,) = loops(program)
    assert loop.trips is N
    for samples in (1, 2, 5):
        x = floats(rng(samples), samples, 3, 24, 24)
        static, inputs = build(network, x=x)
        assert_same(run_at(program, inputs), interpret(static, inputs), 1e-5, f"{samples}")
