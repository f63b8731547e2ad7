"""Who computes the values that others are compared with: each from feeds to arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphc import verify
from graphc.driver import compile
from graphc.errors import UnsupportedError
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.observing import with_outputs

Values = Callable[[Mapping[str, Any]], dict[str, Any]]
MOST_BYTES = (1 << 31) - 1  # of a model in one piece


def by_onnxruntime(
    source: Path | Graph, graph: Graph, names: Sequence[str], threads: int | None
) -> Values:
    """The values of these names as ONNX Runtime computes them, node by node, without optimising:
    those of a file, or of a graph that is exported."""
    model, known = _with_outputs(source, graph, names)
    run = verify.onnxruntime(model, threads, optimised=False)
    return lambda feeds: dict(zip(known, run(feeds), strict=True))


def _with_outputs(
    path: Path | Graph, graph: Graph, names: Sequence[str]
) -> tuple[bytes, list[str]]:
    """A model with these values as outputs, but those that only graphc's graph has."""
    import onnx

    if not isinstance(path, Path):
        from graphc.frontend.onnx_export import export_onnx

        return export_onnx(with_outputs(graph, names)).SerializeToString(), list(names)
    model = onnx.load(path)
    made = {name for node in model.graph.node for name in node.output}
    known = [name for name in names if name in made]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in known)
    if model.ByteSize() > MOST_BYTES:
        raise UnsupportedError(
            f"{path}: has more than 2 GiB, which ONNX Runtime does not take from memory: compare "
            "with --against interpreter"
        )
    return model.SerializeToString(), known


def by_interpreter(graph: Graph, names: Sequence[str]) -> Values:
    """The values as graphc's reference interpreter computes them."""
    whole = with_outputs(graph, names)
    order = [param.name for param in whole.params]

    def values(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, interpret(whole, [feeds[n] for n in order]), strict=True))

    return values


def compiled(graph: Graph, names: Sequence[str], **options: Any) -> Values:
    """The values as graphc compiles them; `options` are those of `graphc.compile`."""
    model = compile(with_outputs(graph, names), **options)
    return lambda feeds: dict(zip(names, model.run(dict(feeds)), strict=True))
