"""Arrays by name in files: .npz of numpy, or .safetensors of Hugging Face, which PyTorch and others
read by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from graphc.distribution import install
from graphc.errors import ModelError, UnsupportedError
from graphc.files import atomic, save_npz

SUFFIXES = (".npz", ".safetensors")


def save_state_dict(state: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Writes arrays by name, whole or not at all; the suffix of the path, .npz or .safetensors,
    says how. ModelError for another suffix, UnsupportedError without the package safetensors."""
    arrays = {name: np.asarray(array) for name, array in state.items()}
    if suffix_of(path) == ".npz":
        save_npz(path, arrays)
        return
    library = _safetensors()
    with atomic(path) as draft:
        ordered = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        shaped = {name: array.reshape(arrays[name].shape) for name, array in ordered.items()}
        library.save_file(shaped, draft)


def read_state_dict(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays that `save_state_dict`, or another program, wrote; ModelError if there is no such
    file, or something else in it."""
    file = Path(path)
    suffix = suffix_of(path)
    if not file.is_file():
        raise ModelError(f"{path}: there is no such file")
    try:
        if suffix == ".safetensors":
            return _safetensors().load_file(file)
        with np.load(file, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except UnsupportedError:
        raise
    except Exception as error:  # of damaged files: whatever the libraries raise
        raise ModelError(f"{path}: is no {suffix} file: {error}") from error


def suffix_of(path: str | os.PathLike) -> str:
    """The suffix of a file of arrays; ModelError for others."""
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ModelError(f"{path}: expected a name ending in {' or '.join(SUFFIXES)}")
    return suffix


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise UnsupportedError(
            f".safetensors files need the package safetensors ({install('train')}); .npz files "
            "need nothing"
        ) from error
    return safetensors.numpy
