"""What can run a model: graphc for a target, the interpreter, or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphc.cli.options import INTERPRETER
from graphc.cli.output import progress

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.runtime.compiled import CompiledModel
    from graphc.targets import Target
    from graphc.verify import Run


def compiled(model: Model, target: Target, **options: Any) -> CompiledModel:
    """The model compiled for a target, for what is pinned. `options` are Settings."""
    from graphc import driver

    with progress(f"compiling {model.path.name} for {target.name}"):
        return driver.compile(model.graph, target, **model.pins(), **options)


def contender(model: Model, name: str | Target, **options: Any) -> Run:
    """A function from feeds to outputs, of a target, `interpreter` or `onnxruntime`.

    Feeds are those of the pinned graph; values that are bound are added where they are inputs.
    """
    from graphc import verify

    if name == INTERPRETER:
        run = verify.interpreter(model.pinned(), options.get("max_iterations"))
        return _quietly(run, f"interpreting {model.path.name}")
    if name == "onnxruntime":
        source = model.graph if model.path.suffix == ".gir" else model.path
        with progress(f"loading {model.path.name} in ONNX Runtime"):
            reference = verify.onnxruntime(source, options.get("threads"))
        return lambda feeds: reference({**feeds, **model.values})
    assert not isinstance(name, str)
    return compiled(model, name, **options).run


def results(
    model: Model, name: str | Target, feeds: Mapping[str, Any], **options: Any
) -> list[Any]:
    """What a contender gives for feeds; says that it runs, where that may take long."""
    run = contender(model, name, **options)
    if not getattr(name, "simulate", False):
        return run(feeds)
    with progress(f"running {model.path.name} in the simulator"):
        return run(feeds)


def _quietly(run: Run, what: str) -> Run:
    def watched(feeds: Any) -> list[Any]:
        with progress(what):
            return run(feeds)

    return watched
