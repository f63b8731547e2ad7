"""Whatever declines says why: rules by `rw.skip`, passes by `ctx.decline`, strategies by a text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from graphc.ir.text.parser import parse_graph
from graphc.passes import Context, P, rule, run_pipeline, var
from graphc.passes.manager.journal import Journal
from graphc.passes.rewriter import RULES

PRODUCT = Path(__file__).parents[2] / "graphc"
RULE_FILES = sorted((PRODUCT / "passes" / "rules").rglob("*.py"))
FUSION_FILES = sorted((PRODUCT / "passes" / "fusion").glob("*.py"))
PASS_FILES = [*FUSION_FILES, PRODUCT / "passes" / "precision.py"]
GRAPH = "graph @g(%x: f32[4]) -> f32[4] phase typed {\n  %y = Relu(%x) : f32[4]\n  return %y\n}"
SILENT = """
def f(rw, op, x):
    n = number(x)
    if n is None:
        return None
    m = other(rw, x)
    if m is None:
        return None
    return rw.Abs(x)
"""


@cache
def functions(path: Path) -> list[ast.FunctionDef]:
    """All functions and methods of a file."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]


def takes_rewriter(function: ast.FunctionDef) -> bool:
    return any(arg.arg == "rw" for arg in function.args.args)


@cache
def silent() -> set[str]:
    """Functions beside the rules that may return None and have no rewriter to give a reason to."""
    made = [f for path in RULE_FILES for f in functions(path) if f.returns is not None]
    return {f.name for f in made if "None" in ast.unparse(f.returns) and not takes_rewriter(f)}


def may_be_none(node: ast.expr | None) -> bool:
    """Whether a returned expression is None, or a call that may give it for no reason."""
    if isinstance(node, ast.IfExp):
        return may_be_none(node.body) or may_be_none(node.orelse)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in silent()
    return node is None or isinstance(node, ast.Constant) and node.value is None


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def without_reason(function: ast.FunctionDef) -> Iterator[int]:
    """The lines at which a rule, or a helper that has its rewriter, returns None without a reason:
    not because another helper, which has the rewriter too, gave none."""
    asked = {"rw"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and "rw" in names(node.value):
            asked |= {name for target in node.targets for name in names(target)}
    tests = {
        inner: node.test for node in ast.walk(function) if isinstance(node, ast.If)
        for inner in node.body
    }  # fmt: skip
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and may_be_none(node.value):
            test = node.value.test if isinstance(node.value, ast.IfExp) else tests.get(node)
            if test is None or not names(test) & asked:
                yield node.lineno


@pytest.mark.suite("all")
@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_rules_decline_with_a_reason(path):
    lines = [n for f in functions(path) if takes_rewriter(f) for n in without_reason(f)]
    assert not lines, f"{path.name} returns None without rw.skip at lines {lines}"


def test_a_silent_rule_would_be_seen():
    (function,) = ast.parse(SILENT).body
    assert list(without_reason(function)) == [5]


@pytest.mark.suite("all")
@pytest.mark.parametrize("path", PASS_FILES, ids=lambda path: path.stem)
def test_passes_that_fuse_also_decline(path):
    called = [
        ast.unparse(n) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)
    ]
    rules = {c.split("(")[1].split(",")[0] for c in called if c.startswith("ctx.spend(")}
    rules |= {c.split(",")[2].strip() for c in called if c.startswith("merge_all(")}
    for rule_ in rules - {"rule", "'raise-scalar'"}:
        assert any(c.startswith(f"ctx.decline({rule_},") for c in called), f"{rule_} is silent"


def test_strategies_decline_with_a_text():
    files = sorted(PRODUCT.rglob("strategies/**/*.py"))
    assert files
    for path in files:
        for function in functions(path):
            if function.returns is not None and "Lowered" in ast.unparse(function.returns):
                for node in ast.walk(function):
                    if isinstance(node, ast.Return):
                        text = "" if node.value is None else ast.unparse(node.value)
                        assert text not in ("", "None", "''"), f"{path.name}:{node.lineno}"


def test_a_rule_of_a_plugin_that_gives_no_reason_is_named(monkeypatch):
    monkeypatch.setattr("graphc.passes.rewriter.RULES", dict(RULES))

    @rule("never", P.Relu(var("x")), group="mine")
    def never(rw, op, x):
        """relu(x) == relu(x)."""

    graph = parse_graph(GRAPH)
    ctx = Context(journal=Journal())
    run_pipeline(graph, "rewrite{group=mine}", ctx)
    fired, declined = ctx.explain("never").splitlines()
    assert (fired, declined) == ("never: fired 0 times", "  Relu: the rule gives no reason")
