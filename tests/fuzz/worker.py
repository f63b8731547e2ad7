"""A child process that examines seeds, so that a crash or a hang is a finding like any other."""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import time
import traceback
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 600.0
USUAL = 100  # cases, if neither their number nor a time is given


def child(pipe: Any, prepare: Callable[..., Callable[[int], list[str]]], arguments: tuple) -> None:
    """Answers seeds with findings."""
    examine = prepare(*arguments)
    while True:
        seed = pipe.recv()
        try:
            pipe.send(examine(seed))
        except Exception as error:
            traceback.print_exc()
            pipe.send([f"fuzzer {seed}: {type(error).__name__}: {error}"])


class Worker:
    """Examines seeds with what `prepare(*arguments)` returns in the child process, which is
    started again when it dies or hangs."""

    def __init__(self, prepare: Callable[..., Callable[[int], list[str]]], *arguments: Any):
        self.prepare, self.arguments = prepare, arguments
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=child, args=(theirs, self.prepare, self.arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    def examine(self, seed: int) -> list[str]:
        """The findings of a seed, a line each."""
        self.pipe.send(seed)
        problem = "hangs"
        if self.pipe.poll(HANG_SECONDS):
            try:
                return self.pipe.recv()
            except EOFError:
                self.process.join()
                problem = f"crashes, exit code {self.process.exitcode}"
        self.stop()
        self.start()
        return [f"crash {seed}: {problem}"]

    def stop(self) -> None:
        """Ends the child process."""
        self.process.kill()
        self.process.join()

    def work(self, args: argparse.Namespace, show: Callable[[int], None]) -> int:
        """Examines the seeds that the options of `add_bounds` ask for and prints the findings; with
        the option `print` each case before. The exit code: 1 if there are findings."""
        count = args.count or (USUAL if args.minutes is None else 1 << 62)
        until, done, findings = time.monotonic() + 60 * (args.minutes or 1e9), 0, 0
        while done < count and time.monotonic() < until:
            if args.print:
                show(args.seed + done)
            for line in self.examine(args.seed + done):
                findings += 1
                print(line, flush=True)
            done += 1
        print(f"{done} cases, {findings} findings")
        self.stop()
        return 1 if findings else 0


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Options for which seeds are examined, and how many."""
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help=f"number of cases (default: {USUAL})")
    parser.add_argument("--minutes", type=float, help="stop after so long")
