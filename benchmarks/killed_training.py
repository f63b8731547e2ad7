"""Kills `graphc train` at random, and compares what it comes to with a run that nothing stopped.

    python benchmarks/killed_training.py [MODEL DATA] [--kills 20] [--workers 1] [--seed 0]
        [-- OPTION ...]

A run is killed (SIGKILL) after a random time, be it in a step or while it starts, compiles or
writes its checkpoint, and started again with `--resume`, until it ends of itself. With `--workers`,
so many processes take each step together (torch.distributed, gloo), and a random one of them is
killed: the others must end by themselves, with an error. Where it is killed before all have met,
the others are ended, as launchers do (torchrun); by themselves they would wait for five minutes.

One JSON line: how often a run was killed before it ended, the steps that were done at each kill
(-1 where there was no checkpoint yet), and whether the parameters, the checkpoint and the record of
all steps have the same bytes as those of the undisturbed run. The command fails if not. Without
MODEL and DATA it trains the digits model on random samples; OPTIONs go to `graphc train`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphc.train.state_files import read_state_dict
from graphc.train.step_graph import STEP

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "models" / "digits_cnn.onnx"
OPTIONS = ["--optimizer", "adamw", "--rate", "0.003", "--schedule", "cosine", "--clip-norm", "1",
           "--checkpoint-every", "3"]  # fmt: skip
GONE = -9  # what a process gives that was killed
PATIENCE = 120.0  # seconds in which the others of a killed process must have ended


class Runs:
    """Runs of one command in a folder, each with files of its own."""

    def __init__(self, folder: Path, arguments: Sequence[str], workers: int):
        self.folder, self.arguments, self.workers = folder, list(arguments), workers

    def start(self, name: str) -> list[subprocess.Popen[str]]:
        """The processes of a run, which goes on from its checkpoint if there is one."""
        own = ["--checkpoint", f"{name}.run.npz", "--csv", f"{name}.csv", "-o", f"{name}.npz"]
        command = [sys.executable, "-m", "graphc", "train", *self.arguments, *own]
        command += ["--resume", "--quiet", "--threads", "1"]
        common = {**os.environ, "PYTHONPATH": str(ROOT)}
        if self.workers == 1:
            variables = [common]
        else:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            common.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
            common["WORLD_SIZE"] = str(self.workers)
            variables = [{**common, "RANK": str(rank)} for rank in range(self.workers)]
        return [
            subprocess.Popen(command, cwd=self.folder, env=own, stderr=subprocess.PIPE, text=True)
            for own in variables
        ]

    def end(self, processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
        """Exit codes, and what was said on stderr."""
        said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, said)]

    def undisturbed(self, name: str) -> float:
        """A run that nothing stops; gives its seconds."""
        start = time.perf_counter()
        processes = self.start(name)
        said = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"killed_training: the undisturbed run failed: {''.join(said)}")
        return time.perf_counter() - start

    def killed(
        self, name: str, kills: int, idle: float, busy: float, rng: random.Random
    ) -> list[int]:
        """A run that is killed so many times, then goes on to its end. A quarter of the kills come
        within `idle` seconds of the start, the others within `busy` seconds of the first checkpoint
        that the process writes. Gives the steps that each kill left."""
        done: list[int] = []
        while True:
            processes, before = self.start(name), self.written(name)
            is_hit = len(done) < kills
            if is_hit:
                early = rng.random() < 0.25
                while not early and self.written(name) == before and _all_run(processes):
                    time.sleep(0.001)
                time.sleep(rng.uniform(0.0, idle if early else busy))
                rng.choice(processes).kill()
                for process in processes if early else ():
                    process.kill()
            ends = self.end(processes)
            if all(code == 0 for code, _ in ends):
                return done
            _check(ends, is_hit)
            done.append(self.steps(name))

    def written(self, name: str) -> int:
        """Changes whenever the checkpoint of a run is written."""
        path = self.folder / f"{name}.run.npz"
        return path.stat().st_ino if path.exists() else 0

    def steps(self, name: str) -> int:
        """The steps that the checkpoint of a run has done; -1 if there is none."""
        path = self.folder / f"{name}.run.npz"
        return int(read_state_dict(path)[STEP]) if path.exists() else -1


def _all_run(processes: Sequence[subprocess.Popen[str]]) -> bool:
    return all(process.poll() is None for process in processes)


def _check(ends: Sequence[tuple[int, str]], was_hit: bool) -> None:
    """Of a killed run, one process was killed, and the others told why they ended."""
    for code, text in ends:
        told = code == GONE or "another process of the run has ended" in text
        if not was_hit or not (told or code == 0) or "Traceback" in text:
            sys.exit(f"killed_training: a process ended with {code}: {text}")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The row of a run that was killed beside one that was not."""
    if args.model is None:
        rng = np.random.default_rng(0)
        images = rng.standard_normal((200, 1, 8, 8)).astype(np.float32)
        np.savez(folder / "data.npz", image=images, label=rng.integers(0, 10, 200))
        given = [str(DIGITS), "--data", "data.npz", "--epochs", "60", "--batch", "24"]
    else:
        given = [str(Path(args.model).resolve()), "--data", str(Path(args.data).resolve())]
    runs = Runs(folder, [*given, *OPTIONS, *args.options], args.workers)
    seconds = runs.undisturbed("straight")
    idle = runs.undisturbed("straight")  # nothing is left to do
    busy = (seconds - idle) / args.kills / 2  # all kills together leave much of it
    done = runs.killed("broken", args.kills, idle, busy, random.Random(args.seed))
    same = {
        suffix: (folder / f"straight{suffix}").read_bytes()
        == (folder / f"broken{suffix}").read_bytes()
        for suffix in (".npz", ".run.npz", ".csv")
    }
    left = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    return {
        "model": Path(given[0]).stem, "workers": args.workers, "kills": len(done),
        "steps": runs.steps("straight"), "seconds": round(seconds, 1), "done": done,
        "same": same, "drafts": len(left),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the row; 1 if the runs differ, or one ended before it was killed often enough."""
    parser = argparse.ArgumentParser(description="graphc train, killed at random")
    parser.add_argument("model", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(given[: given.index("--")] if "--" in given else given)
    args.options = given[given.index("--") + 1 :] if "--" in given else []
    if args.model is not None and args.data is None:
        parser.error("MODEL needs DATA")
    with tempfile.TemporaryDirectory() as folder:
        row = measure(args, Path(folder))
    print(json.dumps(row), flush=True)
    return 0 if row["kills"] == args.kills and all(row["same"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
