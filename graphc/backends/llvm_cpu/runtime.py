"""Running a program on the host CPU: one native call per inference.

A `NativeModel` is an image linked into this process. Every call has a `_Frame` of its own, an array
of pointers that the native code reads (inputs, outputs, arena, constants, thread pool), so calls
from several threads may overlap; frames are reused, so a call allocates nothing but its outputs,
and of these large ones only where somebody still has those of the call before. Large arenas are
`Scratch`, which the images of one model (one for each shape) have in common. The GIL is released
while native code runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graphc.backends.cache import default_cache
from graphc.backends.llvm_cpu.constants import shared
from graphc.backends.llvm_cpu.emit_program import INVOKE, emit_program
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.jit import cached_object, load_object
from graphc.backends.llvm_cpu.memory import (
    LARGE,
    SHARED_ARENA,
    Scratch,
    address,
    aligned,
    empty_aligned,
)
from graphc.backends.llvm_cpu.pool import pool_symbols, shared_pool
from graphc.backends.llvm_cpu.target import HostTarget, host_target
from graphc.ir.dtypes import bf16
from graphc.ir.program import Program, judged
from graphc.ir.scalar.functions import IN_ORDER
from graphc.ir.scalar.narrow import BELOW_BYTES
from graphc.passes.kernel.prepare import prepare_kernel

LACKS = BELOW_BYTES | {bf16}  # types that few CPUs convert in hardware
PIPELINE = "light"  # of LLVM passes: vectors and tiles are explicit already


def llvm_text(program: Program, target: HostTarget | None = None) -> str:
    """The LLVM IR of a program."""
    prepared = {n: prepare_kernel(k, LACKS, IN_ORDER) for n, k in program.kernels.items()}
    return emit_program(replace(program, kernels=prepared), (target or host_target()).features)


def compile_program(program: Program, target: HostTarget | None = None) -> Image:
    """Machine code for a program; from the disk cache if equal code was compiled before."""
    target = target or host_target()
    code = cached_object(llvm_text(program, target), target, default_cache(), PIPELINE)
    return Image(
        program.name, target.key, code, tuple(program.inputs), tuple(program.outputs),
        tuple(aligned(c) for c in program.constants), program.arena_bytes,
        tuple(program.kernels), len(program.steps), program.checks,
    )  # fmt: skip


class NativeModel:
    """An image that can be called. Calls may overlap: each has an arena of its own, a large one
    from `scratch`."""

    def __init__(self, image: Image, threads: int, scratch: Scratch | None = None):
        image = replace(image, constants=tuple(map(shared, image.constants)))
        self.image, self.threads = image, threads
        library = load_object(image.code, [INVOKE], pool_symbols())
        self._invoke = library.function(INVOKE, None, ctypes.c_void_p)
        self._pool = shared_pool(threads)
        self._constants = (ctypes.c_void_p * max(len(image.constants), 1))(
            *map(address, image.constants)
        )
        self._outputs = [(t.static_shape, t.dtype.np) for _, t in image.outputs]
        sizes = [t.size * t.dtype.size for _, t in image.outputs]
        is_large = image.arena_bytes >= SHARED_ARENA or max(sizes, default=0) >= LARGE
        self._scratch = (scratch or Scratch()) if is_large else None
        self._frames: list[_Frame] = []

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        frames, scratch, piece = self._frames, self._scratch, None
        try:
            frame = frames.pop()
        except IndexError:
            frame = _Frame(self.image, ctypes.addressof(self._constants), scratch is None)
        cells, cell = frame.cells, _FIRST
        held = []
        for array in inputs:
            flags = array.flags
            if type(array) is not np.ndarray or not (flags.c_contiguous and flags.aligned):
                array = np.array(array, order="C")
                held.append(array)  # until the call is over
            cells[cell] = address(array)
            cell += 1
        if scratch is None:
            outputs = [np.empty(shape, dtype) for shape, dtype in self._outputs]
        else:
            piece = scratch.take(self.image.arena_bytes)
            cells[_ARENA] = address(piece.arena)
            outputs = piece.outputs(self._outputs)
        for array in outputs:
            cells[cell] = address(array)
            cell += 1
        cells[_POOL] = self._pool.handle
        self._invoke(frame.address)
        frames.append(frame)
        if scratch is not None and piece is not None:
            scratch.give(piece)
        return judged(self.image.checks, outputs)


_INPUTS, _OUTPUTS, _ARENA, _CONSTANTS, _POOL, _FIRST = range(6)


class _Frame:
    """What one call at a time needs: the cells that INVOKE reads, then the pointers to inputs and
    outputs that the first two of them point to; and an arena, unless calls are given one."""

    def __init__(self, image: Image, constants: int, has_arena: bool):
        inputs, outputs = len(image.inputs), len(image.outputs)
        self.cells = (ctypes.c_void_p * (_FIRST + inputs + outputs))()
        self.address = ctypes.addressof(self.cells)
        self.arena = empty_aligned(image.arena_bytes if has_arena else 0)
        pointer = ctypes.sizeof(ctypes.c_void_p)
        self.cells[_INPUTS] = self.address + _FIRST * pointer
        self.cells[_OUTPUTS] = self.address + (_FIRST + inputs) * pointer
        self.cells[_ARENA] = address(self.arena)
        self.cells[_CONSTANTS] = constants
