"""What commands write: remarks, and progress on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


def note(text: str) -> None:
    """A remark on stderr."""
    print(f"graphc: {text}", file=sys.stderr)


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Names what is being done while it lasts, if a person watches."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
    finally:
        if shown:
            seconds = time.perf_counter() - start
            print(f"\r\x1b[K{what}: {seconds:.1f} s", file=sys.stderr, flush=True)
