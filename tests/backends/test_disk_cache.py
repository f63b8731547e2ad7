"""The disk cache: round trips, damage, concurrent writers, eviction, failing file systems."""

import os
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import graphc
from graphc import dsl
from graphc.backends import cache as C
from graphc.backends.cache import DiskCache, cache_key
from graphc.errors import ModelWarning
from graphc.files import who_else


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
    with pytest.warns(ModelWarning, match="is damaged"):
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
    with pytest.warns(ModelWarning, match="is damaged"):
        assert cache.get(key) is None


def test_longer_file_is_a_miss(cache):
    key = cache_key("k")
    cache.put(key, b"y" * 100)
    with open(_file(cache, key), "ab") as file:
        file.write(b"more")
    with pytest.warns(ModelWarning, match="is damaged"):
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


# ---------------------------------------------------------------- entries of others, and no entries


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """What was told already; each test starts with nothing."""
    monkeypatch.setattr(C, "_told", set())


def test_an_entry_is_for_its_key_alone(cache):
    """A copy under the name of another is a miss: it would be the code of another operator."""
    cache.put(cache_key("Sqrt"), b"code of Sqrt")
    cache.put(cache_key("Neg"), b"code of Neg.")
    _file(cache, cache_key("Neg")).write_bytes(_file(cache, cache_key("Sqrt")).read_bytes())
    assert cache.holds(cache_key("Neg"), 12)  # by its size
    with pytest.warns(ModelWarning, match="something else: removed"):
        assert cache.get(cache_key("Neg")) is None
    assert not cache.holds(cache_key("Neg"), 12)
    assert cache.put(cache_key("Neg"), b"code of Neg.")
    assert cache.get(cache_key("Neg")) == b"code of Neg."


def test_a_copied_entry_never_runs(tmp_path, monkeypatch):
    """Whatever entry lies under whatever name, models give what they should."""
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))
    x = np.array([1.0, 4.0, 9.0], np.float32)

    @dsl.graph
    def root(x: dsl.f32[3]):
        return dsl.Sqrt(x)

    @dsl.graph
    def negative(x: dsl.f32[3]):
        return dsl.Neg(x)

    def files():
        return {p for p in tmp_path.rglob("*") if p.is_file()}

    expected = graphc.compile(root, threads=1).run([x])[0]
    of_root = files()
    graphc.compile(negative, threads=1).run([x])
    of_negative = files() - of_root
    for victim in of_negative:
        for other in of_root:
            victim.write_bytes(other.read_bytes())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ModelWarning)
                np.testing.assert_array_equal(graphc.compile(negative, threads=1).run([x])[0], -x)
    np.testing.assert_array_equal(graphc.compile(root, threads=1).run([x])[0], expected)


def _in_the_way(kind, path, elsewhere):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to(elsewhere / "nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))  # names of sockets are short
    else:
        (elsewhere / "file").write_bytes(b"z" * 165)
        path.symlink_to(elsewhere / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("kind", ["pipe", "directory", "dangling link", "link", "device", "socket"])
def test_what_is_no_file_is_ignored(cache, tmp_path, kind, monkeypatch):
    key = cache_key("k")
    cache.put(key, b"y" * 101)
    monkeypatch.chdir(_file(cache, key).parent)
    _in_the_way(kind, _file(cache, key), tmp_path)
    with pytest.warns(ModelWarning, match="is no regular file"):
        assert cache.get(key) is None
    assert not cache.holds(key, 101) and cache.size() == 0
    assert cache.put(key, b"again") == (kind != "directory")
    assert cache.get(key) == (None if kind == "directory" else b"again")
    if kind == "link":
        assert (tmp_path / "file").read_bytes() == b"z" * 165


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners")
@pytest.mark.parametrize("what", ["directory", "group", "entry"])
@pytest.mark.parametrize("why", ["owner", "mode"])
def test_what_others_can_write_is_not_used(cache, what, why, monkeypatch):
    key = cache_key("k")
    cache.put(key, b"y" * 100)
    path = _file(cache, key)
    place = {"directory": cache.directory, "group": path.parent, "entry": path}[what]
    if why == "mode":
        place.chmod(0o777 if place.is_dir() else 0o666)
    else:
        _belongs_to_another(place, monkeypatch)
    message = "belongs to another user" if why == "owner" else "can be written by other users"
    with pytest.warns(ModelWarning, match=message):
        assert cache.get(key) is None
    assert not cache.holds(key, 100)
    assert cache.put(key, b"mine") == (what == "entry")  # which this replaces
    if what == "entry" and why == "mode":
        assert cache.get(key) == b"mine"
    if what != "entry":
        assert path.read_bytes()[64:] == b"y" * 100  # left as it was


def _belongs_to_another(place, monkeypatch):
    real = C.who_else

    def who_else(status, sticky=False):
        same = (status.st_dev, status.st_ino) == (inode.st_dev, inode.st_ino)
        return "belongs to another user (number 7)" if same else real(status, sticky)

    inode = place.lstat()
    monkeypatch.setattr(C, "who_else", who_else)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners")
def test_who_else():
    def status(mode, uid=None):
        uid = os.geteuid() if uid is None else uid
        return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))

    file, folder = stat.S_IFREG, stat.S_IFDIR
    assert who_else(status(file | 0o644)) == who_else(status(folder | 0o700)) == ""
    assert who_else(status(file | 0o644, 0)) == ""  # root could do anything
    assert "number 4711" in who_else(status(file | 0o600, 4711))
    assert "mode 664" in who_else(status(file | 0o664))
    assert "written by other users" in who_else(status(folder | 0o1777))
    assert who_else(status(folder | 0o1777), sticky=True) == ""
    assert who_else(status(stat.S_IFLNK | 0o777)) == "is a link"


def test_one_warning_for_one_oddity(cache):
    for name in "abcd":
        cache.put(cache_key(name), b"y" * 100)
    cache.directory.chmod(0o777)
    with pytest.warns(ModelWarning) as caught:
        assert [cache.get(cache_key(name)) for name in "abcd"] == [None] * 4
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["x" * 5000, "/dev/null", "/proc/1/x", "\udcff", "~nobody/x", "."])
def test_odd_names_of_directories(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHC_CACHE_DIR", name)
    cache = C.default_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        stored = cache.put(cache_key("k"), b"y")
        assert cache.get(cache_key("k")) == (b"y" if stored else None)
        assert cache.holds(cache_key("k"), 1) == stored


def test_a_link_to_the_directory_is_followed(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cache = DiskCache(tmp_path / "link")
    assert cache.put(cache_key("k"), b"y") and cache.get(cache_key("k")) == b"y"


def test_entries_are_private_whatever_the_umask(cache):
    before = os.umask(0)
    try:
        cache.put(cache_key("k"), b"y")
    finally:
        os.umask(before)
    assert stat.S_IMODE(_file(cache, cache_key("k")).stat().st_mode) == 0o600
    assert cache.get(cache_key("k")) == b"y"


def test_what_is_not_the_caches_stays(tmp_path):
    """Also where somebody's home is named as the cache."""
    theirs = [tmp_path / "go" / "thesis", tmp_path / "ab" / "photo.jpg", tmp_path / "cd" / "x"]
    for path in theirs:
        path.parent.mkdir(mode=0o700)
        path.write_bytes(b"z" * 5000)
    cache = DiskCache(tmp_path, limit=1000)
    assert cache.put(cache_key("k"), b"y") and cache.size() == 65
    cache.clear()
    assert cache.get(cache_key("k")) is None and all(path.exists() for path in theirs)
