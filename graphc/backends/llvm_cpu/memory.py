"""Memory that native code reads and writes: aligned arrays, their addresses, and what calls of one
model use in turn."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from graphc.ir.alignment import ALIGNMENT, empty_aligned, empty_to_fill


def aligned(array: np.ndarray) -> np.ndarray:
    """The array itself, or a copy of it, contiguous and at a multiple of ALIGNMENT."""
    if array.flags.c_contiguous and address(array) % ALIGNMENT == 0:
        return array
    copy = empty_to_fill(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


SHARED_ARENA = 1 << 18  # bytes; a smaller one costs less than looking for it
LARGE = 1 << 25  # bytes of an output from which on the system would have to clear all its pages
UNSHARED = 2  # references to an array that only one place has, while they are counted


class Scratch:
    """Memory that the images of one model use in turn: a piece for each call at a time."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []  # those that no call has

    def take(self, arena_bytes: int) -> _Piece:
        """A piece with an arena of at least so many bytes."""
        try:
            piece = self.pieces.pop()
        except IndexError:
            piece = _Piece()
        if piece.arena.nbytes < arena_bytes:
            piece.arena = empty_aligned(0)  # the old one goes before there is a new one
            piece.arena = empty_aligned(arena_bytes)
        return piece

    def give(self, piece: _Piece) -> None:
        """Takes back memory that the call no longer needs."""
        self.pieces.append(piece)


class _Piece:
    """An arena, and the memory of large outputs of the last call, by number."""

    def __init__(self) -> None:
        self.arena = empty_aligned(0)
        self.kept: dict[int, np.ndarray] = {}

    def outputs(self, types: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
        """Arrays for outputs; large ones in memory of the last call's, if nobody has them."""
        known, self.kept = self.kept, {}
        outputs = []
        for n, (shape, dtype) in enumerate(types):
            array = known.pop(n, None)
            is_free = array is not None and getrefcount(array) <= UNSHARED
            if array is None or not (is_free and array.shape == shape and array.dtype == dtype):
                array = np.empty(shape, dtype)
            if array.nbytes >= LARGE:
                self.kept[n] = array
                array = array.view()
            outputs.append(array)
        return outputs


_DATA = object.__basicsize__  # PyArrayObject: the head of every object, then `char *data`
_pointer_at = ctypes.c_void_p.from_address


def _address_by_layout(array: np.ndarray) -> int:
    """Where an array's elements are: numpy's C struct, read in a tenth of the time that
    `array.ctypes.data` takes."""
    return _pointer_at(id(array) + _DATA).value or 0


def _address_by_interface(array: np.ndarray) -> int:
    return array.ctypes.data


def _choose_address() -> Any:
    probe = np.arange(8)[3:]
    is_right = _address_by_layout(probe) == probe.ctypes.data
    return _address_by_layout if is_right else _address_by_interface


address = _choose_address()
