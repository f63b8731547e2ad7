"""What is fused, how values are laid out, and that neither changes a result.

Whole regions are run before and after by the interpreter, which knows fused ops and layouts.
"""

import numpy as np
import pytest
from differential import build, check, floats
from random_graphs import random_graph

from graphc.driver import OPTIMISING, optimise
from graphc.ir.compare import compare
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.machine import Machine
from graphc.ir.text.parser import parse_graph
from graphc.ir.types import Layout
from graphc.passes import run_pipeline
from graphc.passes.analysis import structure
from graphc.passes.fusion import attention
from graphc.passes.manager.context import AnyTarget
from graphc.passes.specialise import specialise


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def optimised(function, **inputs) -> Graph:
    graph, _ = build(function, **inputs)
    return optimise(clone_graph(graph))


def groups(graph: Graph) -> list[list[str]]:
    """The kernels to be: the names of the ops in each."""
    found = []
    for op in graph.ops:
        if op.name == "fused":
            found.append([o.name for o in op.regions[0].ops if o.name != "Constant"])
        elif op.name != "Constant":
            found.append([op.name])
    return found


# ---------------------------------------------------------------- what fuses


def test_chains_of_maps():
    graph = optimised(lambda b, x: b.Exp(b.Neg(b.Tanh(b.Add(x, x)))), x=floats(rng(), 4, 4))
    assert groups(graph) == [["Add", "Tanh", "Neg", "Exp"]]


def test_epilogue_of_a_product():
    w, c = floats(rng(), 8, 16), floats(rng(1), 16)
    graph = optimised(lambda b, x: b.Relu(b.Add(b.MatMul(x, w), c)), x=floats(rng(2), 4, 8))
    assert len(groups(graph)) == 1


def test_conversions_for_readers_stay_with_them():
    """Raised above a view, they would be a kernel between it and its maker."""
    text = """graph @g(%x: f16[1,6,4]) -> (?, ?) {
      const %s : i64[2] = [6, 4]
      const %w : f32[4,5] = random(seed=1)
      const %v : f32[4,5] = random(seed=2)
      %a = Relu(%x)
      %r = Reshape(%a, %s)
      %c = Cast(%r) {to=1}
      %y = MatMul(%c, %w)
      %z = MatMul(%c, %v)
      return %y, %z
    }"""
    gpu = AnyTarget(Machine(instructions=frozenset({"widening_loads"})))
    graph = optimise(specialise(parse_graph(text)), passes="fuse", target=gpu)
    assert groups(graph) == [["Relu", "Reshape"], ["Cast", "MatMul"], ["Cast", "MatMul"]]


def test_batch_normalisation_joins_the_convolution():
    w, s, v = floats(rng(), 6, 3, 3, 3), floats(rng(1), 6), np.ones(6, np.float32)

    def function(b, x):
        return b.Relu(b.BatchNormalization(b.Conv(x, w), s, s, s, v))

    (members,) = groups(optimised(function, x=floats(rng(2), 1, 3, 8, 8)))
    assert set(members) <= {"Conv", "Relu"}


def test_a_softmax_is_one_kernel():
    graph = optimised(lambda b, x: b.Softmax(b.Mul(x, np.float32(0.5))), x=floats(rng(), 4, 9))
    (members,) = groups(graph)
    assert {"ReduceMax", "Exp", "ReduceSum"} <= set(members)


def test_a_layer_normalisation_is_one_kernel():
    s = floats(rng(), 9)
    graph = optimised(
        lambda b, x: b.Relu(b.LayerNormalization(b.Add(x, x), s)), x=floats(rng(), 4, 9)
    )
    assert len(groups(graph)) == 1


def test_two_products_are_two_kernels():
    w = floats(rng(), 8, 8)
    graph = optimised(lambda b, x: b.MatMul(b.Relu(b.MatMul(x, w)), w), x=floats(rng(), 4, 8))
    assert len(groups(graph)) == 2


def test_no_group_depends_on_itself():
    """The sum reads the product and a row reduction of it: fusing all would be a cycle."""
    w = floats(rng(), 8, 8)

    def function(b, x):
        y = b.MatMul(x, w)
        z = b.CumSum(y, np.int64(0))
        return b.Add(b.Exp(y), z)

    graph = optimised(function, x=floats(rng(), 4, 8))
    seen = set(graph.params)
    for op in graph.ops:
        assert all(v in seen or v.constant is not None for v in op.inputs if v is not None)
        seen.update(op.outputs)
    assert ["CumSum"] in groups(graph)


# ---------------------------------------------------------------- layouts


def test_convolutions_store_channels_last():
    w = floats(rng(), 6, 3, 3, 3)
    graph = optimised(lambda b, x: b.Sigmoid(b.Conv(b.Conv(x, w), floats(rng(1), 4, 6, 1, 1))),
                      x=floats(rng(2), 1, 3, 8, 8))  # fmt: skip
    first = next(op for op in graph.ops if op.outputs and op.name != "Constant")
    assert first.output.tensor.layout == Layout.channels_last(4)


# ---------------------------------------------------------------- structure


def op_of(function, **inputs):
    return build(function, **inputs)[0].results[0].producer


def test_structure_is_read_off_bodies():
    x, w = floats(rng(), 4, 6), floats(rng(), 6, 5)
    product = op_of(lambda b, x: b.MatMul(x, w), x=x)
    assert structure.is_contraction(product)
    total = op_of(lambda b, x: b.ReduceSum(x, np.array([1])), x=x)
    assert structure.row_operand(total) == (0, {1}) and not structure.is_contraction(total)
    columns = op_of(lambda b, x: b.ReduceSum(x, np.array([0])), x=x)
    assert structure.row_operand(columns) is None
    assert structure.row_operand(columns, anywhere=True) == (0, {0})
    turned = op_of(lambda b, x: b.Transpose(x), x=x)
    assert structure.is_movement(turned) and not structure.pointwise(turned, 0)
    added = op_of(lambda b, x: b.Add(x, floats(rng(), 6)), x=x)
    assert structure.pointwise(added, 0) and structure.pointwise(added, 1)
    pool = op_of(lambda b, x: b.MaxPool(x, kernel_shape=[2, 2]), x=floats(rng(), 1, 2, 5, 5))
    assert structure.reductions(pool) and structure.row_operand(pool) is None
    assert not structure.is_contraction(pool)


# ---------------------------------------------------------------- nothing changes


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(300, 325))
def test_the_interpreter_agrees_after_fusion(seed):
    function, inputs = random_graph(seed, layers=6)
    graph, arrays = build(function, **inputs)
    expected = interpret(graph, arrays)
    found = interpret(optimise(clone_graph(graph), passes=OPTIMISING), arrays)
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert compare(f"output {n}", a, b).within(2e-5)


def test_what_a_product_reads_is_computed_once_though_its_epilogue_reads_it_too():
    """Two slices of one map: one is multiplied, the other mixed with the result (a GRU's step)."""
    w = floats(rng(), 8, 8)

    def step(b, both, h):
        z, r = b.Split(b.Sigmoid(both), np.array([8, 8]), axis=1, outputs=2)
        return b.Add(b.Mul(z, h), b.MatMul(b.Mul(r, h), w))

    graph, given = build(step, both=floats(rng(1), 1, 16), h=floats(rng(2), 1, 8))
    found = groups(optimise(clone_graph(graph)))
    assert not any("MatMul" in names and "Sigmoid" in names for names in found)
    check(graph, given)


@pytest.mark.parametrize(("rows", "stored"), [(1, False), (2, False), (3, True)])
def test_bytes_that_products_read_hardly_twice_are_converted_there(rows, stored):
    codes = rng().integers(-128, 128, (6, 8)).astype(np.int8)

    def product(b, x, codes):
        real = b.DequantizeLinear(b.Neg(codes), np.float32(0.5))
        return b.MatMul(x, b.Transpose(real, perm=(1, 0)))

    graph, given = build(product, x=floats(rng(1), rows, 8), codes=codes)
    found = groups(optimise(clone_graph(graph)))
    together = [names for names in found if {"Neg", "DequantizeLinear"} <= {*names}]
    assert bool(together) == stored
    check(graph, given)


def test_what_is_read_at_two_places_is_not_computed_twice_again_and_again():
    def doubled(b, x):
        for seed in range(40):
            order = rng(seed).permutation(16)
            x = b.Add(x, b.Gather(x, order))
        return x

    graph = optimised(doubled, x=floats(rng(), 16))
    assert max(len(names) for names in groups(graph)) < 20

    def joined(b, x):
        for _ in range(12):
            x = b.Concat(x, x, axis=0)
        return x

    assert max(map(len, groups(optimised(joined, x=floats(rng(), 4))))) < 6


def test_dead_ops_are_not_fused():
    """They would be a kernel without results, which passes over fused graphs do not expect."""

    def body(b, x):
        b.ReduceSum(b.Exp(b.Neg(x)), np.array([1]))
        return b.Relu(b.Neg(x))

    graph, inputs = build(body, x=floats(rng(), 4, 6))
    expected = interpret(clone_graph(graph), inputs)
    graph.phase = "typed"
    run_pipeline(graph, "decompose, fuse, fuse-reductions")
    assert groups(graph) == [["Neg", "Relu"]]
    np.testing.assert_array_equal(interpret(graph, inputs)[0], expected[0])


def averages(b, p, m, v, g):
    """An average of numbers and of their squares, and what both move, all of them stored."""
    mean = b.Add(b.Mul(m, np.float32(0.9)), b.Mul(g, np.float32(0.1)))
    square = b.Add(b.Mul(v, np.float32(0.99)), b.Mul(b.Mul(g, g), np.float32(0.01)))
    return mean, square, b.Sub(p, b.Div(mean, b.Add(b.Sqrt(square), np.float32(1))))


def test_maps_whose_values_are_stored_are_one_kernel():
    arrays = {name: np.abs(floats(rng(n), 6, 40)) for n, name in enumerate("pmvg")}
    graph, given = build(averages, **arrays)
    assert len(groups(optimise(clone_graph(graph)))) == 1
    check(graph, given)


def test_maps_wait_for_what_is_computed_between_them():
    """The last map reads a product of what the first one gives, so both cannot be one kernel."""

    def function(b, x, y):
        first = b.Add(x, y)
        return first, b.Add(b.Mul(first, b.MatMul(first, y)), first)

    graph, given = build(function, x=floats(rng(), 8, 8), y=floats(rng(1), 8, 8))
    assert len(groups(optimise(clone_graph(graph)))) == 2
    check(graph, given)


def test_attention_is_sought_without_the_projections_around_it(monkeypatch):
    """A group with a third contraction is none, so that nobody composes it."""
    tried = []

    def noted(merged, widest):
        ops = merged.regions[0].ops
        tried.append(sum(structure.has_body(o) and structure.is_contraction(o) for o in ops))
        return "none"  # so that all groups are tried

    monkeypatch.setattr(attention, "_match", noted)
    g = rng()
    x, weights = floats(g, 1, 8, 16), [floats(g, 16, 16) for _ in range(3)]

    def function(b, x):
        q, k, v = (b.MatMul(x, b.constant(w)) for w in weights)
        scores = b.Mul(b.MatMul(q, b.Transpose(k, perm=[0, 2, 1])), np.float32(0.25))
        return b.MatMul(b.Softmax(scores), v)

    graph, _ = build(function, x=x)
    run_pipeline(optimise(clone_graph(graph)), "fuse-attention")
    assert set(tried) == {2}
