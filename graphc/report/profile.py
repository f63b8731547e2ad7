"""Where the time of a model goes: measured times of its steps, next to the least by the roofline.

The time of a step is the median over runs, less what its readings took. `outside` is the rest of a
run: Python, what the host runs, and what lies between the programs. Within one run the two add up
to its time. Medians need not: on a machine that others use too, most steps of a run are
undisturbed, and hardly a run is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.analysis import roofline
from graphc.analysis.cost import Cost, instructions
from graphc.ir.machine import Peaks
from graphc.ir.operations import kernel_operations
from graphc.ir.program import AnyStep, Copy, Count, If, Program, Step, While, at_sizes, ending
from graphc.ir.types import elements_of, largest
from graphc.report.measuring import Measured
from graphc.runtime.readings import Reading, Timed

PERCENTILES = (50, 90, 99)
ON_A_DEVICE = "the log of a device"
KINDS = {Step: "kernel", Copy: "copy", While: "loop", If: "branch", Count: "size"}


@dataclass(frozen=True)
class StepTime:
    """A step of a program: the ONNX nodes that it computes, its kernel ("" if it calls none), how
    often it ran in a run, the seconds of a run that it took, and those that it takes at the least
    (None where that is not known), by what `bound`; operations and bytes of a run."""

    layers: tuple[str, ...]
    kind: str
    kernel: str
    calls: float
    seconds: float
    least: float | None = None
    bound: str = ""
    flops: float = 0
    nbytes: float = 0

    @property
    def factor(self) -> float | None:
        """How many times as long as at the least it takes."""
        return self.seconds / self.least if self.least else None

    def rate(self, amount: float) -> float:
        """So much of something in its time, by the second."""
        return amount / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """What was measured of a model. Times are in seconds. `processor` is that which the calling
    thread had the processor for, in the median run; `inside` the part of a timed run that its steps
    take, `added` what timing adds to a run, both medians over runs; `readings` how many a run
    takes, of `reading` seconds each. `about` tells how it was measured."""

    steps: list[StepTime]
    run: float
    processor: float
    inside: float
    added: float
    readings: float
    reading: float
    latencies: Mapping[str, float]
    per_second: float
    rounds: int
    first: float
    warm_up: int
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The seconds that the steps take."""
        return sum(step.seconds for step in self.steps)

    @property
    def overhead(self) -> float:
        """The part of a timed run that readings take."""
        return self.readings * self.reading / self.run if self.run else 0.0

    def data(self) -> dict[str, Any]:
        """As JSON: times in milliseconds."""
        return {
            **self.about,
            "first_ms": _ms(self.first), "warm_up": self.warm_up, "rounds": self.rounds,
            "latency_ms": {name: _ms(value) for name, value in self.latencies.items()},
            "runs_per_second": _digits(self.per_second),
            "steps_ms": _ms(self.total), "processor_ms": _ms(self.processor),
            "inside": _digits(self.inside),
            "readings": {"per_run": _digits(self.readings), "ns": _digits(self.reading * 1e9),
                         "share": _digits(self.overhead), "added": _digits(self.added)},
            "layers": [row(step, self.total) for step in self.steps],
        }  # fmt: skip


def row(step: StepTime, total: float) -> dict[str, Any]:
    """A step as JSON, of steps that take so many seconds together."""
    return {
        "layers": list(step.layers), "kind": step.kind, "kernel": step.kernel,
        "calls": _digits(step.calls), "ms": _ms(step.seconds),
        "share": _digits(step.seconds / total if total else 0.0),
        "least_ms": None if step.least is None else _ms(step.least), "bound": step.bound,
        "factor": None if step.factor is None else _digits(step.factor),
        "flops": _digits(step.flops), "bytes": _digits(step.nbytes),
        "gflops_per_s": _digits(step.rate(step.flops) / 1e9),
        "gbytes_per_s": _digits(step.rate(step.nbytes) / 1e9),
    }  # fmt: skip


def _ms(seconds: float) -> float:
    return _digits(seconds * 1e3)


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def profile_of(measured: Measured, peaks: Peaks | None) -> Profile:
    """The profile of what was measured on a machine of these peaks."""
    counter, plain, timed = measured.counter, measured.plain, measured.timed
    steps = step_times(measured, peaks)
    inside = [
        sum(int(r.counts.sum()) for r in taken) / counter.rate / seconds
        for taken, seconds in zip(measured.readings, timed)
    ]
    notes = [sum(int(r.runs.sum()) for r in taken) for taken in measured.readings]
    latencies = {f"p{q}": float(np.percentile(plain, q)) for q in PERCENTILES}
    latencies |= {"best": float(plain.min()), "mean": float(plain.mean())}
    return Profile(
        steps, latencies["p50"], float(np.median(measured.processor)),
        float(np.median(inside)), float(np.median(timed / plain)) - 1,
        float(np.median(notes)), counter.cost / counter.rate, latencies, measured.per_second,
        len(plain), measured.first, measured.warm_up,
    )  # fmt: skip


def step_times(measured: Measured, peaks: Peaks | None) -> list[StepTime]:
    """The steps of all programs that ran, in order."""
    times: list[StepTime] = []
    for program, (calls, seconds) in medians(measured):
        program = known(program)
        costs = Costs(program, peaks)
        for number, step in enumerate(ending(program.steps)):
            if calls[number]:
                times.append(costs.step(step, float(calls[number]), float(seconds[number])))
    return times


def medians(measured: Measured) -> Iterator[tuple[Program, np.ndarray]]:
    """Of each program that ran, how often its steps ran in a run and the seconds that they took, in
    the order in which they end."""
    runs, counter = measured.readings, measured.counter
    for timed in dict.fromkeys(reading.timed for taken in runs for reading in taken):
        counts = np.array([_sums(taken, timed) for taken in runs])  # by run, what and step
        net = counts[:, 0] - counts[:, 1] * counter.cost
        seconds = np.maximum(np.median(net, axis=0), 0) / counter.rate
        yield timed.program, np.array([np.median(counts[:, 1], axis=0), seconds])


@dataclass(frozen=True)
class Logged:
    """A program and, for each of its calls in order, the seconds of its runs on another machine;
    `how` they are known."""

    program: Program
    seconds: Sequence[Sequence[float]]
    how: str = ON_A_DEVICE


def logged_times(logged: Logged, peaks: Peaks | None) -> list[StepTime]:
    """The calls of a program that runs elsewhere."""
    costs = Costs(known(logged.program), peaks)
    return [
        costs.step(step, float(calls), float(taken))
        for step, calls, taken in zip(
            ending(costs.program.steps), *logged_medians(logged), strict=True
        )
        if calls
    ]


def logged_medians(logged: Logged) -> np.ndarray:
    """As `medians`, of a program that runs elsewhere. Without loops a layer runs once in each run,
    else what is told is taken to be of one run."""
    program, seconds = logged.program, logged.seconds
    steps = list(ending(program.steps))
    in_order = not any(isinstance(step, While) for step in program.steps)
    times = np.zeros((2, len(steps)))
    calls = [number for number, step in enumerate(steps) if isinstance(step, Step)]
    for number, taken in zip(calls, seconds, strict=True):
        if taken:
            times[:, number] = (1, np.median(taken)) if in_order else (len(taken), sum(taken))
    return times


def _sums(taken: Sequence[Reading], timed: Timed) -> np.ndarray:
    """Counts and calls of the steps of a program, in one run, which may call it several times."""
    sums = np.zeros((2, len(timed.steps)))
    for reading in taken:
        if reading.timed is timed:
            sums += (reading.counts, reading.runs)
    return sums


def known(program: Program) -> Program:
    """A program, at its largest sizes if it has any."""
    if not program.all_sizes:
        return program
    return at_sizes(program, list(map(largest, program.all_sizes)))


class Costs:
    """What the steps of a program cost."""

    def __init__(self, program: Program, peaks: Peaks | None):
        self.program, self.peaks = program, peaks

    def step(self, step: AnyStep, calls: float, seconds: float) -> StepTime:
        kernel = step.kernel if isinstance(step, Step) else ""
        cost, used = self._cost(step)
        known = self.peaks is not None and cost.nbytes > 0
        least = roofline.seconds(used, cost) * calls if known and used else None
        bound = roofline.bound(used, cost) if known and used else ""
        return StepTime(
            step.loc, KINDS[type(step)], kernel, calls, seconds, least, bound,
            cost.flops * calls, cost.nbytes * calls,
        )  # fmt: skip

    def _cost(self, step: AnyStep) -> tuple[Cost, Peaks | None]:
        """The cost of one call, and the peaks of the instructions that it uses."""
        if isinstance(step, Copy):
            moved = largest(elements_of((step.source.elements, step.source.dtype.size)))
            return Cost(0, 2 * moved), self.peaks
        if not isinstance(step, Step):
            return Cost(), self.peaks
        kernel = self.program.kernels[step.kernel]
        flops = step.flops or kernel_operations(kernel)
        used = self.peaks and self.peaks.using(instructions(kernel))
        return Cost(flops, step.nbytes), used
