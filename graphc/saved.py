"""Compiled models in files: saved, and loaded without being compiled again.

What a file holds is said in backends/llvm_cpu/artifact.py.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

from graphc.backends.llvm_cpu.artifact import Container, Shapes, pack
from graphc.backends.llvm_cpu.memory import Scratch
from graphc.backends.llvm_cpu.runtime import Image, NativeModel
from graphc.backends.llvm_cpu.target import default_threads, host_target
from graphc.errors import ModelError, UnsupportedError
from graphc.files import write_bytes
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph
from graphc.ir.text.printer import symbols_of
from graphc.ir.text.type_parser import parse_type
from graphc.plans import Executable
from graphc.runnable import Runnable, Spec


class SavedModel(Runnable):
    """A model loaded from a file: runs for the shapes it was saved for."""

    def __init__(self, container: Container, threads: int):
        interface = container.interface
        try:
            symbols = {n: Sym(n, lo, hi) for n, (lo, hi) in interface["symbols"].items()}
            inputs, outputs = (
                [Spec(n, None if t is None else parse_type(t, symbols)) for n, t in entries]
                for entries in (interface["inputs"], interface["outputs"])
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise container.damaged(error) from error
        super().__init__(inputs, outputs)
        scratch = Scratch()
        self._models = {
            shapes: NativeModel(image, threads, scratch)
            for shapes, image in container.images().items()
        }

    def execute(self, values: Sequence[Any]) -> list[Any]:
        shapes = tuple([v.shape for v in values])
        model = self._models.get(shapes)
        if model is None:
            known = ", ".join(str([list(s) for s in each]) for each in [*self._models][:8])
            known += ", ..." if len(self._models) > 8 else ""
            raise UnsupportedError(
                f"this file was saved for inputs of shapes {known}, found "
                f"{[list(s) for s in shapes]}; compile the model again for these"
            )
        return model(values)


def save(
    path: str | os.PathLike,
    graph: Graph,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    executables: Sequence[tuple[tuple, Executable]],
) -> None:
    """Writes what a model has been compiled to, with the shapes it was compiled for.

    UnsupportedError if a part needs the host, or nothing is compiled.
    """
    images: dict[Shapes, Image] = {}
    for shapes, executable in executables:
        if not isinstance(executable, NativeModel):
            raise UnsupportedError(
                "only models for the CPU without parts on the host can be saved (for a GPU: "
                "graphc compile --target cuda -o FOLDER)"
            )
        if len(shapes) != len(inputs) or not all(map(_is_shape, shapes)):
            raise UnsupportedError(
                "the model depends on the contents of its inputs: bind them (values=, --set)"
            )
        images[shapes] = executable.image
    if not images:
        raise UnsupportedError(
            "nothing is compiled yet: fix the shapes of the inputs, or run the model first"
        )
    interface = {
        "symbols": {n: [s.lo, s.hi] for n, s in symbols_of(graph).items()},
        "inputs": [[s.name, None if s.type is None else str(s.type)] for s in inputs],
        "outputs": [[s.name, None if s.type is None else str(s.type)] for s in outputs],
    }
    write_bytes(path, *pack(images, interface))


def _is_shape(key: Any) -> bool:
    return isinstance(key, tuple) and all(isinstance(d, int) for d in key)


def load(path: str | os.PathLike, threads: int | None = None) -> SavedModel:
    """A model that `save` wrote. ModelError if it is damaged or for another machine."""
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    container = Container(data, str(path))
    if container.target != host_target().key:
        raise ModelError(
            f"{path} was compiled for another machine ({container.target}); this one is "
            f"{host_target().key}: compile the model here"
        )
    return SavedModel(container, threads or default_threads())
