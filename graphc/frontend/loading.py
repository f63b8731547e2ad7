"""The ONNX message that a file, bytes or a caller gives. Faults in it are a ModelError."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from onnx import ModelProto

from graphc.errors import ModelError
from graphc.frontend.external_data import model_file
from graphc.frontend.wire import split

MAX_FILE = (1 << 31) - 1  # bytes of a protobuf message


class Loaded(NamedTuple):
    """A message, the folder that it lies in, and the contents of initializers that the message
    lacks, by their numbers."""

    model: ModelProto
    folder: str | None
    contents: Mapping[int, memoryview]


def load(source: Any) -> Loaded:
    """The message of a path, of bytes or that is one; ModelError."""
    if isinstance(source, ModelProto):
        return Loaded(_with_graph(source, "the model"), None, {})
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(memoryview(source).cast("B"), "the model")
    if not isinstance(source, (str, os.PathLike)):
        kind = type(source).__name__
        raise ModelError(f"a model is a path, bytes, a ModelProto or a graph, found {kind}")
    path = Path(os.fspath(source))
    data = model_file(path)
    if len(data) > MAX_FILE:
        raise ModelError(f"{path}: larger than 2 GiB, which a protobuf message cannot be")
    return _parse(data, str(path), str(path.parent))


def _parse(data: memoryview, what: str, folder: str | None = None) -> Loaded:
    model = ModelProto()
    text, contents = split(data)
    try:
        model.ParseFromString(text)  # type: ignore[arg-type]
    except DecodeError as error:
        raise ModelError(f"{what}: not an ONNX model, or one that is damaged: {error}") from error
    return Loaded(_with_graph(model, what), folder, contents)


def _with_graph(model: ModelProto, what: str) -> ModelProto:
    if not model.HasField("graph"):
        raise ModelError(f"{what}: not an ONNX model: it has no graph")
    return model
