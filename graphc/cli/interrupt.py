"""Ctrl-C while native code runs.

Python notices an interrupt between two of its own instructions only, and one call of a compiled
model can take arbitrarily long. So a thread watches for the signal as well: if the command has not
ended of itself a little later, the process ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

EXIT_CODE = 130
PATIENCE_SECONDS = 1.0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets an interrupt end the process although the body is deep in native code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(reader, ended), daemon=True).start()
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(previous)
        os.close(writer)


def _watch(reader: int, ended: threading.Event) -> None:
    """Reads the numbers of signals as they come, until the other end is closed."""
    while numbers := os.read(reader, 16):
        if signal.SIGINT in numbers and not ended.wait(PATIENCE_SECONDS):
            print("graphc: interrupted", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE)
    os.close(reader)
