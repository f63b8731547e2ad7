"""Narrow floats: sums and products are kept in float32 until an operator's result, everywhere.

Every operator that takes float16 is run on long, large operands and compared with itself on the
same numbers in float64, which is then rounded: by the interpreter, and compiled for each target.
"""

from __future__ import annotations

import functools
import os
import shutil
import warnings

import numpy as np
import pytest
from every_target import COMPILERS, TARGETS
from narrow_cases import CASES, EXEMPT, Case, cases_of

from graphc.driver import compile
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, bf16, f16, f32, f64
from graphc.ir.expr import Reduce, walk
from graphc.ir.graph import Graph
from graphc.ir.infer import op_body
from graphc.ir.interp import interpret
from graphc.ir.opdef import REGISTRY, OpDef, find
from graphc.ir.ops.helpers import RUNTIME
from graphc.ir.types import type_of

HALF_DIGIT = {f16: 2.0**-11, bf16: 2.0**-8}
SCALES = (1.0, 24.0)
PER_GRAPH = 12  # operators that are compiled together
ALL = os.environ.get("GRAPHC_TEST_ALL") == "1"
EVERY = {"cpu": 2, "c": 3, "cuda": 5}  # of how many graphs one is compiled, unless all are
FORMS = ("elementwise", "indexed", "composite", "imperative")


@functools.cache
def operators() -> list[OpDef]:
    """Those that compute with float16, by name."""
    find("Add")  # registers all
    return [
        defn
        for _, defn in sorted(REGISTRY.items())
        if defn.form in FORMS
        and defn.domain in ("", RUNTIME, "graphc", "ai.onnx.ml", "ai.onnx.preview.training")
        and defn.full_name not in EXEMPT
        and any(p.accepts.accepts(f16) and not p.accepts.known for p in defn.params)
    ]


@functools.cache
def combining() -> list[OpDef]:
    """Those that reduce, or are made of others: what targets compute in ways of their own."""
    return [d for d in operators() if cases_of(d) and _combines(d)]


def _combines(defn: OpDef) -> bool:
    if defn.form in ("composite", "imperative"):
        return True
    ops = cases_of(defn)[0].graph(defn, f16).ops
    bodies = [op_body(op) for op in ops if op.defn.form in ("elementwise", "indexed")]
    return any(isinstance(node, Reduce) for body in bodies for node in walk(body))


def graphs(target: str) -> list[int]:
    """Where the operators of each graph that is compiled start."""
    return list(range(0, len(combining()), PER_GRAPH))[:: 1 if ALL else EVERY[target]]


def off(found: np.ndarray, reference: np.ndarray, dtype: DType) -> float:
    """How far results are from rounded ones, in halves of the last digit."""
    with np.errstate(all="ignore"):
        wanted = reference.astype(dtype.np).astype(np.float64)
        found = found.astype(np.float64)
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
        unit = HALF_DIGIT[dtype] * np.maximum(np.abs(wanted), size * 2.0**-6) + 2.0**-25
        distance = np.abs(found - wanted) / unit
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return float(np.where(same, 0, np.nan_to_num(distance, nan=np.inf)).max(initial=0))


def feeds(case: Case, dtype: DType, scale: float) -> list[np.ndarray]:
    return [(x * scale).astype(dtype.np) for x in case.floats()]


def run(defn: OpDef, case: Case, dtype: DType, given) -> list[np.ndarray]:
    return interpret(case.graph(defn, dtype), [x.astype(dtype.np) for x in given])


def check(found, reference, case: Case, dtype: DType, what: str) -> None:
    for number, (got, wanted) in enumerate(zip(found, reference, strict=True)):
        if got.dtype == dtype.np:
            error = off(got, wanted, dtype)
            assert error <= 2, f"{what}, result {number}: {error}"


def test_every_operator_has_a_case():
    missing = [d.full_name for d in operators() if not cases_of(d)]
    assert not missing, f"give them operands in narrow_cases.py: {missing}"
    assert set(CASES).isdisjoint(EXEMPT)


@pytest.mark.suite(60)
@pytest.mark.parametrize("name", [d.full_name for d in operators()])
def test_results_alone_are_rounded(name):
    defn = next(d for d in operators() if d.full_name == name)
    for case in cases_of(defn):
        for dtype in HALF_DIGIT:
            for scale in SCALES:
                given = feeds(case, dtype, scale)
                wide = run(defn, case, f64, given)
                check(run(defn, case, dtype, given), wide, case, dtype, f"{dtype} * {scale}")


@pytest.mark.parametrize("target, start", [(t, n) for t in TARGETS for n in graphs(t)])
def test_results_alone_are_rounded_on_targets(target, start):
    if target in COMPILERS and shutil.which(COMPILERS[target]) is None:
        pytest.skip(f"{COMPILERS[target]} is not here")
    graph, given, wanted = Graph("narrow"), [], []
    for defn in combining()[start : start + PER_GRAPH]:
        case = cases_of(defn)[0]
        numbers = feeds(case, f16, SCALES[1])
        case.add(graph, defn, f16)
        given += numbers
        wanted += [(defn.full_name, case, x) for x in run(defn, case, f64, numbers)]
    found = compile(graph, target, **TARGETS[target]).run(given)
    for got, (name, case, reference) in zip(found, wanted, strict=True):
        check([got], [reference], case, f16, f"{name} on {target}")


# ---------------------------------------------------------------- what was wrong


def everywhere(graph: Graph, *given: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The first result in the interpreter and on every target."""
    found = [("interpreter", interpret(graph, given)[0])]
    for target, options in TARGETS.items():
        if target not in COMPILERS or shutil.which(COMPILERS[target]):
            found.append((target, compile(graph, target, **options).run(list(given))[0]))
    return found


@pytest.mark.parametrize(
    "name, shape, value, wanted",
    [
        ("GlobalAveragePool", (1, 2, 112, 112), 6.0, 6.0),
        ("GlobalAveragePool", (1, 2, 300, 300), 3.0, 3.0),
        ("GlobalLpPool", (1, 2, 112, 112), 6.0, 672.0),
        ("Softmax", (1, 70000), 1.0, 1 / 70000),
        ("LogSoftmax", (1, 70000), 1.0, -np.log(70000)),
    ],
)
@pytest.mark.parametrize("dtype", HALF_DIGIT)
def test_sums_beyond_the_largest_float16(name, shape, value, wanted, dtype):
    case = Case([np.full(shape, value)])
    graph = case.graph(find(name), dtype)
    for target, found in everywhere(graph, *feeds(case, dtype, 1)):
        assert (found == np.array(wanted).astype(dtype.np)).all(), (target, found.ravel()[:3])


def test_long_sums_keep_their_digits():
    """Of equal numbers a running float32 loses more and more."""
    for shape, axis in (((100_000, 4), 0), ((4, 100_000), 1), ((100_000,), 0)):
        x = np.full(shape, 0.1, np.float32)
        graph = Graph("mean")
        mean = Builder(graph).ReduceMean(graph.add_param(type_of(x), "x"), np.array([axis]))
        graph.set_results([mean])
        for target, found in everywhere(graph, x):
            np.testing.assert_allclose(found, x.reshape(-1)[0], rtol=1e-5, err_msg=target)


def test_long_sums_of_products_keep_their_digits():
    x, y = (np.full(shape, 0.1, np.float32) for shape in ((3, 66_001), (66_001, 16)))
    graph = Graph("product")
    b = Builder(graph)
    operands = (graph.add_param(type_of(v), n) for v, n in ((x, "x"), (y, "y")))
    graph.set_results([b.MatMul(*operands)])
    for target, found in everywhere(graph, x, y):
        np.testing.assert_allclose(found, 660.01, rtol=1e-4, err_msg=target)


def test_products_beyond_the_largest_float16_give_no_warning():
    case = Case([np.full((2, 3), 6e4), np.full((3, 2), 6e4)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = interpret(case.graph(find("MatMul"), f16), feeds(case, f16, 1))
    assert (found == np.inf).all()


@pytest.mark.parametrize("name", ["Attention", f"{RUNTIME}.MultiHeadAttention"])
@pytest.mark.parametrize("dtype", HALF_DIGIT)
def test_attention_to_many_equal_keys(name, dtype):
    """Whose weights are tiny: rounded, they would be off by a thousandth."""
    heads = (1,) if name == "Attention" else ()
    operands = [np.full((1, *heads, n, 4), x) for n, x in ((2, 1.0), (66000, 1.0), (66000, 3.0))]
    case = Case(operands, {} if heads else {"num_heads": 1})
    graph = case.graph(next(d for d in operators() if d.full_name == name), dtype)
    for target, found in everywhere(graph, *feeds(case, dtype, 1)):
        assert (found.astype(f32.np) == 3).all(), (target, found.ravel()[:3])
