"""Libraries that the system's compiler makes are kept, and used as they were made."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from graphc.backends.cfamily.hostcc import shared_library
from graphc.errors import UnsupportedError

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
FILES = {"answer.c": "int answer(void) { return 42; }"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    monkeypatch.setenv("GRAPHC_HOST_CACHE", str(path))
    return path


def test_a_library_is_kept(folder):
    first = shared_library(FILES, [])
    made = first.stat().st_mtime_ns
    assert shared_library(FILES, []) == first and first.stat().st_mtime_ns == made
    assert ctypes.CDLL(str(first)).answer() == 42


@pytest.mark.parametrize("how", ["damaged", "emptied", "a link", "open to all"])
def test_what_is_not_as_it_was_is_made_again(folder, tmp_path, how):
    library = shared_library(FILES, [])
    whole = library.read_bytes()
    if how == "damaged":
        library.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif how == "emptied":
        library.write_bytes(b"")
    elif how == "a link":
        library.rename(tmp_path / "elsewhere")
        library.symlink_to(tmp_path / "elsewhere")
    else:
        library.chmod(0o777)
    again = shared_library(FILES, [])
    assert not again.is_symlink() and again.stat().st_mode & 0o022 == 0
    assert again.read_bytes() == whole
    assert ctypes.CDLL(str(again)).answer() == 42


def test_a_library_of_other_sources_is_not_taken(folder):
    """Nor under a name that is right but for what it was made of."""
    one = shared_library(FILES, [])
    other = {name: text.replace("42", "43") for name, text in FILES.items()}
    two = shared_library(other, [])
    name = f"{two.name.rpartition('-')[0]}-{one.name.rpartition('-')[2]}"
    two.unlink()
    (folder / name).write_bytes(one.read_bytes())
    (folder / name).chmod(0o700)
    again = shared_library(other, [])
    assert again.name == two.name
    assert ctypes.CDLL(str(again)).answer() == 43


def test_a_folder_of_others_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UnsupportedError, match="can be written by other users"):
        shared_library(FILES, [])
