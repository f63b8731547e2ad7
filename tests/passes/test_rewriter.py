"""Patterns, rules, the worklist, and the bisection of rewrites."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from graphc.errors import ModelError
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.passes import Context, P, const, opt, parse_pipeline, rest, rule, run_pipeline, var
from graphc.passes.manager.bisect import bisect
from graphc.passes.manager.journal import Journal
from graphc.passes.rewriter import RULES, apply_rules

x, y, b = var("x y b")
c = const("c")
TEXT_TESTS = Path(__file__).parent.parent / "text" / "rules"


@pytest.fixture
def scratch_rules():
    known = dict(RULES)
    yield
    RULES.clear()
    RULES.update(known)


def graph_of(body: str, results: str = "%y", inputs: str = "%x: f32[4], %z: f32[4]"):
    types = "(" + ", ".join("f32[4]" for _ in results.split(",")) + ")"
    head = f"graph @g({inputs}) -> {types} phase typed"
    return parse_graph(f"{head} {{\n{body}\nreturn {results}\n}}")


def matches(pattern, graph, name="y"):
    op = next(op for op in graph.ops if any(v.name == name for v in op.outputs))
    return list(pattern.match_op(op))


def test_a_match_binds_values_and_ops_in_execution_order():
    graph = graph_of("%a = Relu(%x) : f32[4]\n%y = Add(%a, %z) : f32[4]")
    (found,) = matches(P.Add(P.Relu(x), y), graph)
    assert found.values == {"x": graph.params[0], "y": graph.params[1]}
    assert [op.name for op in found.ops] == ["Relu", "Add"]
    assert matches(P.Add(y, P.Relu(x)), graph) == []
    assert len(matches(P.Add(y, P.Relu(x)).commutes(), graph)) == 1


def test_one_variable_is_one_value():
    graph = graph_of("%y = Add(%x, %z) : f32[4]\n%w = Mul(%x, %x) : f32[4]", "%y, %w")
    assert matches(P.Add(x, x), graph) == []
    assert len(matches(P.Mul(x, x), graph, "w")) == 1


def test_constants_uses_attributes_and_omitted_operands():
    graph = graph_of(
        "const %k : f32[] = 2.0\n%a = LeakyRelu(%x) {alpha=0.5} : f32[4]\n"
        "%d = Clip(%a, _, %k) : f32[4]\n%y = Mul(%d, %k) : f32[4]\n%w = Neg(%a) : f32[4]",
        "%y, %w",
    )
    assert len(matches(P.Mul(x, c), graph)) == 1
    assert matches(P.Mul(c, x), graph) == []
    assert matches(P.Neg(P.LeakyRelu(x).only_use()), graph, "w") == []
    assert len(matches(P.Neg(P.LeakyRelu(x, alpha=0.5)), graph, "w")) == 1
    assert matches(P.Neg(P.LeakyRelu(x, alpha=0.1)), graph, "w") == []
    (found,) = matches(P.Clip(x, opt(y), opt(b)), graph, "d")
    assert found.values["y"] is None and found.values["b"].constant == 2
    assert matches(P.Clip(x, opt(y)), graph, "d") == [], "an operand is left over"
    (found,) = matches(P.Clip(rest("all")), graph, "d")
    assert len(found.values["all"]) == 3


def test_a_rule_of_ones_own(scratch_rules):
    @rule("relu-of-max", P.Max(P.Relu(x), c), group="mine")
    def relu_of_max(rw, relu, op, x, c):
        """max(relu(x), c) == max(x, c) for c >= 0."""
        if (c.constant < 0).any():
            return rw.skip("the bound is negative")
        return rw.Max(x, c)

    graph = graph_of(
        "const %k : f32[] = 1.0\nconst %m : f32[] = -1.0\n"
        '%a = Relu(%x) : f32[4] loc("act")\n%y = Max(%a, %k) : f32[4] loc("top")\n'
        '%w = Max(%a, %m) : f32[4] loc("bottom")',
        "%y, %w",
    )
    before, ctx = clone_graph(graph), Context(journal=Journal())
    run_pipeline(graph, "rewrite{group=mine}, dce", ctx)
    value = graph.results[0]
    assert value.name == "y" and value.producer.inputs[0] is graph.params[0]
    assert value.producer.loc == ("act", "top"), "the new op knows all nodes it came from"
    assert ctx.diagnostics.fired["relu-of-max"] == 1
    assert ctx.explain("relu-of-max").splitlines() == [
        "relu-of-max: fired 1 times",
        '  Max "bottom": the bound is negative',
    ]
    inputs = [np.array([-2, 0, 1, 3], np.float32)] * 2
    for found, expected in zip(interpret(graph, inputs), interpret(before, inputs)):
        np.testing.assert_array_equal(found, expected)


def test_rules_that_undo_each_other_are_caught(scratch_rules):
    @rule("to-and-fro", P.one_of("Add", "Mul")(x, y), group="mine")
    def to_and_fro(rw, op, x, y):
        """x + y == x * y, as it were."""
        return rw.Mul(x, y) if op.name == "Add" else rw.Add(x, y)

    graph = graph_of("%y = Add(%x, %z) : f32[4]")
    with pytest.raises(ModelError, match="does not end; the last rules were to-and-fro"):
        apply_rules(graph, [RULES["to-and-fro"]], Context(fuel=None))


def test_a_rule_must_keep_types(scratch_rules):
    @rule("wrong-type", P.Relu(x), group="mine")
    def wrong_type(rw, op, x):
        """relu(x) == x > 0, as it were."""
        return rw.Greater(x, 0)

    graph = graph_of("%y = Relu(%x) : f32[4]")
    with pytest.raises(ModelError, match=r"wrong-type at Relu: replaced f32\[4\] by bool\[4\]"):
        apply_rules(graph, [RULES["wrong-type"]], Context(fuel=None))


def test_parameters_must_name_the_variables():
    with pytest.raises(ModelError, match="variable y is no parameter"):
        rule("bad", P.Add(x, y))(lambda rw, op, x: x)
    with pytest.raises(ModelError, match="ops must come before its variables"):
        rule("bad", P.Add(x, y))(lambda rw, x, y, op: x)


def test_every_rule_has_an_equation_and_a_text_test():
    text = "".join(path.read_text() for path in sorted(TEXT_TESTS.glob("*.gir")))
    fired = re.findall(r"// ---- after: (?:for \w+: )?(.*)", text)
    tested = {name for line in fired for step in parse_pipeline(line)
              for name in getattr(step, "rules", ())}  # fmt: skip
    for entry in RULES.values():
        assert "==" in entry.equation, entry.name
        assert entry.name in tested, entry.name


# ---------------------------------------------------------------- bisection


def test_bisect_names_the_wrong_rewrite(scratch_rules):
    @rule("bad-rule", P.Tanh(x), group="canonical")
    def bad_rule(rw, op, x):
        """tanh(x) == x, as it were."""
        return rw.Neg(x) if op.loc == ("second",) else None

    graph = graph_of(
        "%a = Identity(%x) : f32[4]\n%b = Abs(%a) : f32[4]\n%d = Abs(%b) : f32[4]\n"
        '%e = Tanh(%d) : f32[4] loc("first")\n%f = Neg(%e) : f32[4]\n%h = Neg(%f) : f32[4]\n'
        '%y = Tanh(%h) : f32[4] loc("second")'
    )
    text = str(graph)
    found = bisect(graph, [np.ones(4, np.float32)] * 2, "canonicalise, cse, dce")
    assert found is not None and str(graph) == text
    assert (found.rewrite.rule, found.rewrite.where) == ("bad-rule", 'Tanh "second"')
    assert "differs by" in found.problem and str(found).startswith("rewrite ")
    assert bisect(graph, [np.ones(4, np.float32)] * 2, "cse, dce") is None
