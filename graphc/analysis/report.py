"""Reports in text: operators of a graph, steps of a program under a roofline, the memory plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphc.analysis import roofline
from graphc.analysis.cost import Cost, instructions, op_cost
from graphc.analysis.memory import ArenaUse, arena_use, picture
from graphc.analysis.text import duration, nbytes, quantity, table
from graphc.ir.graph import Graph, Op
from graphc.ir.machine import Peaks
from graphc.ir.operations import kernel_operations
from graphc.ir.ops.in_range import own_results
from graphc.ir.program import Program, While, walk
from graphc.ir.types import TensorType

NAME_WIDTH = 40
LARGEST = 5  # tensors listed in the memory plan


@dataclass(frozen=True)
class StepCost:
    """A step of a program: what it computes, its cost, and its least time in seconds."""

    name: str
    kernel: str
    cost: Cost
    bound: str
    seconds: float


def work(program: Program) -> list[tuple[str, str, Cost]]:
    """Of the steps of a program, in order: what it computes, its kernel, and its cost."""
    flops = {name: kernel_operations(kernel) for name, kernel in program.kernels.items()}
    return [
        (layers(s.loc) or s.kernel, s.kernel, Cost(s.flops or flops[s.kernel], s.nbytes))
        for s in program.calls
    ]


def step_costs(program: Program, peaks: Peaks) -> list[StepCost]:
    """The steps of a program, in order."""
    used = {n: peaks.using(instructions(kernel)) for n, kernel in program.kernels.items()}
    costs = []
    for name, kernel, cost in work(program):
        least, bound = roofline.seconds(used[kernel], cost), roofline.bound(used[kernel], cost)
        costs.append(StepCost(name, kernel, cost, bound, least))
    return costs


def layers(loc: Sequence[str]) -> str:
    """The ONNX nodes that something comes from, shortened."""
    first = loc[0] if loc else ""
    short = first if len(first) <= NAME_WIDTH else "..." + first[3 - NAME_WIDTH :]
    return f"{short} +{len(loc) - 1}" if len(loc) > 1 else short


# ---------------------------------------------------------------- operators


def summary(graph: Graph) -> str:
    """Inputs, outputs and weights of a typed graph."""
    weights = [op.output.tensor for op in graph.walk() if op.name == "Constant"]
    count = sum(t.size for t in weights)
    lines = [f"model {graph.name}: {sum(op.name != 'Constant' for op in graph.walk())} ops"]
    lines += [f"  input  {p.name}: {p.type}" for p in graph.params]
    lines += [f"  output {n}: {v.type}" for n, v in own_results(graph)]
    size = nbytes(sum(t.nbytes for t in weights))
    lines.append(f"  constants: {quantity(count)} elements in {len(weights)} tensors, {size}")
    return "\n".join(lines)


def operators(graph: Graph) -> str:
    """A table of the operators of a typed graph, the ones with most operations first."""
    groups: dict[str, list[Op]] = {}
    for op in graph.walk():
        if op.name != "Constant":
            groups.setdefault(op.name, []).append(op)
    costs = {
        name: sum((op_cost(op) for op in ops if not op.regions), Cost())  # what is inside is listed
        for name, ops in groups.items()
    }
    total = sum(costs.values(), Cost())
    rows = [("operator", "count", "FLOPs", "share", "bytes", "FLOP/byte")]
    for name in sorted(groups, key=lambda n: (-costs[n].flops, -costs[n].nbytes, n)):
        rows.append((name, str(len(groups[name])), *_cells(costs[name], total)))
    rows.append(("total", str(sum(map(len, groups.values()))), *_cells(total, total)))
    return table(rows)


def nodes(graph: Graph) -> str:
    """A table of every op of a typed graph, in order."""
    total = sum((op_cost(op) for op in graph.ops), Cost())
    rows = [("layer", "operator", "result", "FLOPs", "share", "bytes", "FLOP/byte")]
    for op in graph.ops:
        if op.name != "Constant":
            types = ", ".join(str(v.type) for v in op.outputs)
            name = layers(op.loc) or op.outputs[0].name
            rows.append((name, op.name, types, *_cells(op_cost(op), total)))
    return table(rows, left=3)


def _cells(cost: Cost, total: Cost) -> tuple[str, str, str, str]:
    share = 100 * cost.flops / total.flops if total.flops else 0.0
    return quantity(cost.flops), f"{share:.1f}%", nbytes(cost.nbytes), f"{cost.intensity:.3g}"


# ---------------------------------------------------------------- steps


def steps(program: Program, peaks: Peaks | None, top: int | None = None) -> str:
    """A table of the steps that take longest by the roofline, or have the most operations where no
    peaks are known (`top`: at most so many)."""
    if peaks is None:
        return _work(program, top)
    costs = step_costs(program, peaks)
    total = sum(step.seconds for step in costs) or 1.0
    rows = [("layer", "kernel", "FLOPs", "bytes", "FLOP/byte", "bound by", "at least", "share")]
    for step in sorted(costs, key=lambda c: -c.seconds)[:top]:
        share = f"{100 * step.seconds / total:.1f}%"
        least = (step.bound, duration(step.seconds), share)
        rows.append((*_step_cells(step.name, step.kernel, step.cost), *least))
    return "\n".join([table(rows, left=2), *_left_out(costs, top), _by_bound(costs, total)])


def _work(program: Program, top: int | None) -> str:
    """The table without times."""
    costs = work(program)
    rows = [("layer", "kernel", "FLOPs", "bytes", "FLOP/byte")]
    for named in sorted(costs, key=lambda c: (-c[2].flops, -c[2].nbytes))[:top]:
        rows.append(_step_cells(*named))
    return "\n".join([table(rows, left=2), *_left_out(costs, top)])


def _step_cells(name: str, kernel: str, cost: Cost) -> tuple[str, str, str, str, str]:
    return name, kernel, quantity(cost.flops), nbytes(cost.nbytes), f"{cost.intensity:.3g}"


def _left_out(costs: Sequence[object], top: int | None) -> list[str]:
    return [f"... and {len(costs) - top} more"] if top is not None and len(costs) > top else []


def _by_bound(costs: list[StepCost], total: float) -> str:
    bounds = dict.fromkeys(step.bound for step in costs)
    parts = []
    for bound in bounds:
        mine = [step.seconds for step in costs if step.bound == bound]
        parts.append(f"{bound} {100 * sum(mine) / total:.0f}% ({len(mine)} steps)")
    return f"{len(costs)} steps take at least {duration(total)}: {', '.join(parts)}"


def peaks_text(peaks: Peaks, programs: Sequence[Program] = ()) -> str:
    """The name and the peaks of a machine, with the peak of what some programs use of its
    special instructions."""
    kernels = [kernel for program in programs for kernel in program.kernels.values()]
    peak = max((peaks.using(instructions(kernel)).flops for kernel in kernels), default=0.0)
    special = f", by special instructions {_rate(peak)}" if peak > peaks.flops else ""
    return (
        f"{peaks.name or 'a machine'} with {_rate(peaks.flops)}{special}, "
        f"memory {peaks.bandwidth / 1e9:.4g} GB/s, "
        f"cache {peaks.cache_bandwidth / 1e9:.4g} GB/s, {duration(peaks.overhead)} a step"
    )


def _rate(flops: float) -> str:
    return f"{flops / 1e12:.3g} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:.3g} GFLOP/s"


# ---------------------------------------------------------------- memory


def memory(program: Program) -> str:
    """The memory plan: arena, lower bound, largest tensors, live bytes over the steps."""
    constants = sum(c.nbytes for c in program.constants)
    use = arena_use(program)
    bound = program.arena_lower_bound
    gap = f", {100 * (program.arena_bytes / bound - 1):.1f}% above the lower bound" if bound else ""
    lines = [
        f"arena {nbytes(program.arena_bytes)} (at least {nbytes(bound)}{gap}); "
        f"constants {nbytes(constants)}; inputs {_interface(program.inputs)}; "
        f"outputs {_interface(program.outputs)}"
    ]
    if use.tensors and use.live:
        lines += _largest(use)
        lines += _live(use, program)
    return "\n".join(lines)


def _interface(tensors: Sequence[tuple[str, TensorType]]) -> str:
    return nbytes(sum(t.most_bytes for _, t in tensors))


def _largest(use: ArenaUse) -> list[str]:
    rows = [("largest tensors", "bytes", "at", "steps")]
    for tensor in use.tensors[:LARGEST]:
        span = f"{tensor.first}..{tensor.last}"
        rows.append((layers(tensor.loc), nbytes(tensor.nbytes), str(tensor.offset), span))
    return table(rows).splitlines()


def _live(use: ArenaUse, program: Program) -> list[str]:
    top = max(use.live)
    more = program.arena_lower_bound - top
    loops = more > 0 and any(isinstance(step, While) for step in walk(program.steps))
    told = f" (buffers of loops hold {nbytes(more)} more that nothing reads again)" if loops else ""
    lines = [f"live bytes over {len(use.live)} steps, at most {nbytes(top)}{told}:"]
    lines += [f"  |{row}" for row in picture(use.live, program.arena_bytes)]
    return [*lines, "  +" + "-" * min(72, len(use.live))]


# ---------------------------------------------------------------- as data


def data(program: Program, peaks: Peaks | None) -> dict[str, Any]:
    """The steps and the memory of a program; times in seconds, None where no peaks are known."""
    times: Sequence[StepCost | None] = step_costs(program, peaks) if peaks else [None] * len(
        program.calls)  # fmt: skip
    rows = [
        {
            "layers": list(step.loc), "kernel": kernel, "flops": cost.flops, "bytes": cost.nbytes,
            "least_s": time.seconds if time else None, "bound": time.bound if time else None,
        }
        for step, (_, kernel, cost), time in zip(program.calls, work(program), times, strict=True)
    ]  # fmt: skip
    return {
        "steps": rows,
        "arena_bytes": program.arena_bytes,
        "arena_bytes_least": program.arena_lower_bound,
        "constant_bytes": sum(c.nbytes for c in program.constants),
    }
