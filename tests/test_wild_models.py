"""Models as exporters write them, against the outputs that ONNX Runtime gave for them.

What kills compilers on such models is integer arithmetic on shapes. Once the inputs' shapes are
known none of it may be left: what remains computes with data.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc.driver import OPTIMISING, optimise
from graphc.errors import NeedsValue
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.compare import agreements
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.passes.specialise import pin, specialise

FOLDER = Path(__file__).parent / "models_wild"
CASES = json.loads((FOLDER / "manifest.json").read_text())
TOLERANCE = 1e-4  # of the range of an output
SHAPE_OPS = {"Shape", "Size", "ConstantOfShape", "Range", "NonZero"}

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


def arrays(case: dict) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and expected outputs."""
    stored = np.load(FOLDER / case["npz"])
    inputs = [stored[f"input_{n}"] for n in range(len(case["inputs"]))]
    return inputs, [stored[f"output_{n}"] for n in range(len(case["outputs"]))]


def check(case: dict, found: list) -> None:
    for agreement in agreements(list(case["outputs"]), found, arrays(case)[1]):
        assert agreement.within(TOLERANCE), agreement


@each_case
def test_interpreter(case):
    check(case, interpret(import_onnx(FOLDER / case["file"]), arrays(case)[0]))


@each_case
def test_with_shapes_pinned(case):
    model = graphc.compile(FOLDER / case["file"], shapes=case["inputs"], threads=1)
    assert [list(spec.shape) for spec in model.inputs] == list(case["inputs"].values())
    check(case, model.run(arrays(case)[0]))


@pytest.mark.parametrize("file", sorted({case["file"] for case in CASES}))
def test_one_compilation_for_all_shapes(file):
    check_in_turn(file, graphc.compile(FOLDER / file, threads=1))


def test_branches_of_several_shapes_have_no_general_program():
    model = graphc.compile(FOLDER / "if_runtime.onnx", specialise="auto", threads=1)
    check_in_turn("if_runtime.onnx", model)
    assert "branches" in model.why_exact


def check_in_turn(file, model):
    cases = [case for case in CASES if case["file"] == file]
    for case in cases + cases:  # the second time from the cache
        check(case, model.run(dict(zip(case["inputs"], arrays(case)[0]))))


def shape_arithmetic(graph: Graph) -> list[str]:
    """The ops that compute shapes: of values, or from integers that are known."""
    found = []
    for op in graph.walk():
        operands = [v for v in op.inputs if v is not None]
        whole = all(isinstance(v.type, TensorType) and v.type.dtype.is_integer for v in op.outputs)
        known = bool(operands) and all(v.constant is not None for v in operands)
        if op.name in SHAPE_OPS or (whole and known):
            found.append(op.where())
    return found


@each_case
def test_no_shape_arithmetic_is_left(case):
    graph = pin(import_onnx(FOLDER / case["file"]), case["inputs"])
    try:
        graph = specialise(graph)
    except NeedsValue:
        pytest.skip("a type depends on what the inputs hold")
    left = shape_arithmetic(optimise(graph, passes=OPTIMISING))
    assert not left, left
