"""The whole answer for a layer: fate, rewrites, layouts, fusion groups, kernels and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphc.analysis.report import step_costs
from graphc.ir.graph import Graph, Op
from graphc.ir.kernel import Kernel
from graphc.ir.machine import Peaks
from graphc.ir.operations import kernel_operations
from graphc.ir.program import Program, Step
from graphc.ir.types import largest
from graphc.passes.manager.journal import Decision, KernelChoice
from graphc.report import fate
from graphc.report.groups import Group, group, members
from graphc.report.layers import Layer
from graphc.report.schedule import schedule
from graphc.report.trace import Trace
from graphc.runtime.plans import HOST, LATER


@dataclass(frozen=True)
class KernelAnswer:
    """A step of the program: its kernel, how it came to be, and what it costs at the least.
    `schedule` is read off its loops; `steps` are the schedule that a strategy chose, as text, which
    an op of a graph in text can be given ("" where its choices are no schedule). `seconds` and
    `bound` are None on a machine whose peaks are not known."""

    kernel: str
    layers: tuple[str, ...]
    strategy: str
    about: str
    declined: tuple[tuple[str, str], ...]
    schedule: tuple[str, ...]
    steps: str
    operations: int
    bytes_read: int
    bytes_written: int
    bound: str | None
    seconds: float | None


@dataclass(frozen=True)
class Answer:
    """What became of a layer, and why."""

    layer: Layer
    fate: str
    rewrites: tuple[str, ...]
    declined: tuple[tuple[str, str], ...]
    layouts: tuple[str, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    kernels: tuple[KernelAnswer, ...]


@dataclass
class Record:
    """A model that was compiled while it was watched: the graph as imported, and the peaks of
    the machine whose roofline counts (None: not known)."""

    graph: Graph
    trace: Trace
    peaks: Peaks | None
    _bounds: dict[int, Sequence[tuple[str | None, float | None]]] = field(
        default_factory=dict, repr=False
    )
    _schedules: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def answer(self, layer: Layer) -> Answer:
        """The answer for a layer."""
        journal = self.trace.journal
        ops = self.ops(layer)
        own = [m for _, op in ops for m in members(op) if layer.name in m.loc]
        beside = [name for _, op in ops for name in op.loc]
        rewrites = fate.rewrites(self.trace, layer)
        decisions = self.decisions(layer)
        hosted = [d.text for d in decisions if d.about == HOST]
        staged = [d.text for d in decisions if d.about in (HOST, LATER)]
        became = (
            fate.present(layer, own, beside) if ops
            else fate.on_host(hosted) if hosted
            else fate.gone(self.trace, self.graph, layer)
        )  # fmt: skip
        choices = [c for c in journal.kernels if layer.name in c.of.loc]
        return Answer(
            layer,
            became,
            tuple(text for text in map(fate.told, rewrites) if text not in became),
            tuple(self.declined(layer, {change.rule for change in rewrites})),
            tuple(d.text for d in decisions if d.about == "layout"),
            tuple(dict.fromkeys(group(self.trace, graph, op) for graph, op in ops)),
            tuple(dict.fromkeys([*(c.note for c in choices if c.note), *(staged if ops else ())])),
            tuple(self.kernels(layer)),
        )

    def ops(self, layer: Layer) -> list[tuple[Graph, Op]]:
        """The ops of optimised graphs that compute a layer, among others."""
        return [
            (run.graph, op)
            for run in self.trace.runs
            for op in run.graph.ops
            if layer.name in op.loc and op.name != "Constant"
        ]

    def decisions(self, layer: Layer) -> list[Decision]:
        """All that was decided of ops of a layer."""
        return [d for d in self.trace.journal.decisions if layer.name in d.of.loc]

    def declined(self, layer: Layer, fired: set[str]) -> Iterator[tuple[str, str]]:
        """Rules and passes that met the layer and did not fire, each with its last reason."""
        last = {
            d.about: d.text for d in self.decisions(layer)
            if d.about not in ("layout", "fuse", HOST, LATER, *fired)
        }  # fmt: skip
        yield from last.items()

    # ---------------------------------------------------------------- kernels

    def kernels(self, layer: Layer) -> Iterator[KernelAnswer]:
        """The steps that compute a layer."""
        for program in self.trace.programs:
            for step, (bound, seconds) in zip(program.calls, self.bounds(program)):
                if layer.name in step.loc:
                    yield self.kernel(program, step, bound, seconds)

    def bounds(self, program: Program) -> Sequence[tuple[str | None, float | None]]:
        """What bounds each step, and its least time."""
        if self.peaks is None:
            return [(None, None)] * len(program.calls)
        if id(program) not in self._bounds:  # every layer asks
            costs = step_costs(program, self.peaks)
            self._bounds[id(program)] = [(cost.bound, cost.seconds) for cost in costs]
        return self._bounds[id(program)]

    def kernel(
        self, program: Program, step: Step, bound: str | None, seconds: float | None
    ) -> KernelAnswer:
        """The answer for a step."""
        kernel = program.kernels[step.kernel]
        choice = self.choice(step)
        outs = [b.access != "in" for b in kernel.params]
        sizes = [largest(slot.elements) * slot.dtype.size for slot in step.slots]
        moved = step.nbytes or sum(sizes)
        written = min(moved, sum(size for size, out in zip(sizes, outs) if out))
        return KernelAnswer(
            step.kernel, step.loc, choice.strategy,
            self.trace.journal.about.get(choice.strategy, ""), choice.declined,
            self.schedule(kernel), choice.schedule, step.flops or kernel_operations(kernel),
            moved - written, written, bound, seconds,
        )  # fmt: skip

    def schedule(self, kernel: Kernel) -> tuple[str, ...]:
        """The schedule of a kernel, which every layer in it asks for."""
        if id(kernel) not in self._schedules:
            self._schedules[id(kernel)] = tuple(schedule(kernel))
        return self._schedules[id(kernel)]

    def choice(self, step: Step) -> KernelChoice:
        """How the kernel of a step was chosen: by its name or, where kernels were merged after
        that, by the layers it computes."""
        same = [c for c in self.trace.journal.kernels if c.of.loc == step.loc and c.kernel]
        named = [c for c in same if c.kernel == step.kernel]
        return (named or same)[0]
