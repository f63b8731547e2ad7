"""Compiles a program's C text into a shared library and calls it through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from graphc.backends.c99.emit import emit
from graphc.backends.cfamily.calls import Call, pointers
from graphc.backends.cfamily.hostcc import shared_library
from graphc.errors import InternalError
from graphc.ir.alignment import empty_aligned
from graphc.ir.checks import judged
from graphc.ir.program import Program

FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra")

Runner = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def build(program: Program, flags: Sequence[str] = FLAGS) -> Runner:
    """A function from the inputs (numpy arrays, in order) to the list of outputs.

    UnsupportedError if there is no C compiler (`CC`, else gcc or cc), InternalError if it rejects
    the text, ModelError at a call whose inputs have other shapes or dtypes than the program.
    """
    library = ctypes.CDLL(str(shared_library({"model.c": emit(program)}, flags)))
    entry = library.run
    entry.argtypes = [ctypes.c_void_p] * (5 if program.all_sizes else 4)
    entry.restype = ctypes.c_int
    constants = [np.ascontiguousarray(array) for array in program.constants]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        call = Call(program, inputs, program.outputs)
        arena = empty_aligned(program.arena_bytes)
        given = [call.sizes] if call.sizes else []
        arrays = (pointers(call.inputs), pointers(call.outputs), arena.ctypes.data)
        status = entry(*arrays, pointers(constants), *given)
        if status:
            raise InternalError(f"{program.name} returned the status {status}")
        judged(program.checks, call.outputs)
        return call.results(program)

    return run
