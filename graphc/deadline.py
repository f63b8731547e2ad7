"""A limit on the processor time that a computation may take, which what takes long looks at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from graphc.errors import UnsupportedError

_ends: ContextVar[tuple[float, float] | None] = ContextVar("ends", default=None)
"""When the time of this thread is over, and the seconds that were allowed."""


@contextmanager
def within_seconds(seconds: float) -> Iterator[None]:
    """Ends what is inside by an UnsupportedError once it has taken so many seconds of this thread's
    processor time."""
    token = _ends.set((time.thread_time() + seconds, seconds))
    try:
        yield
    finally:
        _ends.reset(token)


def check_time() -> None:
    """UnsupportedError if the time is over."""
    limit = _ends.get()
    if limit is not None and time.thread_time() > limit[0]:
        raise UnsupportedError(f"it takes more than {limit[1]:g} s to compile")
