"""Program IR: what runs at inference: kernels called in order on slices of one arena.

A `Slot` is where a tensor lives: an input, an output, a constant, or a byte range of the arena. A
`Step` calls a kernel with one slot per parameter. Kernels are shared by steps that are equal up to
names, or up to numbers, which are then given with the call. Constants are numpy arrays in the
memory order their kernels expect (weights packed once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from graphc.ir.checks import Check
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.imperative.lowering import corner
from graphc.ir.kernel import Kernel, with_sizes
from graphc.ir.types import TensorType, at


@dataclass(frozen=True)
class Slot:
    """Storage of a tensor. space: input, output, const or arena; `index` numbers inputs, outputs
    and constants; `offset` is in bytes (within the arena, or within that input/output/constant).
    `elements` is an integer, or an expression over the program's sizes."""

    space: str
    index: int
    offset: int
    dtype: DType
    elements: Any


@dataclass(frozen=True)
class Step:
    """One kernel call. `loc` names the ONNX nodes computed; `flops`/`nbytes` feed the roofline;
    `macs` are the products that its sums of products add; `sizes` are the values of the kernel's
    sizes: integers, or expressions over the program's."""

    kernel: str
    slots: tuple[Slot, ...]
    loc: tuple[str, ...] = ()
    flops: int = 0
    nbytes: int = 0
    macs: int = 0
    sizes: tuple[Any, ...] = ()


Quantisation = tuple[float, int]
"""(scale, zero point): real = (value - zero point) * scale."""


@dataclass
class Program:
    """A model, ready to be emitted.

    It is static, or one of open shape: its `sizes` are the symbols in the types of inputs and
    outputs, all of them bounded. A run reads each from the shape of an input (`sizes_of`). The
    arena, and where things lie in it, are those of the largest sizes.

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
    sizes: tuple[Sym, ...] = ()

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


def at_sizes(program: Program, values: Sequence[int]) -> Program:
    """The static program that a program of open shape is at these values of its sizes."""
    known: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(program.sizes, values)}

    def typed(tensors: Sequence[tuple[str, TensorType]]) -> list[tuple[str, TensorType]]:
        return [(n, t.with_shape(at(d, known) for d in t.dims)) for n, t in tensors]

    kernels: dict[str, Kernel] = {}
    steps = []
    for step in program.steps:
        kernel = program.kernels[step.kernel]
        own = [at(size, known) for size in step.sizes]
        name = "_".join(map(str, (step.kernel, *own)))
        kernels[name] = replace(with_sizes(kernel, own), name=name)  # type: ignore[arg-type]
        slots = tuple(replace(s, elements=at(s.elements, known)) for s in step.slots)
        steps.append(replace(step, kernel=name, slots=slots, sizes=()))
    return replace(
        program, inputs=typed(program.inputs), outputs=typed(program.outputs), kernels=kernels,
        steps=steps, sizes=(),
    )  # fmt: skip


def true_outputs(program: Program, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the model, given those of the program but the keys of checks: what has bounds
    for a shape is cut."""
    cut = list(outputs)
    for number, (position, cell) in program.true_sizes.items():
        shape = outputs[position][cell : cell + outputs[number].ndim]
        cut[number] = corner(outputs[number], tuple(map(int, shape)))
    return cut[: min((p for p, _ in program.true_sizes.values()), default=len(cut))]
