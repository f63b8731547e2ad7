"""Operands of instructions are checked before a kernel is printed."""

import pytest

from graphc.backends.cuda import emit
from graphc.backends.cuda.bulk_instructions import BOXES
from graphc.backends.cuda.instructions import FUNCTIONS, VECTORS
from graphc.backends.cuda.printer import WARP_REDUCTIONS, WARP_RUNNING
from graphc.backends.cuda.signatures import SIGNATURES, VARIADIC
from graphc.errors import UnsupportedError
from graphc.ir.program import program_of
from graphc.ir.text.kernel_parser import parse_kernel

KERNEL = """kernel @k(in x: f32[64], in h: f16[64], out y: f32[64]) {
  block b < 2 {
    shared tile: u32[64]
    thread t < 32 {
      STATEMENT
      y[b * 32 + t] = x[b * 32 + t]
    }
  }
}"""


def text_of(statement: str) -> str:
    return emit(program_of(parse_kernel(KERNEL.replace("STATEMENT", statement)))).text


def test_every_instruction_has_a_signature():
    assert set(SIGNATURES) == {*FUNCTIONS, *BOXES, *WARP_RUNNING}
    assert set(VARIADIC) == {*VECTORS, *WARP_REDUCTIONS}


def test_right_operands_are_printed():
    copy = "intrin copy16(tile[t], h[t * 2], t < 4, cast<u32>(0))"
    assert "copy16(tile[t], h[t * 2], " in text_of(copy)
    assert "wait_copies<2>();" in text_of("intrin wait_copies(2)")


@pytest.mark.parametrize(
    "statement, problem",
    [
        ("intrin wait_copies()", "wait_copies takes 1 operands, found 0"),
        ("intrin wait_copies(t)",
         "operand 1 of wait_copies is a number of i64, found a value of i64"),
        ("intrin commit_copies(1)", "commit_copies takes 0 operands, found 1"),
        ("intrin pack_f16(tile[t], x[t], h[t])",
         "operand 3 of pack_f16 is a value of f32, found a place of f16"),
        ("intrin pack_f16(x[t], x[t], x[t])", "operand 1 of pack_f16 is a place of u32, found"),
        ("intrin load_vector(t, x[t])",
         "operand 1 of load_vector is a place of any type, found a value"),
    ],
)  # fmt: skip
def test_wrong_operands_are_named(statement, problem):
    with pytest.raises(UnsupportedError, match=f"kernel @k: {problem}"):
        text_of(statement)
