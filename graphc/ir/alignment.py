"""Arrays whose memory begins where vectors are read and written fastest."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64  # bytes, of constants and of memory that kernels work in


def empty_aligned(nbytes: int) -> np.ndarray:
    """Uninitialised bytes at a multiple of ALIGNMENT."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.__array_interface__["data"][0] % ALIGNMENT
    return block[start:][:nbytes]  # an empty slice begins where its operand does
