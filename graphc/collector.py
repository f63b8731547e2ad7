"""Python's garbage collector, slowed down while something is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

RARELY = 300_000  # new objects between two collections of young ones

_lock = Lock()
_usual: list[tuple[int, int, int]] = []  # per compilation under way, what is to be restored


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Makes collections of young objects rare, in all threads, until the last block that asks for
    it has ended. Nearly all objects made in compiling stay in use, so that looking at them often
    takes time and frees nothing. A collector that is off stays off."""
    with _lock:
        usual = gc.get_threshold()
        _usual.append(_usual[0] if _usual else usual)
        if 0 < usual[0] < RARELY:
            gc.set_threshold(RARELY, *usual[1:])
    try:
        yield
    finally:
        with _lock:
            usual = _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)
