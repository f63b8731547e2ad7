"""All that is known of a compiled model as one dict of plain data, which `graphc report` prints as
JSON, and which its page shows.

    about     the model, the target, the machine's peaks, whole runs
    layers    the nodes of the model: what became of each, and why
    groups    the ops of the optimised graphs, which are fused layers
    steps     what runs, in order: costs, measured times, the least by the roofline
    kernels   their schedules and their code, each once
    arenas    what memory holds at each step

Lists refer to one another by index. Times are in seconds. Numbers that are not finite are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.analysis.cost import instructions, op_cost
from graphc.analysis.memory import arena_use
from graphc.finite import finite
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.program import AnyStep, Program, Step, ending
from graphc.ir.types import TensorType
from graphc.passes.manager.journal import Subject, subject
from graphc.report import groups
from graphc.report.answers import Answer, Record
from graphc.report.layers import Layer, layers_of
from graphc.report.profile import Costs, StepTime, known

FORMAT, VERSION = "graphc-report", 1
DIGITS = 6  # of numbers
Data = dict[str, Any]  # as JSON has it
Codes = Mapping[str, Mapping[str, str]]  # by form, the text of each kernel


@dataclass
class Gathering:
    """What a report is made of: the record of a compilation; `shaped`, the graph with its types;
    the code of each program; how often the steps of a program ran and the seconds they took in a
    run, in the order in which they end, if that was measured; the differences from a reference by
    layer."""

    record: Record
    shaped: Graph
    code: Callable[[Program], Codes]
    times: Sequence[tuple[Program, np.ndarray]] = ()
    accuracy: Mapping[str, Data] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers = [x for x in layers_of(self.record.graph) if x.operator != "Constant"]
        self.number = {layer.name: n for n, layer in enumerate(self.layers)}
        self.programs = self.record.trace.programs
        self.ops = [
            (run.graph, op) for run in self.record.trace.runs for op in run.graph.ops
            if op.name not in ("Constant", "yield")
        ]  # fmt: skip
        self.makers = {v: n for n, (_, op) in enumerate(self.ops) for v in op.outputs}
        self.names = {v.name: n for v, n in self.makers.items()}  # across parts that are joined
        self.params = {p.name for p in self.record.graph.params}
        self.chosen: dict[Subject, set[str]] = {}
        for choice in self.record.trace.journal.kernels:
            self.chosen.setdefault(choice.of, set()).add(choice.kernel)
        self.equal: dict[Subject, list[Op]] = {}
        for _, op in self.ops:
            self.equal.setdefault(subject(op), []).append(op)
        self.kernels: list[Data] = []
        self.steps: list[Data] = []

    def data(self, about: Data) -> Data:
        """The report."""
        for number, program in enumerate(self.programs):
            self._program(number, program)
        self.by_loc: dict[tuple[str, ...], list[int]] = {}
        for number, step in enumerate(self.steps):
            self.by_loc.setdefault(tuple(step["loc"]), []).append(number)
        grouped = list(map(self._group, range(len(self.ops))))
        return finite(digits=DIGITS, data={
            "format": FORMAT, "version": VERSION,
            "about": {**about, "peaks": self._peaks(), "interface": self._interface()},
            "layers": list(self._layers()), "groups": grouped, "steps": self.steps,
            "kernels": self.kernels, "arenas": list(map(_arena, self.programs)),
        })  # fmt: skip

    # ---------------------------------------------------------------- the model

    def _layers(self) -> Iterator[Data]:
        ops: dict[str, list[Op]] = {}
        for op in self.record.graph.walk():
            if op.loc:
                ops.setdefault(op.loc[0], []).append(op)
        shaped: dict[str, list[Op]] = {}
        for op in self.shaped.walk():
            for name in op.loc[:1]:
                shaped.setdefault(name, []).append(op)
        types = {v.name: v.type for op in self.shaped.walk() for v in op.outputs}
        held = _by_name(op.loc for _, op in self.ops)
        steps = _by_name(step["loc"] for step in self.steps)
        for layer in self.layers:
            answer = self.record.answer(layer)
            costs = [op_cost(op) for op in shaped.get(layer.name, []) if not op.regions]
            yield {
                **_layer(layer, answer),
                "types": [str(types.get(name) or "") for name in layer.results],
                **self._read(ops[layer.name]),
                "flops": sum(cost.flops for cost in costs),
                "bytes": sum(cost.nbytes for cost in costs),
                "groups": held.get(layer.name, []),
                "steps": steps.get(layer.name, []),
                "accuracy": dict(self.accuracy.get(layer.name, {})) or None,
            }

    def _read(self, ops: Sequence[Op]) -> Data:
        """The layers and the inputs of the model that ops read."""
        layers: dict[int, None] = {}
        inputs: dict[str, None] = {}
        for value in (v for op in ops for v in _operands(op)):
            maker = value.producer
            if maker is None:
                inputs[value.name] = None
            elif maker.loc and maker.loc[0] in self.number and maker not in ops:
                layers[self.number[maker.loc[0]]] = None
        return {"reads": list(layers), "inputs": [name for name in inputs if name in self.params]}

    def _interface(self) -> Data:
        graph = self.shaped
        types = [v.type for v in (*graph.params, *graph.results)]
        return {
            "bytes": sum(t.nbytes for t in types if isinstance(t, TensorType) and t.is_static),
            "inputs": [[p.name, str(p.type)] for p in graph.params],
            "outputs": [[n, str(v.type)] for n, v in zip(graph.output_names, graph.results)],
        }

    # ---------------------------------------------------------------- the optimised graphs

    def _group(self, number: int) -> Data:
        graph, op = self.ops[number]
        told = groups.group(self.record.trace, graph, op)
        values = [v for v in _operands(op) if v.constant is None]
        reads = [self.makers.get(v, self.names.get(v.name)) for v in values]
        inputs = [v.name for v in values if v not in self.makers and v.name not in self.names]
        return {
            "operator": subject(op).operator, "result": op.outputs[0].name if op.outputs else "",
            "types": [str(v.type) for v in op.outputs], "loc": list(op.loc),
            "layers": self._numbers(op.loc), "holds": list(told.holds),
            "neighbours": [[n.side, n.name, n.reason] for n in told.neighbours],
            "reads": [n for n in dict.fromkeys(reads) if n is not None],
            "inputs": [n for n in dict.fromkeys(inputs) if n in self.params],
            "steps": self._steps_for(op),
        }  # fmt: skip

    def _steps_for(self, op: Op) -> list[int]:
        """The steps of an op: those whose kernels were chosen for it, if that tells them from
        others of the same layers. Of ops that are equal but for their operands, such as trips of a
        loop that is unrolled, each has its part of them, in order."""
        same, of = self.by_loc.get(op.loc, []), subject(op)
        chosen, equal = self.chosen.get(of, set()), self.equal[of]
        steps = [n for n in same if self.steps[n]["name"] in chosen] or same
        share, rest = divmod(len(steps), len(equal))
        at = equal.index(op) * share
        return steps if rest else steps[at : at + share]

    def _numbers(self, loc: Sequence[str]) -> list[int]:
        return [self.number[name] for name in loc if name in self.number]

    # ---------------------------------------------------------------- what runs

    def _program(self, number: int, program: Program) -> None:
        """Adds the steps and the kernels of a program."""
        codes = self.code(program)
        first = {name: len(self.kernels) + n for n, name in enumerate(program.kernels)}
        for name, kernel in program.kernels.items():
            code = {"kernel": str(kernel), **{f: t[name] for f, t in codes.items() if name in t}}
            schedule = list(self.record.schedule(kernel))
            self.kernels.append(
                {"name": name, "program": number, "schedule": schedule, "code": code}
            )
        costs = Costs(known(program), self.record.peaks)
        bounds = self.record.bounds(program)
        calls = 0
        for place, (step, own) in enumerate(
            zip(ending(costs.program.steps), ending(program.steps))
        ):
            told = self._step(costs, step, program, place)
            if isinstance(own, Step):
                answer = self.record.kernel(program, own, *bounds[calls])
                told |= {
                    "call": calls, "read": answer.bytes_read, "written": answer.bytes_written,
                    "strategy": answer.strategy, "about": answer.about,
                    "declined": list(map(list, answer.declined)), "kernel": first[own.kernel],
                    "peak": self._peak(program, own),
                }  # fmt: skip
                calls += 1
            self.steps.append({"program": number, **told})

    def _step(self, costs: Costs, step: AnyStep, program: Program, place: int) -> Data:
        times = next((measured for timed, measured in self.times if timed is program), None)
        calls, seconds = (1.0, 0.0) if times is None else map(float, times[:, place])
        made: StepTime = costs.step(step, calls, seconds)
        return {
            "kind": made.kind, "name": made.kernel, "loc": list(made.layers),
            "layers": self._numbers(made.layers), "calls": calls, "flops": made.flops,
            "bytes": made.nbytes, "least": made.least, "bound": made.bound,
            "seconds": None if times is None else seconds,
        }  # fmt: skip

    def _peak(self, program: Program, step: Step) -> float | None:
        peaks = self.record.peaks
        used = instructions(program.kernels[step.kernel])
        return None if peaks is None else peaks.using(used).flops

    def _peaks(self) -> Data | None:
        peaks = self.record.peaks
        if peaks is None:
            return None
        return {
            "name": peaks.name, "flops": peaks.flops, "bandwidth": peaks.bandwidth,
            "cache_bandwidth": peaks.cache_bandwidth, "cache": peaks.cache,
            "overhead": peaks.overhead,
        }  # fmt: skip


def _layer(layer: Layer, answer: Answer) -> Data:
    return {
        "name": layer.name, "operator": layer.operator, "results": list(layer.results),
        "inside": layer.inside, "fate": answer.fate, "rewrites": list(answer.rewrites),
        "declined": list(map(list, answer.declined)), "layouts": list(answer.layouts),
        "notes": list(answer.notes),
    }  # fmt: skip


def _by_name(locs: Iterable[Sequence[str]]) -> dict[str, list[int]]:
    """By layer, the numbers of what comes from it."""
    numbers: dict[str, list[int]] = {}
    for number, loc in enumerate(locs):
        for name in dict.fromkeys(loc):
            numbers.setdefault(name, []).append(number)
    return numbers


def _operands(op: Op) -> list[Value]:
    return [v for v in op.inputs if v is not None]


def _arena(program: Program) -> Data:
    """The arena of a program: live bytes at each call, and the tensors as [offset, bytes, first
    call, last call, layers]."""
    use = arena_use(program)
    return {
        "name": program.name, "bytes": program.arena_bytes,
        "lower_bound": program.arena_lower_bound, "live": list(use.live),
        "constants": sum(c.nbytes for c in program.constants),
        "tensors": [[t.offset, t.nbytes, t.first, t.last, list(t.loc)] for t in use.tensors],
    }  # fmt: skip
