"""RAM against instructions: what a model takes as it is, and with some of its layers by rows.

Instructions are estimates: those of kernels (timing/estimate.py), as often as they are called, and
those of calls and copies. Kernels of bands lack guards, of which the estimate counts too much, so
they count as no less than those of whole images. Whether a program fits is told by its budget
(budget.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from graphc.analysis.report import layers
from graphc.analysis.text import nbytes, table
from graphc.backends.micro_c.cpus import PAIRS, Cpu
from graphc.backends.micro_c.timing.estimate import estimate
from graphc.backends.micro_c.timing.processors import PROCESSORS
from graphc.ir.graph import Graph
from graphc.ir.kernel import Kernel, with_sizes
from graphc.ir.program import AnyStep, Copy, Program, Step, While, bodies
from graphc.ir.types import largest
from graphc.passes.analysis.computation import Computation
from graphc.passes.lower.program import Conventions, Lowering, Strategy
from graphc.passes.lower.rows.candidates import BYTES, CALL
from graphc.passes.lower.rows.segments import RowPlan
from graphc.records import dataclass

COPY = 30  # instructions around the work of a copy
SIMILAR = "cortex-m4"  # the processor whose instructions stand for those of a generic one


@dataclass(frozen=True)
class Trade:
    """A program of a model, by a plan (None: no layer by rows), its RAM in bytes, and about how
    many instructions a run of it takes."""

    plan: RowPlan | None
    program: Program
    ram: int
    instructions: int


def trades(
    plain: Program, plans: Sequence[RowPlan], make: Callable[[RowPlan], Program],
    ram: Callable[[Program], int], cpu: Cpu, suits: Callable[[Program], bool] = lambda _: True,
) -> list[Trade]:  # fmt: skip
    """Those programs that suit, of the plain one and of plans, than which none takes both less RAM
    and fewer instructions, the one of the fewest instructions first."""
    work, around = instructions(plain, cpu)
    tried = [Trade(None, plain, ram(plain), work + around)] if suits(plain) else []
    for plan in plans:
        program = make(plan)
        if not suits(program):
            continue
        own, more = instructions(program, cpu)
        tried.append(Trade(plan, program, ram(program), max(own, work) + more))
    kept: list[Trade] = []
    for trade in sorted(tried, key=lambda t: (t.instructions, t.ram)):
        if not kept or trade.ram < kept[-1].ram:
            kept.append(trade)
    return kept


def fastest(known: Sequence[Trade], limit: int) -> Trade:
    """The first that fits, or the one that takes least."""
    return next((t for t in known if t.ram <= limit), known[-1])


def instructions(program: Program, cpu: Cpu) -> tuple[int, int]:
    """About how many instructions a run takes in kernels, and around them."""
    known: dict[tuple, float] = {}

    def of(step: Step) -> float:
        key = step.kernel, step.sizes
        if key not in known:
            known[key] = _of_kernel(with_sizes(program.kernels[step.kernel], step.sizes), cpu)
        return known[key]

    inside = around = 0.0
    for step, times in _repeated(program.steps, 1):
        if isinstance(step, Step):
            inside += times * of(step)
            around += times * CALL
        elif isinstance(step, Copy):
            size = largest(step.source.elements) * step.source.dtype.size
            around += times * (COPY + size / BYTES)
    return round(inside), round(around)


def _of_kernel(kernel: Kernel, cpu: Cpu) -> float:
    processor = PROCESSORS.get(cpu.name, PROCESSORS[SIMILAR])
    return estimate(kernel, processor, PAIRS in cpu.instructions, cpu.vectors).instructions


def _repeated(steps: Iterable[AnyStep], around: int) -> Iterator[tuple[AnyStep, int]]:
    """All steps, and how often they run; once a trip where that is not known."""
    for step in steps:
        yield step, around
        trips = 1
        if isinstance(step, While) and isinstance(step.trips, int):
            trips = step.trips
        for body in bodies(step):
            yield from _repeated(body, around * trips)


class Worker:
    """Tells about how many instructions the kernels of a computation take that strategies make."""

    def __init__(self, graph: Graph, strategies: Sequence[Strategy], cpu: Cpu):
        self.lowering = Lowering(graph, strategies, "work", Conventions(in_order=True))
        self.cpu = cpu

    def __call__(self, part: Computation) -> float:
        lowered = self.lowering.choose(part)
        return sum(_of_kernel(kernel, self.cpu) for kernel in (lowered.kernel, *lowered.before))


def text(known: Sequence[Trade]) -> str:
    """The table of RAM against instructions."""
    rows = [("RAM", "arena", "instructions", "", "by rows")]
    fewest = known[0].instructions
    for trade in known:
        rows.append((nbytes(trade.ram), nbytes(trade.program.arena_bytes),
                     f"{trade.instructions / 1e6:.2f} M", f"{trade.instructions / fewest:.2f}x",
                     _described(trade.plan)))  # fmt: skip
    return "RAM against instructions (estimated):\n" + table(rows, left=5)


def _described(plan: RowPlan | None) -> str:
    if plan is None:
        return "nothing"
    ops = plan.segment.ops
    first, last = (layers(op.loc) for op in (ops[0], ops[-1]))
    least, most = min(plan.bands), max(plan.bands)
    heights = f"{least} to {most}" if least < most else f"{most}"
    bands = f"{heights} row{'s' * (most > 1)} at a time"
    return f"{len(ops)} layers, {first} to {last}, {bands}"


def data(known: Sequence[Trade]) -> list[dict]:
    """The table as plain data."""
    return [
        {"ram": t.ram, "arena": t.program.arena_bytes, "instructions": t.instructions,
         "layers_by_rows": len(t.plan.segment.ops) if t.plan else 0,
         "rows": max(t.plan.bands) if t.plan else 0}
        for t in known
    ]  # fmt: skip
