"""Steps of several processes by gloo against one process with the whole batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import train
from graphc.train.parallel import DataParallel

pytest.importorskip("torch.distributed")
WORKER = Path(__file__).with_name("parallel_worker.py")
DIGITS = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.standard_normal((10, 1, 8, 8)).astype(np.float32), RNG.integers(0, 10, 10))
    for _ in range(3)
]


def run(folder: Path, size: int, ends_at: int = -1) -> list[tuple[int, str]]:
    """The exit codes of so many processes, with what they say."""
    np.savez(folder / "data.npz", x=[x for x, _ in BATCHES], y=[y for _, y in BATCHES])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(size):
        variables = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, str(WORKER), str(DIGITS), "data.npz", "out.npz", str(ends_at)]
        processes.append(
            subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said)]


def whole() -> train.Step:
    """Exact, as the workers' steps are: Winograd's rounding depends on the size of a batch."""
    return train.Step(
        DIGITS, optimizer=train.SGD(0.05, momentum=0.9), clip_norm=1.0, train_mode=False,
        threads=1, exact=True,
    )  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_those_of_the_whole_batch(tmp_path, size):
    ends = run(tmp_path, size)
    assert [code for code, _ in ends] == [0] * size, ends
    found = train.read_state_dict(tmp_path / "out.npz")
    step = whole()
    _, gradients = step.gradients(BATCHES[0])
    for name, array in gradients.items():
        got = found[f"gradient {name}"]
        np.testing.assert_allclose(got, array, rtol=0, atol=1e-6 * max(1, np.abs(array).max()))
    losses = [step(batch).loss for batch in BATCHES]
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
    for name, array in step.state_dict().items():
        np.testing.assert_allclose(found[name], array, atol=1e-4 * max(1, np.abs(array).max()))


def test_a_process_that_never_starts_ends_the_others(tmp_path):
    ends = run(tmp_path, 2, ends_at=-2)
    assert ends[1][0] == 9
    assert ends[0][0] == 3 and "not all of 2 processes started within 3" in ends[0][1], ends


def test_a_process_that_ends_is_told_and_leaves_the_checkpoint(tmp_path):
    ends = run(tmp_path, 2, ends_at=2)
    assert ends[1][0] == 9
    assert ends[0][0] == 3 and "another process of the run has ended" in ends[0][1], ends
    step = whole()
    step.load(tmp_path / "out.npz.step.npz")
    assert step.count == 2
    step(BATCHES[2])
    straight = whole()
    for batch in BATCHES:
        straight(batch)
    for name, array in straight.state_dict().items():
        np.testing.assert_allclose(step.state_dict()[name], array, rtol=0, atol=1e-3)


def test_it_is_told_to_use_a_launcher(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(graphc.ModelError, match="RANK is not set: start the program by torchrun"):
        DataParallel(whole())
