"""Tensor contents in files beside the model, read through memory maps.

A model may only read inside its own folder: a location is refused if it is absolute, climbs with
`..`, or leads out of the folder through a symbolic link. Offset and length are compared with the
file before anything is mapped.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from graphc.errors import ModelError
from graphc.files import note_file


class DataFolder:
    """The folder that a model's external data may lie in; None: such data cannot be read."""

    def __init__(self, folder: str | os.PathLike | None):
        self.folder = None if folder is None else Path(folder)
        self._maps: dict[Path, memoryview] = {}

    def read(self, tensor: TensorProto, need: int, where: str) -> memoryview:
        """The `need` bytes that hold the contents of a tensor."""
        fields = {entry.key: entry.value for entry in tensor.external_data}
        offset = _number(fields.get("offset", "0"), "offset", where)
        length = _number(fields.get("length", str(need)), "length", where)
        if length != need:
            raise ModelError(f"{where}: external data need {need} bytes, its length is {length}")
        if "location" not in fields:
            raise ModelError(f"{where}: external data have no location")
        data = self._map(self.resolve(fields["location"], where), where)
        if offset + need > len(data):
            raise ModelError(
                f"{where}: needs bytes {offset} to {offset + need} of {fields['location']!r}, "
                f"which has {len(data)}"
            )
        return data[offset : offset + need]

    def resolve(self, location: str, where: str) -> Path:
        """The file that a location names; ModelError if it is not inside the folder."""
        if self.folder is None:
            raise ModelError(f"{where}: external data {location!r} need a base_dir to lie in")
        path = PurePosixPath(location)
        windows = PureWindowsPath(location)
        absolute = path.is_absolute() or windows.drive or windows.root
        if absolute or ".." in path.parts or ".." in windows.parts or "\0" in location:
            raise ModelError(f"{where}: external data {location!r} lie outside the model's folder")
        folder = Path(os.path.realpath(self.folder))
        file = Path(os.path.realpath(folder / path))
        if not file.is_relative_to(folder):
            raise ModelError(
                f"{where}: external data {location!r} lead outside the model's folder by a link"
            )
        if not file.is_file():
            raise ModelError(f"{where}: external data file {location!r} is missing")
        return file

    def _map(self, path: Path, where: str) -> memoryview:
        if path not in self._maps:
            try:
                note_file(path)
                self._maps[path] = mapped(path)
            except OSError as error:
                raise ModelError(f"{where}: {path.name}: {error.strerror}") from error
        return self._maps[path]


def model_file(path: Path) -> memoryview:
    """The contents of a model's file; ModelError if it cannot be read."""
    try:
        if not path.is_file():
            missing = "a folder; a model is a file" if path.is_dir() else "there is no such file"
            raise ModelError(f"{path}: {missing}")
        return mapped(path)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error


def mapped(path: Path) -> memoryview:
    """The contents of a file, read as they are used."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _number(text: str, what: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ModelError(f"{where}: {what} of external data is {text!r}, not a byte count")
    return int(text)
