"""Work behind the first answer: its order, who waits for it, faults, forks, the process ending."""

import os
import subprocess
import sys
import time

import pytest

from graphc.backends import behind as B


@pytest.fixture(autouse=True)
def none_waits():
    B.finish()


def test_work_is_done_in_order_by_who_looks_for_it():
    done = []
    for n, key in enumerate("aba"):
        B.behind(key, lambda n=n: done.append(n))
    B.finish("c")
    assert done == []
    B.finish("b")
    assert done == [0, 1, 2]
    B.finish("b")
    assert done == [0, 1, 2]


def test_a_thread_does_it_if_nobody_looks(monkeypatch):
    monkeypatch.setattr(B, "DELAY", 0.01)
    done = []
    for expected in (1, 2):  # the first thread may have ended
        B.behind("a", lambda: done.append(None))
        for _ in range(1000):
            if len(done) == expected:
                break
            time.sleep(0.01)
        assert len(done) == expected


def test_a_fault_is_raised_once():
    done = []
    B.behind("a", lambda: 1 // 0)
    B.behind("a", lambda: done.append(None))
    with pytest.raises(ZeroDivisionError):
        B.finish("a")
    B.finish("a")
    assert done == [None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_leaves_it_to_its_parent():
    done = []
    B.behind("a", lambda: done.append(None))
    child = os.fork()
    if child == 0:
        B.finish("a")
        os._exit(len(done))
    assert os.waitpid(child, 0)[1] == 0
    B.finish("a")
    assert done == [None]


def test_the_end_of_the_process_does_not_lose_it(tmp_path):
    code = f"""
from graphc.backends.behind import behind
behind("a", lambda: open({str(tmp_path / "done")!r}, "w").write("all"))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "done").read_text() == "all"


@pytest.mark.parametrize("before", ["", "import concurrent.futures.thread"])
def test_large_parts_are_hashed_when_the_process_ends(before):
    """The interpreter starts no threads then, which large parts are else hashed by."""
    code = f"""
from graphc.backends.behind import behind
from graphc.backends.digests import digest, digests
{before}
parts = [bytes(5 << 20), b"a"]
behind("a", lambda: print(digests(parts, threads=4) == [digest(part) for part in parts]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("True\n", "")
