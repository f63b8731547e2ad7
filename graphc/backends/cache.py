"""A content-addressed cache on disk for compiled objects and packed weights.

An entry is one file: a 64-byte header (magic, length, and a digest of these, of the key and of the
contents), then the contents, which are therefore aligned for vector loads when the file is mapped.
Invariants:

* what `get` returns is what `put` was given under that key: a file that is truncated or damaged, or
  belongs to another key, is a miss; a warning says so, and the file is removed;
* a large entry is read to be checked only if it changed since it was last found whole: a small one,
  the *mark*, says so of its header and of the file's identity (files.py);
* entries hold native code, so only this user (or root) can have written what is returned: a
  directory or an entry that belongs to somebody else, or that others can write to, is not used. A
  secret would add nothing to that: who can read the directory of a user can read it too;
* what is no regular file (a pipe, a link, a directory) is no entry, and is not opened for long;
* a file appears under its name complete or not at all (written aside, then renamed), so that any
  number of processes may read and write at once;
* a file system that fails, is full or is read-only makes the cache miss; it never raises. There is
  one warning for each kind of fault.

The directory is $GRAPHC_CACHE_DIR, else $XDG_CACHE_HOME/graphc, else ~/.cache/graphc;
GRAPHC_CACHE_DIR=off turns the cache off. It is made private to the user.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from graphc import __version__
from graphc.backends.digests import Sums, digests
from graphc.errors import warn
from graphc.files import NO_LINK, identity, is_settled, open_regular, who_else

Buffer = bytes | bytearray | memoryview
DEFAULT_LIMIT = 4 << 30
_HEADER = struct.Struct("<8sQ32s16s")  # the last are zeros
_MAGIC = b"graphc\x00\x02"
_EARLIER = (b"graphc\x00\x01",)  # of versions whose entries are of no use
_TEMPORARY = "tmp-"
_STALE_SECONDS = 3600.0
MARKED_BYTES = 1 << 20  # of entries that have marks
MARKED_SECONDS = 86400.0  # for which using such an entry does not change its times
_GROUP, _ENTRY = re.compile("[0-9a-f]{2}"), re.compile(f"[0-9a-f]{{62}}|{_TEMPORARY}.*")


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

    def get_mapped(self, key: str, sums: Sums | None = None) -> memoryview | None:
        """An entry's contents, read-only and mapped from the file, or None. `sums` computes digests
        (digests.py).

        The view stays valid if the entry is evicted meanwhile. It starts at a multiple of 64 bytes.
        """
        path = self._path(key)
        try:
            view = self._map(key, path, sums)
        except FileNotFoundError:
            return None
        except _REFUSED:
            self.failures += 1
            return None
        if view is None:
            _tell(
                "damaged", f"{path}: is damaged, or the cache's entry for something else: removed"
            )
            self._remove(path)
            return None
        _note_use(path, view.nbytes)
        return view

    def holds(self, key: str, size: int) -> bool:
        """Whether there is an entry of so many bytes, which counts as its use; unread, it may be
        damaged."""
        path = self._path(key)
        try:
            status = path.lstat()
            fits = status.st_size == _HEADER.size + size and self._is_entry(status, path)
            if fits:
                _note_use(path, size)
        except _REFUSED:
            return False
        return fits

    def put(self, key: str, *parts: Buffer) -> bool:
        """Stores an entry, in pieces, replacing any of the same key. False if it could not be
        kept."""
        size = sum(memoryview(part).nbytes for part in parts)
        if size + _HEADER.size > self.limit:
            return False
        path = self._path(key)
        try:
            _make_private(self.directory)
            if not self._is_private():
                return False
            _make_private(path.parent)
            if not _is_private(path.parent, os.lstat(path.parent)):
                return False
            _write_aside(key, path, parts)
        except _REFUSED:
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
                status = path.lstat()
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            if not path.name.startswith(_TEMPORARY):
                yield status.st_mtime_ns, status.st_size, path
            elif time.time() - status.st_mtime > _STALE_SECONDS:
                self._remove(path)

    # ---------------------------------------------------------------- trust

    def _is_private(self) -> bool:
        """Whether nobody else can replace what is in the directory (it may be a link)."""
        return _is_private(self.directory, os.stat(self.directory), sticky=True)

    def _is_entry(self, status: os.stat_result, path: Path) -> bool:
        """Whether that is a file which nobody else can have written."""
        if not stat.S_ISREG(status.st_mode):
            _tell("irregular", f"{path}: is no regular file, so the cache ignores it")
            return False
        group = path.parent
        return (
            self._is_private() and _is_private(group, os.lstat(group)) and _is_private(path, status)
        )

    def _map(self, key: str, path: Path, sums: Sums | None = None) -> memoryview | None:
        """The contents of an entry; None if it is damaged. Raises OSError if there is none."""
        if not self._is_entry(os.lstat(path), path):
            raise PermissionError(str(path))
        with open(open_regular(path, NO_LINK), "rb") as file:
            status = os.fstat(file.fileno())
            if not _is_private(path, status):
                raise PermissionError(str(path))
            if status.st_size < _HEADER.size:
                return None
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if whole[: len(_MAGIC)] in _EARLIER:
            self._remove(path)
            raise FileNotFoundError(str(path))
        is_whole = self._is_whole(key, whole, status, sums)
        return whole[_HEADER.size :] if is_whole else None

    def _is_whole(
        self, key: str, whole: memoryview, status: os.stat_result, sums: Sums | None
    ) -> bool:
        """Whether a file holds what was put under a key."""
        header, contents = whole[: _HEADER.size], whole[_HEADER.size :]
        if contents.nbytes < MARKED_BYTES:
            return header == _header(key, contents)
        mark = cache_key("entry found whole", key, identity(status))
        if self.get(mark) == header:
            return True
        is_whole = header == _header(key, contents, sums)
        if is_whole and is_settled(status):
            self.put(mark, header)
        return is_whole

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / key[2:]

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.failures += 1


def _files(directory: Path) -> Iterator[Path]:
    """What is named as entries are, or as what becomes one: whatever else lies in a directory that
    somebody calls the cache is not its own. An unreadable directory has none."""
    try:
        for group in os.scandir(directory):
            if group.is_dir(follow_symlinks=False) and _GROUP.fullmatch(group.name):
                with contextlib.suppress(OSError):
                    for entry in os.scandir(group.path):
                        if _ENTRY.fullmatch(entry.name):
                            yield Path(entry.path)
    except OSError:
        return


_REFUSED = (OSError, ValueError)  # the latter for names that no file can have
_told: set[str] = set()


def _tell(kind: str, text: str) -> None:
    """Warns of a fault of the cache, once for each kind of fault."""
    if kind not in _told:
        _told.add(kind)
        warn(text)


def _is_private(path: Path, status: os.stat_result, sticky: bool = False) -> bool:
    """Whether nobody but this user can have written what is there; a warning says who can."""
    other = who_else(status, sticky)
    if other:
        _tell(
            "shared",
            f"{path}: {other}, so the cache does not use it: make it private to you, or set "
            "GRAPHC_CACHE_DIR to a directory of yours",
        )
    return not other


def _note_use(path: Path, size: int) -> None:
    """Changes the time that eviction goes by; that of a large entry not often, since its mark holds
    for as long as its times do."""
    with contextlib.suppress(OSError):
        if size < MARKED_BYTES or time.time() - path.stat().st_mtime > MARKED_SECONDS:
            os.utime(path)


def _header(
    key: str, contents: memoryview, sums: Sums | None = None, threads: int | None = None
) -> bytes:
    """The header of an entry: it fits one key and one content only."""
    state = hashlib.sha256(struct.pack("<8sQ", _MAGIC, contents.nbytes))
    state.update(f"{key} {digests([contents], threads, sums)[0]}".encode())
    return _HEADER.pack(_MAGIC, contents.nbytes, state.digest(), b"")


def _write_aside(key: str, path: Path, parts: Sequence[Buffer]) -> None:
    """Writes an entry under a temporary name in the same directory, then renames it."""
    import tempfile  # costs more than a process that only reads has to pay

    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "w+b") as file:
            file.write(bytes(_HEADER.size))
            file.writelines(parts)
            file.flush()
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            file.seek(0)
            file.write(_header(key, whole[_HEADER.size :], threads=1))  # the process may be ending
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _make_private(directory: Path) -> None:
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)


@lru_cache(maxsize=1)
def _fingerprint() -> bytes:
    """Changes whenever graphc does: its version, and the size and time of each source file."""
    digest = hashlib.sha256(__version__.encode())
    for line in sorted(_sources(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")):
        digest.update(line.encode())
    return digest.digest()


def _sources(folder: str, name: str) -> Iterator[str]:
    """A line for each Python file of a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield f"{name}{entry.name} {status.st_size} {status.st_mtime_ns}\n"
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path, f"{name}{entry.name}/")
