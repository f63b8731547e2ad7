"""What code is made for: `speed`, which gives up bytes of code for instructions; `fastest`, which
gives up flash and stack as well; or `size`, the reverse.

For speed, tiles are as large as the registers allow, and kernels that differ in numbers only are
one function where there are many of them. The fastest convolutions take fewer products, of larger
weights (strategies/winograd.py). For size, tiles are small, two such kernels are one function, and
compilers are asked to leave loops as they are written. Vectors have instructions for constant
numbers alone, so that kernels of vectors are shared for size only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphc.backends.micro_c.cpus import Cpu
from graphc.errors import ModelError
from graphc.ir.program import Program
from graphc.passes.kernel.high_half import use_high_halves
from graphc.passes.kernel.kernel_sharing import Family, generalise, share_kernels


@dataclass(frozen=True)
class Goal:
    """A goal: its name, from how many kernels on a family is one function, and how many sizes that
    may take: more of them leave no registers for what inner loops compute."""

    name: str
    family: int
    sizes: int


SPEED = Goal("speed", family=4, sizes=6)
FASTEST = Goal("fastest", family=4, sizes=6)
SIZE = Goal("size", family=2, sizes=1 << 16)
GOALS = {goal.name: goal for goal in (SPEED, FASTEST, SIZE)}


def goal_of(name: str) -> Goal:
    """The goal of that name; ModelError if there is none."""
    if name not in GOALS:
        raise ModelError(f"code is optimised for {' or '.join(GOALS)}, not for {name!r}")
    return GOALS[name]


def finished(program: Program, cpu: Cpu, goal: Goal) -> Program:
    """The program with its kernels made for the processor and shared as the goal wants it."""

    def worthwhile(family: Family) -> bool:
        allowed = goal is SIZE or not cpu.vectors
        if not allowed or len(family.kernels) < goal.family:
            return False
        return len(generalise(family)[1][0]) <= goal.sizes

    if not cpu.vectors:
        kernels = {name: use_high_halves(k) for name, k in program.kernels.items()}
        program = replace(program, kernels=kernels)
    return share_kernels(program, worthwhile)
