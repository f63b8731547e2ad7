"""What commands write: arrays, remarks, and progress on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from graphc.files import atomic


def save_npz(path: str | os.PathLike, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name as numpy.savez, which cannot take every name; whole or not at all."""
    import numpy as np

    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=True)


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
