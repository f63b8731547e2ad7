"""The time of every layer of a program on a processor, and how far off it can be.

With a cross compiler, an emulator and a compiler for this machine the bundle is compiled and run,
its instructions are counted, and their cycles added up. Without one of these, or where the emulated
board is too small, cycles are estimated from the kernels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphc.analysis.report import layers
from graphc.backends.micro_c.boards import Board
from graphc.backends.micro_c.bundle import BundleOptions, model_of
from graphc.backends.micro_c.cpus import PAIRS
from graphc.backends.micro_c.emulator import check_tools, prepare
from graphc.backends.micro_c.host import host_options
from graphc.backends.micro_c.model import Model
from graphc.backends.micro_c.timing.chips import Chip
from graphc.backends.micro_c.timing.compiled import EMULATED, OPTIMISATION, code_bytes
from graphc.backends.micro_c.timing.counting import host_compiler, run_counted
from graphc.backends.micro_c.timing.cycles import Cycles, cycles_of
from graphc.backends.micro_c.timing.estimate import estimate
from graphc.backends.micro_c.timing.processors import PROCESSORS
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.kernel import with_sizes
from graphc.ir.program import Program

OUTSIDE = "(between layers)"
ESTIMATED = 1.5  # how far estimates can be off: a factor of 2.5


@dataclass(frozen=True)
class LayerTime:
    """A layer: its ONNX nodes, its kernel, and its cycles."""

    name: str
    kernel: str
    cycles: Cycles


@dataclass(frozen=True)
class Timing:
    """The layers of a program on a processor at so many MHz, on a chip if one is given.

    `how` tells where counts are from, and `reason` why they are estimates, if they are. `error` is
    the largest part by which cycles can be expected to be off; `code` the bytes of compiled code,
    None without a cross compiler.
    """

    cpu: str
    mhz: float
    layers: Sequence[LayerTime]
    error: float
    how: str
    reason: str = ""
    chip: Chip | None = None
    code: int | None = None

    @property
    def cycles(self) -> float:
        return sum(layer.cycles.total for layer in self.layers)

    def seconds(self, cycles: float) -> float:
        return cycles / (self.mhz * 1e6)


def timing_of(
    program: Program, inputs: Sequence[np.ndarray], options: BundleOptions, mhz: float,
    chip: Chip | None = None,
) -> Timing:  # fmt: skip
    """The time of a program for the processor that `options` name, run on these inputs.

    UnsupportedError if nothing is known of the processor, or the program is of open shape.
    """
    if options.cpu not in PROCESSORS:
        raise UnsupportedError(
            f"nothing is known of the cycles of {options.cpu!r}: give --cpu, one of "
            + ", ".join(PROCESSORS)
        )
    if program.all_sizes:
        raise UnsupportedError(
            "times are of fixed shapes: give each open dimension one size, as --dim N=1"
        )
    model = model_of(program, host_options(options))
    processor, board = PROCESSORS[options.cpu], EMULATED[options.cpu]
    code = code_bytes(model_of(program, options))
    try:
        times = _counted(model, inputs, board, chip)
    except (UnsupportedError, InternalError) as error:
        return Timing(options.cpu, mhz, _estimated(model), ESTIMATED, "estimated from the kernels",
                      str(error).splitlines()[0], chip, code)  # fmt: skip
    how = f"instructions counted in QEMU ({board.name}), {board.tools.compiler} {OPTIMISATION}"
    return Timing(options.cpu, mhz, times, processor.error, how, "", chip, code)


def _counted(
    model: Model, inputs: Sequence[np.ndarray], board: Board, chip: Chip | None
) -> list[LayerTime]:
    check_tools(board)
    if host_compiler() is None:
        raise UnsupportedError("counting instructions takes a C compiler for this machine")
    calls = model.program.calls
    with tempfile.TemporaryDirectory(prefix="graphc-timing-") as name:
        folder = Path(name)
        prepare(model, board, folder, inputs, ["-DMODEL_PROFILE"])
        counted = run_counted(board, folder / "image.elf", len(calls), chip)
    processor = PROCESSORS[board.cpu]
    names = [(layers(step.loc) or step.kernel, step.kernel) for step in calls]
    names.append((OUTSIDE, ""))
    return [
        LayerTime(*named, cycles_of(counts, counted.code, processor, chip))
        for named, counts in zip(names, counted.layers, strict=True)
    ]


def _estimated(model: Model) -> list[LayerTime]:
    cpu, processor, kernels = model.cpu, PROCESSORS[model.cpu.name], model.program.kernels
    pairs = PAIRS in cpu.instructions
    return [
        LayerTime(
            layers(step.loc) or step.kernel, step.kernel,
            estimate(with_sizes(kernels[step.kernel], step.sizes), processor, pairs, cpu.vectors),
        )
        for step in model.program.calls
    ]  # fmt: skip
