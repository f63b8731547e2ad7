"""The time of kernels on this machine's CPU, for a tuner (graphc/backends/tuning.py).

Each candidate becomes a program of its kernels, on random numbers, in this process and on one
thread. Candidates run by turns, another one first in each round, so that what slows the machine
down slows all of them; each after other memory was read, as in a model, where weights are seldom in
a near cache. The time is that of the processor, not of the clock on the wall. What counts is the
ratio to the first candidate in the same round. The best few are measured once more, for longer, and
judged by a ratio that most rounds keep below, so that noise makes no winner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from graphc.backends.llvm_cpu.codegen import compile_program
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import CpuTarget, host_target
from graphc.backends.tuning import contents, program_alone
from graphc.ir.alignment import empty_aligned
from graphc.ir.kernel import Kernel
from graphc.ir.types import TensorType
from graphc.runtime.runnable import Given

ROUNDS = 7  # by turns, of all candidates
FINALISTS, FINAL_ROUNDS = 2, 21  # of which the choice is made, with the first candidate
SURE = 0.7  # of these rounds show no larger ratio: what is said of a candidate beside other work
SAMPLE = 300e-6  # seconds that a sample takes at least
LARGEST = 1 << 28  # bytes of operands, beyond which nothing is measured
OTHER = 2  # times the second level of cache: memory that is read in between


def machine_name(host: CpuTarget | None = None) -> str:
    """What schedules depend on of a machine: its CPU, vectors and second level of cache."""
    host = host or host_target()
    return f"{host.arch} {host.cpu}, {host.vector_bits} bits, {host.l2_bytes >> 10} KiB"


def seconds(candidates: Sequence[Sequence[Kernel]]) -> list[float]:
    """The seconds that the kernels of each candidate take; all 0 where they are too large to be
    measured."""
    arrays = _Arrays()
    runs = [_runner([k for k in kernels if k.params], arrays) for kernels in candidates]
    if arrays.nbytes > LARGEST:
        return [0.0] * len(runs)
    other = np.ones(host_target().l2_bytes * OTHER // 8)
    repeats = [_repeats(run) for run in runs]

    def rounds(own: Sequence[int], count: int) -> list[list[float]]:
        """The samples of some candidates, by round."""
        told = []
        for turn in range(count):
            times = {}
            for n in (*own[turn % len(own) :], *own[: turn % len(own)]):
                other.sum()
                times[n] = _sample(runs[n], repeats[n])
            told.append([times[n] for n in own])
        return told

    samples = rounds(range(len(runs)), ROUNDS)
    first = median(row[0] for row in samples)
    ratios = [median(row[n] / row[0] for row in samples) for n in range(len(runs))]
    best = sorted(range(1, len(runs)), key=ratios.__getitem__)[:FINALISTS]
    final = rounds([0, *best], FINAL_ROUNDS)
    for place, n in enumerate(best, 1):
        own = sorted(row[place] / row[0] for row in final)
        ratios[n] = own[int(len(own) * SURE)]
    others = max((ratios[n] for n in best), default=1.0)  # none of which is taken before these
    return [first * (r if n in best else max(r, others)) if n else first
            for n, r in enumerate(ratios)]  # fmt: skip


def _sample(run: Callable[[], object], times: int) -> float:
    begin = time.thread_time_ns()
    for _ in range(times):
        run()
    return (time.thread_time_ns() - begin) / times / 1e9


def _repeats(run: Callable[[], object]) -> int:
    """How many runs a sample takes."""
    run()
    return max(1, math.ceil(SAMPLE / max(_sample(run, 1), 1e-7)))


class _Arrays:
    """Arrays by their place and type, which all candidates share."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], np.ndarray] = {}
        self.nbytes = 0

    def get(self, name: str, type: TensorType) -> np.ndarray:
        """An array of this type, whose contents are random."""
        key = name, type
        if key not in self.known:
            dtype, shape = type.dtype.np, type.static_shape
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self.nbytes += size
            if self.nbytes > LARGEST:
                return np.zeros(shape, dtype)
            array = empty_aligned(size).view(dtype).reshape(shape)
            array[...] = contents(type)
            self.known[key] = array
        return self.known[key]


def _runner(kernels: Sequence[Kernel], arrays: _Arrays) -> Callable[[], object]:
    """What runs kernels, one after another, on one thread."""
    program = program_alone(kernels)
    inputs = [arrays.get(n, t) for n, t in program.inputs]
    outputs = [arrays.get(f"{number} {n}", t) for number, (n, t) in enumerate(program.outputs)]
    model = NativeModel(compile_program(program), 1)
    given = Given(inputs, outputs)
    return lambda: model(given)
