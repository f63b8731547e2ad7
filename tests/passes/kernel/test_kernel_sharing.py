"""Kernels equal up to integers become one, which means for every call what its own kernel meant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphc.errors import InternalError
from graphc.ir.kernel import with_sizes
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.program import Program, Slot, Step
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.text.printer import print_program
from graphc.ir.text.program_parser import parse_program
from graphc.ir.types import TensorType
from graphc.ir.verify.kernels import verify_kernel
from graphc.ir.verify.programs import verify_program
from graphc.passes.kernel.kernel_sharing import read_kernel, share_kernels, without_single_loops

SUMS = """
kernel @k{name}(in a: f32[{size}], out y: f32[{rows}]) {{
  for i < {rows} {{
    reg s: f32[]
    s[] = 0.0
    for j < {columns} {{
      s[] = s[] + a[{at}]
    }}
    y[i] = s[]
  }}
}}
"""


def sums(name: int, rows: int, columns: int, at: str = ""):
    at = at or f"i * {columns} + j"
    return parse_kernel(
        SUMS.format(name=name, rows=rows, columns=columns, size=rows * columns, at=at)
    )


def program(*kernels) -> Program:
    """A program that calls every kernel, which has an input and an output, on its own tensors."""
    made = Program("p", [], [], {k.name: k for k in kernels})
    for n, kernel in enumerate(kernels):
        slots = []
        for space, names, buffer in zip(
            ("input", "output"), (made.inputs, made.outputs), kernel.params
        ):
            names.append((f"{space}{n}", TensorType(buffer.dtype, buffer.shape)))
            slots.append(Slot(space, n, 0, buffer.dtype, buffer.size))
        made.steps.append(Step(kernel.name, tuple(slots)))
    return made


def run(kernel, sizes=()):
    """The outputs of a kernel on numbers counted up."""
    arrays = {}
    for b in with_sizes(kernel, sizes).params:
        count = int(np.prod(b.shape))
        arrays[b.name] = (np.arange(count) % 97).astype(b.dtype.np).reshape(b.shape)
    run_kernel(kernel, arrays, sizes)
    return [arrays[b.name] for b in kernel.params if b.access != "in"]


def assert_same(before: Program, after: Program) -> None:
    """Every step computes what it did, and the new program is sound and prints."""
    for old, new in zip(before.steps, after.steps):
        mine, theirs = before.kernels[old.kernel], after.kernels[new.kernel]
        for a, b in zip(run(mine), run(theirs, new.sizes)):
            np.testing.assert_array_equal(a, b)
    verify_program(after)
    again = parse_program(print_program(after))
    assert (again.kernels, again.steps) == (after.kernels, after.steps)


def test_kernels_of_different_extents_are_one():
    before = program(sums(0, 3, 5), sums(1, 4, 7), sums(2, 9, 2))
    after = share_kernels(before)
    assert len(after.kernels) == 1
    assert len(after.steps[0].sizes) == 2, "rows and columns; strides and lengths follow from them"
    assert_same(before, after)


def test_a_loop_that_runs_once_has_any_stride():
    before = program(sums(0, 1, 5, "j"), sums(1, 4, 7), sums(2, 9, 2))
    after = share_kernels(before)
    assert len(after.kernels) == 1 and len(after.steps[0].sizes) == 2
    assert_same(before, after)


def test_what_differs_in_more_than_numbers_stays_apart():
    reverse = sums(1, 4, 7, "i * 7 + min(j, i)")
    before = program(sums(0, 3, 5), reverse)
    after = share_kernels(before)
    assert len(after.kernels) == 2 and not any(k.sizes for k in after.kernels.values())
    assert_same(before, after)


SCALED = """
kernel @s{n}(in a: i32[4], out y: i8[4]) {{
  for i < 4 {{
    y[i] = cast<i8>(cast<i32>(cast<i64>(a[i] - {zero}:i32) * 1234567 + {half} >> {shift}))
  }}
}}
"""


def test_wide_constants_and_shifts_vary():
    kernels = [
        parse_kernel(SCALED.format(n=n, zero=n - 3, half=1 << (shift - 1), shift=shift))
        for n, shift in enumerate((33, 36, 40))
    ]
    before = program(*kernels)
    after = share_kernels(before)
    assert len(after.kernels) == 1
    assert_same(before, after)


def test_divisors_do_not_vary():
    kernels = [sums(n, 6, 4, f"(i * 4 + j) // {n + 2}") for n in range(2)]
    assert len(share_kernels(program(*kernels)).kernels) == 2


def test_only_what_is_worthwhile():
    before = program(sums(0, 3, 5), sums(1, 4, 7))
    seen = []
    after = share_kernels(before, lambda family: bool(seen.append(len(family.kernels))))
    assert seen == [2] and len(after.kernels) == 2


def test_loops_that_run_once_are_dropped():
    kernel = without_single_loops(sums(0, 1, 5, "j"))
    assert "for i" not in str(kernel)
    np.testing.assert_array_equal(run(kernel)[0], [0 + 1 + 2 + 3 + 4])


def test_sizes_of_a_step_are_checked():
    after = share_kernels(program(sums(0, 3, 5), sums(1, 4, 7)))
    step = after.steps[0]
    for sizes in ((1, 2, 3, 4), tuple(100 + s for s in step.sizes)):
        after.steps[0] = Step(step.kernel, step.slots, sizes=sizes)
        with pytest.raises(InternalError, match="size"):
            verify_program(after)
    with pytest.raises(InternalError, match="sizes"):
        run_kernel(after.kernels[step.kernel], {})


def test_a_size_without_declaration_is_refused():
    (kernel,) = share_kernels(program(sums(0, 3, 5), sums(1, 4, 7))).kernels.values()
    with pytest.raises(InternalError, match="not bound"):
        verify_kernel(replace(kernel, sizes=()))


def test_tokens_do_not_depend_on_names():
    renamed = parse_kernel(str(sums(0, 3, 5)).replace("i", "o").replace("on ", "in "))
    assert read_kernel(renamed) == read_kernel(sums(0, 3, 5))
