"""Which saved models were found whole before, so that weights are not read just to be checked.

A mark in the cache of compiled code says so of one image in one file. It is bound to the file's
device, inode, size and times. The system sets the time of change (ctime) at every write and lets
nobody set it back, so a file that was written to has no mark. A file that changed within the last
RECENT seconds gets none, as clocks of file systems are coarse: a write that follows could leave the
same time. Damage beneath the file system is for the disk to detect.
"""

from __future__ import annotations

import os
import time

from graphc.backends.cache import cache_key, default_cache

RECENT = 5.0  # seconds


class Marks:
    """The marks of one open file."""

    def __init__(self, file: int):
        status = os.fstat(file)
        self.identity = ":".join(
            str(getattr(status, name))
            for name in ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
        )
        self.is_recent = time.time_ns() - status.st_ctime_ns < RECENT * 1e9

    def has(self, image: object) -> bool:
        """Whether an image of the file, known by its shapes, was found whole."""
        cache = default_cache()
        return cache is not None and cache.get(self._key(image)) is not None

    def add(self, image: object) -> None:
        """Remembers that an image was found whole."""
        cache = default_cache()
        if cache is not None and not self.is_recent:
            cache.put(self._key(image), b"whole")

    def _key(self, image: object) -> str:
        return cache_key("saved model found whole", self.identity, repr(image))
