"""Program IR: what runs at inference: kernels called in order on slices of one arena.

A `Slot` is where a tensor lives: an input, an output, a constant, or a byte range of the arena. A
`Step` calls a kernel with one slot per parameter. Kernels are shared by steps that are equal up to
names, or up to numbers, which are then given with the call. Constants are numpy arrays in the
memory order their kernels expect (weights packed once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphc.ir.checks import Check, judge
from graphc.ir.dtypes import DType
from graphc.ir.imperative.lowering import corner
from graphc.ir.kernel import Kernel
from graphc.ir.types import TensorType


@dataclass(frozen=True)
class Slot:
    """Storage of a tensor. space: input, output, const or arena; `index` numbers inputs, outputs
    and constants; `offset` is in bytes (within the arena, or within that input/output/constant)."""

    space: str
    index: int
    offset: int
    dtype: DType
    elements: int


@dataclass(frozen=True)
class Step:
    """One kernel call. `loc` names the ONNX nodes computed; `flops`/`nbytes` feed the roofline;
    `macs` are the products that its sums of products add; `sizes` are the values of the kernel's
    sizes."""

    kernel: str
    slots: tuple[Slot, ...]
    loc: tuple[str, ...] = ()
    flops: int = 0
    nbytes: int = 0
    macs: int = 0
    sizes: tuple[int, ...] = ()


Quantisation = tuple[float, int]
"""(scale, zero point): real = (value - zero point) * scale."""


@dataclass
class Program:
    """A static model, ready to be emitted.

    By ("input" or "output", number), `quantisation` says how integer inputs and outputs are read,
    where that is known, and `resident` where in the arena they lie, if the caller does not keep
    them: inputs are there before the first step, outputs after the last. By number, `true_sizes`
    tells of an output whose type has bounds for a shape: the output that holds its true sizes, and
    its first cell there. The contents are the leading corner (imperative/lowering.py). If there are
    `checks`, the last output holds their keys (ir/checks.py).
    """

    name: str
    inputs: list[tuple[str, TensorType]]
    outputs: list[tuple[str, TensorType]]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    constants: list[np.ndarray] = field(default_factory=list)
    arena_bytes: int = 0
    arena_lower_bound: int = 0
    quantisation: dict[tuple[str, int], Quantisation] = field(default_factory=dict)
    resident: dict[tuple[str, int], Slot] = field(default_factory=dict)
    true_sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def own_outputs(self) -> list[tuple[str, TensorType]]:
        """The outputs but the keys of checks."""
        return self.outputs[:-1] if self.checks else self.outputs

    def is_keys(self, slot: Slot) -> bool:
        """Whether keys of checks are at a place."""
        return bool(self.checks) and (slot.space, slot.index) == ("output", len(self.outputs) - 1)

    def __str__(self) -> str:
        from graphc.ir.text.printer import print_program  # which takes them apart

        return print_program(self)


def program_of(*kernels: Kernel) -> Program:
    """A program that calls each kernel once, on inputs and outputs of its own: what kernels read
    are inputs, what they write are outputs."""
    program = Program("kernels", [], [])
    for kernel in kernels:
        slots = []
        for buffer in kernel.params:
            type = TensorType(buffer.dtype, buffer.shape)
            space = "input" if buffer.access == "in" else "output"
            interface = program.inputs if space == "input" else program.outputs
            slots.append(Slot(space, len(interface), 0, buffer.dtype, type.size))
            interface.append((buffer.name, type))
        program.kernels[kernel.name] = kernel
        program.steps.append(Step(kernel.name, tuple(slots)))
    return program


def judged(checks: Sequence[Check], outputs: list) -> list:
    """The outputs of a program but the keys of its checks. ModelError says which does not hold."""
    if checks:
        judge(checks, np.asarray(outputs.pop()).tolist())
    return outputs


def true_outputs(program: Program, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the model, given those of the program but the keys of checks: what has bounds
    for a shape is cut."""
    cut = list(outputs)
    for number, (position, cell) in program.true_sizes.items():
        shape = outputs[position][cell : cell + outputs[number].ndim]
        cut[number] = corner(outputs[number], tuple(map(int, shape)))
    return cut[: min((p for p, _ in program.true_sizes.values()), default=len(cut))]
