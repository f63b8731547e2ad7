"""What commands write: files that are whole or not there, remarks, and progress on a terminal.

A file is written beside its final place under a temporary name and renamed at the end; whatever
goes wrong before leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphc.errors import ModelError


def check_folder(path: Path) -> None:
    """ModelError if no file can have this name."""
    if path.is_dir():
        raise ModelError(f"{path}: is a directory")
    if not path.parent.is_dir():
        raise ModelError(f"{path.parent}: there is no such directory")


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path in the same folder; renamed to `path` if the body succeeds."""
    final = Path(path)
    check_folder(final)
    prefix = f".{final.name}."
    try:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=final.suffix, dir=final.parent)
    except OSError as error:
        raise ModelError(f"{final}: cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary folder beside `path`. If the body succeeds its files go to the folder
    `path`, which is made if need be, with those above it; files of other names there stay."""
    final = Path(path)
    if final.exists() and not final.is_dir():
        raise ModelError(f"{final}: is a file; a folder is needed")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{final.parent}: cannot be made: {error.strerror}") from error
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as name:
        temporary = Path(name)
        yield temporary
        for file in (path for path in sorted(temporary.rglob("*")) if path.is_file()):
            place = final / file.relative_to(temporary)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def save_npz(path: str | os.PathLike, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name as numpy.savez, which cannot take every name; whole or not at all."""
    import numpy as np

    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=True)


def emit(text: str, path: str | None) -> None:
    """Text to a file, or to stdout."""
    text = text if text.endswith("\n") else text + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        write_text(path, text)


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
