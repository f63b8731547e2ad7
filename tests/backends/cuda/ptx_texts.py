"""Kernels written in PTX for tests of the machine, and the arrays they are run on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from graphc.backends.cuda.ptx.kernels import Buffer, Memory, PtxKernels, device_memory

needs_c = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
HEAD = """.version 8.0
.target sm_90a
.address_size 64
{variables}
.visible .entry test({params})
{{
  .reg .pred %p<40>; .reg .b16 %h<40>; .reg .b32 %r<400>; .reg .f32 %f<200>;
  .reg .b64 %d<40>; .reg .b64 %q<9>; .reg .f64 %g<20>; .shared .align 1024 .b8 room[{shared}];
  mov.u32 %r0, %tid.x;
{loads}{body}
  ret;
}}
"""
"""%r0 is the number of the thread, %q0, %q1, ... are the parameters."""


def ptx_of(body: str, pointers: int, shared: int = 4096, variables: str = "") -> str:
    """A kernel `test` of a body, which takes so many pointers."""
    params = ", ".join(f".param .u64 p{n}" for n in range(pointers))
    loads = "".join(f"  ld.param.u64 %q{n}, [p{n}];\n" for n in range(pointers))
    return HEAD.format(
        variables=variables, params=params, shared=shared, loads=loads, body=body
    )  # fmt: skip


def run_test(
    text: str, inputs: Sequence[np.ndarray], output: np.ndarray, threads: int = 32, grid: int = 1,
    order: int = 0,
) -> np.ndarray:  # fmt: skip
    """The output, which is the last parameter and has not been written before."""
    result = np.full_like(output, 0)
    arrays = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in inputs]
    buffers = [Buffer(Memory(a), 0, a.nbytes, False) for a in arrays]
    data = result.reshape(-1).view(np.uint8)
    memory = device_memory(data, np.zeros(max(data.nbytes, 1), np.uint8))
    buffers.append(Buffer(memory, 0, data.nbytes, True))
    PtxKernels(text, budget=1 << 20).launch("test", grid, threads, buffers, order=order)
    return result


def each_lane(opcode: str, *operands: np.ndarray, result: str | None = None) -> np.ndarray:
    """What an operation gives for the elements of its operands, a thread for each."""
    parts = opcode.split(".")
    types = [_register_type(a.dtype) for a in operands]
    out = np.zeros(len(operands[0]), result or operands[0].dtype)
    body = ""
    for n, (array, (letter, type)) in enumerate(zip(operands, types)):
        body += _indexed(n, array.itemsize)
        body += f"  ld.global.{type} %{letter}{n + 1}, [%d20];\n"
    letter, type = _register_type(out.dtype)
    given = ", ".join(f"%{letter_}{n + 1}" for n, (letter_, _) in enumerate(types))
    if parts[0] == "setp":
        body += f"  {opcode} %p9, {given};\n  selp.u32 %r9, 1, 0, %p9;\n"
        letter, type = "r", "u32"
    else:
        body += f"  {opcode} %{letter}9, {given};\n"
    body += _indexed(len(operands), out.itemsize) + f"  st.global.{type} [%d20], %{letter}9;\n"
    return run_test(ptx_of(body, len(operands) + 1), operands, out, len(out))


def _indexed(parameter: int, size: int) -> str:
    return f"  mad.wide.u32 %d20, %r0, {size}, %q{parameter};\n"


def _register_type(dtype: np.dtype) -> tuple[str, str]:
    letter = {1: "h", 2: "h", 4: "r", 8: "d"}[dtype.itemsize]
    if dtype == np.float32:
        return "f", "f32"
    if dtype == np.float64:
        return "g", "f64"
    sign = "s" if dtype.kind == "i" else "u"
    return letter, f"{sign}{8 * dtype.itemsize}" if dtype.kind != "f" else "b16"
