"""The memory that a microcontroller has for a model, and how much of it may stay float."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphc.analysis.text import nbytes
from graphc.backends.micro_c import model_of
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.timing.compiled import code_bytes
from graphc.driver import program_for
from graphc.errors import ModelError
from graphc.ir.graph import Graph, clone_graph
from graphc.targets.micro_c import MicroC


@dataclass(frozen=True)
class Needs:
    """Bytes that a model takes: of RAM (arena, stack, inputs and outputs; stack estimated) and of
    flash (constants and code; `compiled` says whether a compiler made the latter, else it is
    estimated)."""

    ram: int
    flash: int
    compiled: bool


@dataclass(frozen=True)
class Limits:
    """Bytes of RAM and flash that there are, None for any number; and the processor."""

    ram: int | None
    flash: int | None
    cpu: str

    def admit(self, needs: Needs) -> bool:
        """Whether a model fits."""
        return self._fits(needs.ram, self.ram) and self._fits(needs.flash, self.flash)

    @staticmethod
    def _fits(needed: int, limit: int | None) -> bool:
        return limit is None or needed <= limit

    def check(self, needs: Needs) -> None:
        """ModelError, with what is needed, if a model does not fit."""
        over = [
            f"{name} of {nbytes(limit)}: {nbytes(needed)} are needed"
            for name, needed, limit in (
                ("RAM", needs.ram, self.ram), ("flash", needs.flash, self.flash),
            ) if limit is not None and needed > limit
        ]  # fmt: skip
        if over:
            raise ModelError(
                f"the model in 8 bits does not fit {self.cpu}: {'; '.join(over)}; see graphc "
                "inspect --target c for the layers that need most"
            )


def needs_of(graph: Graph, cpu: str) -> Needs:
    """The memory that a static graph takes as C for a processor."""
    target = MicroC(cpu=cpu)
    program = program_for(clone_graph(graph), target)
    model = model_of(program, target.code())
    code = code_bytes(model)
    budget = Budget.of(model, code)
    return Needs(budget.ram, budget.flash, code is not None)


def most_that_fit(order: Sequence[str], fits: Callable[[Sequence[str]], bool]) -> list[str]:
    """The longest beginning of a list that fits, by bisection; an empty one does."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(order[:middle]):
            low = middle
        else:
            high = middle - 1
    return list(order[:low])
