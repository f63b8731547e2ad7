"""What a model holds on a GPU, given back together when the model is dropped."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np

from .driver import Driver, DriverError

ALIGNMENT = 256  # of arrays that share a block


class Memory:
    """Device memory, pinned memory, modules, streams, events and graphs of one model."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self.pointers: set[int] = set()
        self.blocks: list[np.ndarray] = []
        self.modules: list[object] = []
        self.graphs: list[object] = []
        self.streams: list[object] = []
        self.events: list[object] = []

    def allocate(self, nbytes: int) -> int:
        """Device memory; DriverError says how much was asked for."""
        try:
            pointer = self.driver.allocate(nbytes)
        except DriverError as error:
            raise DriverError(f"{nbytes} bytes of device memory: {error}") from error
        self.pointers.add(pointer)
        return pointer

    def free(self, pointer: int) -> None:
        """Gives back what `allocate` gave, unless that is done already."""
        if pointer in self.pointers:
            self.pointers.remove(pointer)
            with self.driver.current():
                self.driver.free(pointer)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Page-locked memory of the host."""
        self.blocks.append(self.driver.pinned(nbytes))
        return self.blocks[-1]

    def module(self, image: bytes) -> object:
        """A loaded module."""
        self.modules.append(self.driver.load(image))
        return self.modules[-1]

    def stream(self, apart: bool = False) -> object:
        """A stream, as the driver makes it."""
        self.streams.append(self.driver.stream(apart))
        return self.streams[-1]

    def event(self, timed: bool = False) -> object:
        """A mark, as the driver makes it."""
        self.events.append(self.driver.event(timed))
        return self.events[-1]

    def graph(self, graph: object) -> object:
        """Keeps a graph."""
        self.graphs.append(graph)
        return graph

    def free_graph(self, graph: object) -> None:
        """Gives back a graph that was kept."""
        self.graphs.remove(graph)
        self.driver.free_graph(graph)

    def close(self) -> None:
        """Gives everything back. After a failure of the GPU nothing can be; that is no error."""
        with contextlib.suppress(DriverError), self.driver.current():
            for graph in self.graphs:
                self.driver.free_graph(graph)
            for pointer in self.pointers:
                self.driver.free(pointer)
            for block in self.blocks:
                self.driver.free_pinned(block)
            for event in self.events:
                self.driver.free_event(event)
            for stream in self.streams:
                self.driver.free_stream(stream)
            for module in self.modules:
                self.driver.unload(module)
        self.pointers.clear()


class Block:
    """Arrays side by side in one block of device memory, and in one of pinned memory, so that one
    copy moves all of them: at first arrays of these types, later others that take no more room.
    `views` are the arrays in pinned memory, `used` the part of it that they take, `pointers` on the
    device."""

    def __init__(self, memory: Memory, types: Sequence[tuple[tuple[int, ...], np.dtype]]):
        room = _starts(types)[-1]
        self.pointer = memory.allocate(room)
        self.pinned = memory.pinned(room)
        self.arrange(types)

    def arrange(self, types: Sequence[tuple[tuple[int, ...], np.dtype]]) -> None:
        """Lays out arrays of these types."""
        starts = _starts(types)
        self.nbytes = starts[-1]
        self.used = self.pinned[: self.nbytes]
        self.pointers = tuple(self.pointer + start for start in starts[:-1])
        self.views = [
            self.pinned[start : start + _nbytes(shape, dtype)].view(dtype).reshape(shape)
            for start, (shape, dtype) in zip(starts, types)
        ]


def _nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _starts(types: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[int]:
    """Where each array starts, and where all of them end."""
    starts = [0]
    for shape, dtype in types:
        starts.append(starts[-1] + -(-_nbytes(shape, dtype) // ALIGNMENT) * ALIGNMENT)
    return starts
