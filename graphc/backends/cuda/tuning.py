"""The time of kernels on the GPU at hand, for a tuner (graphc/backends/tuning.py).

Each candidate becomes a program of its one kernel, on random numbers, and is run as models are.
Where there is no GPU, times are predicted from machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.emit import emit
from graphc.backends.cuda.gpu import image_for, open_gpu, with_own_features
from graphc.backends.cuda.machine_code import compiler
from graphc.backends.cuda.machines import DEFAULT_ARCH
from graphc.backends.cuda.prediction.report import inspected
from graphc.backends.cuda.prediction.sass import find_nvdisasm
from graphc.backends.cuda.runtime import Driver, DriverError, Model
from graphc.backends.tuning import Measure, contents, program_alone
from graphc.errors import ModelError, UnsupportedError, warn
from graphc.ir.kernel import Kernel

ROUNDS, IN_A_ROW = 5, 4  # times that each is measured, and runs of which one is the mean


@dataclass(frozen=True)
class Timing:
    """What tells times of kernels: the architecture to plan them for, the name of the machine that
    choices are kept under, and the times of candidates."""

    arch: str
    machine: str
    measure: Measure


def timing_for(ordinal: int, arch: str) -> Timing:
    """A GPU, or, with a warning, predictions for the first of `arch`. UnsupportedError where there
    are the means for neither."""
    try:
        driver = tuned_device(ordinal, arch)
    except UnsupportedError as error:
        if compiler() is None or find_nvdisasm() is None:
            raise
        chosen = (arch or DEFAULT_ARCH).split(",")[0]
        warn(f"tiles for {chosen} are chosen by predicted times, as none can be measured: {error}")
        return Timing(chosen, f"{chosen} predicted {compiler()}", predict(chosen))
    return Timing(with_own_features(driver.arch), machine_name(driver), measure(driver))


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


def machine_name(driver: Driver) -> str:
    """What tiles depend on: the GPU, and what makes its code."""
    return f"{driver.arch} {driver.device} {compiler()}"


def measure(driver: Driver) -> Measure:
    """What measures candidates of one kernel on a GPU."""

    def milliseconds(candidates: Sequence[Sequence[Kernel]]) -> list[float]:
        return [_milliseconds(kernel, driver) for (kernel,) in candidates]

    return milliseconds


def _milliseconds(kernel: Kernel, driver: Driver) -> float:
    """The median time of a run; infinite if the GPU cannot run it."""
    source = emit(program_alone([kernel]))
    plan, weights = launch_plan(source)
    try:
        model = Model(plan, weights, image_for(source.text, driver.arch), driver)
        inputs = [model.to_device(contents(t)) for _, t in source.program.inputs]
        return median(model.times(inputs, ROUNDS, IN_A_ROW))
    except DriverError:
        return float("inf")


def predict(arch: str) -> Measure:
    """What predicts times of candidates of one kernel, in milliseconds."""

    def milliseconds(candidates: Sequence[Sequence[Kernel]]) -> list[float]:
        return [_predicted(kernel, arch) for (kernel,) in candidates]

    return milliseconds


def _predicted(kernel: Kernel, arch: str) -> float:
    """The time of a kernel; infinite if it cannot be told."""
    kernels = inspected(emit(program_alone([kernel])), arch)
    if any(k.prediction is None for k in kernels):
        return float("inf")
    return 1e3 * sum(k.seconds for k in kernels)
