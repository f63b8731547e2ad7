"""Plain loops in C99, one kernel per operator: to read, and to prove that kernels mean the same
everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphc.records import dataclass
from graphc.targets.base import Target, register_target

if TYPE_CHECKING:
    from graphc.ir.program import Program
    from graphc.runtime.plans import Executable


@register_target
@dataclass(frozen=True)
class Plain(Target):
    """Plain loops in C, compiled by the system's compiler."""

    name = "plain"
    forms = {"c": ".c"}  # noqa: RUF012 (a table)
    control_flow = True
    counts = True

    def emit(self, program: Program, form: str) -> str:
        from graphc.backends import c99

        return c99.emit(program)

    def load(self, program: Program) -> Executable:
        from graphc.backends.c99 import build

        return build(program)
