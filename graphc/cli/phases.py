"""The graph of each phase in files: ONNX, and JSON for Model Explorer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from graphc.errors import UnsupportedError
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.types import Type
from graphc.report.gathered import Data

SHOWN = ("imported", "typed", "canonical", "laid_out", "fused")
EXPLORER = "phases.json"


def write_phases(args: argparse.Namespace, folder: Path) -> None:
    """Writes each phase to a folder."""
    from graphc.cli.emit import graph_at
    from graphc.cli.models import open_model
    from graphc.cli.options import settings, target_of
    from graphc.cli.output import note
    from graphc.files import atomic_folder, write_text
    from graphc.frontend.onnx_export import export_onnx

    target, model = target_of(args).detached(), open_model(args)
    model.close()
    with atomic_folder(folder) as temporary:
        graphs = []
        for number, phase in enumerate(SHOWN, 1):
            graph = graph_at(model, phase, target, settings(args, target))
            graphs.append({"id": f"{number} {phase}", "nodes": list(nodes(graph))})
            try:
                export_onnx(graph, temporary / f"{number}_{phase}.onnx")
            except UnsupportedError as error:
                note(f"warning: there is no {number}_{phase}.onnx: {error}")
        collection = {"label": args.model, "graphs": graphs}
        write_text(temporary / EXPLORER, json.dumps(collection, allow_nan=False))


def nodes(graph: Graph) -> Iterator[Data]:
    """The nodes of a graph as Model Explorer has them; what a fused op holds is in a namespace of
    its own. Constants are attributes of those that read them."""
    makers: dict[Value, tuple[str, str]] = {p: (f"input {p.name}", "0") for p in graph.params}
    for param in graph.params:
        yield _node(f"input {param.name}", "input", "inputs", [], [param.type])
    yield from _ops(graph.ops, makers, "", "op")
    for number, value in enumerate(graph.results):
        name = graph.output_names[number]
        yield _node(f"output {number}", name, "outputs", _edges([value], makers), [])


def _ops(
    ops: Iterable[Op], makers: dict[Value, tuple[str, str]], space: str, prefix: str
) -> Iterator[Data]:
    for number, op in enumerate(op for op in ops if op.name != "Constant"):
        own = f"{prefix}{number}"
        if op.name == "yield":
            continue
        if op.name == "fused":
            region = op.regions[0]
            makers.update({p: makers[v] for p, v in zip(region.params, op.inputs) if v in makers})
            inside = "/".join(filter(None, (space, f"fused {number}")))
            yield from _ops(region.ops, makers, inside, f"{own}.")
            makers.update({v: makers[r] for v, r in zip(op.outputs, region.results) if r in makers})
            continue
        yield _node(own, op.name, space or _space(op), _edges(op.inputs, makers),
                    [v.type for v in op.outputs], op)  # fmt: skip
        makers.update({v: (own, str(n)) for n, v in enumerate(op.outputs)})


def _space(op: Op) -> str:
    """The folder of a node's name: exporters name nodes by paths."""
    return op.loc[0].strip("/").rpartition("/")[0] if op.loc else ""


def _edges(
    values: Sequence[Value | None], makers: dict[Value, tuple[str, str]]
) -> list[dict[str, str]]:
    return [
        {"sourceNodeId": makers[v][0], "sourceNodeOutputId": makers[v][1],
         "targetNodeInputId": str(n)}
        for n, v in enumerate(values) if v in makers
    ]  # fmt: skip


def _node(
    own: str,
    label: str,
    space: str,
    edges: list[dict[str, str]],
    types: Sequence[Type | None],
    op: Op | None = None,
) -> Data:
    attributes = {} if op is None else {"layers": ", ".join(op.loc)}
    for number, value in enumerate(op.inputs if op else ()):
        if value is not None and value.constant is not None:
            attributes[f"operand {number}"] = f"constant {value.type}"
    return {
        "id": own, "label": label, "namespace": space, "incomingEdges": edges,
        "attrs": [{"key": key, "value": value} for key, value in attributes.items()],
        "outputsMetadata": [
            {"id": str(n), "attrs": [{"key": "type", "value": str(t)}]} for n, t in enumerate(types)
        ],
    }  # fmt: skip
