"""Running a program on the host CPU: one native call per inference.

A `NativeModel` is an image linked into this process. Every call has a `_Frame` of its own, an array
of pointers that the native code reads (inputs, outputs, arena, constants, thread pool), so calls
from several threads may overlap; frames are reused, so a call allocates nothing but its outputs,
and of these large ones only where somebody still has those of the call before. Outputs whose shape
data decides are made as large as they can get, and cut once the code has told their sizes
(counted.py). Large arenas are `Scratch`, which the images of one model (one for each shape) have in
common. The GIL is released while native code runs.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from graphc.backends.llvm_cpu.constants import shared
from graphc.backends.llvm_cpu.counted import Cut
from graphc.backends.llvm_cpu.image import INVOKE, Image, OpenShapes
from graphc.backends.llvm_cpu.memory import (
    LARGE,
    SHARED_ARENA,
    Scratch,
    address,
)
from graphc.backends.llvm_cpu.objects import load_object
from graphc.backends.llvm_cpu.pool import pool_symbols, shared_pool
from graphc.ir.alignment import empty_aligned
from graphc.ir.checks import judged
from graphc.runtime.runnable import Given


class NativeModel(OpenShapes):
    """An image that can be called. Calls may overlap: each has an arena of its own, a large one
    from `scratch`."""

    exports: ClassVar[tuple[str, ...]] = ()  # functions of the code beside INVOKE

    def __init__(self, image: Image, threads: int, scratch: Scratch | None = None):
        constants = tuple(map(shared, image.constants))
        own = sum(c.nbytes for c, known in zip(constants, image.constants) if c is known)
        self.nbytes = len(image.code) + own  # held by nothing that was there before
        image = replace(image, constants=constants)
        super().__init__(image)
        self.threads = threads
        self._library = load_object(image.code, [INVOKE, *self.exports], pool_symbols(threads))
        self._invoke = self._library.function(INVOKE, None, ctypes.c_void_p)
        self._pool = shared_pool(threads)
        self._constants = (ctypes.c_void_p * max(len(image.constants), 1))(
            *map(address, image.constants)
        )
        self._cut = Cut(image)
        self._shared = set(image.shared)
        sizes = [t.most_bytes for _, t in image.outputs]
        is_large = image.arena_bytes >= SHARED_ARENA or max(sizes, default=0) >= LARGE
        self._scratch = (scratch or Scratch()) if is_large else None
        self._frames: list[_Frame] = []

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        frames, scratch, piece = self._frames, self._scratch, None
        try:
            frame = frames.pop()
        except IndexError:
            frame = _Frame(self.image, ctypes.addressof(self._constants), scratch is None)
        cells, cell, shapes = frame.cells, frame.first, self._outputs
        if frame.first > _SIZES:
            sizes, shapes = self._at([array.shape for array in inputs])
            if self.image.counts:  # which this call alone writes
                sizes = type(sizes)(*sizes)
            cells[_SIZES] = ctypes.addressof(sizes)
        held = []
        for array in inputs:
            flags = array.flags
            if type(array) is not np.ndarray or not (flags.c_contiguous and flags.aligned):
                array = np.array(array, order="C")
                held.append(array)  # until the call is over
            cells[cell] = address(array)
            cell += 1
        placed = self._placed(inputs, shapes) if type(inputs) is Given else None
        missing = shapes if placed is None else [s for s, p in zip(shapes, placed) if p is None]
        if scratch is None:
            outputs = [np.empty(shape, dtype) for shape, dtype in missing]
        else:
            piece = scratch.take(self.image.arena_bytes)
            cells[_ARENA] = address(piece.arena)
            outputs = piece.outputs(missing)
        if placed is not None:
            rest = iter(outputs)
            outputs = [next(rest) if array is None else array for array in placed]
        for array in outputs:
            cells[cell] = address(array)
            cell += 1
        cells[_POOL] = self._pool.handle
        self._invoke(frame.address)
        frames.append(frame)
        if scratch is not None and piece is not None:
            scratch.give(piece)
        results = judged(self.image.checks, outputs)
        return self._cut(results, sizes) if self.image.counts else results

    def _placed(self, inputs: Given, shapes: list) -> list[np.ndarray | None]:
        """For each output the array that was given for it, unless code cannot write there: it must
        be apart from all inputs, or be the input in whose memory this output may lie."""
        spans = sorted((address(x), address(x) + x.nbytes, n) for n, x in enumerate(inputs))
        placed: list[np.ndarray | None] = [None] * len(shapes)
        if any(a[1] > b[0] for a, b in pairwise(spans)):
            return placed
        ends = [end for _, end, _ in spans]
        for number, (array, (shape, dtype)) in enumerate(zip(inputs.into, shapes)):
            if array is None or (array.shape, array.dtype) != (shape, dtype):
                continue
            begin, flags = address(array), array.flags
            over = spans[bisect_right(ends, begin) :][:2]
            near = [(start, n) for start, _, n in over if start < begin + array.nbytes]
            if flags.c_contiguous and flags.aligned:
                same = len(near) == 1 and near[0][0] == begin
                if not near or same and (number, near[0][1]) in self._shared:
                    placed[number] = array
        return placed


_INPUTS, _OUTPUTS, _ARENA, _CONSTANTS, _POOL, _SIZES = range(6)


class _Frame:
    """What one call at a time needs: the cells that INVOKE reads (the last is that of sizes, where
    there are any), then the pointers to inputs and outputs that the first two of them point to; and
    an arena, unless calls are given one."""

    def __init__(self, image: Image, constants: int, has_arena: bool):
        inputs, outputs = len(image.inputs), len(image.outputs)
        self.first = _SIZES + bool(image.sizes or image.counts)
        self.cells = (ctypes.c_void_p * (self.first + inputs + outputs))()
        self.address = ctypes.addressof(self.cells)
        self.arena = empty_aligned(image.arena_bytes if has_arena else 0)
        pointer = ctypes.sizeof(ctypes.c_void_p)
        self.cells[_INPUTS] = self.address + self.first * pointer
        self.cells[_OUTPUTS] = self.address + (self.first + inputs) * pointer
        self.cells[_ARENA] = address(self.arena)
        self.cells[_CONSTANTS] = constants
