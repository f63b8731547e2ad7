"""Work behind the first answer (write-behind): what has to be done, but nobody waits for.

To keep what was compiled means to hash weights and to write them to disk, which can take longer
than compiling. A thread begins with that a moment after it was asked for; what is left when the
process ends is done then. `finish` is for those who look for the result.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from collections.abc import Callable
from threading import Lock, RLock, Thread

DELAY = 0.5  # seconds, in which a process that just compiled a model runs it

_waiting: deque[tuple[str, Callable[[], None]]] = deque()
_working = RLock()  # held while work is done
_starting = Lock()
_thread: Thread | None = None


def behind(key: str, work: Callable[[], None]) -> None:
    """Has work done later, in the order of calls. `key` names its result."""
    global _thread
    with _starting:
        _waiting.append((key, work))
        if _thread is None:
            _thread = Thread(target=_later, name="graphc-behind", daemon=True)
            _thread.start()


def finish(key: str | None = None) -> None:
    """Does all that waits, if work on the result `key` is among it (None: in any case)."""
    if key is None or any(key == name for name, _ in list(_waiting)):
        with _working:
            while _waiting:
                try:
                    _waiting[0][1]()
                finally:
                    _waiting.popleft()


def _later() -> None:
    global _thread
    while True:
        time.sleep(DELAY)
        finish()
        with _starting:
            if not _waiting:
                _thread = None
                return


def _forget() -> None:
    """A forked process leaves to its parent what that was asked for."""
    global _working, _starting, _thread
    _waiting.clear()
    _working, _starting, _thread = RLock(), Lock(), None


atexit.register(finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
