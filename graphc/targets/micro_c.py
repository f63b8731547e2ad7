"""C99 for microcontrollers, which this machine can compile and run too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from graphc.targets.base import PREPARING, Target, option, register_target

if TYPE_CHECKING:
    from graphc.backends.micro_c import BundleOptions
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.runtime.plans import Executable

CPUS = ("generic", "cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "rv32")
GOALS = ("speed", "size")


@register_target
@dataclass(frozen=True)
class MicroC(Target):
    """C99 for a microcontroller, run on the host."""

    cpu: str = option(CPUS[0], f"the processor it is for: {', '.join(CPUS)}", choices=CPUS)
    opt: str = option(GOALS[0], "the goal of the code: speed or size", choices=GOALS)
    io: str = option(
        "caller", "whether inputs and outputs are the caller's, or live in the arena and take no "
        "memory of their own", choices=("caller", "arena"),
    )  # fmt: skip
    libm: bool | None = option(
        None, "call libm for exp, log, tanh and erf; with --no-libm for nothing (default: "
        "polynomials for those, libm for other functions)", type=bool, what="true or false",
    )  # fmt: skip
    weights: str = option(
        "f32", "store float weights as they are, or as float16 that is converted when it is read, "
        "by instructions with gcc's -mfp16-format=ieee", choices=("f32", "f16"),
    )  # fmt: skip
    sanitize: bool = option(
        False, "end the process on undefined behaviour of the C code", type=bool,
        what="true or false",
    )  # fmt: skip

    name = "c"
    keeps_integers = True

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.micro_c.cpus import cpu_of

        return cpu_of(self.cpu)

    def pipeline(self) -> str:
        return f"checks, integers, {PREPARING}, layout, fuse"

    def strategies(self) -> Sequence[Strategy]:
        from graphc.backends.micro_c.strategies import strategies

        return strategies(self.cpu, small=self.opt == "size")

    def conventions(self) -> Conventions:
        from graphc.passes.lower.program import Conventions

        return Conventions(resident=self.io == "arena", in_order=True)

    def program(self, graph: Graph, lower: Callable[[Graph], Program]) -> Program:
        from graphc.backends.micro_c.cpus import cpu_of
        from graphc.backends.micro_c.float16_weights import half_weights
        from graphc.backends.micro_c.goals import finished, goal_of
        from graphc.backends.micro_c.quantisation import quantisation
        from graphc.passes.lower.placeable import check_typed

        check_typed(graph)
        parameters = quantisation(graph)
        program = finished(lower(graph), cpu_of(self.cpu), goal_of(self.opt))
        program = replace(program, quantisation=parameters)
        return half_weights(program) if self.weights == "f16" else program

    def load(self, program: Program) -> Executable:
        from graphc.backends.micro_c.host import HostModel

        return HostModel(program, self.code(), sanitize=self.sanitize)

    def code(self, **more: object) -> BundleOptions:
        """What the options ask of the text."""
        from graphc.backends.micro_c import BundleOptions

        return BundleOptions(libm=self.libm, cpu=self.cpu, opt=self.opt, **more)  # type: ignore[arg-type]
