"""Python's garbage collector, slowed down while something is compiled.

What compiling has made is not looked at right after it either, where that would keep the first
answer waiting: it is handed to the old generation, which the collector looks at from time to time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

RARELY = 600_000  # new objects between two collections of young ones
MOST = 2_000_000  # objects that become old unseen, before all are looked at

_lock = Lock()
_usual: list[tuple[int, int, int]] = []  # per compilation under way, what is to be restored
_unseen = 0  # objects that have become old since all were looked at


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
                _make_old(usual[0])
                gc.set_threshold(*usual)


def _make_old(threshold: int) -> None:
    """Makes all objects old, where young ones are more than the collector's threshold. The
    collector does not count them, so that here is a limit."""
    global _unseen
    young = gc.get_count()[0]
    if young <= threshold or threshold == 0 or gc.get_freeze_count():
        return  # objects that are frozen would be thawed with the others
    _unseen += young
    if _unseen > MOST:
        _unseen = 0
        gc.collect()
    else:
        gc.freeze()
        gc.unfreeze()
