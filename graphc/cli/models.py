"""Models as the command line names them: a file, what pins its shapes, and contents of inputs."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.cli.options import pair
from graphc.cli.output import note, progress
from graphc.errors import ModelError, did_you_mean
from graphc.files import NATIVE
from graphc.ir.types import OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from graphc.ir.graph import Graph

CONSTANTS = ".npz"  # added to the name of a graph in text: the constants it names by digest


@dataclass
class Model:
    """A model, and what the user pinned. `graph` is as imported; `shapes`, `dims` and `values` are
    arguments of graphc.compile; `given` holds contents of inputs read from files. `derived` are the
    options by which the graph was made of the file's, if it is another."""

    path: Path
    graph: Graph
    shapes: dict[str, tuple[int, ...]]
    dims: dict[str, Any]
    values: dict[str, np.ndarray]
    given: dict[str, Any] = field(default_factory=dict)
    derived: tuple[str, ...] = ()

    @property
    def is_onnx(self) -> bool:
        """Whether the file is one that ONNX Runtime reads, and holds the graph."""
        return not self.derived and self.path.suffix.lower() not in (".gir", ".tflite")

    @property
    def source(self) -> Path | Graph:
        """What ONNX Runtime is given: the file, or the graph, which is exported."""
        return self.path if self.is_onnx else self.graph

    def read_inputs(self, texts: Sequence[str]) -> None:
        """Takes the contents of inputs from files: NAME=FILE.npy, or FILE.npz."""
        types = {p.name: p.type for p in self.graph.params}
        for text in texts:
            self.given.update(_read_input(text, types))

    def pins(self) -> dict[str, Any]:
        """Keyword arguments for graphc.compile."""
        shapes = {n: np.shape(v) for n, v in self.given.items() if isinstance(v, np.ndarray)}
        return {"shapes": {**shapes, **self.shapes}, "dims": self.dims, "values": self.values}

    def pin_options(self) -> list[str]:
        """What is pinned, as options of the command line; contents by their digest."""
        texts = [f"--shape {n}={','.join(map(str, s))}" for n, s in sorted(self.shapes.items())]
        for name, size in sorted(self.dims.items()):
            extent = "..".join(map(str, size)) if isinstance(size, tuple) else size
            texts.append(f"--dim {name}={extent}")
        for name, array in sorted(self.values.items()):
            digest = hashlib.sha256(repr(array.tolist()).encode()).hexdigest()
            texts.append(f"--set {name}=sha256:{digest[:16]}")
        return [*self.derived, *texts]

    def pinned(self) -> Graph:
        """The graph with everything pinned."""
        from graphc.passes.specialise import pin

        return pin(self.graph, **self.pins())

    def check_sizes(self) -> None:
        """ModelError names the dimensions that have no size, where times depend on them."""
        missing = list(self.pinned().symbols)
        if missing:
            example = " ".join(f"--dim {name}=8" for name in missing)
            raise ModelError(
                f"{self.path}: dimension {' and '.join(missing)} is open, and times depend on it: "
                f"give the size that the model is used with, as {example}, or contents with --input"
            )

    def close(self) -> Graph:
        """As `pinned`; dimensions that are left open take the least extent, which is noted."""
        from graphc.runtime.feeds import open_dims

        graph = self.pinned()
        missing = open_dims(graph)
        if missing:
            self.dims = {**self.dims, **missing}
            chosen = " ".join(f"--dim {name}={extent}" for name, extent in missing.items())
            note(
                f"taking {chosen} (not given): what follows is for such sizes; give those that the "
                "model is used with"
            )
            graph = self.pinned()
        return graph

    def feeds(self, seed: int) -> dict[str, Any]:
        """Contents for all inputs of the closed graph, random where none are given."""
        from graphc.runtime.feeds import random_feeds

        pinned = self.shapes or self.dims or self.values or self.given or self.graph.symbols
        graph = self.close() if pinned else self.graph  # nothing to do, and no passes to load
        unknown = [name for name in self.given if name not in {p.name for p in graph.params}]
        if unknown:
            names = [p.name for p in graph.params]
            near = did_you_mean(unknown[0], names)
            raise ModelError(f"there is no input {unknown[0]!r}; the inputs are {names}{near}")
        return random_feeds(graph, seed, self.given)


def open_model(args: argparse.Namespace) -> Model:
    """The model that the arguments name, with the contents of inputs that they give."""
    path = Path(args.model)
    with progress(f"reading {path.name}"):
        graph = read_graph(path)
    types = {p.name: p.type for p in graph.params}
    values = {}
    for name, text in once("--set", args.set).items():
        if name not in types:
            raise _no_input("--set", name, types)
        values[name] = constant(name, text, types[name])
    shapes, dims = once("--shape", args.shape), once("--dim", args.dim)
    model = Model(path, graph, shapes, dims, values)
    model.read_inputs(getattr(args, "input", []))
    return model


def _no_input(option: str, name: str, types: Mapping[str, Type | None]) -> ModelError:
    near = did_you_mean(name, types)
    return ModelError(
        f"{option} {name}: there is no such input; the inputs are {list(types)}{near}"
    )


def once(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What an option says by name; ModelError if it says two things of one name."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if values.setdefault(name, value) != value:
            raise ModelError(f"{option} {name}: is both {values[name]} and {value}")
    return values


def read_graph(path: Path) -> Graph:
    """The graph of a model, or of a file of graphc's own text."""
    if path.suffix == ".gcm":
        raise ModelError(f"{path}: is compiled already; graphc run and inspect take it")
    if path.suffix in NATIVE:
        raise ModelError(f"{path}: is native code, for programs in C; graphc run takes a .gcm")
    if path.suffix != ".gir":
        from graphc.frontend.models import import_model

        return import_model(path)
    from graphc.ir.text.parser import parse_graph

    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    try:
        text = path.read_text()
        if text.startswith("program"):
            raise ModelError("a planned program: graphc compile --start-from planned goes on there")
        return parse_graph(text, constants_of(path))
    except (ModelError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error


def constants_of(path: Path) -> dict[str, np.ndarray] | None:
    """The constants that a text names by digest: they lie beside it."""
    beside = path.with_name(path.name + CONSTANTS)
    return load_npz(beside) if beside.is_file() else None


# ---------------------------------------------------------------- values


def constant(name: str, text: str, type: Type | None) -> np.ndarray:
    """The contents that `--set` gives an input, as its type asks for."""
    if not isinstance(type, TensorType):
        raise ModelError(f"--set {name}: only tensors can be set, the input is {type}")
    value = load_npy(Path(text[1:])) if text.startswith("@") else _literal(text)
    dtype = np.dtype(object) if type.dtype.kind == "string" else type.dtype.np
    try:
        array = np.asarray(value)
        if array.dtype.kind == "f" and type.dtype.is_integer and (array % 1 != 0).any():
            raise ValueError("not integers")
        if (array.dtype.kind in "US") != (type.dtype.kind == "string"):
            raise TypeError("not text" if type.dtype.kind == "string" else "not numbers")
        array = np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"--set {name}={text}: cannot be {type}: {error}") from error
    if array.size == 1 and type.shape is not None and array.ndim != type.rank:
        array = array.reshape((1,) * type.rank)
    return array


def _literal(text: str) -> Any:
    """A number, list, boolean or quoted text; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_input(text: str, types: dict[str, Type | None]) -> dict[str, Any]:
    if text.endswith(".npz") and Path(text).is_file():
        return load_npz(Path(text))
    if "=" not in text:
        raise ModelError(f"--input {text}: expected NAME=FILE.npy, or a FILE.npz that exists")
    name, file = pair(text)
    if name not in types:
        raise _no_input("--input", name, types)
    type = types[name].element if isinstance(types[name], OptionalType) else types[name]  # type: ignore[union-attr]
    if isinstance(type, SequenceType):
        return {name: list(load_npz(Path(file)).values())}
    return {name: load_npy(Path(file), type)}


def load_npy(path: Path, type: Type | None = None) -> np.ndarray:
    """The array in a .npy file. Types that numpy stores as raw bytes are those of `type`."""
    with _reading(path, ".npy"):
        array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ModelError(f"{path}: is an archive of arrays (.npz); name one .npy file")
    wanted = type.dtype.np if isinstance(type, TensorType) else None
    if array.dtype.kind == "V" and wanted is not None and wanted.itemsize == array.dtype.itemsize:
        array = array.view(wanted)
    return array


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a .npz file, by name."""
    with _reading(path, ".npz"):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ModelError(f"{path}: holds one array; give it as NAME={path}")
        with loaded:
            return {name: loaded[name] for name in loaded.files}


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Errors tell the file."""
    try:
        with open(path, "rb") as file:
            if not file.read(6).startswith((b"\x93NUMPY", b"PK")):
                raise ModelError(f"{path}: is no {kind} file")
        yield
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of damaged files: whatever Python's own parsers raise
        raise ModelError(f"{path}: is no {kind} file: {error}") from error
