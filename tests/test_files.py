"""Files are whole or not there, and folders are one writer's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from graphc.files import atomic, atomic_folder, fcntl


@pytest.mark.skipif(fcntl is None, reason="the system has no locks of folders")
def test_a_folder_written_by_several_at_once_is_one_of_theirs(tmp_path: Path):
    folder, together = tmp_path / "out", Barrier(4)

    def write(writer: int) -> None:
        with atomic_folder(folder, stale="old*") as temporary:
            for number in range(50):
                (temporary / f"part{number}").write_text(str(writer))
            (temporary / f"old{writer}").write_text("")
            together.wait()

    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        assert len({(folder / f"part{number}").read_text() for number in range(50)}) == 1
        assert len(list(folder.glob("old*"))) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_body_that_fails_leaves_nothing(tmp_path: Path):
    with pytest.raises(ValueError), atomic_folder(tmp_path / "out") as temporary:
        (temporary / "part").write_text("x")
        raise ValueError
    with pytest.raises(ValueError), atomic(tmp_path / "file") as temporary:
        temporary.write_text("x")
        raise ValueError
    assert list(tmp_path.iterdir()) == []
