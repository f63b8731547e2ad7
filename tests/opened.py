"""Models with every dimension of their inputs opened, as a backend of onnx.backend.

    python conformance.py --backend tests.opened --device CPU

Each extent of an input becomes a symbol, the same one wherever the extent is the same, with bounds
that leave room around it. The model is compiled once, with `specialise="any"`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import onnx

from graphc import backend
from graphc.errors import GraphcError, NeedsValue
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Value
from graphc.passes.specialise import needed_inputs, specialise

SMALLEST_BOUND = 8
TALLY = "GRAPHC_OPEN_TALLY"  # a file to which each prepared model adds a line

is_compatible = backend.is_compatible
supports_device = backend.supports_device


def opened(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, tuple[int, int]]]:
    """A copy of a model whose inputs have open dims, and the bounds of these. Inputs whose contents
    decide a rank or a type keep their shapes, and so do extents of 1 (which broadcast) and 0."""
    kept = shape_inputs(model)
    model = onnx.ModelProto.FromString(model.SerializeToString())
    weights = {tensor.name for tensor in model.graph.initializer}
    bounds: dict[str, tuple[int, int]] = {}
    for value in model.graph.input:
        if value.name in weights or value.name in kept:
            continue
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                extent = dim.dim_value
                dim.dim_param = f"extent{extent}"
                bounds[dim.dim_param] = (1, max(2 * extent, SMALLEST_BOUND))
    if bounds:
        del model.graph.value_info[:]
        for value in model.graph.output:
            forget_extents(value.type)
    return model, bounds


def forget_extents(type: onnx.TypeProto) -> None:
    """Leaves the rank of a declared type alone."""
    if type.HasField("tensor_type"):
        for dim in type.tensor_type.shape.dim:
            dim.Clear()
    for nested in ("sequence_type", "optional_type"):
        if type.HasField(nested):
            forget_extents(getattr(type, nested).elem_type)


def shape_inputs(model: onnx.ModelProto) -> set[str]:
    """The inputs on whose contents types depend."""
    graph = import_onnx(model)
    try:
        specialise(graph)
    except NeedsValue as error:
        needs = [n for n in error.needs if isinstance(n.value, Value) and n.contents]
        return {p.name for n in needs for p in needed_inputs(error.graph, n.value)}
    except GraphcError:
        pass
    return set()


def prepare(model: onnx.ModelProto, device: str = "CPU", **options: Any) -> OpenRep:
    """Opens and compiles a model; as `graphc.backend.prepare`."""
    open_model, bounds = opened(model)
    options = {"specialise": "any", "dims": bounds, **options} if bounds else options
    return OpenRep(backend.prepare(open_model, device, **options), model.graph.name, bounds)


class OpenRep:
    """A prepared model that notes what has answered."""

    def __init__(self, rep: backend.CompiledRep, name: str, bounds: Mapping[str, Any]):
        self.rep, self.name, self.bounds = rep, name, bounds

    def run(self, inputs: Any, **options: Any) -> list[object]:
        """As `graphc.backend.Rep.run`."""
        results = self.rep.run(inputs, **options)
        if TALLY in os.environ:
            with open(os.environ[TALLY], "a") as lines:
                lines.write(json.dumps({"name": self.name, **self.answered()}) + "\n")
        return results

    def answered(self) -> dict[str, str]:
        """How a run was answered: by a program of open shape, of exact shape, and why."""
        if not self.bounds:
            return {"by": "static", "why": ""}
        tiers = self.rep.model._specialised
        if tiers._cache or not tiers.general:
            return {"by": "exact", "why": tiers.why}
        kept = set.intersection(*[set(made.graph.symbols) for made in tiers.general])
        fixed = sorted(set(self.bounds) - kept)
        return {"by": "partly" if fixed else "open", "why": tiers.why, "fixed": fixed}
