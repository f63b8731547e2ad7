"""The cycles of kernels on a microcontroller, for a tuner (graphc/backends/tuning.py).

Each candidate becomes a bundle of its kernels, which runs in QEMU on random numbers; its
instructions are counted, and their cycles are those of the processor (timing/cycles.py). The same
kernels take the same cycles every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.backends.micro_c.bundle import BundleOptions
from graphc.backends.micro_c.emulator import check_tools
from graphc.backends.micro_c.timing.compiled import EMULATED
from graphc.backends.micro_c.timing.measure import timing_of
from graphc.backends.tuning import Measure, contents, program_alone
from graphc.errors import UnsupportedError
from graphc.ir.kernel import Kernel
from graphc.ir.program import Program


def cycles(options: BundleOptions, finished: Callable[[Program], Program]) -> Measure:
    """What measures candidates, whose programs are `finished` as those of models are.
    UnsupportedError if the processor has no emulator, or its tools are missing."""
    if options.cpu not in EMULATED:
        raise UnsupportedError(
            f"--tune counts instructions of a processor: give --cpu, one of {', '.join(EMULATED)}; "
            f"found {options.cpu!r}"
        )
    check_tools(EMULATED[options.cpu])

    def measure(candidates: Sequence[Sequence[Kernel]]) -> list[float]:
        return [_cycles(finished(program_alone(kernels)), options) for kernels in candidates]

    return measure


def _cycles(program: Program, options: BundleOptions) -> float:
    """The cycles of a program; infinite if they cannot be counted, as where memory is too small."""
    inputs = [contents(type) for _, type in program.inputs]
    timing = timing_of(program, inputs, options, 1.0)
    return float("inf") if timing.reason else timing.cycles
