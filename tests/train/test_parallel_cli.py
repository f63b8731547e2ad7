"""graphc train in several processes: the run of one process, killed and taken up by others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphc import train
from graphc.cli.app import main

pytest.importorskip("torch.distributed")
DIGITS = str(Path(__file__).parents[2] / "models" / "digits_cnn.onnx")
OPTIONS = ["--epochs", "2", "--batch", "10", "--optimizer", "momentum", "--rate", "0.01"]
OPTIONS += ["--eval-mode", "--threads", "1", "--checkpoint-every", "1"]


def command(out: str) -> list[str]:
    return ["train", DIGITS, "--data", "data.npz", *OPTIONS, "--checkpoint", f"{out}.run.npz",
            "--resume", "-o", f"{out}.npz"]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", image=x, label=rng.integers(0, 10, 30))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(size: int, out: str) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    arguments = [sys.executable, "-m", "graphc", *command(out)]
    return [
        subprocess.Popen(
            arguments, env={**common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]


def ended(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    said = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said)]


def test_two_processes_train_as_one(folder):
    assert main(command("one")) == 0
    ends = ended(started(2, "two"))
    assert [code for code, _ in ends] == [0, 0], ends
    one, two = (train.read_state_dict(f"{name}.npz") for name in ("one", "two"))
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, atol=1e-4 * max(1, np.abs(array).max()))


def test_a_killed_process_ends_the_run_which_others_take_up(folder):
    processes = started(2, "two")
    while not Path("two.run.npz").exists() and processes[0].poll() is None:
        try:
            processes[0].wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    processes[1].kill()
    (code, text), _ = ended(processes)
    if code:  # it may have been through
        assert "another process of the run has ended" in text
        assert "Traceback" not in text
    assert main(command("two")) == 0
    assert main(command("one")) == 0
    one, two = (train.read_state_dict(f"{name}.npz") for name in ("one", "two"))
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, atol=1e-4 * max(1, np.abs(array).max()))
