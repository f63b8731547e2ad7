"""Compiles a program's C text into a shared library and calls it through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.backends.c99.emit import emit
from graphc.backends.cfamily.hostcc import shared_library
from graphc.errors import ModelError
from graphc.ir.alignment import empty_aligned
from graphc.ir.checks import judged
from graphc.ir.program import Program
from graphc.ir.types import TensorType

FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra")

Runner = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def build(program: Program, flags: Sequence[str] = FLAGS) -> Runner:
    """A function from the inputs (numpy arrays, in order) to the list of outputs.

    UnsupportedError if there is no C compiler (`CC`, else gcc or cc), InternalError if it rejects
    the text, ModelError at a call whose inputs have other shapes or dtypes than the program.
    """
    library = ctypes.CDLL(str(shared_library({"model.c": emit(program)}, flags)))
    entry = library.run
    entry.argtypes = [ctypes.c_void_p] * 4
    entry.restype = ctypes.c_int
    constants = [np.ascontiguousarray(array) for array in program.constants]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = _checked(program, inputs)
        outputs = [np.empty(t.static_shape, t.dtype.np) for _, t in program.outputs]
        arena = empty_aligned(program.arena_bytes)
        entry(_pointers(arrays), _pointers(outputs), arena.ctypes.data, _pointers(constants))
        return judged(program.checks, outputs)

    return run


def _checked(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    if len(inputs) != len(program.inputs):
        raise ModelError(f"takes {len(program.inputs)} inputs, found {len(inputs)}")
    return [_check(name, type, array) for (name, type), array in zip(program.inputs, inputs)]


def _check(name: str, type: TensorType, array: np.ndarray) -> np.ndarray:
    if array.dtype != type.dtype.np or array.shape != type.static_shape:
        raise ModelError(f"input {name} takes {type}, found {array.dtype}{list(array.shape)}")
    return np.ascontiguousarray(array)


def _pointers(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
