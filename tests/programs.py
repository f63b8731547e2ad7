"""Graphs and programs that tests of several parts share, and what is true of every program."""

from __future__ import annotations

from graphc.ir.program import Program
from graphc.ir.text.printer import print_program, program_constants
from graphc.ir.text.program_parser import parse_program
from graphc.ir.verify.programs import verify_program
from graphc.targets.plain import Plain

CONVOLUTIONS = """graph @g(%x: f32[1,5,13,11]) -> ? {
  const %w : f32[18,5,3,3] = random(seed=1)
  const %d : f32[18,1,3,3] = random(seed=2)
  const %g : f32[6,9,1,1] = random(seed=3)
  %a = Conv(%x, %w) {pads=[1,1,1,1], strides=[2,1]}
  %b = Relu(%a)
  %c = Conv(%b, %d) {group=18, pads=[1,0,1,2]}
  %e = Conv(%c, %g) {group=2}
  %f = MaxPool(%e) {kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,0]}
  return %f
}"""
"""A strided, a depthwise and a grouped convolution, and a pool."""


def check_program(program: Program) -> None:
    """The text of a program parses back to an equal one."""
    verify_program(program)
    text = print_program(program)
    again = parse_program(text, program_constants(program))
    assert print_program(again) == text
    assert again.kernels == program.kernels and again.steps == program.steps
    assert again.quantisation == program.quantisation and again.resident == program.resident


class WithoutFlow(Plain):
    """A target whose programs are calls in order, without loops and branches around them."""

    name = "without-flow"
    control_flow = False
    counts = False
