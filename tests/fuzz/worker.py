"""A child process that examines seeds, so that a crash or a hang is a finding like any other."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import traceback
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 120.0


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
