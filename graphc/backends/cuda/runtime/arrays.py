"""Arrays in the memory of a GPU, and their exchange with other libraries without copies.

`adopt` takes what offers `__cuda_array_interface__` (CuPy, Numba, PyCUDA, PyTorch, JAX) or DLPack
(whose capsule says what the first cannot, such as bfloat16). A `DeviceArray` offers both. All of
them are made safe for the legacy default stream, with which a model's streams are in order.

Formats: numba.readthedocs.io, "CUDA Array Interface (Version 3)"; dmlc.github.io/dlpack, version 0.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .driver import Driver

LEGACY_STREAM = 1  # what both formats call the legacy default stream
CUDA, CUDA_MANAGED = 2, 13  # kinds of memory in DLPack
KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of elements in DLPack, by numpy's
BFLOAT = 4


def element_type(name: str) -> np.dtype:
    """The dtype that numpy or ml_dtypes calls by this name.

    Without ml_dtypes, its types are their bits: unsigned integers of the same width.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except ImportError:
        return np.dtype(np.uint16 if name == "bfloat16" else np.uint8)


class DeviceArray:
    """A contiguous array at `pointer` in the memory of a GPU. `owner` keeps the memory alive;
    `release` is called when the array is dropped. `stream` is the number of a stream that must be
    done before the contents are read, None if they are in order with the legacy default stream."""

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        driver: Driver | None,
        owner: Any = None,
        release: Callable[[int], None] | None = None,
        stream: int | None = None,
    ):
        self.pointer, self.shape, self.dtype = pointer, tuple(shape), np.dtype(dtype)
        self.driver, self.owner, self.release, self.stream = driver, owner, release, stream

    def __del__(self) -> None:
        if self.release is not None:
            self.release(self.pointer)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype.name}{list(self.shape)} at {self.pointer:#x})"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def numpy(self) -> np.ndarray:
        """A copy in the memory of the host."""
        if self.driver is None:
            raise TypeError(
                "no model has taken this array yet, so that its device is not known: read it by "
                "the library it is from"
            )
        result = np.empty(self.shape, self.dtype)
        flat = result.reshape(-1).view(np.uint8)
        with self.driver.current():
            self.settle()
            self.driver.read(flat, self.pointer)
        return result

    def settle(self) -> None:
        """Waits until the contents are there."""
        if self.driver is not None and self.stream is not None:
            self.driver.settle(self.stream)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in the memory of a GPU cannot be read without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def tobytes(self) -> bytes:
        """The contents, from the device."""
        return self.numpy().tobytes()

    # ------------------------------------------------------------ exchange

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.isbuiltin != 1:
            raise AttributeError(f"{self.dtype.name} is not a type of numpy's; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": LEGACY_STREAM if self.stream is None else self.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0 if self.driver is None else self.driver.ordinal

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if stream not in (None, LEGACY_STREAM, -1) and self.driver is not None:
            with self.driver.current():
                self.settle()
        return _capsule(self)


def adopt(value: Any) -> DeviceArray | None:
    """The same memory as a DeviceArray; None if the value is not on a GPU.

    ValueError if it cannot be used as it is: because it is not contiguous, or differentiable.
    """
    if isinstance(value, DeviceArray):
        return value
    place = getattr(value, "__dlpack_device__", None)
    if place is not None and int(place()[0]) not in (CUDA, CUDA_MANAGED):
        return None
    try:
        interface = getattr(value, "__cuda_array_interface__", None)
    except (TypeError, RuntimeError) as error:  # PyTorch: a type it cannot name, a gradient
        interface = None
        if place is None or "grad" in str(error):
            raise ValueError(str(error)) from error
    if interface is not None:
        return _from_interface(interface, value)
    return None if place is None else _from_capsule(value.__dlpack__(stream=LEGACY_STREAM))


def _from_interface(interface: dict[str, Any], owner: Any) -> DeviceArray:
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    _check_contiguous(shape, interface.get("strides"), dtype.itemsize)
    stream = interface.get("stream")
    awaited = None if stream in (None, LEGACY_STREAM) else int(stream)
    return DeviceArray(int(interface["data"][0] or 0), shape, dtype, None, owner, stream=awaited)


def _check_contiguous(shape: tuple[int, ...], strides: Any, size: int) -> None:
    """ValueError unless strides (of `size` times their unit) are those of C's order."""
    if strides is None or 0 in shape:
        return
    step = size
    for extent, stride in zip(reversed(shape), reversed(tuple(strides))):
        if extent != 1 and stride != step:
            raise ValueError(
                "an array on a GPU must be contiguous, in C's order; hand on a copy that is"
            )
        step *= extent


# ---------------------------------------------------------------- DLPack


class _Tensor(ctypes.Structure):
    """DLManagedTensor: DLTensor, then the manager's own pointer, then what gives it back."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_python = ctypes.pythonapi  # by index: functions of our own, whose types nobody else sets
_new_capsule = _python["PyCapsule_New"]
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule_pointer = _python["PyCapsule_GetPointer"]
_capsule_pointer.restype = ctypes.c_void_p
_capsule_is_valid = _python["PyCapsule_IsValid"]

_exported: dict[int, Any] = {}  # what others hold of ours, by the address of its _Tensor
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@_Deleter
def _delete(address: int) -> None:
    _exported.pop(address, None)


@_Destructor
def _destroy(capsule: int) -> None:
    """A capsule nobody has taken (takers rename it) gives back what it holds."""
    reference = ctypes.c_void_p(capsule)
    if _capsule_is_valid(reference, ctypes.c_char_p(b"dltensor")):
        _exported.pop(_capsule_pointer(reference, ctypes.c_char_p(b"dltensor")), None)


def _capsule(array: DeviceArray) -> Any:
    """A DLPack capsule that holds the array until it is deleted."""
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    bfloat = array.dtype.name == "bfloat16"
    tensor = _Tensor(
        array.pointer, *array.__dlpack_device__(), array.ndim,
        BFLOAT if bfloat else KINDS[array.dtype.kind], array.dtype.itemsize * 8, 1,
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), None, 0,
        None, ctypes.cast(_delete, ctypes.c_void_p),
    )  # fmt: skip
    address = ctypes.addressof(tensor)
    _exported[address] = (tensor, shape, array)
    return _new_capsule(address, b"dltensor", ctypes.cast(_destroy, ctypes.c_void_p))


def _from_capsule(capsule: Any) -> DeviceArray:
    """The array in a capsule, which is kept: when dropped, it gives the memory back."""
    address = _capsule_pointer(ctypes.py_object(capsule), ctypes.c_char_p(b"dltensor"))
    tensor = _Tensor.from_address(address)
    shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
    if tensor.strides:
        _check_contiguous(shape, tuple(tensor.strides[n] for n in range(tensor.ndim)), 1)
    if tensor.kind == BFLOAT:
        dtype = element_type("bfloat16")
    else:
        letters = {number: letter for letter, number in KINDS.items()}
        letter = letters[tensor.kind]
        dtype = np.dtype(bool if letter == "b" else f"{letter}{tensor.bits // 8}")
    return DeviceArray((tensor.data or 0) + tensor.byte_offset, shape, dtype, None, capsule)
