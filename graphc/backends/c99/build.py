"""Compiles a program's C text into a shared library and calls it through ctypes.

Libraries are kept by a hash of text and flags in a folder of this user's below the system's
temporary directory (or GRAPHC_C99_CACHE), written under another name and renamed, so that
concurrent builds do no harm.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from graphc.backends.c99.emit import emit
from graphc.errors import InternalError, ModelError, UnsupportedError
from graphc.ir.program import Program
from graphc.ir.types import TensorType

FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-shared", "-fPIC")
ALIGNMENT = 64

Runner = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def build(program: Program, flags: Sequence[str] = FLAGS) -> Runner:
    """A function from the inputs (numpy arrays, in order) to the list of outputs.

    UnsupportedError if there is no C compiler (`CC`, else gcc or cc), InternalError if it rejects
    the text, ModelError at a call whose inputs have other shapes or dtypes than the program.
    """
    library = ctypes.CDLL(str(compile_c(emit(program), flags)))
    entry = library.run
    entry.argtypes = [ctypes.c_void_p] * 4
    entry.restype = ctypes.c_int
    constants = [np.ascontiguousarray(array) for array in program.constants]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = _checked(program, inputs)
        outputs = [np.empty(t.static_shape, t.dtype.np) for _, t in program.outputs]
        arena = np.empty(program.arena_bytes + ALIGNMENT, np.uint8)
        start = arena.ctypes.data + -arena.ctypes.data % ALIGNMENT
        entry(_pointers(arrays), _pointers(outputs), start, _pointers(constants))
        return outputs

    return run


def compile_c(text: str, flags: Sequence[str] = FLAGS) -> Path:
    """The shared library of a C text, from the cache if it is there."""
    key = hashlib.sha256("\0".join([text, *flags]).encode()).hexdigest()[:32]
    folder = _cache_folder()
    library = folder / f"{key}.so"
    if library.exists():
        return library
    source = folder / f"{key}.c"
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
        temporary = Path(file.name)
    try:
        source.write_text(text)
        _compile(source, temporary, flags)
        os.replace(temporary, library)
    finally:
        temporary.unlink(missing_ok=True)
    return library


def _cache_folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"graphc-c99-{os.getuid()}"
    folder = Path(os.environ.get("GRAPHC_C99_CACHE") or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UnsupportedError(f"{folder} belongs to another user; set GRAPHC_C99_CACHE")
    return folder


def _compile(source: Path, target: Path, flags: Sequence[str]) -> None:
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "cc"]
    for compiler in compilers:
        command = [*compiler.split(), *flags, str(source), "-o", str(target), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if done.returncode:
            raise InternalError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")
        return
    raise UnsupportedError(f"no C compiler found (tried {', '.join(compilers)}); set CC")


def _checked(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    if len(inputs) != len(program.inputs):
        raise ModelError(f"takes {len(program.inputs)} inputs, found {len(inputs)}")
    return [_check(name, type, array) for (name, type), array in zip(program.inputs, inputs)]


def _check(name: str, type: TensorType, array: np.ndarray) -> np.ndarray:
    if array.dtype != type.dtype.np or array.shape != type.static_shape:
        raise ModelError(f"input {name} takes {type}, found {array.dtype}{list(array.shape)}")
    return np.ascontiguousarray(array)


def _pointers(arrays: Sequence[np.ndarray]):
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
