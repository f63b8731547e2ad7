"""Compiled models: specialisation, plans of parts, host ops, limits; against the interpreter."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import graphc
from graphc.backends import c99
from graphc.driver import compiler, configured, optimise, program_for, typed
from graphc.errors import InternalError, ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.ir.types import TensorType
from graphc.passes.fusion.legality import LONGEST
from graphc.passes.native import natively
from graphc.passes.specialise import specialise
from graphc.runtime import execution
from graphc.runtime.compiled import CompiledModel
from graphc.runtime.execution import SpecialisedGraph
from graphc.runtime.plans import HostOp, Plan, Step


def compiled(graph: Graph | str) -> CompiledModel:
    """A model for the CPU that counts in `.parts` the graphs compiled for it."""
    graph = parse_graph(graph) if isinstance(graph, str) else graph
    build = compiler(*configured("cpu", 1, {}))
    parts: list[Graph] = []

    def compile_static(part: Graph):
        parts.append(part)
        return build(part)

    model = CompiledModel(graph, compile_static, natively)
    model.parts = parts  # type: ignore[attr-defined]
    return model


def check(model: CompiledModel, *inputs) -> list:
    """Runs a model, comparing with the interpreter."""
    found = model.run(list(inputs))
    wanted = interpret(model.graph, list(inputs))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        same(a, b)
    return found


def same(found, wanted) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted):
            same(a, b)
    elif wanted is None or wanted.dtype.kind == "O":
        assert np.array_equal(found, wanted)
    else:
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def names(part: Graph) -> list[str]:
    return [op.name for op in part.ops if op.name != "Constant"]


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- specialisation

RESHAPE = """graph @g(%x: f32[N,4], %s: i64[2]) -> ? where N: 1.. {
  %e = Exp(%x)
  %y = Reshape(%e, %s)
  return %y
}"""


def test_one_executable_per_shape():
    model = compiled("graph @g(%x: f32[N]) -> ? where N: 1.. {\n  %y = Exp(%x)\n  return %y\n}")
    for size in (3, 5, 3, 5):
        check(model, f32(size))
    assert len(model.parts) == 2


def test_the_shape_that_was_not_used_for_longest_is_dropped(monkeypatch):
    monkeypatch.setattr(execution, "MAX_SPECIALISATIONS", 2)
    model = compiled("graph @g(%x: f32[N]) -> ? where N: 1.. {\n  %y = Exp(%x)\n  return %y\n}")
    for size in (3, 5, 3, 7, 3):
        check(model, f32(size))
    assert len(model.parts) == 3  # 3 was there each time
    check(model, f32(5))
    assert len(model.parts) == 4


def test_ever_new_shapes_make_a_warning():
    model = compiled("graph @g(%x: f32[N]) -> ? where N: 1.. {\n  %y = Exp(%x)\n  return %y\n}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, execution.MANY):
            model.run([np.ones(n, np.float32)])
    said = r"compiled for 8 shapes; input 'x' had \(1,\), \(2,\), \(3,\), ...: better pad"
    with pytest.warns(RuntimeWarning, match=said):
        model.run([np.ones(20, np.float32)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.run([np.ones(21, np.float32)])


def test_contents_that_decide_shapes_are_bound():
    model = compiled(RESHAPE)
    for shape in ([2, 4], [4, 2], [-1, 1], [2, 4]):
        check(model, f32(2, 4), np.array(shape, np.int64))
    assert len(model.parts) == 3
    assert all(names(p) for p in model.parts)


@pytest.mark.suite
def test_contents_that_keep_changing_are_not_bound_for_ever():
    graph = """graph @g(%x: f32[40], %s: i64[1]) -> ? {
  const %zero : i64[1] = [0]
  %h = Tanh(%x)
  %w = Slice(%h, %zero, %s)
  %y = Exp(%w)
  return %y
}"""
    model = compiled(graph)
    for n in range(execution.MAX_CONTENTS):
        check(model, f32(40), np.array([n + 1], np.int64))
    made = len(model.parts)
    assert made == execution.MAX_CONTENTS
    for n in range(30):
        check(model, f32(40), np.array([n + 1], np.int64))
    assert len(model.parts) <= made + 1 + execution.MAX_INNER_CONTENTS + execution.MAX_INNER


COUNTED = """graph @g(%x: f32[40], %s: i64[1]) -> ? {
  const %zero : i64[1] = [0]
  const %one : i64[1] = [1]
  %n = Add(%s, %one)
  %m = Mul(%n, %n)
  %h = Tanh(%x)
  %w = Slice(%h, %zero, %m)
  %y = Exp(%w)
  return %y
}"""


def test_contents_from_which_much_is_computed_are_not_bound(monkeypatch):
    """What a network makes of its inputs is no arithmetic on shapes."""
    for limit, made in ((1, 1), (1000, 3)):
        monkeypatch.setattr(execution, "MAX_BOUND_WORK", limit)
        model = compiled(COUNTED)
        for n in (1, 2, 3):
            check(model, f32(40), np.array([n], np.int64))
        assert len(model.executables()) == made


def test_large_inner_graphs_are_always_compiled(monkeypatch):
    monkeypatch.setattr(execution, "MAX_BOUND_WORK", 1)
    monkeypatch.setattr(execution, "MAX_INNER", 2)
    for limit, parts in ((1000, 3), (1, 6)):
        monkeypatch.setattr(execution, "MAX_INTERPRETED", limit)
        model = compiled(COUNTED)
        for n in range(5):
            check(model, f32(40), np.array([n], np.int64))
        assert len(model.parts) == parts


def test_prepare_compiles_static_models_only():
    static = compiled("graph @g(%x: f32[3]) -> ? {\n  %y = Exp(%x)\n  return %y\n}")
    assert static.prepare() and len(static.parts) == 1
    check(static, f32(3))
    assert len(static.parts) == 1
    assert not compiled(RESHAPE).prepare()


def test_inputs_and_constants_as_results_are_copies():
    model = compiled("""graph @g(%x: f32[3], %unused: f32[2]) -> (f32[3], f32[2], ?) {
  const %c : f32[2] = [1.0, 2.0]
  %y = Neg(%x)
  return %x, %c, %y
}""")
    x = f32(3)
    first = check(model, x, f32(2))
    assert first[0] is not x
    first[1][:] = 9
    check(model, x, f32(2))
    assert [names(p) for p in model.parts] == [["Neg"]]


def test_nothing_to_compile():
    model = compiled("graph @g(%x: f32[3]) -> (f32[3], f32[3]) {\n  return %x, %x\n}")
    check(model, f32(3))
    assert not model.parts


# ---------------------------------------------------------------- parts

NONZERO = """graph @g(%x: f32[6], %z: f32[6]) -> (?, ?) {
  %a = Abs(%x)
  %p = Relu(%x)
  %w = NonZero(%p)
  %v = Transpose(%w)
  %g = GatherND(%a, %v)
  %y = Exp(%g)
  %b = Tanh(%z)
  return %y, %b
}"""


def test_data_decides_a_shape():
    model = compiled(NONZERO)
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal(6).astype(np.float32)
        check(model, x, f32(6))
    check(model, np.full(6, -1, np.float32), f32(6))  # nothing found
    assert names(model.parts[0]) == ["Abs", "Relu", "Tanh"]
    assert names(model.parts[1]) == ["NonZero"]


def test_shapes_computed_from_data():
    model = compiled("""graph @g(%x: f32[2,6]) -> ? {
  %m = ReduceMax(%x) {keepdims=0}
  %n = Cast(%m) {to=7}
  const %axis : i64[1] = [0]
  const %rest : i64[1] = [-1]
  %u = Unsqueeze(%n, %axis)
  %s = Concat(%u, %rest) {axis=0}
  %t = Tanh(%x)
  %r = Reshape(%t, %s)
  %y = Exp(%r)
  return %y
}""")
    for top in (3, 4, 6, 3):
        x = np.minimum(f32(2, 6), 1)
        x[0, 0] = top
        check(model, x)
    assert len(model.parts) == 1 + 3


def test_sequences_run_on_the_host():
    model = compiled(
        """graph @g(%s: seq<f32[?]>, %n: i64[]) -> ? {
  %m = SequenceAt(%s, %n)
  %y = Exp(%m)
  return %y
}""".replace("f32[?]", "f32[*]")
    )
    values = [f32(2), f32(3, 1), f32(2)]
    for n in (0, 1, 2, -1):
        check(model, values, np.array(n, np.int64))


def test_strings_stay_on_the_host():
    model = compiled("""graph @g(%a: string[2], %b: string[2], %x: f32[2]) -> (?, string[2], ?) {
  %c = StringConcat(%a, %b)
  %y = Exp(%x)
  return %c, %a, %y
}""")
    a, b = np.array(["x", "y"], object), np.array(["1", "2"], object)
    found = check(model, a, b, f32(2))
    assert found[0].tolist() == ["x1", "y2"]
    assert [names(p) for p in model.parts] == [["Exp"]]


# ---------------------------------------------------------------- control flow

LOOP = """graph @g(%n: i64[], %x: f32[4]) -> (?, ?) {
  const %go : bool[] = true
  %s, %c = Loop(%n, %go, %x, %x) {captures=1} {
    ^(%i: i64[], %k: bool[], %state: f32[4], %step: f32[4])
    %t = Tanh(%state)
    %u = Add(%t, %step)
    const %ten : f32[] = 10.0
    %m = ReduceMax(%u) {keepdims=0}
    %on = Less(%m, %ten)
    yield %on, %u, %t
  }
  return %s, %c
}"""


def test_loop_bodies_are_compiled_once():
    model = compiled(LOOP)
    for trips in (30, 0, 200):
        check(model, np.array(trips, np.int64), f32(4))
    bodies = [p for p in model.parts if p.name == "body"]
    assert len(bodies) <= 2  # once per plan


COUNTER = """graph @g(%n: i64[], %x: f32[40], %zero: f32[1]) -> ? {
  const %go : bool[] = true
  %s = Loop(%n, %go, %zero, %x) {captures=1} {
    ^(%i: i64[], %k: bool[], %state: f32[1], %all: f32[40])
    const %axis : i64[1] = [0]
    const %one : i64[1] = [1]
    %from = Unsqueeze(%i, %axis)
    %to = Add(%from, %one)
    %row = Slice(%all, %from, %to)
    %t = Tanh(%row)
    %u = Add(%t, %state)
    const %big : f32[] = 1e6
    %m = ReduceMax(%u) {keepdims=0}
    %on = Less(%m, %big)
    yield %on, %u
  }
  return %s
}"""


@pytest.mark.suite
def test_loop_counters_do_not_compile_without_end():
    model = compiled(COUNTER)
    check(model, np.array(35, np.int64), f32(40), f32(1))
    assert len(model.parts) <= 3 * execution.MAX_INNER_CONTENTS
    made = len(model.parts)
    check(model, np.array(35, np.int64), f32(40), f32(1))
    assert len(model.parts) == made


GROWING = """graph @g(%n: i64[], %x: f32[1]) -> ? {
  const %go : bool[] = true
  %s = Loop(%n, %go, %x) {
    ^(%i: i64[], %k: bool[], %state: f32[*])
    %t = Tanh(%state)
    const %big : f32[] = 1e6
    %m = ReduceMax(%t) {keepdims=0}
    %on = Less(%m, %big)
    %u = Concat(%t, %t) {axis=0}
    yield %on, %u
  }
  return %s
}""".replace("Concat(%t, %t)", "Concat(%t, %one)").replace(
    "    %t = Tanh", "    const %one : f32[1] = [1.0]\n    %t = Tanh"
)


@pytest.mark.suite
def test_growing_states_are_interpreted_in_the_end():
    model = compiled(GROWING)
    check(model, np.array(60, np.int64), f32(1))
    assert len(model.parts) <= execution.MAX_INNER + 4


# ---------------------------------------------------------------- plans


def test_plan_keeps_absent_operands():
    graph = parse_graph("graph @g(%x: f32[3]) -> ? {\n  %y = Exp(%x)\n  return %y\n}")
    run = Plan(3, {}, [Step(lambda v: [v], (-1, 0), (1,))], (1,), frozenset())
    assert run([5]) == [[None, 5]]
    assert isinstance(SpecialisedGraph(graph, None).graph, Graph)  # type: ignore[arg-type]


def test_host_results_must_have_the_types_inferred():
    graph = parse_graph("graph @g(%x: f32[3]) -> ? {\n  %y = Exp(%x)\n  return %y\n}")
    from graphc.passes.specialise import specialise

    op = specialise(graph).ops[0]
    with pytest.raises(InternalError, match="inferred to give"):
        HostOp(op, None)([np.zeros(4, np.float32)])  # type: ignore[arg-type]


# ---------------------------------------------------------------- inputs


def test_inputs_are_checked():
    model = compiled("graph @g(%x: f32[3], %n: i64[]) -> ? {\n  %y = Exp(%x)\n  return %y\n}")
    x, n = f32(3), np.array(1, np.int64)
    assert len(model.run({"x": x, "n": n})) == 1
    assert len(model(x, 1)) == 1 and len(model(x=x, n=n)) == 1
    bad = [
        ({"x": x}, "missing"),
        ({"x": x, "n": n, "z": x}, "unknown"),
        ([x], "expected 2 inputs"),
        ([x, None], "is required"),
        ([x.astype(np.float64), n], "takes float32"),
        ([f32(4), n], "found"),
        ([f32(3, 1), n], "found"),
    ]
    for feeds, message in bad:
        with pytest.raises(ModelError, match=message):
            model.run(feeds)


# ---------------------------------------------------------------- sizes and names


def test_long_chains_are_several_kernels():
    """One expression of all ops would be deeper than anything that walks it."""
    ops = [f"  %v{n + 1} = {('Neg', 'Tanh', 'Sigmoid')[n % 3]}(%v{n})" for n in range(300)]
    text = "graph @g(%v0: f32[4]) -> ? {\n" + "\n".join(ops) + "\n  return %v300\n}"
    graph = specialise(parse_graph(text))
    optimise(graph)
    lengths = [len(op.regions[0].ops) for op in graph.ops if op.name == "fused"]
    assert sum(lengths) >= 300 and max(lengths) <= LONGEST
    check(compiled(text), f32(4))


def test_outputs_without_names():
    graph = Graph("g")
    param = graph.add_param(TensorType(dtypes.f32, (3,)), "x")
    result = Builder(graph).Neg(param)
    graph.set_results([result, result])
    model = graphc.compile(graph, threads=1)
    assert [spec.name for spec in model.outputs] == ["output0", "output1"]
    plain = c99.build(program_for(typed(graph), "plain"))
    for found in (model.run([f32(3)]), plain([f32(3)])):
        np.testing.assert_array_equal(found, [-f32(3)] * 2)
