"""Tells what machine code and predictions say of the kernels of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphc.analysis.report import layers
from graphc.analysis.text import duration, table
from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.machines import Machine, machine
from graphc.backends.cuda.prediction.model import Code, Launched, Prediction, code_of, predicted
from graphc.backends.cuda.prediction.sample import Sample, samples
from graphc.backends.cuda.prediction.sass import Sass, disassembled
from graphc.backends.cuda.steps import LaunchStep
from graphc.ir.types import elements_of, largest


@dataclass(frozen=True)
class Inspected:
    """A kernel: its launches, of sizes that are the largest, what its machine code tells, a sample
    of a block and the time of the first launch, or why there is none."""

    steps: tuple[LaunchStep, ...]
    code: Code
    sample: Sample | None
    prediction: Prediction | None
    why: str

    @property
    def seconds(self) -> float:
        """Of all launches."""
        return len(self.steps) * self.prediction.seconds if self.prediction else 0.0


def inspected(source: CudaSource, arch: str) -> list[Inspected]:
    """All kernels of a program, in the order of their first launches.

    UnsupportedError without a CUDA compiler, nvdisasm, or a C compiler.
    """
    sass = disassembled(machine_code(source.text, arch, "cubin"))
    gpu, fits = machine(arch), _fits(source, machine(arch))
    taken = samples(source, machine_code(source.text, arch, "ptx").decode(), gpu)
    steps: dict[str, list[LaunchStep]] = {}
    for step in source.steps:
        steps.setdefault(step.function, []).append(_at_largest(step))
    return [_kernel(tuple(s), sass[name], taken[name], gpu, fits) for name, s in steps.items()]


def _at_largest(step: LaunchStep) -> LaunchStep:
    return step.at(largest)


def _fits(source: CudaSource, gpu: Machine) -> bool:
    """Whether all that a program reads and writes stays in the second level of cache."""
    program = source.program
    sizes = [largest(elements_of(t.dims)) * t.dtype.size for _, t in program.inputs]
    constants = sum(c.nbytes for c in program.constants)
    return program.arena_bytes + constants + sum(sizes) <= gpu.cache_mib * (1 << 20) / 2


def _kernel(
    steps: tuple[LaunchStep, ...], sass: Sass, sample: Sample | str, gpu: Machine, fits: bool
) -> Inspected:
    step = steps[0]
    code = code_of(sass, step.shared)
    if isinstance(sample, str):
        return Inspected(steps, code, None, None, sample)
    assert isinstance(step.grid, int)
    sizes = [(slot.space, slot.elements * slot.dtype.size) for slot in step.slots]
    nbytes = sum(size for _, size in sizes)
    recent = nbytes if fits else sum(size for space, size in sizes if space == "arena")
    launched = Launched(step.grid, step.block, step.shared, nbytes, recent)
    return Inspected(steps, code, sample, predicted(sass, sample, launched, gpu), "")


def text(kernels: Sequence[Inspected], arch: str, top: int | None = None) -> str:
    """A table of kernels, those first that take longest (`top`: at most so many)."""
    gpu = machine(arch)
    total = sum(k.seconds for k in kernels)
    head = (
        f"machine code for {arch}: {len(kernels)} kernels in {sum(len(k.steps) for k in kernels)} "
        f"launches, predicted to take {duration(total)} on {gpu.gpu}; "
        f"{sum(k.code.spills > 0 for k in kernels)} kernels use local memory"
    )
    rows: list[tuple[str, ...]] = [
        ("kernel", "layer", "launches", "registers", "spills", "shared", "occupancy",
         "per product", "barriers", "wide loads", "stores", "waves", "time", "bound")
    ]  # fmt: skip
    ordered = sorted(kernels, key=lambda k: -k.seconds)
    for kernel in ordered[:top]:
        rows.append(_row(kernel))
    rest = len(kernels) - len(ordered[:top])
    lines = [head, table(rows, left=2), *([f"... and {rest} more"] if rest else [])]
    lines += [f"{k.steps[0].function}: not predicted: {k.why}" for k in kernels if k.why]
    return "\n".join(lines)


def _row(kernel: Inspected) -> tuple[str, ...]:
    step, code, sample, prediction = kernel.steps[0], kernel.code, kernel.sample, kernel.prediction
    if sample is None or prediction is None:
        told: tuple[str, ...] = ("",) * 7
    else:
        told = (
            f"{sample.barriers:.3g}", _percent(prediction.wide_loads),
            _percent(prediction.wide_stores), _percent(prediction.even),
            duration(prediction.seconds), prediction.bound, _percent(prediction.occupancy),
        )  # fmt: skip
    *measured, occupancy = told
    return (
        step.function, layers(step.nodes), str(len(kernel.steps)), str(code.registers),
        str(code.spills), str(code.shared), occupancy,
        "" if code.per_product is None else f"{code.per_product:.3g}", *measured,
    )  # fmt: skip


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}%"


def data(kernels: Sequence[Inspected]) -> list[dict[str, Any]]:
    """The same, and more, as plain data: times in seconds, sizes in bytes, units in clocks."""
    return [_entry(kernel) for kernel in kernels]


def _entry(kernel: Inspected) -> dict[str, Any]:
    step, sample = kernel.steps[0], kernel.sample
    return {
        "kernel": step.function, "layers": list(step.nodes), "launches": len(kernel.steps),
        "grid": step.grid, "block": step.block, **asdict(kernel.code),
        "barriers_executed": sample and sample.barriers,
        "predicted": kernel.prediction and asdict(kernel.prediction),
        "not_predicted": kernel.why or None,
    }  # fmt: skip
