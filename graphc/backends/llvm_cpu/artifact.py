"""The compilation cache: images by the text of the graph they were compiled from.

The large constants of an image are an entry of their own, by their contents, so that
specialisations of one model to many shapes store its weights once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from graphc.backends.behind import behind, finish
from graphc.backends.block import Block, bytes_of
from graphc.backends.cache import DiskCache, cache_key, default_cache
from graphc.backends.llvm_cpu.container import Container, Place, pack
from graphc.backends.llvm_cpu.digest_sums import native_sums
from graphc.backends.llvm_cpu.image import Image, Kept
from graphc.backends.llvm_cpu.target import host_target
from graphc.errors import ModelError
from graphc.ir.alignment import ALIGNMENT

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program

SAMPLES = 64  # elements of a constant
SHARED_BYTES = 1 << 18  # of constants that the cache keeps apart: weights rather than tables


def cached_image(graph: Graph, options: str, make: Callable[[], Program]) -> Image:
    """The image of a typed graph: from the disk cache if an equal one was compiled before
    with the same options, by the same version, for this machine.

    Constants are hashed at once only if samples of them are those of an image that the cache has.
    Else that is done behind the first answer, as is writing the image.
    """
    from graphc.ir.text.printer import print_graph  # nothing is printed to load an image

    cache = default_cache()
    if cache is None:
        return _compiled(make)
    constants: list[np.ndarray] = []

    def number(array: np.ndarray) -> str:
        constants.append(array)
        return f"constant {len(constants) - 1}"

    parts = [print_graph(graph, named=number), options, host_target().key]
    fingerprint = cache_key("fingerprint of an image", *parts, *map(_sample, constants))
    finish(fingerprint)
    if cache.get(fingerprint) is not None:
        cached = kept_image(cache, _image_key(parts, constants))
        if cached is not None:
            return cached
    image = _compiled(make)

    def keep() -> None:
        key = _image_key(parts, constants)
        contents = pack({(): image}, {}, _kept(cache, image.constants))
        if cache.put(key, *contents) and cache.put(fingerprint, b""):
            image.kept.key = key

    behind(fingerprint, keep)
    return image


def _compiled(make: Callable[[], Program]) -> Image:
    from graphc.backends.llvm_cpu.codegen import compile_program

    return compile_program(make())


def _image_key(parts: Sequence[str], constants: Sequence[np.ndarray]) -> str:
    from graphc.ir.text.literals import digest

    return cache_key("image", *parts, *map(digest, constants))


def _sample(array: np.ndarray) -> bytes:
    """Some of an array's elements, few enough to be read in no time."""
    return repr(array.flat[:: -(-array.size // SAMPLES)].tolist()).encode()


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


def kept_image(cache: DiskCache, key: str) -> Image | None:
    """The image that the cache keeps under a key; None if it has none."""
    data = cache.get_mapped(key)
    if data is None:
        return None
    find = partial(cache.get_mapped, sums=native_sums)
    try:
        (image,) = Container(data, "cache entry", find).images().values()
    except (ModelError, ValueError):
        return None
    return replace(image, kept=Kept(key))
