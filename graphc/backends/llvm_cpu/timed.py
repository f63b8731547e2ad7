"""Programs that are timed step by step: the code of emit_timed.py, and what its counts mean."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from graphc.backends.cache import default_cache
from graphc.backends.llvm_cpu.codegen import compile_program
from graphc.backends.llvm_cpu.emit_timed import (
    BEGIN,
    HEADER,
    INVOKE_TIMED,
    LOGGED,
    ROOM,
    cost_text,
    counter_of,
)
from graphc.backends.llvm_cpu.memory import Scratch
from graphc.backends.llvm_cpu.objects import cached_object, load_object
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import host_target
from graphc.ir.program import Program, ending
from graphc.runtime.readings import Counter, Reading, Recorder, Timed

NOTES = 2000  # readings in a row, by which the cost of one is measured
TRIALS = 25
ATTEMPTS = 9  # to read two clocks at once


class TimedModel(NativeModel):
    """A program that runs as any other, and times its steps while a recorder is on."""

    exports = (INVOKE_TIMED,)

    def __init__(self, program: Program, threads: int, scratch: Scratch, recorder: Recorder):
        super().__init__(compile_program(program, timed=True), threads, scratch)
        self._timed = Timed(program, tuple(ending(program.steps)))
        self._plainly, self._recorder = self._invoke, recorder
        pointer = ctypes.c_void_p
        self._timing = self._library.function(INVOKE_TIMED, None, pointer, pointer)
        self._invoke = self._run  # type: ignore[assignment]
        recorder.programs.append(self._timed)
        recorder.clock = recorder.clock or Clock().counter

    def _run(self, cells: int) -> None:
        recorder = self._recorder
        if not recorder.on:
            self._plainly(cells)
            return
        steps, room = len(self._timed.steps), recorder.room
        timing = np.zeros(HEADER + 2 * (steps + room), np.int64)
        timing[ROOM] = room
        self._timing(cells, timing.ctypes.data)
        recorder.add(Reading(self._timed, threading.get_ident(), timing, HEADER, BEGIN, LOGGED))


class Clock:
    """Tells what counts are: the rate of the counter over the time since this was made."""

    def __init__(self) -> None:
        self._begin = _now()

    def counter(self) -> Counter:
        """The rate, measured over a hundredth of a second at least, and the cost of a reading."""
        cost = reading_cost()
        (counts, seconds), (counts0, seconds0) = _now(), self._begin
        while seconds - seconds0 < 0.01:
            counts, seconds = _now()
        return Counter((counts - counts0) / (seconds - seconds0), cost)


def _now() -> tuple[int, float]:
    """The counter and the time, of some attempts the one with least time between the two."""
    best = (math.inf, 0, 0.0)
    for _ in range(ATTEMPTS):
        start, count, end = time.perf_counter(), read_counter(), time.perf_counter()
        best = min(best, (end - start, count, (start + end) / 2))
    return best[1:]


def read_counter() -> int:
    """What the processor's counter says."""
    return _functions()[0]()


def reading_cost() -> float:
    """The counts that one reading adds to a step, the median of some means."""
    timing = np.zeros(HEADER + 2, np.int64)
    means = []
    for _ in range(TRIALS):
        timing[:] = 0
        _functions()[1](timing.ctypes.data, NOTES)
        means.append(float(timing[HEADER]) / NOTES)
    return float(np.median(means))


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[], int], Callable[[int, int], None]]:
    """What reads the counter, and what takes readings in a row."""
    host, names = host_target(), ("graphc_counter", "graphc_notes")
    code = cached_object(cost_text(counter_of(host)), host, default_cache(), "light")
    library = load_object(code, names)
    read = library.function(names[0], ctypes.c_int64)
    return read, library.function(names[1], None, ctypes.c_void_p, ctypes.c_int64)
