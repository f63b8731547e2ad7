"""Models with every dimension of their inputs opened, as a backend of onnx.backend.

    python tests/opened.py [--filter REGEX] [--jobs 2]     # the official cases, counted

Prints a JSON line for each case that is wrong, or is answered by an exact program, and why; then
how many are right, and how these are answered: by a program for all sizes ("open"), by one with
some sizes fixed ("partly"), by an exact one, or with no size to open ("static").

Each extent of an input becomes a symbol, the same one wherever the extent is the same, with bounds
that leave room around it. The model is compiled once, with `specialise="any"`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
from test_conformance import cases, compare, load

from graphc import backend
from graphc.errors import GraphcError, NeedsValue
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Value
from graphc.passes.specialise import needed_inputs, specialise

SMALLEST_BOUND = 8

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
    """The inputs on whose contents types depend: what is asked for first, and what is asked for
    once these hold ones."""
    kept: set[str] = set()
    while True:
        graph = import_onnx(model)
        contents = {
            p.name: np.ones(p.tensor.static_shape, p.tensor.dtype.np)
            for p in graph.params
            if p.name in kept
        }
        try:
            specialise(graph, None, contents)
        except NeedsValue as error:
            needs = [n for n in error.needs if isinstance(n.value, Value) and n.contents]
            found = {p.name for n in needs for p in needed_inputs(error.graph, n.value)}
            if not found <= kept:
                kept |= found
                continue
        except GraphcError:
            pass
        return kept


def prepare(model: onnx.ModelProto, device: str = "CPU", **options: Any) -> OpenRep:
    """Opens and compiles a model; as `graphc.backend.prepare`."""
    open_model, bounds = opened(model)
    options = {"specialise": "any", "dims": bounds, **options} if bounds else options
    return OpenRep(backend.prepare(open_model, device, **options), bounds)


class OpenRep:
    """A prepared model that tells what has answered."""

    def __init__(self, rep: backend.CompiledRep, bounds: Mapping[str, Any]):
        self.rep, self.bounds = rep, bounds

    def run(self, inputs: Any, **options: Any) -> list[object]:
        """As `graphc.backend.Rep.run`."""
        return self.rep.run(inputs, **options)

    def answered(self) -> dict[str, object]:
        """How a run was answered: by a program of open shape, of exact shape, and why."""
        if not self.bounds:
            return {"by": "static", "why": ""}
        tiers = self.rep.model._specialised
        if tiers._cache or not tiers.general:
            return {"by": "exact", "why": tiers.why}
        kept = set.intersection(*[set(made.graph.symbols) for made in tiers.general])
        fixed = sorted(set(self.bounds) - kept)
        return {"by": "partly" if fixed else "open", "why": tiers.why, "fixed": fixed}


def examined(name: str) -> dict[str, object]:
    """What came of one official case."""
    case = load(cases()[name])
    line: dict[str, object] = {"case": name, "right": True}
    try:
        rep = prepare(case.model)
        for inputs, wanted in case.data_sets:
            compare(wanted, list(rep.run(inputs)), case)
        line |= rep.answered()
    except Exception as error:
        line |= {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases that match")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    chosen = [name for name in cases() if re.search(args.filter, name)]
    count: Counter[str] = Counter()
    with ProcessPoolExecutor(args.jobs) as pool:
        for line in pool.map(examined, chosen, chunksize=8):
            how = str(line["by"]) if line["right"] else "wrong"
            count[how] += 1
            if how in ("wrong", "exact"):
                print(json.dumps(line), flush=True)
    print(json.dumps({"cases": len(chosen), "right": len(chosen) - count["wrong"], **count}))


if __name__ == "__main__":
    main()
