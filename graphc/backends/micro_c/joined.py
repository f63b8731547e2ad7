"""Inference and a training step as one program: kernels and constants are shared, and each uses the
arena from its start. What is trained, and what the optimiser keeps, is the state of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from graphc.ir import checks
from graphc.ir.dtypes import u64
from graphc.ir.kernel import Kernel
from graphc.ir.program import AnyStep, Program, Slot, Step, with_slots, with_steps
from graphc.ir.types import TensorType
from graphc.ir.verify.programs import verify_program

KEYS = -1  # in place of the number of the output that will hold the keys of checks


@dataclass(frozen=True)
class Training:
    """Which part of a program is what: the first `steps` are inference, with the first `inputs` and
    `outputs`; the others are the training step, which has the same inputs, then the target and the
    rate, and the loss for an output. `initial` gives the constant that a part of the state starts
    from, by the numbers of both; the others start as zeros. `notes` say more of parts of the state,
    by their names."""

    steps: int
    inputs: int
    outputs: int
    initial: Mapping[int, int]
    notes: Mapping[str, str] = field(default_factory=dict)


def joined(
    inference: Program,
    step: Program,
    initial: Mapping[str, np.ndarray],
    notes: Mapping[str, str] | None = None,
) -> tuple[Program, Training]:
    """Both programs as one, and what is what; `initial` and `notes` are by the names of state.

    The inputs of the step are those of inference, then its own two; its output is the loss.
    """
    joint = _Joint(Program(inference.name, [], [], quantisation=inference.quantisation))
    joint.add(inference)
    joint.add(step)
    numbers = {name: n for n, (name, _) in enumerate(joint.program.state)}
    starts = {numbers[name]: joint.constant(array) for name, array in initial.items()}
    inputs, outputs = len(inference.inputs), len(inference.own_outputs)
    steps = len(inference.steps)
    return joint.finished(), Training(steps, inputs, outputs, starts, dict(notes or {}))


@dataclass
class _Joint:
    """A program that others are added to; equal kernels, constants and state are one."""

    program: Program
    kernels: dict[tuple, str] = field(default_factory=dict)
    constants: dict[tuple, int] = field(default_factory=dict)

    def add(self, other: Program) -> None:
        """Adds the steps of a program, whose first inputs are those that there are."""
        program = self.program
        first, before = len(program.outputs), len(program.checks)
        program.inputs += other.inputs[len(program.inputs) :]
        program.outputs += other.own_outputs
        program.checks += other.checks
        program.arena_bytes = max(program.arena_bytes, other.arena_bytes)
        program.arena_lower_bound = max(program.arena_lower_bound, other.arena_lower_bound)
        program.state += [pair for pair in other.state if pair not in program.state]
        state = [program.state.index(pair) for pair in other.state]
        constants = [self.constant(array) for array in other.constants]

        def placed(slot: Slot) -> Slot:
            if other.is_keys(slot):
                return replace(slot, index=KEYS, offset=slot.offset + before * u64.size)
            if slot.space == "output":
                return replace(slot, index=first + slot.index)
            numbers = {"const": constants, "state": state}.get(slot.space)
            return slot if numbers is None else replace(slot, index=numbers[slot.index])

        names = {name: self._kernel(kernel) for name, kernel in other.kernels.items()}
        steps = [moved(step, placed, names) for step in other.steps]
        program.steps += sorted(steps, key=lambda step: not self._is_early(step))

    def constant(self, array: np.ndarray) -> int:
        """The number of a constant of these contents."""
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = len(self.program.constants)
            self.program.constants.append(array)
        return self.constants[key]

    def _kernel(self, kernel: Kernel) -> str:
        """The name of a kernel that does the same."""
        key = kernel.params, kernel.body, kernel.sizes
        if key not in self.kernels:
            name = f"{kernel.name.rstrip('0123456789')}{len(self.kernels)}"
            self.kernels[key] = name
            self.program.kernels[name] = replace(kernel, name=name)
        return self.kernels[key]

    def _is_early(self, step: AnyStep) -> bool:
        """Whether a step checks what the caller gives: before anything is changed."""
        if not isinstance(step, Step):
            return False
        params = self.program.kernels[step.kernel].params
        return all(
            slot.space in ("input", "const") if buffer.access == "in" else slot.index == KEYS
            for buffer, slot in zip(params, step.slots)
        )

    def finished(self) -> Program:
        """The program, whose last output holds the keys of all checks."""
        program, last = self.program, len(self.program.outputs)

        def placed(slot: Slot) -> Slot:
            return replace(slot, index=last) if slot.index == KEYS else slot

        if program.checks:
            keys = TensorType(u64, (len(program.checks),))
            program.outputs.append((checks.KEYS, keys))
            names = {name: name for name in program.kernels}
            program.steps = [moved(step, placed, names) for step in program.steps]
        verify_program(program)
        return program


def moved(step: AnyStep, placed: Callable[[Slot], Slot], names: Mapping[str, str]) -> AnyStep:
    """A step with other slots, and other names of kernels."""

    def other(step: AnyStep) -> AnyStep:
        step = with_slots(step, placed)
        return replace(step, kernel=names[step.kernel]) if isinstance(step, Step) else step

    return with_steps([step], other)[0]
