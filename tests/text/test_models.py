"""Whole models: after every pass, graph and programs verify, print and parse back."""

from pathlib import Path

import numpy as np
import pytest
from programs import check_program

from graphc.driver import compile
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants, print_graph
from graphc.ir.verify.graphs import verify
from graphc.passes import Hook

ROOT = Path(__file__).parents[2]
MODELS = sorted([*ROOT.glob("models/*.onnx"), *ROOT.glob("tests/models_wild/*.onnx")])


def check_graph(graph: Graph) -> None:
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text, graph_constants(graph))
    assert again == graph and print_graph(again) == text


class Check(Hook):
    """Checks the graph after each pass."""

    def after(self, step, graph, ctx, changed) -> None:
        check_graph(graph)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_imported_models(path):
    check_graph(import_onnx(path))


@pytest.mark.parametrize("target", ["cpu", "c"])
def test_every_phase(target):
    programs = []

    def observe(program: Program) -> None:
        check_program(program)
        programs.append(program)

    path = ROOT / "models" / "digits_cnn.onnx"
    model = compile(path, target, threads=1, observe=observe, hooks=[Check()])
    type = import_onnx(path).params[0].tensor
    shape = [d if isinstance(d, int) else 2 for d in type.dims]
    model.run([np.zeros(shape, type.dtype.np)])
    assert programs
