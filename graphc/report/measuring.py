"""Runs of a model that are measured: as they are, and by turns timed step by step.

Times of whole runs are of those that are not timed. Each timed run gives the counts of its steps,
of which the median over runs is taken. A run of N streams is N threads that do this side by side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from graphc.runtime.readings import Counter, Reading, Recorder

LEAST = 5  # rounds, however long they take
TRACED = 3  # runs of each stream that are kept whole, in the end


@dataclass
class Runs:
    """Seconds of runs, and of those that were timed, in turns; the readings of the latter; and the
    processor's time that the thread took for the former."""

    plain: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    timed: list[float] = field(default_factory=list)
    readings: list[list[Reading]] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """What was measured: `first` is the first run, of which nothing else tells; `streams` the runs
    of each thread, which took `seconds` together; `counter` says what counts of readings are;
    `traced` are further readings with logs, where they were asked for."""

    first: float
    warm_up: int
    streams: list[Runs]
    seconds: float
    counter: Counter
    traced: list[Reading]

    @property
    def plain(self) -> np.ndarray:
        """Seconds of the runs that were not timed, of all streams."""
        return np.concatenate([np.array(runs.plain) for runs in self.streams])

    @property
    def processor(self) -> np.ndarray:
        """The processor's time that the calling thread took for each of these."""
        return np.concatenate([np.array(runs.processor) for runs in self.streams])

    @property
    def timed(self) -> np.ndarray:
        """Seconds of those that were."""
        return np.concatenate([np.array(runs.timed) for runs in self.streams])

    @property
    def readings(self) -> list[list[Reading]]:
        """Those of each timed run, in the order of `timed`."""
        return [taken for runs in self.streams for taken in runs.readings]

    @property
    def per_second(self) -> float:
        """Runs, timed or not."""
        return (len(self.plain) + len(self.timed)) / self.seconds


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds of a run and a timed one, so many or for some seconds, after
    `warm_up` runs, on `streams` threads; `room` of the logs that are kept in the end."""

    seconds: float = 5.0
    rounds: int | None = None
    warm_up: int = 2
    streams: int = 1
    room: int = 0


def measure(run: Callable[[], object], recorder: Recorder, plan: Plan) -> Measured:
    """Measures a model that was compiled with the recorder. Errors of runs are raised."""
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    streams = [Runs() for _ in range(plan.streams)]
    for _ in range(plan.warm_up):
        run()
        with recorder.taking():
            run()
    begin = time.perf_counter()
    _side_by_side([_measuring(run, recorder, plan, runs) for runs in streams])
    seconds = time.perf_counter() - begin
    traced = _traced(run, recorder, plan) if plan.room else []
    assert recorder.clock is not None
    return Measured(first, plan.warm_up, streams, seconds, recorder.clock(), traced)


def _measuring(
    run: Callable[[], object], recorder: Recorder, plan: Plan, runs: Runs
) -> Callable[[], None]:
    def measuring() -> None:
        begin = time.perf_counter()
        while not _enough(len(runs.plain), time.perf_counter() - begin, plan):
            own, start = time.thread_time(), time.perf_counter()
            run()
            runs.plain.append(time.perf_counter() - start)
            runs.processor.append(time.thread_time() - own)
            with recorder.taking() as readings:
                start = time.perf_counter()
                run()
                runs.timed.append(time.perf_counter() - start)
            runs.readings.append(readings)

    return measuring


def _enough(rounds: int, seconds: float, plan: Plan) -> bool:
    if plan.rounds is not None:
        return rounds >= plan.rounds
    return rounds >= LEAST and seconds >= plan.seconds


def _traced(run: Callable[[], object], recorder: Recorder, plan: Plan) -> list[Reading]:
    """Readings with logs, of all streams."""
    kept: list[Reading] = []

    def tracing() -> None:
        with recorder.taking() as readings:
            for _ in range(TRACED):
                run()
        kept.extend(readings)

    recorder.room = plan.room
    try:
        _side_by_side([tracing] * plan.streams)
    finally:
        recorder.room = 0
    return kept


def _side_by_side(actions: list[Callable[[], None]]) -> None:
    """Does each in a thread of its own; a single one here."""
    if len(actions) == 1:
        actions[0]()
        return
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(actions))

    def acting(action: Callable[[], None]) -> None:
        try:
            barrier.wait()
            action()
        except BaseException as error:  # raised again by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=acting, args=(a,), daemon=True) for a in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
