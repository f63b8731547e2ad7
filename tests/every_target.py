"""Runs a graph by the interpreter, on CPUs, as C and on GPUs (in the simulator), and compares."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np

from graphc.driver import compile
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret

TARGETS: dict[str, dict] = {"cpu": {}, "c": {}, "cuda": {"simulate": True}}
COMPILERS = {"c": "gcc", "cuda": "g++"}


def agree_everywhere(
    graph: Graph,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    tolerance: float = 1e-5,
    targets: Sequence[str] = tuple(TARGETS),
) -> None:
    """Asserts that the results of a typed graph are what is expected, up to a difference relative
    to the largest element, on every target whose compiler is at hand."""
    _same(interpret(graph, inputs), expected, tolerance, "interpreter")
    for target in targets:
        if target in COMPILERS and shutil.which(COMPILERS[target]) is None:
            continue
        model = compile(clone_graph(graph), target=target, **TARGETS[target])
        _same(model.run(list(inputs)), expected, tolerance, target)


def _same(found, expected, tolerance: float, what: str) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape, (what, got.shape, wanted.shape)
        largest = float(np.abs(wanted).max(initial=0)) if wanted.dtype.kind in "fc" else 0
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * largest, err_msg=what)
