"""Arrays whose memory begins where vectors are read and written fastest."""

from __future__ import annotations

import mmap
import sys

import numpy as np

ALIGNMENT = 64  # bytes, of constants and of memory that kernels work in


def empty_aligned(nbytes: int) -> np.ndarray:
    """Uninitialised bytes at a multiple of ALIGNMENT."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.__array_interface__["data"][0] % ALIGNMENT
    return block[start:][:nbytes]  # an empty slice begins where its operand does


LARGE = 1 << 20  # bytes that get pages of their own


def empty_to_fill(nbytes: int) -> np.ndarray:
    """As `empty_aligned`, of memory that is filled at once. The system is asked for large memory in
    one piece: page by page, as it is written, takes twice as long, and so does numpy's memory, for
    which the system looks for huge pages."""
    if nbytes < LARGE or not sys.platform.startswith("linux"):
        return empty_aligned(nbytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)
    except OSError:
        return empty_aligned(nbytes)  # whose error says what is wrong
