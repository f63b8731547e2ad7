"""Very many nodes, operands and outputs: what is cut into pieces still computes the same."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc.backends.llvm_cpu.emit_program import PART, RUN, emit_program
from graphc.driver import program_for
from graphc.ir.graph import NEAR, Graph, Op, constant_op
from graphc.ir.interp import interpret
from graphc.ir.machine import Machine
from graphc.ir.text.parser import parse_graph
from graphc.passes.fusion.legality import LARGEST
from graphc.passes.rules.operands import MOST

X = np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4)


def graph_of(lines: list[str], results: str, types: str) -> Graph:
    head = f"graph @g(%x: f32[1,4], %w: f32[4,4]) -> {types} phase typed"
    return parse_graph("\n".join([head + " {", *lines, f"return {results}", "}"]))


def chain(op: str, count: int) -> list[str]:
    names = ["x", *(f"v{n}" for n in range(count))]
    return [f"%{b} = {op.format(a)} : f32[1,4]" for a, b in zip(names, names[1:])]


def check(graph: Graph, target: str = "cpu") -> None:
    inputs = [X, np.eye(4, dtype=np.float32)[::-1]]
    found = graphc.compile(graph, target=target).run(dict(zip("xw", inputs)))
    values = list(found.values()) if isinstance(found, dict) else found
    for value, wanted in zip(values, interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_a_program_of_several_functions():
    graph = graph_of(chain("MatMul(%{}, %w)", 2 * PART + 3), f"%v{2 * PART + 2}", "(f32[1,4])")
    text = emit_program(program_for(graph))
    assert text.count("define internal void @graphc_part") == 3
    assert text.count(f"define void @{RUN}(") == 1
    check(graph)


@pytest.mark.parametrize("op", ["Sum", "Max", "Mean"])
def test_very_many_operands(op):
    count = 4 * MOST + 1
    lines = chain("Neg(%{})", count)
    operands = ", ".join(f"%v{n}" for n in range(count))
    check(graph_of([*lines, f"%y = {op}({operands}) : f32[1,4]"], "%y", "(f32[1,4])"))


def test_very_many_outputs():
    count = 100
    results = ", ".join(f"%v{n}" for n in range(count))
    types = "(" + ", ".join(["f32[1,4]"] * count) + ")"
    check(graph_of(chain("Tanh(%{})", count), results, types))


@pytest.mark.parametrize("target", ["c", "cpu", "cuda"])
def test_kernels_have_no_more_parameters_than_they_may(target):
    count = 5 * LARGEST
    lines = [f"const %c{n} : f32[1,4] = random(seed={n})" for n in range(count)]
    lines += [f"%v{n} = Mul(%x, %c{n}) : f32[1,4]" for n in range(count)]
    parts = ", ".join(f"%v{n}" for n in range(count))
    lines.append(f"%y = Concat({parts}) {{axis=0}} : f32[{count},4]")
    program = program_for(graph_of(lines, "%y", f"(f32[{count},4])"), target)
    assert max(len(kernel.params) for kernel in program.kernels.values()) <= Machine().operands + 1


def test_places_of_ops_after_many_changes():
    graph = Graph()
    ops = [graph.append(constant_op(np.float32(n))) for n in range(3 * NEAR)]
    for op in ops[: 2 * NEAR]:
        op.erase()
    assert [graph.place(op) for op in ops[2 * NEAR :]] == list(range(NEAR))
    last = ops[-1]
    new: list[Op] = [constant_op(np.float32(n)) for n in range(2 * NEAR)]
    for op in new:
        graph.insert_before(last, op)
    assert graph.ops == [*ops[2 * NEAR : -1], *new, last]
    assert graph.place(ops[2 * NEAR]) == 0 and graph.place(last) == 3 * NEAR - 1
    with pytest.raises(ValueError, match="not in list"):
        graph.place(ops[0])
