"""A driver whose GPU is the host simulator: device memory is memory of the host.

Its machine code is the CUDA C itself. What is captured runs, when it is replayed, in an order drawn
at random from those that streams and events allow, so that a missing dependency shows. `counts`
says how often each thing was asked for; `broken` names a kernel that fails.
"""

from __future__ import annotations

import ctypes
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.backends.cuda.hosted import POISON
from graphc.backends.cuda.machines import STATIC_SHARED
from graphc.backends.cuda.runtime import Driver, DriverError
from graphc.backends.cuda.simulator.build import library_of, mapped
from graphc.backends.cuda.simulator.translate import KERNEL, POINTER
from graphc.backends.cuda.tensor_maps import TensorMap

SIZES = {"float": 4, "double": 8, "bool": 1, "char": 1}


@dataclass
class Node:
    """Work given to a capturing stream, and what must come before it."""

    work: Callable[[], None]
    before: list[Node] = field(default_factory=list)


@dataclass
class FakeStream:
    number: int
    last: Node | None = None  # while capturing
    joined: list[Node] = field(default_factory=list)
    apart: bool = False


class FakeDriver(Driver):
    """One device; see above."""

    name = "fake"
    device = "simulator"
    arch = "sm_90"

    def __init__(self, seed: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.memory: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # contents, marks of writes
        self.broken = ""
        self.depth = 0
        self.nodes: list[Node] | None = None
        self.random = random.Random(seed)
        self.streams: list[FakeStream] = []
        self.limit = 1 << 40

    @contextmanager
    def current(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def did(self, what: str) -> None:
        assert self.depth, f"{what} without a context"
        self.counts[what] += 1

    def given(self, stream: FakeStream, work: Callable[[], None]) -> None:
        """Work is done at once, unless it is captured."""
        if self.nodes is None:
            work()
            return
        assert stream.apart, "a stream that others wait for takes part in a capture"
        node = Node(work, [*stream.joined, *([stream.last] if stream.last else [])])
        stream.last, stream.joined = node, []
        self.nodes.append(node)

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> int:
        self.did("allocate")
        if nbytes > self.limit:
            raise DriverError("cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)")
        size = max(nbytes, 1)
        block = np.full(size + 256, POISON, np.uint8)
        start = -block.ctypes.data % 256
        pointer = block.ctypes.data + start
        self.memory[pointer] = (block[start : start + size], np.zeros(size, np.uint8))
        return pointer

    def free(self, pointer: int) -> None:
        self.did("free")
        del self.memory[pointer]

    def pinned(self, nbytes: int) -> np.ndarray:
        self.did("pinned")
        return np.zeros(max(nbytes, 1), np.uint8)[:nbytes]

    def free_pinned(self, block: np.ndarray) -> None:
        self.did("free_pinned")

    def part(self, pointer: int, nbytes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The contents and marks from a pointer on."""
        for start, (contents, marks) in self.memory.items():
            offset = pointer - start
            if 0 <= offset < max(len(contents), 1):
                end = len(contents) if nbytes is None else offset + nbytes
                assert end <= len(contents), "a copy leaves its memory"
                return contents[offset:end], marks[offset:end]
        raise AssertionError(f"{pointer:#x} is no memory of this device")

    def upload(self, target: int, source: np.ndarray, stream: Any) -> None:
        self.did("upload")
        assert source.dtype == np.uint8 and source.flags.c_contiguous

        def work() -> None:
            contents, marks = self.part(target, source.nbytes)
            contents[:], marks[:] = source, 1

        self.given(stream, work)

    def download(self, target: np.ndarray, source: int, stream: Any) -> None:
        self.did("download")
        self.given(stream, lambda: self._read(target, source))

    def read(self, target: np.ndarray, source: int) -> None:
        self.did("read")
        self._read(target, source)

    def _read(self, target: np.ndarray, source: int) -> None:
        target[:] = self.part(source, target.nbytes)[0]

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self.did("copy")

        def work() -> None:
            (to, marks), (found, _) = self.part(target, nbytes), self.part(source, nbytes)
            to[:], marks[:] = found, 1

        self.given(stream, work)

    # ------------------------------------------------------------ code

    def load(self, image: bytes) -> Any:
        self.did("load")
        text = image.decode()
        types = {k["name"]: [p["type"] for p in POINTER.finditer(k["params"])]
                 for k in KERNEL.finditer(text)}  # fmt: skip
        return library_of(text), types

    def unload(self, module: Any) -> None:
        self.did("unload")

    def function(self, module: Any, name: str, shared: int) -> Any:
        library, types = module
        if name not in types:
            raise DriverError("cuModuleGetFunction: named symbol not found")
        entry = getattr(library, f"launch_{name}")
        entry.restype = ctypes.c_char_p
        return name, entry, types[name], shared

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        stream: Any,
        pointers: Sequence[int],
        maps: Sequence[Any] = (),
    ) -> None:
        self.did("launch")
        name, entry, types, allowed = function
        assert shared <= max(allowed, STATIC_SHARED), "more shared memory than was allowed"
        assert len(pointers) >= len(types) and grid[1:] == block[1:] == (1, 1)
        pointers, sizes = pointers[: len(types)], pointers[len(types) :]

        def work() -> None:
            if name == self.broken:
                raise DriverError("cuStreamSynchronize: an illegal memory access was encountered")
            count = max(len(pointers), 1)
            parts = [self.part(pointer) for pointer in pointers]
            data = (ctypes.c_void_p * count)(*pointers)
            counts = (ctypes.c_int64 * count)(
                *(len(contents) // element_bytes(type) for (contents, _), type in zip(parts, types))
            )
            marks = (ctypes.c_void_p * count)(*(m.ctypes.data for _, m in parts))
            given = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
            sizes_of_parts = [len(contents) for contents, _ in parts]
            tensors = mapped(maps, pointers, sizes_of_parts, [m.ctypes.data for _, m in parts])
            message = entry(data, counts, marks, grid[0], block[0], 0, shared, given, tensors)
            assert message is None, message

        self.given(stream, work)

    def tensor_map(self, entry: Any, address: int) -> Any:
        assert address % 16 == 0
        return TensorMap(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})

    # ------------------------------------------------------------ streams, events, graphs

    def stream(self, apart: bool = False) -> Any:
        self.did("stream")
        self.streams.append(FakeStream(self.counts["stream"], apart=apart))
        return self.streams[-1]

    def free_stream(self, stream: Any) -> None:
        self.did("free_stream")

    def number(self, stream: Any) -> int:
        return 1000 + stream.number

    def synchronize(self, stream: Any) -> None:
        self.did("synchronize")
        assert self.nodes is None, "a stream that captures cannot be waited for"

    def settle(self, handle: int) -> None:
        self.did("settle")

    def event(self, timed: bool = False) -> Any:
        self.did("event")
        return [None]

    def free_event(self, event: Any) -> None:
        self.did("free_event")

    def record(self, event: Any, stream: Any) -> None:
        event[0] = (stream.last, list(stream.joined))

    def wait(self, event: Any, stream: Any) -> None:
        assert event[0] is not None, "an event that was never recorded"
        last, joined = event[0]
        stream.joined += [*joined, *([last] if last else [])]

    def elapsed(self, start: Any, end: Any) -> float:
        return 0.5

    def begin_capture(self, stream: Any) -> None:
        self.did("capture")
        self.nodes = []
        for queue in self.streams:
            queue.last, queue.joined = None, []

    def end_capture(self, stream: Any) -> Any:
        nodes, self.nodes = self.nodes, None
        assert nodes is not None
        joined = _ancestors([*stream.joined, *([stream.last] if stream.last else [])])
        assert len(joined) == len(nodes), "work that is not joined to the stream captured"
        return nodes

    def replay(self, graph: Any, stream: Any) -> None:
        self.did("replay")
        done: set[int] = set()
        left = list(graph)
        while left:
            ready = [n for n in left if all(id(b) in done for b in n.before)]
            chosen = self.random.choice(ready)
            chosen.work()
            done.add(id(chosen))
            left.remove(chosen)

    def free_graph(self, graph: Any) -> None:
        self.did("free_graph")


def _ancestors(nodes: list[Node]) -> set[int]:
    ancestors: set[int] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if id(node) not in ancestors:
            ancestors.add(id(node))
            left += node.before
    return ancestors


def element_bytes(type: str) -> int:
    """Bytes of an element that a parameter points to."""
    plain = type.replace("const ", "")
    bits = re.search(r"int(\d+)_t", plain)
    return int(bits[1]) // 8 if bits else SIZES[plain]
