"""Times of steps as compiled code took them, for whoever measures a model.

A `Recorder` is given to what is compiled. As long as it is on, each call of a program adds a
`Reading`. It belongs to no backend; `Counter` says what its counts mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from graphc.records import dataclass

if TYPE_CHECKING:
    from graphc.ir.program import AnyStep, Program


@dataclass(frozen=True)
class Counter:
    """Counts in a second, and those that taking one reading adds to a step."""

    rate: float
    cost: float


@dataclass(frozen=True, eq=False)
class Timed:
    """A program whose calls are timed; its steps in the order in which they end."""

    program: Program
    steps: Sequence[AnyStep]


@dataclass(frozen=True, eq=False)
class Reading:
    """One call of a program on a thread: the cells that its code wrote. After `header` cells come
    the counts that each step took and how often it ran, then the log, in order: a step and the
    counter when it ended, as many as there was room for. One cell holds the counter when the call
    began, and one how many entries the log has."""

    timed: Timed
    thread: int
    cells: np.ndarray
    header: int
    begins: int
    logged: int

    @property
    def begin(self) -> int:
        """The counter when the call began."""
        return int(self.cells[self.begins])

    @property
    def counts(self) -> np.ndarray:
        """By step, the counts that it took."""
        return self._steps[:, 0]

    @property
    def runs(self) -> np.ndarray:
        """By step, how often it ran."""
        return self._steps[:, 1]

    @property
    def _steps(self) -> np.ndarray:
        return self.cells[self.header : self._end].reshape(-1, 2)

    @property
    def _end(self) -> int:
        return self.header + 2 * len(self.timed.steps)

    @property
    def log(self) -> np.ndarray:
        """A step and the counter when it ended, in order."""
        return self.cells[self._end :].reshape(-1, 2)[: self.cells[self.logged]]


class Recorder:
    """Takes the readings of each thread while that has it on. `room` is how many steps of a call
    the log has room for; `programs` are those that were made; `clock` tells what counts mean, and
    is there once there is a program."""

    def __init__(self) -> None:
        self.room = 0
        self.programs: list[Timed] = []
        self.clock: Callable[[], Counter] | None = None
        self._own = threading.local()

    @property
    def on(self) -> bool:
        """Whether this thread's calls are timed."""
        return getattr(self._own, "on", False)

    def add(self, reading: Reading) -> None:
        """Takes a reading of this thread."""
        self._own.readings.append(reading)

    @contextmanager
    def taking(self) -> Iterator[list[Reading]]:
        """Times the calls of this thread; gives a list of their readings, which grows."""
        self._own.readings = []
        self._own.on = True
        try:
            yield self._own.readings
        finally:
            self._own.on = False
