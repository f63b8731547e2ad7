"""Compiled code in files: the format of saved models and of what the compilation cache keeps.

A file is one container of `Image`s, one per specialisation:

    8 bytes magic, u64 size of the header, header (JSON), then the parts, each at a multiple of 64

The header lists per image its types, the size of its arena, and where its code and constants lie.
Constants are not copied at loading: they are views of the mapped file. Everything in the header is
checked against the size of the file, and the code against its digest; but code is code: load only
files you trust.

In the compilation cache the large constants of an image are an entry of their own, by their
contents, so that what is compiled from one model for many shapes keeps its weights once.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphc.backends.block import Block, bytes_of
from graphc.backends.cache import DiskCache, cache_key, default_cache
from graphc.backends.llvm_cpu.memory import ALIGNMENT
from graphc.backends.llvm_cpu.runtime import Image, compile_program
from graphc.backends.llvm_cpu.target import host_target
from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.ir.text.printer import print_graph
from graphc.ir.text.type_parser import parse_type
from graphc.ir.types import TensorType

MAGIC = b"graphc\x00\x01"
_HEAD = struct.Struct("<8sQ")
SHARED_BYTES = 1 << 18  # of constants that the cache keeps apart: weights rather than tables
Shapes = tuple[tuple[int, ...], ...]
Place = tuple[str, int, int]
"""Where a constant is kept elsewhere: under which name, and there its offset and size."""


# ---------------------------------------------------------------- containers


def pack(
    images: Mapping[Shapes, Image],
    interface: Mapping[str, Any],
    elsewhere: Mapping[int, Place] | None = None,
) -> list[memoryview]:
    """The bytes of a container, in pieces. `interface` is kept as it is (JSON); constants that are
    kept elsewhere, by their `id`, are left out; those with equal contents are there once."""
    places = elsewhere or {}
    added: dict[bytes, list[int]] = {}
    block = Block(ALIGNMENT)

    def add_once(data: memoryview) -> list[int]:
        digest = hashlib.sha256(data).digest()
        if digest not in added:
            added[digest] = [block.add(data), data.nbytes]
        return added[digest]

    listed = [
        {
            "shapes": shapes,
            "name": image.name,
            "inputs": [[name, str(type)] for name, type in image.inputs],
            "outputs": [[name, str(type)] for name, type in image.outputs],
            "arena": image.arena_bytes,
            "code": [block.add(image.code), len(image.code)],
            "digest": hashlib.sha256(image.code).hexdigest(),
            "constants": [
                [
                    dtypes.of(c.dtype).name,
                    list(c.shape),
                    *(places.get(id(c)) or add_once(bytes_of(c))),
                ]
                for c in image.constants
            ],
        }
        for shapes, image in images.items()
    ]
    target = next(iter(images.values())).target_key
    header = json.dumps({"target": target, "interface": interface, "images": listed}).encode()
    front = Block(ALIGNMENT)
    front.add(_HEAD.pack(MAGIC, len(header)) + header)
    return front.parts + block.parts


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Container:
    """A container read from memory, which stays in use as long as its images do. `find` gives the
    bytes that are kept elsewhere under a name, or None."""

    def __init__(
        self,
        data: memoryview,
        where: str,
        find: Callable[[str], memoryview | None] = lambda name: None,
    ):
        self.data, self.where, self.find = data, where, find
        self.found: dict[str, memoryview] = {}
        try:
            magic, size = _HEAD.unpack_from(data)
            if magic != MAGIC:
                raise ModelError(f"{where} is not a compiled model")
            self.header = json.loads(bytes(data[_HEAD.size : _HEAD.size + size]))
            self.start = _aligned(_HEAD.size + size)
            self.target: str = self.header["target"]
            self.interface: dict = self.header["interface"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise self.damaged(error) from error

    def damaged(self, why: object) -> ModelError:
        return ModelError(f"{self.where} is damaged ({type(why).__name__}: {why})")

    def images(self) -> dict[Shapes, Image]:
        """The images by the shapes they were compiled for."""
        try:
            return {
                tuple(tuple(map(int, shape)) for shape in entry["shapes"]): self.image(entry)
                for entry in self.header["images"]
            }
        except ModelError:
            raise
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise self.damaged(error) from error

    def image(self, entry: dict) -> Image:
        code = bytes(self.part(*entry["code"]))
        if hashlib.sha256(code).hexdigest() != entry["digest"]:
            raise ModelError(f"{self.where} is damaged: its code is not what was saved")
        constants = tuple(self.constant(*c) for c in entry["constants"])
        inputs, outputs = (_interface(entry[key]) for key in ("inputs", "outputs"))
        return Image(
            str(entry["name"]), self.target, code, inputs, outputs, constants, int(entry["arena"])
        )

    def part(self, offset: int, size: int) -> memoryview:
        begin = self.start + int(offset)
        if offset < 0 or size < 0 or begin + size > self.data.nbytes:
            raise ModelError(f"{self.where} is damaged: a part lies outside the file")
        return self.data[begin : begin + size]

    def constant(self, dtype: str, shape: list[int], *place: Any) -> np.ndarray:
        """A constant: `place` is offset and size, after a name if it is kept elsewhere."""
        type, (*name, offset, size) = dtypes.of(dtype), place
        if min(shape, default=0) < 0 or math.prod(shape) * type.size != size:
            raise ModelError(f"{self.where} is damaged: a constant has the wrong size")
        data = self.kept(name[0])[offset : offset + size] if name else self.part(offset, size)
        return np.frombuffer(data, type.np).reshape(shape)

    def kept(self, name: str) -> memoryview:
        """What is kept elsewhere under a name."""
        if name not in self.found:
            data = self.find(name)
            if data is None:
                raise ModelError(f"{self.where} is damaged: {name} is missing")
            self.found[name] = data
        return self.found[name]


def _interface(entries: list) -> tuple[tuple[str, TensorType], ...]:
    found = []
    for name, text in entries:
        type = parse_type(text)
        if not isinstance(type, TensorType) or not type.is_static:
            raise ValueError(f"{text} is not a static tensor")
        found.append((str(name), type))
    return tuple(found)


# ---------------------------------------------------------------- the compilation cache


def cached_image(graph: Graph, options: str, make: Callable[[], Program]) -> Image:
    """The image of a typed static graph: from the disk cache if an equal one was compiled before
    with the same options, by the same version, for this machine."""
    cache = default_cache()
    key = cache_key("image", print_graph(graph), options, host_target().key)
    found = None if cache is None else _cached(cache, key)
    if found is not None:
        return found
    image = compile_program(make())
    if cache is not None:
        cache.put(key, *pack({(): image}, {}, _kept(cache, image.constants)))
    return image


def _kept(cache: DiskCache, constants: Sequence[np.ndarray]) -> dict[int, Place]:
    """Where the cache keeps large constants: in one entry, in the order of their digests."""
    large = [c for c in constants if c.nbytes >= SHARED_BYTES]
    digests = {id(c): hashlib.sha256(bytes_of(c)).hexdigest() for c in large}
    by_digest = {digests[id(c)]: bytes_of(c) for c in large}
    key = cache_key("constants", *sorted(by_digest))
    block = Block(ALIGNMENT)
    places = {
        digest: (key, block.add(data), data.nbytes) for digest, data in sorted(by_digest.items())
    }
    if not large or not (cache.holds(key, block.size) or cache.put(key, *block.parts)):
        return {}
    return {number: places[digest] for number, digest in digests.items()}


def _cached(cache: DiskCache, key: str) -> Image | None:
    data = cache.get_mapped(key)
    if data is None:
        return None
    try:
        (image,) = Container(data, "cache entry", cache.get_mapped).images().values()
    except (ModelError, ValueError):
        return None
    return image
