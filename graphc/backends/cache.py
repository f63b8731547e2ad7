"""A content-addressed cache on disk for compiled objects and packed weights.

An entry is one file: a 64-byte header (magic, length, SHA-256 of the contents), then the contents,
which are therefore aligned for vector loads when the file is mapped. Invariants:

* what `get` returns is what `put` was given: a truncated or damaged file is a miss, and is removed;
* a file appears under its name complete or not at all (written aside, then renamed), so that any
  number of processes may read and write at once;
* a file system that fails, is full or is read-only makes the cache miss; it never raises.

The directory is $GRAPHC_CACHE_DIR, else $XDG_CACHE_HOME/graphc, else ~/.cache/graphc;
GRAPHC_CACHE_DIR=off turns the cache off. Entries hold native code: the directory is made private to
the user.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

Buffer = bytes | bytearray | memoryview
DEFAULT_LIMIT = 4 << 30
_HEADER = struct.Struct("<8sQ32s16x")
_MAGIC = b"graphc\x00\x01"
_TEMPORARY = "tmp-"
_STALE_SECONDS = 3600.0


def cache_key(*parts: str | bytes) -> str:
    """The name of an entry: a hash of the parts, in order, and of graphc's version and sources."""
    digest = hashlib.sha256(_fingerprint())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


def default_directory() -> Path | None:
    """Where the environment says the cache is; None if it is off or there is no home directory."""
    chosen = os.environ.get("GRAPHC_CACHE_DIR", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base:
        return Path(base) / "graphc"
    try:
        return Path.home() / ".cache" / "graphc"
    except RuntimeError:
        return None


def default_cache() -> DiskCache | None:
    """The user's cache, or None if it is off. Reads the environment at every call."""
    directory = default_directory()
    return None if directory is None else DiskCache(directory)


class DiskCache:
    """Bytes by key in a directory, at most `limit` bytes of them; the least recently used go first.

    `failures` counts operations that the file system refused.
    """

    def __init__(self, directory: str | os.PathLike[str], limit: int = DEFAULT_LIMIT):
        self.directory = Path(directory)
        self.limit = limit
        self.failures = 0
        self._unchecked: int | None = None  # bytes put since the last look at the total

    def get(self, key: str) -> bytes | None:
        """A copy of an entry's contents, or None."""
        view = self.get_mapped(key)
        return None if view is None else bytes(view)

    def get_mapped(self, key: str) -> memoryview | None:
        """An entry's contents, read-only and mapped from the file, or None.

        The view stays valid if the entry is evicted meanwhile. It starts at a multiple of 64 bytes.
        """
        path = self._path(key)
        try:
            view = _map(path)
        except FileNotFoundError:
            return None
        except OSError:
            self.failures += 1
            return None
        if view is None:
            self._remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the mark of use that eviction goes by
        return view

    def holds(self, key: str, size: int) -> bool:
        """Whether there is an entry of so many bytes, which counts as its use; unread, it may be
        damaged."""
        path = self._path(key)
        try:
            found = path.stat().st_size == _HEADER.size + size
            if found:
                os.utime(path)
        except OSError:
            return False
        return found

    def put(self, key: str, *parts: Buffer) -> bool:
        """Stores an entry, in pieces, replacing any of the same key. False if it could not be
        kept."""
        size = sum(memoryview(part).nbytes for part in parts)
        if size + _HEADER.size > self.limit:
            return False
        path = self._path(key)
        try:
            _make_private(path.parent)
            _write_aside(path, parts)
        except OSError:
            self.failures += 1
            return False
        self._account(size + _HEADER.size)
        return True

    def clear(self) -> None:
        """Removes every entry."""
        for _, _, path in list(self._entries()):
            self._remove(path)

    def size(self) -> int:
        """Bytes in all entries."""
        return sum(size for _, size, _ in self._entries())

    # ---------------------------------------------------------------- eviction

    def _account(self, size: int) -> None:
        """Looks at the total at the first put, and then each time a 16th of the limit is added."""
        if self._unchecked is not None:
            self._unchecked += size
            if self._unchecked < self.limit // 16:
                return
        self._unchecked = 0
        self._evict()

    def _evict(self) -> None:
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        if total <= self.limit:
            return
        for _, size, path in entries:
            self._remove(path)
            total -= size
            if total <= self.limit * 9 // 10:
                return

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """(time of last use, bytes, path) of entries; removes what dead writers left behind."""
        for path in _files(self.directory):
            try:
                status = path.stat()
            except OSError:
                continue
            if not path.name.startswith(_TEMPORARY):
                yield status.st_mtime_ns, status.st_size, path
            elif time.time() - status.st_mtime > _STALE_SECONDS:
                self._remove(path)

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / key[2:]

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.failures += 1


def _files(directory: Path) -> Iterator[Path]:
    """Files two levels down; an unreadable directory has none."""
    try:
        for group in os.scandir(directory):
            if group.is_dir(follow_symlinks=False) and len(group.name) == 2:
                with contextlib.suppress(OSError):
                    yield from (Path(entry.path) for entry in os.scandir(group.path))
    except OSError:
        return


def _map(path: Path) -> memoryview | None:
    """The contents of an entry file; None if the file is damaged. Raises OSError."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) != _HEADER.size:
            return None
        magic, length, checksum = _HEADER.unpack(header)
        if magic != _MAGIC or os.fstat(file.fileno()).st_size != _HEADER.size + length:
            return None
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[_HEADER.size :]
    return view if hashlib.sha256(view).digest() == checksum else None


def _write_aside(path: Path, parts: Sequence[Buffer]) -> None:
    """Writes an entry under a temporary name in the same directory, then renames it."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        digest.update(part)
        size += memoryview(part).nbytes
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, size, digest.digest()))
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _make_private(directory: Path) -> None:
    if not directory.is_dir():
        directory.parent.parent.mkdir(parents=True, exist_ok=True)
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)


@lru_cache(maxsize=1)
def _fingerprint() -> bytes:
    """Changes whenever graphc does: its version, and the size and time of each source file."""
    try:
        version = metadata.version("graphc")
    except metadata.PackageNotFoundError:
        version = "unknown"
    digest = hashlib.sha256(version.encode())
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        with contextlib.suppress(OSError):
            status = path.stat()
            name = path.relative_to(package)
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.digest()
