"""Maps of tensors in memory, of which kernels copy boxes by TMA (cp.async.bulk.tensor).

What the driver makes of a map is not documented, so the machine has a form of its own (bulk.h). The
rules are those of CUDA's driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from graphc.backends.cuda.ptx.text import PtxError

BYTES = 128
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # bytes of a line: as descriptors of wgmma have it
MOST_BOX = 256


@dataclass(frozen=True)
class TensorMap:
    """A tensor that starts at an offset of a kernel's buffer (its number): bytes of an element,
    extents with the innermost first, bytes from one to the next of every further one, the box that
    is copied at once, and the bytes of the lines in which chunks are swizzled (0: none)."""

    buffer: int
    element: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    offset: int = 0


def packed(map: TensorMap, base: int, size: int) -> bytes:
    """A map as the machine reads it, of a buffer of `size` bytes at a base; PtxError for one that
    the driver would refuse."""
    why = _refused(map, base)
    if why:
        raise PtxError(f"a tensor map {why}: {map}")
    last = sum((d - 1) * s for d, s in zip(map.dims, (map.element, *map.strides))) + map.element
    if map.offset + last > size:
        raise PtxError(f"a tensor map reaches beyond its buffer of {size} bytes: {map}")
    fields = (*map.strides, *[0] * (4 - len(map.strides)))
    dims = (*map.dims, *[1] * (5 - len(map.dims)))
    box = (*map.box, *[1] * (5 - len(map.box)))
    made = struct.pack(
        "<5Q10I4s4B", base + map.offset, *fields, *dims, *box, b"TMAP", len(map.dims), map.element,
        SWIZZLES[map.swizzle], 0,
    )  # fmt: skip
    return made.ljust(BYTES, b"\0")


def _refused(map: TensorMap, base: int) -> str | None:
    rank, line = len(map.dims), map.box[0] * map.element
    if not 1 <= rank <= 5 or len(map.box) != rank or len(map.strides) != rank - 1:
        return "must have 1 to 5 extents, as many of the box, and one stride less"
    if map.element not in (1, 2, 4, 8):
        return "must have elements of 1, 2, 4 or 8 bytes"
    if (base + map.offset) % 16 or any(s % 16 or not 0 < s < 1 << 40 for s in map.strides):
        return "must start, and have strides, at multiples of 16 bytes"
    if any(not 0 < d <= 1 << 32 for d in map.dims) or any(not 0 < b <= MOST_BOX for b in map.box):
        return f"must have extents from 1 to 2^32, of the box to {MOST_BOX}"
    if map.swizzle not in SWIZZLES or line % 16 or (map.swizzle and line != map.swizzle):
        return "must have a box whose lines are as long as what is swizzled, and whole 16 bytes"
    return None
