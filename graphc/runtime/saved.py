"""Compiled models in files: saved, and loaded without being compiled again.

What a file holds is said in backends/llvm_cpu/container.py. It is checked against its digests: what
describes it, and its code, when it is loaded; the weights of an image when it first runs, so that
loading reads no weights that are not needed, and only if the file changed since they were checked
(verified.py).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphc import __version__
from graphc.backends.llvm_cpu.container import Container, Shapes, pack, read_type
from graphc.backends.llvm_cpu.digest_sums import native_sums
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.memory import Scratch
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import default_threads, host_target
from graphc.errors import InternalError, ModelError, UnsupportedError
from graphc.files import open_regular, write_bytes
from graphc.ir.types import largest
from graphc.runtime.listing import FROM_FILE, ExecutableInfo
from graphc.runtime.runnable import Runnable, Spec
from graphc.runtime.verified import Marks

if TYPE_CHECKING:
    from graphc.ir.graph import Graph


Interface = dict[str, Any]
"""Inputs, outputs and symbols of a model, as JSON."""


class SavedModel(Runnable):
    """A model loaded from a file: runs for the shapes it was saved for, and for all those that its
    general program takes, if it has one."""

    def __init__(self, container: Container, marks: Marks, threads: int):
        try:
            super().__init__(*interface(container))
            scratch = Scratch()
            self._models = {
                shapes: NativeModel(image, threads, scratch)
                for shapes, image in container.images().items()
            }
        except InternalError as error:
            raise ModelError(f"{container.where}: {error}; compile the model again") from error
        self._general = [key for key, model in self._models.items() if model.image.sizes]
        self._container, self._marks = container, marks
        self._ready: dict[Shapes, NativeModel] = {}  # those whose weights are what was saved

    def executables(self) -> list[ExecutableInfo]:
        """What the file holds: the program for all shapes, if there is one, and exact ones."""
        infos = [loaded(shapes, model, FROM_FILE) for shapes, model in self._models.items()]
        return sorted(infos, key=lambda info: not info.is_general)

    def execute(self, values: Sequence[Any]) -> list[Any]:
        shapes = tuple([v.shape for v in values])
        model = self._ready.get(shapes) or self._check(shapes)
        return model(values)

    def _check(self, given: tuple[tuple[int, ...], ...]) -> NativeModel:
        """The model for these shapes, before its first run."""
        shapes: Shapes = given
        key = shapes
        if shapes not in self._models and self._general:
            takes = (dims for dims in self._general if self._models[dims].takes(given))
            key = next(takes, self._general[0])  # which says what it takes
        if key in self._ready:
            return self._ready[key]
        model = self._models.get(key)
        if model is None:
            known = ", ".join(str([list(s) for s in shapes]) for shapes in [*self._models][:8])
            known += ", ..." if len(self._models) > 8 else ""
            raise UnsupportedError(
                f"this file was saved for inputs of shapes {known}, found "
                f"{[list(s) for s in shapes]}; compile the model again for these"
            )
        if not self._marks.has(key):
            self._container.check(key, native_sums)
            self._marks.add(key)
        self._ready[key] = model
        return model


def loaded(shapes: tuple, model: NativeModel, why: str) -> ExecutableInfo:
    """What is told of an image that was compiled before, for inputs of some shapes."""
    bounds = {size.name: (size.lo, largest(size)) for size in model.image.sizes}
    return ExecutableInfo(dims(model) if bounds else shapes, model, why, bounds=bounds)


def interface(container: Container) -> tuple[list[Spec], list[Spec]]:
    """The inputs and outputs of a saved model; ModelError if what describes them is damaged."""
    with container.understood():
        inputs, outputs = read_interface(container.interface)
        counts = len(inputs), len(inputs), len(outputs)
        of_images = {
            (len(shapes), len(entry["inputs"]), len(entry["outputs"]) - bool(entry["checks"]))
            for shapes, entry in container.entries.items()
        }
        if of_images != {counts}:
            raise ValueError("its parts have other inputs and outputs than it")
    return inputs, outputs


def read_interface(declared: Interface) -> tuple[list[Spec], list[Spec]]:
    """What `described` tells."""

    symbols = declared["symbols"]
    inputs, outputs = (
        [
            Spec(str(name), None if text is None else read_type(text, symbols))
            for name, text in declared[side]
        ]
        for side in ("inputs", "outputs")
    )
    return inputs, outputs


def described(graph: Graph, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Interface:
    """The interface of a model, as files tell it."""
    from graphc.ir.text.printer import symbols_of

    return {
        "graphc": __version__,
        "model": graph.name,
        "symbols": {n: [s.lo, s.hi] for n, s in symbols_of(graph).items()},
        "inputs": [[s.name, None if s.type is None else str(s.type)] for s in inputs],
        "outputs": [[s.name, None if s.type is None else str(s.type)] for s in outputs],
    }


def save(
    path: str | os.PathLike,
    graph: Graph,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    executables: Sequence[ExecutableInfo],
) -> None:
    """Writes what a model has been compiled to, with the shapes it was compiled for.

    UnsupportedError if a part needs the host, or nothing is compiled. Beside a program for all
    shapes, what has such parts is left out instead.
    """
    images: dict[Shapes, Image] = {}
    made = [info for info in executables if info.run is not None]
    for info in made:
        if isinstance(info.run, NativeModel) and info.run.image.sizes and not info.contents:
            images[dims(info.run)] = info.run.image
    general = bool(images)
    for info in made:
        if isinstance(info.run, NativeModel) and has_shapes(info):
            images[info.shapes] = info.run.image
        elif not general:
            raise _refused(info.run)
    if not images:
        raise UnsupportedError(
            "nothing is compiled yet: fix the shapes of the inputs, or run the model first"
        )
    write_bytes(path, *pack(images, described(graph, inputs, outputs)))


def _refused(executable: object) -> UnsupportedError:
    """Why something that a model was compiled to cannot be saved."""
    if isinstance(executable, NativeModel):
        return UnsupportedError(
            "the model depends on the contents of its inputs: bind them (values=, --set)"
        )
    return UnsupportedError(
        "only models for the CPU without parts on the host can be saved (for a GPU: "
        "graphc compile --target cuda -o FOLDER)"
    )


def has_shapes(info: ExecutableInfo) -> bool:
    """Whether something was compiled for shapes of tensors, and nothing of their contents."""
    return not info.contents and all(
        isinstance(s, tuple) and all(isinstance(d, int) for d in s) for s in info.shapes
    )


def dims(general: NativeModel) -> Shapes:
    """The dims of the inputs of a program for all sizes."""
    return tuple(
        tuple(dim if isinstance(dim, int) else str(dim) for dim in type.dims)
        for _, type in general.image.inputs
    )


def load(path: str | os.PathLike, threads: int | None = None) -> SavedModel:
    """A model that `save` wrote. ModelError if it is damaged or for another machine."""
    container, marks = _open(path)
    if container.target != host_target().key:
        raise ModelError(
            f"{path} was compiled for another machine ({container.target}); this one is "
            f"{host_target().key}: compile the model here"
        )
    return SavedModel(container, marks, threads or default_threads())


def open_container(path: str | os.PathLike) -> Container:
    """A file that `save` wrote, mapped: nothing of it is loaded. ModelError if it is damaged."""
    return _open(path)[0]


def _open(path: str | os.PathLike) -> tuple[Container, Marks]:
    try:
        with open(open_regular(path), "rb") as file:
            marks = Marks(file.fileno())
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelError(f"{path}: cannot be read: {why}") from error
    return Container(data, str(path)), marks
