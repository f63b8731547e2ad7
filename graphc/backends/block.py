"""Constants one after another, as a file or a section holds them.

They are not copied together: weights are most of a model, and a second copy of them would be most
of the memory that it takes to write it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Block:
    """Pieces that start at multiples of `alignment`; `parts`, joined, are its `size` bytes."""

    def __init__(self, alignment: int):
        self.alignment = alignment
        self.parts: list[memoryview] = []
        self.size = 0

    def add(self, data: Any) -> int:
        """Appends a buffer; returns its offset."""
        view = memoryview(data).cast("B")
        offset = self.size
        padding = bytes(-view.nbytes % self.alignment)
        self.parts += [view, memoryview(padding)]
        self.size += view.nbytes + len(padding)
        return offset

    def add_array(self, array: np.ndarray) -> int:
        """Appends the elements of an array, row-major; returns their offset."""
        return self.add(bytes_of(array))


def bytes_of(array: np.ndarray) -> memoryview:
    """The elements of an array, row-major; a copy only if they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
