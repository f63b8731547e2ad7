"""An ONNX backend of plain C99: a kernel per operator, loops as they are written, through gcc.

It shows that operators, kernel IR and planning are nobody's in particular. The module has the
interface of onnx.backend, so that tools which run the official suite take it as a backend.
"""

from __future__ import annotations

from typing import Any

from graphc.backend import CompiledRep
from graphc.backends.c99 import build
from graphc.driver import load_graph, program_for
from graphc.passes.native import natively
from graphc.runtime.compiled import CompiledModel


class PlainRep(CompiledRep):
    """A model whose static parts run as plain C."""

    def __init__(self, model: Any):
        graph = load_graph(model)
        self.model = CompiledModel(graph, lambda part: build(program_for(part, "plain")), natively)
        self.model.prepare()
        self.inputs = self.model.inputs


def supports_device(device: str) -> bool:
    return device == "CPU"


def is_compatible(model: Any, device: str = "CPU", **options: Any) -> bool:
    return supports_device(device)


def prepare(model: Any, device: str = "CPU", **options: Any) -> PlainRep:
    return PlainRep(model)
