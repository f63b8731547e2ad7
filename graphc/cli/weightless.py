"""Copies of models and arrays without what is in them: other numbers in place of weights and data.

Arrays of more than KEPT elements, in .npy and .npz files and anywhere in an ONNX model, are drawn
anew, evenly between their least and largest element, so that indices stay in range and variances
positive. Smaller ones stay: they decide shapes. So do names, types and shapes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphc.files import save_npz

KEPT = 8  # elements of an array that stays as it is
KINDS = (".onnx", ".npy", ".npz")


def copy(path: Path, target: Path) -> None:
    """Writes a copy of a file of one of KINDS; any error if it cannot be read as that."""
    if path.suffix == ".onnx":
        target.write_bytes(_model(path))
        return
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        with target.open("wb") as file:
            np.save(file, drawn(loaded, "array"), allow_pickle=False)
        return
    with loaded:
        save_npz(os.fspath(target), {name: drawn(loaded[name], name) for name in loaded.files})


def drawn(array: np.ndarray, name: str) -> np.ndarray:
    """An array of the same type and shape, drawn by its name."""
    rng, shape = np.random.default_rng(zlib.crc32(name.encode())), array.shape
    if array.size <= KEPT:
        return array
    if array.dtype.kind in "OSU":
        return np.array([f"text{n}" for n in range(array.size)]).reshape(shape).astype(array.dtype)
    if np.iscomplexobj(array):
        parts = drawn(array.real, f"{name}.real"), drawn(array.imag, f"{name}.imag")
        return (parts[0] + 1j * parts[1]).astype(array.dtype)
    if array.dtype.kind in "biu":
        low, high = int(array.min()), int(array.max())
        return rng.integers(low, high, shape, _wide(array.dtype), endpoint=True).astype(array.dtype)
    if array.dtype.kind == "V" and array.dtype.type is np.void:
        return np.zeros(shape, array.dtype)  # bytes that numpy has no type for
    numbers = array.astype(np.float64)
    known = numbers[np.isfinite(numbers)]
    least, most = (known.min(), known.max()) if known.size else (0.0, 1.0)
    return rng.uniform(least, most, shape).astype(array.dtype)


def _wide(dtype: np.dtype) -> Any:
    return np.uint64 if dtype.kind == "u" else np.int64


def _model(path: Path) -> bytes:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path, load_external_data=False)
    for part in list(_parts(model)):
        if isinstance(part, onnx.TensorProto) and np.prod(part.dims) > KEPT:
            array = drawn(numpy_helper.to_array(part), part.name)
            part.CopyFrom(numpy_helper.from_array(array, part.name))
        elif isinstance(part, onnx.AttributeProto) and len(part.floats) > KEPT:
            part.floats[:] = drawn(np.array(part.floats, np.float32), part.name).tolist()
        elif isinstance(part, onnx.AttributeProto) and len(part.strings) > KEPT:
            part.strings[:] = [b"text%d" % n for n in range(len(part.strings))]
    return model.SerializeToString()


def _parts(message: Any) -> Iterator[Any]:
    """All messages inside one, wherever they are."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                yield part
                yield from _parts(part)
