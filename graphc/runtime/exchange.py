"""Arrays of other libraries as numpy's, of the same memory where that can be.

What numpy can read (`__array__`, `__array_interface__`, buffers, lists) it reads. Element types
that it lacks, such as PyTorch's bfloat16, come through DLPack: numpy takes the capsule with the
type renamed to unsigned integers as wide, and the result is viewed as what it was.

Format: dmlc.github.io/dlpack, versions 0 and 1.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from graphc.errors import ModelError

HOST = (1, 3)  # kinds of memory in DLPack that the host reads: its own, and what is pinned
UNSIGNED = 1
NARROW = {  # names in ml_dtypes of types that numpy lacks, by (code, bits)
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
# names of capsules, and where the element type is in what they hold: a code, bits and lanes
TYPE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}


def is_array(value: object) -> bool:
    """Whether a value is an array of some library, rather than a list of numbers or of arrays."""
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")


def as_numpy(value: Any, what: str) -> np.ndarray:
    """An array of numpy for anything that is one; ModelError says why `what` is not.

    Gradients are left behind.
    """
    try:
        if _is_elsewhere(value):
            raise ModelError(
                f"{what} is in a GPU's memory; this model runs on the host and takes arrays of "
                "numpy"
            )
        if getattr(value, "requires_grad", False) is True:
            value = value.detach()
        return _read(value)
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # libraries raise errors of any kind
        raise ModelError(f"{what} is no array: {error}") from error


def _is_elsewhere(value: object) -> bool:
    place = getattr(value, "__dlpack_device__", None)
    if place is not None:
        return int(place()[0]) not in HOST
    return hasattr(value, "__cuda_array_interface__")


def _read(value: object) -> np.ndarray:
    exported = hasattr(value, "__dlpack__")
    if exported and not hasattr(value, "__array__"):
        return _from_dlpack(value)
    try:
        return np.asarray(value)
    except TypeError:
        if not exported:
            raise
        return _from_dlpack(value)


def _from_dlpack(value: object) -> np.ndarray:
    renamed = _Renamed(value)
    array = np.from_dlpack(renamed)
    return array if renamed.dtype is None else array.view(renamed.dtype)


class _Renamed:
    """What another library exports, with a narrow type as integers; `dtype` is what it was."""

    def __init__(self, value: Any):
        self.value = value
        self.dtype: np.dtype | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.value.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.value.__dlpack__(**options)
        name = _name_of(capsule)
        if name in TYPE_AT:
            address = _pointer_of(capsule, name)
            code, bits = (ctypes.c_uint8 * 2).from_address(address + TYPE_AT[name])
            narrow = NARROW.get((code, bits))
            if narrow is not None:
                import ml_dtypes  # of no use to arrays that numpy reads

                self.dtype = np.dtype(getattr(ml_dtypes, narrow))
                ctypes.c_uint8.from_address(address + TYPE_AT[name]).value = UNSIGNED
        return capsule


_name_of = ctypes.pythonapi["PyCapsule_GetName"]  # by index: one that nobody else types
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer_of = ctypes.pythonapi["PyCapsule_GetPointer"]
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
