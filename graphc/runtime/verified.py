"""Which saved models were found whole before, so that weights are not read just to be checked.

A mark in the cache of compiled code says so of one image in one file. It is bound to the file's
identity (files.py), so a file that was written to has no mark. A file that changed within the last
few seconds gets none: a write that follows could leave the same time. Damage beneath the file
system is for the disk to detect.
"""

from __future__ import annotations

import os

from graphc.backends.cache import cache_key, default_cache
from graphc.files import identity, is_settled


class Marks:
    """The marks of one open file."""

    def __init__(self, file: int):
        status = os.fstat(file)
        self.identity, self.is_settled = identity(status), is_settled(status)

    def has(self, image: object) -> bool:
        """Whether an image of the file, known by its shapes, was found whole."""
        cache = default_cache()
        return cache is not None and cache.get(self._key(image)) is not None

    def add(self, image: object) -> None:
        """Remembers that an image was found whole."""
        cache = default_cache()
        if cache is not None and self.is_settled:
            cache.put(self._key(image), b"whole")

    def _key(self, image: object) -> str:
        return cache_key("saved model found whole", self.identity, repr(image))
