"""Tiles by measurement: the candidates that a cost model ranks first, timed on the GPU at hand.

Each candidate becomes a program of its one kernel, on random numbers, and is run as models are; the
fastest is taken. The choice is kept in the disk cache, under the kernel of the first candidate
(which identifies the computation), the candidates, the device and the precision of its code; so a
model is measured once, and its kernels are the same from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from graphc.backends.cache import cache_key, default_cache
from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.emit import emit
from graphc.backends.cuda.gpu import image_for, open_gpu
from graphc.backends.cuda.machine_code import compiler
from graphc.backends.cuda.runtime import Driver, DriverError, Model
from graphc.errors import ModelError
from graphc.ir.kernel import Kernel
from graphc.ir.program import program_of
from graphc.ir.types import TensorType

TRIED = 6  # candidates that are measured
ROUNDS, IN_A_ROW = 5, 4  # times that each is measured, and runs of which one is the mean
T = TypeVar("T")


def tuned_device(ordinal: int, arch: str) -> Driver:
    """The GPU to measure on. UnsupportedError without one, ModelError if kernels are not planned
    for it (`arch` is empty, or its architecture comes first)."""
    driver = open_gpu(ordinal)
    planned = arch.split(",")[0].rstrip("af")
    if planned not in ("", driver.arch):
        raise ModelError(
            f"tiles are measured on the GPU here, {driver.arch}; found {arch}: leave the "
            "architecture out, or name this one first"
        )
    return driver


class Tuner:
    """Measures on one GPU."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self.cache = default_cache()

    def best(self, ranked: Sequence[T], kernel_of: Callable[[T], Kernel]) -> T:
        """The fastest of the first candidates; those that the GPU refuses are left out."""
        tried = ranked[:TRIED]
        names = "\n".join(map(repr, tried))
        about = f"{self.driver.arch} {self.driver.device} {compiler()}"
        key = cache_key("cuda tile", about, str(kernel_of(tried[0])), names)
        known = None if self.cache is None else self.cache.get(key)
        if known is not None and known.isdigit() and int(known) < len(tried):
            return tried[int(known)]
        times = [self._milliseconds(kernel_of(tile)) for tile in tried]
        fastest = times.index(min(times))
        if self.cache is not None:
            self.cache.put(key, str(fastest).encode())
        return tried[fastest]

    def _milliseconds(self, kernel: Kernel) -> float:
        """The median time of a run; infinite if the GPU cannot run it."""
        source = emit(program_of(kernel))
        plan, weights = launch_plan(source)
        try:
            model = Model(plan, weights, image_for(source.text, self.driver.arch), self.driver)
            inputs = [model.to_device(_contents(t)) for _, t in source.program.inputs]
            return median(model.times(inputs, ROUNDS, IN_A_ROW))
        except DriverError:
            return float("inf")


def _contents(type: TensorType) -> np.ndarray:
    """Random numbers; zeros in place of integers, which may be positions in other tensors."""
    dtype, shape = type.dtype.np, type.static_shape
    if not type.dtype.is_float:
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)
