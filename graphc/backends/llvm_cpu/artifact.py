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

from graphc.backends.block import Block, bytes_of
from graphc.backends.cache import DiskCache, cache_key, default_cache
from graphc.backends.llvm_cpu.container import Container, Place, pack
from graphc.backends.llvm_cpu.digest_sums import native_sums
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.target import host_target
from graphc.errors import ModelError
from graphc.ir.alignment import ALIGNMENT

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program

SHARED_BYTES = 1 << 18  # of constants that the cache keeps apart: weights rather than tables


def cached_image(graph: Graph, options: str, make: Callable[[], Program]) -> Image:
    """The image of a typed graph: from the disk cache if an equal one was compiled before
    with the same options, by the same version, for this machine."""
    from graphc.ir.text.printer import print_graph  # nothing is printed to load an image

    cache = default_cache()
    key = cache_key("image", print_graph(graph), options, host_target().key)
    cached = None if cache is None else kept_image(cache, key)
    if cached is not None:
        return cached
    from graphc.backends.llvm_cpu.codegen import compile_program

    image = compile_program(make())
    if cache is None:
        return image
    is_kept = cache.put(key, *pack({(): image}, {}, _kept(cache, image.constants)))
    return replace(image, entry=key) if is_kept else image


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
    return replace(image, entry=key)
