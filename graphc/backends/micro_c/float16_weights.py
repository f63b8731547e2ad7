"""Float weights stored as float16: half the flash, converted to float32 where they are read.

A constant is stored so if it is float32, not small, has no element beyond float16's range, is never
copied as it is, and is read only through parameters of kernels that never get anything else.
Constants and parameters depend on each other here, so the set is a fixed point: starting from all
candidates, constants and parameters are struck off until nothing changes. Rounding is to nearest
even; activations, and sums, stay float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from graphc.ir import dtypes
from graphc.ir.expr import Expr, Load, cast, transform, walk
from graphc.ir.kernel import Intrin, Kernel, exprs, map_body, walk_stmts
from graphc.ir.program import Copy, Program, Slot, Step, with_calls
from graphc.ir.program import walk as walk_steps

LEAST_ELEMENTS = 64  # shorter constants, mostly biases, save too little to lose precision

Parameter = tuple[str, int]
"""(kernel, number of its parameter)."""


def half_weights(program: Program) -> Program:
    """The program with its float32 constants as float16, where that is possible."""
    parameters, constants = _agreed(program)
    kernels = {
        name: _reading_halves(kernel, [n for k, n in parameters if k == name])
        for name, kernel in program.kernels.items()
    }
    arrays = [
        array.astype(np.float16) if number in constants else array
        for number, array in enumerate(program.constants)
    ]
    steps = with_calls(program.steps, lambda step: _step(step, parameters))
    return replace(program, kernels=kernels, constants=arrays, steps=steps)


def _agreed(program: Program) -> tuple[set[Parameter], set[int]]:
    """The parameters and constants that are float16."""
    constants = {n for n, array in enumerate(program.constants) if _is_candidate(array)}
    constants -= {
        step.source.index for step in walk_steps(program.steps)
        if isinstance(step, Copy) and step.source.space == "const"
    }  # fmt: skip
    parameters = {
        (kernel.name, n) for kernel in program.kernels.values() for n in _loaded_only(kernel)
    }
    uses = [((step.kernel, n), slot) for step in program.calls for n, slot in enumerate(step.slots)]
    while True:
        wrong = [
            (parameter, slot) for parameter, slot in uses
            if (slot.space == "const" and slot.index in constants) != (parameter in parameters)
        ]  # fmt: skip
        if not wrong:
            return parameters, constants
        parameters -= {parameter for parameter, _ in wrong}
        constants -= {slot.index for _, slot in wrong if slot.space == "const"}


def _is_candidate(array: np.ndarray) -> bool:
    if array.dtype != np.float32 or array.size < LEAST_ELEMENTS:
        return False
    return bool((np.abs(array) <= np.finfo(np.float16).max).all())


def _loaded_only(kernel: Kernel) -> Iterable[int]:
    """Numbers of the float32 inputs that no instruction takes the address of."""
    named = {
        node.source
        for stmt in walk_stmts(kernel.body) if isinstance(stmt, Intrin)
        for expr in exprs(stmt) for node in walk(expr) if isinstance(node, Load)
    }  # fmt: skip
    for number, buffer in enumerate(kernel.params):
        if buffer.access == "in" and buffer.dtype is dtypes.f32 and buffer.name not in named:
            yield number


def _reading_halves(kernel: Kernel, numbers: list[int]) -> Kernel:
    """The kernel with those of its parameters as float16."""
    if not numbers:
        return kernel
    names = {kernel.params[n].name for n in numbers}

    def widened(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in names:
            return cast(Load(node.source, node.index, dtypes.f16), dtypes.f32)
        return None

    params = tuple(replace(b, dtype=dtypes.f16) if b.name in names else b for b in kernel.params)
    body = map_body(kernel.body, lambda e: transform(e, widened))
    return replace(kernel, params=params, body=body)


def _step(step: Step, parameters: set[Parameter]) -> Step:
    slots = tuple(
        _halved(slot) if (step.kernel, n) in parameters else slot
        for n, slot in enumerate(step.slots)
    )
    saved = sum(old.elements * (old.dtype.size - new.dtype.size)
                for old, new in zip(step.slots, slots) if old is not new)  # fmt: skip
    return replace(step, slots=slots, nbytes=step.nbytes - saved)


def _halved(slot: Slot) -> Slot:
    return replace(slot, dtype=dtypes.f16, offset=slot.offset // 2)
