"""Files that are written whole or not at all, and checks of who could have written them.

A file is written beside its final place under a temporary name and renamed at the end; whatever
goes wrong before leaves nothing behind. What the file system refuses is a ModelError that names the
file: the user can mend it.

Where code is read from a file, `open_regular` and `who_else` tell whether it is one, and who can
have written it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import importlib.util
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from graphc.errors import ModelError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NATIVE = (".so", ".o", ".obj", ".a", ".wasm")  # suffixes of what only other programs read
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened, though nobody writes to it
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # for open_regular: a link is no file either
_BINARY = getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike, flags: int = 0) -> int:
    """A descriptor to read a file by. OSError where there is none, and for what is no file: reading
    a pipe might never end, and a device may do anything."""
    descriptor = os.open(path, os.O_RDONLY | _NONBLOCK | _BINARY | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file")
    return descriptor


def who_else(status: os.stat_result, sticky: bool = False) -> str:
    """Who else than this user, or root, can have written a file or can change a directory, as an
    end of a sentence about it; "" if nobody. `sticky`: where all may add to a directory, but not
    remove what others have (as in /tmp), is good enough. Nothing is known of systems that are not
    POSIX."""
    if not hasattr(os, "geteuid"):
        return ""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (number {status.st_uid})"
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not (sticky and mode & stat.S_ISVTX):
        return f"can be written by other users (mode {mode:03o})"
    return ""


def identity(status: os.stat_result) -> str:
    """Changes whenever a file is written to: the system sets the time of change (ctime) and lets
    nobody set it back."""
    return ":".join(
        str(getattr(status, name))
        for name in ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    )


Files = dict[Path, str]
_read: ContextVar[Files | None] = ContextVar("read", default=None)


@contextlib.contextmanager
def noted_files() -> Iterator[Files]:
    """Notes which files a model is made of, beside its own, and their identities."""
    files: Files = {}
    token = _read.set(files)
    try:
        yield files
    finally:
        _read.reset(token)


def note_file(path: Path) -> None:
    """Says that a model is made of a file."""
    files = _read.get()
    if files is not None:
        files[path] = identity(path.stat())


RECENT = 5.0  # seconds; clocks of file systems are coarse


def is_settled(status: os.stat_result) -> bool:
    """Whether a write from now on would change the identity of a file for certain."""
    return time.time_ns() - status.st_ctime_ns >= RECENT * 1e9


def installed(package: str) -> str:
    """Changes whenever another version of a package is installed; "" if there is none."""
    spec = importlib.util.find_spec(package)
    return "" if spec is None or spec.origin is None else identity(os.stat(spec.origin))


def check_folder(path: Path) -> None:
    """ModelError if no file can have this name."""
    if path.is_dir():
        raise ModelError(f"{path}: is a directory")
    if not path.parent.is_dir():
        raise ModelError(f"{path.parent}: there is no such directory")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """ModelError that names the path where the file system fails while it is written."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path in the same folder; renamed to `path` if the body succeeds.

    Of nested ones, neither file appears unless both bodies succeed. Devices and pipes are not
    replaced, but written to.
    """
    final = Path(path)
    check_folder(final)
    is_device = final.exists() and not final.is_file()
    import tempfile  # costs more than the rest of this module

    with writing(final):
        handle, name = tempfile.mkstemp(
            prefix=f".{final.name[:100]}.",
            suffix=final.suffix,
            dir=None if is_device else final.parent,
        )
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            if is_device:
                final.write_bytes(temporary.read_bytes())
            else:
                temporary.chmod(0o666 & ~_umask())
                os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)


def remove_drafts(path: str | os.PathLike) -> None:
    """Removes what writers of a file that were killed left beside it (`atomic`). Nobody else may be
    writing it now."""
    final = Path(path)
    start = f".{final.name[:100]}."
    with writing(final.parent):
        for file in final.parent.glob(f"{glob.escape(start)}????????{glob.escape(final.suffix)}"):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike, stale: str = "") -> Iterator[Path]:
    """Yields a temporary folder beside `path`. If the body succeeds its files go to the folder
    `path`, which is made if need be, with those above it; files of other names there stay, unless
    they match the pattern `stale`. Of several who write it at once, one comes after the other."""
    final = Path(path)
    import tempfile

    if final.exists() and not final.is_dir():
        raise ModelError(f"{final}: is a file; a folder is needed")
    with writing(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
    with (
        writing(final),
        tempfile.TemporaryDirectory(prefix=f".{final.name[:100]}.", dir=final.parent) as name,
    ):
        temporary = Path(name)
        yield temporary
        final.mkdir(exist_ok=True)
        with _alone_in(final):
            for file in final.glob(stale) if stale else ():
                file.unlink()
            for file in (path for path in sorted(temporary.rglob("*")) if path.is_file()):
                place = final / file.relative_to(temporary)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, place)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Whoever else wants to be alone in a folder waits, where the system has such locks."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_bytes(path: str | os.PathLike, *parts: bytes | memoryview) -> None:
    """Writes a file, in pieces, whole or not at all."""
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def save_npz(path: str | os.PathLike, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name as numpy.savez, which cannot take every name; whole or not at all."""
    import zipfile

    import numpy as np

    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=True)
