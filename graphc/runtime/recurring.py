"""Which shapes keep coming, and compiling for them behind runs of a program for all shapes.

A shape is compiled for in a background thread once the time that an exact program would have saved
its runs is the time that compiling takes. What is saved of a run's time is measured: the first runs
of each exact program are compared with those of the general one. Until then it is taken to be what
exact programs save in the mean over models whose batch, sequence or image is open.

The thread ends with the process: it is told to stop, and does so after what native code it is in. A
fork waits for it, as what it holds would stay locked in the child.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import time
import weakref
from collections.abc import Callable
from threading import Lock, Thread, current_thread

from graphc.records import dataclass
from graphc.runtime.listing import ExecutableInfo

GAIN = 0.1  # of a run's time that an exact program is taken to save, until one has been measured
TRIALS = 8  # runs of an exact program that are measured
BACKGROUND = 0.5  # of the time since the first run that may go into compiling behind it
MOST_REMEMBERED = 1 << 10  # shapes of which something is remembered
POLL = 0.05  # seconds between two attempts to stop a thread


@dataclass
class _Runs:
    """Runs of the general program at one shape: seconds in all, and of the shortest."""

    spent: float = 0.0
    shortest: float = math.inf


@dataclass
class _Trial:
    """The first runs of an exact program, beside those of the general one."""

    general: float
    shortest: float = math.inf
    count: int = 0


class Recurring:
    """The time that shapes have taken. `compile` compiles for the shapes of inputs, in the
    background, and is told why; `declined` says of shapes what failed there, which is not tried
    again."""

    def __init__(self, compile: Callable[[tuple, str], None]):
        self.background = Background()
        self.declined: dict[tuple, str] = {}
        self.trials: dict[tuple, _Trial] = {}  # of exact programs that are being measured
        self._compile = compile
        self._runs: dict[tuple, _Runs] = {}
        self._gains: list[float] = []

    @property
    def gain(self) -> float:
        """The part of a run's time that an exact program saves."""
        return sum(self._gains) / len(self._gains) if self._gains else GAIN

    def note(self, shapes: tuple, seconds: float) -> None:
        """Counts a run of the general program; has its shape compiled for once that pays."""
        runs = self._runs.get(shapes)
        if runs is None:
            if len(self._runs) >= MOST_REMEMBERED:
                self._runs.clear()
            runs = self._runs[shapes] = _Runs()
        runs.spent += seconds
        runs.shortest = min(runs.shortest, seconds)
        saved = runs.spent * self.gain
        if saved >= self.background.cost and shapes not in self.declined:
            self.background.start(lambda: self._work(shapes, runs))

    def tried(self, shapes: tuple, seconds: float) -> None:
        """Counts a run of an exact program that is being measured."""
        trial = self.trials.get(shapes)
        if trial is None:
            return
        trial.shortest = min(trial.shortest, seconds)
        trial.count += 1
        if trial.count >= TRIALS and self.trials.pop(shapes, None) is trial:
            self._gains.append(max(1 - trial.shortest / trial.general, 0.0))
            del self._gains[:-TRIALS]

    def failures(self) -> list[ExecutableInfo]:
        """What could not be compiled."""
        return [ExecutableInfo(shapes, None, why) for shapes, why in list(self.declined.items())]

    def _work(self, shapes: tuple, runs: _Runs) -> None:
        cost = self.background.cost
        why = (
            f"its runs took {runs.spent:.3g} s, of which it is expected to save "
            f"{self.gain:.0%}; compiling was expected to take {cost:.3g} s"
        )
        try:
            self._compile(shapes, why)
        except Exception as error:
            if len(self.declined) >= MOST_REMEMBERED:
                self.declined.clear()
            self.declined[shapes] = f"compiling in the background failed: {error}"
        else:
            if len(self.trials) >= MOST_REMEMBERED:
                self.trials.clear()
            self.trials[shapes] = _Trial(runs.shortest)
        self._runs.pop(shapes, None)


class Background:
    """Compiles behind runs, one thing at a time, for a share of the time that has passed."""

    def __init__(self) -> None:
        self.since = time.perf_counter()
        self.busy = 0.0  # seconds spent
        self.count = 0  # of things done
        self.expected = 0.0  # seconds that the first will take
        self._thread: Thread | None = None
        self.lock = Lock()

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
        """Does something in a thread of its own, unless one is busy."""
        with self.lock:
            if _is_closed or not self.may_start():
                return
            self._thread = Thread(target=self._timed, args=(work,), daemon=True)
            _at_work.add(self)
            self._thread.start()

    def _timed(self, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        try:
            work()
        finally:
            self.busy += time.perf_counter() - begin
            self.count += 1

    def wait(self) -> None:
        """Returns once what is being compiled is done."""
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join()

    def stop(self) -> None:
        """Has the thread end, which it does between two lines of Python. Where Python ignores that,
        as in callbacks of weak references, it is asked again, without a word."""
        thread, usual = self._thread, sys.unraisablehook

        def quiet(ignored: sys.UnraisableHookArgs) -> None:
            if ignored.exc_type is not SystemExit:
                usual(ignored)

        sys.unraisablehook = quiet
        while thread is not None and thread.is_alive():
            if thread.ident is not None:
                raising = ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(*raising)
            thread.join(POLL)
        sys.unraisablehook = usual


_at_work: weakref.WeakSet[Background] = weakref.WeakSet()  # those that may have a thread
_is_closed = False  # whether no thread may start


@atexit.register
def _at_exit() -> None:
    """Stops all threads at the end of the process: native code must not outlive what it uses."""
    global _is_closed
    _is_closed = True
    for background in list(_at_work):
        background.stop()


def _before_fork() -> None:
    """Waits for all threads: what they hold would stay locked in the child."""
    global _is_closed
    _is_closed = True
    for background in list(_at_work):
        background.wait()


def _after_fork() -> None:
    global _is_closed
    _is_closed = False


def _in_child() -> None:
    for background in list(_at_work):
        background.lock = Lock()  # which another thread may have held
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
