"""The disk cache: round trips, damage, concurrent writers, eviction, failing file systems."""

import os
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from graphc.backends import cache as C
from graphc.backends.cache import DiskCache, cache_key


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "cache")


def _file(cache, key):
    return cache._path(key)


def test_round_trip(cache):
    for data in (b"", b"x", os.urandom(100_000)):
        key = cache_key("round trip", data)
        assert cache.get(key) is None
        assert cache.put(key, data)
        assert cache.get(key) == data
    assert cache.failures == 0


def test_key_separates_parts():
    keys = [cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("a", "b", "c")]
    assert len(set(keys)) == len(keys)
    assert cache_key("a", b"b") == cache_key(b"a", "b")


def test_key_depends_on_the_version(monkeypatch):
    before = cache_key("a")
    monkeypatch.setattr(C, "_fingerprint", lambda: b"another version")
    assert cache_key("a") != before


def test_an_entry_may_be_put_in_pieces(cache):
    parts = [b"abc", memoryview(b""), np.arange(5, dtype=np.int32).data, bytearray(b"d")]
    assert cache.put(cache_key("k"), *parts)
    assert cache.get(cache_key("k")) == b"".join(parts)
    assert cache.size() == 64 + 3 + 20 + 1


def test_mapped_contents_are_aligned_and_survive_eviction(cache):
    array = np.arange(100_000, dtype=np.float32)
    key = cache_key("weights")
    cache.put(key, array.data)
    view = cache.get_mapped(key)
    mapped = np.frombuffer(view, np.float32)
    assert mapped.ctypes.data % 64 == 0 and not mapped.flags.writeable
    cache.clear()
    assert cache.get(key) is None
    np.testing.assert_array_equal(mapped, array)


@pytest.mark.parametrize("keep", [0, 10, 63, 64, 65, 163])
def test_truncated_file_is_a_miss(cache, keep):
    key = cache_key("k")
    cache.put(key, b"y" * 100)
    with open(_file(cache, key), "r+b") as file:
        file.truncate(keep)
    assert cache.get(key) is None
    assert not _file(cache, key).exists()
    assert cache.put(key, b"again") and cache.get(key) == b"again"


@pytest.mark.parametrize("position", [0, 9, 20, 64, 163])
def test_damaged_file_is_a_miss(cache, position):
    key = cache_key("k")
    cache.put(key, b"y" * 100)
    raw = bytearray(_file(cache, key).read_bytes())
    raw[position] ^= 0x40
    _file(cache, key).write_bytes(raw)
    assert cache.get(key) is None


def test_longer_file_is_a_miss(cache):
    key = cache_key("k")
    cache.put(key, b"y" * 100)
    with open(_file(cache, key), "ab") as file:
        file.write(b"more")
    assert cache.get(key) is None


def test_eviction_drops_the_least_recently_used(tmp_path):
    cache = DiskCache(tmp_path, limit=10_000)
    keys = [cache_key(str(n)) for n in range(9)]
    for n, key in enumerate(keys):
        cache.put(key, b"z" * 1000)
        os.utime(_file(cache, key), ns=(0, n * 1_000_000_000))
    assert cache.get(keys[0]) is not None  # now the most recently used
    cache.put(cache_key("last"), b"z" * 1000)
    assert cache.size() <= 10_000
    assert cache.get(keys[0]) is not None and cache.get(cache_key("last")) is not None
    assert cache.get(keys[1]) is None


def test_an_entry_above_the_limit_is_refused(tmp_path):
    cache = DiskCache(tmp_path, limit=1000)
    assert not cache.put(cache_key("big"), b"z" * 1000)
    assert cache.size() == 0


def test_stale_temporary_files_are_removed(cache):
    cache.put(cache_key("k"), b"y")
    folder = _file(cache, cache_key("k")).parent
    old, new = folder / "tmp-old", folder / "tmp-new"
    for path in (old, new):
        path.write_bytes(b"half written")
    os.utime(old, (time.time() - 7200,) * 2)
    assert cache.size() == 65
    assert not old.exists() and new.exists()


def test_concurrent_writers_and_readers(cache):
    """Every read sees one of the values written, complete."""
    key = cache_key("shared")
    values = [bytes([n]) * (1000 + 1000 * n) for n in range(4)]
    wrong = []

    def write(value):
        for _ in range(50):
            cache.put(key, value)

    def read():
        for _ in range(100):
            found = cache.get(key)
            if found is not None and found not in values:
                wrong.append(found[:10])

    threads = [threading.Thread(target=write, args=(v,)) for v in values]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.get(key) in values
    assert [p.name for _, _, p in cache._entries()] == [key[2:]]


def test_two_processes_share_a_cache(cache):
    program = (
        "import sys; from graphc.backends.cache import *;"
        "print(DiskCache(sys.argv[1]).put(cache_key('from', 'afar'), b'hello'))"
    )
    command = [sys.executable, "-c", program, str(cache.directory)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert cache.get(cache_key("from", "afar")) == b"hello"


def test_a_file_in_the_way_never_raises(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    for directory in (blocked, blocked / "below"):
        cache = DiskCache(directory)
        assert not cache.put(cache_key("k"), b"y")
        assert cache.get(cache_key("k")) is None
        assert cache.failures >= 1 and cache.size() == 0
        cache.clear()


def test_full_disk_leaves_nothing_behind(cache, monkeypatch):
    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(C.os, "replace", replace)
    assert not cache.put(cache_key("k"), b"y")
    assert cache.failures == 1
    monkeypatch.undo()
    assert list(C._files(cache.directory)) == []


def test_directory_is_private(cache):
    cache.put(cache_key("k"), b"y")
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


def test_directory_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path / "mine"))
    assert C.default_directory() == tmp_path / "mine"
    monkeypatch.setenv("GRAPHC_CACHE_DIR", "off")
    assert C.default_cache() is None
    monkeypatch.delenv("GRAPHC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert C.default_directory() == tmp_path / "graphc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert C.default_directory() == tmp_path / ".cache" / "graphc"


def test_whether_there_is_an_entry(cache):
    assert not cache.holds(cache_key("a"), 3)
    cache.put(cache_key("a"), b"abc")
    assert cache.holds(cache_key("a"), 3) and not cache.holds(cache_key("a"), 4)
