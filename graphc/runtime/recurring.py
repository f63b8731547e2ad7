"""Which shapes keep coming, and compiling for them behind runs of a program for all shapes.

A shape is compiled for in a background thread once the time its runs have taken would have paid for
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from graphc.errors import GraphcError

GAIN = 0.3  # of a run's time that an exact program is taken to save, until one has been made
BACKGROUND = 0.5  # of the time since the first run that may go into compiling behind it
MOST_REMEMBERED = 1 << 12  # shapes of which something is remembered


class Recurring:
    """The time that shapes have taken. `compile` compiles for the shapes of inputs, in the
    background; what fails there is not tried again."""

    def __init__(self, compile: Callable[[tuple], None]):
        self.background = Background()
        self._compile = compile
        self._spent: dict[tuple, float] = {}  # seconds of the general program, by shapes

    def note(self, shapes: tuple, seconds: float) -> None:
        """Counts a run of the general program; has its shape compiled for once that pays."""
        if len(self._spent) >= MOST_REMEMBERED:
            self._spent.clear()
        spent = self._spent[shapes] = self._spent.get(shapes, 0.0) + seconds
        if spent * GAIN >= self.background.cost:
            self.background.start(lambda: self._work(shapes))

    def _work(self, shapes: tuple) -> None:
        self._spent[shapes] = -math.inf
        self._compile(shapes)
        self._spent.pop(shapes, None)


class Background:
    """Compiles behind runs, one thing at a time, for a share of the time that has passed."""

    def __init__(self) -> None:
        self.since = time.perf_counter()
        self.busy = 0.0  # seconds spent
        self.count = 0  # of things done
        self.expected = 0.0  # seconds that the first will take
        self._thread: Thread | None = None
        self._lock = Lock()

    @property
    def cost(self) -> float:
        """The seconds that compiling takes: those it has taken, on average."""
        return self.busy / self.count if self.count else self.expected

    def expect(self, seconds: float) -> None:
        """Tells how long compiling may take, before anything has been."""
        self.expected = seconds

    def may_start(self) -> bool:
        """Whether nothing is being compiled, and the share is not spent."""
        idle = self._thread is None or not self._thread.is_alive()
        return idle and self.busy <= BACKGROUND * (time.perf_counter() - self.since)

    def start(self, work: Callable[[], None]) -> None:
        """Does something in a thread of its own. What fails there fails when it is run."""
        with self._lock:
            if self.may_start():
                self._thread = Thread(target=self._timed, args=(work,), daemon=True)
                self._thread.start()

    def _timed(self, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        with suppress(GraphcError):
            work()
        self.busy += time.perf_counter() - begin
        self.count += 1

    def wait(self) -> None:
        """Returns once what is being compiled is done."""
        thread = self._thread
        if thread is not None:
            thread.join()
