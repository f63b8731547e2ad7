"""A program as CUDA C and a launch plan.

`emit` gives the text of `kernels.cu`, one `extern "C"` function per launch of each kernel, and the
plan: which functions are launched in which order, with what grids, and where their operands lie.
Inputs, outputs and constants are numbered buffers of their own; everything else lies in one arena.
Neither needs a GPU, a driver, or a compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from graphc.backends.cfamily.names import comment, identifier
from graphc.backends.cfamily.printer import used_sizes
from graphc.backends.cuda.device_math import DeviceSpeller, shorten
from graphc.backends.cuda.instructions import instruction_text
from graphc.backends.cuda.launches import Launch, launches
from graphc.backends.cuda.machines import VECTOR_BYTES
from graphc.backends.cuda.printer import INDEX, LaunchPrinter, device_helpers
from graphc.backends.cuda.steps import (
    COUNTER,
    LaunchStep,
    Planner,
    counts_trips,
    has_flow,
    is_captured,
    number,
)
from graphc.errors import InternalError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Sym, as_expr
from graphc.ir.kernel import Kernel
from graphc.ir.program import Program, Slot, Step, While, overwriting
from graphc.ir.sizes import line_of
from graphc.ir.types import TensorType, at, largest
from graphc.passes.kernel.prepare import for_c

MAX_NAMED = 4  # steps whose nodes are named before a kernel that many steps share
INCLUDES = "#include <math.h>\n#include <stdint.h>\n"


@dataclass
class CudaSource:
    """The CUDA C of a program, and its launches: in the order in which they run, unless `flow` has
    the steps that say when each is made, as the launch plan has them."""

    program: Program
    text: str
    steps: list[LaunchStep] = field(default_factory=list)
    flow: list[dict[str, Any]] | None = None

    def plan(self) -> dict[str, Any]:
        """The launch plan as JSON has it."""
        program = self.program
        plan = {
            "name": program.name,
            "sizes": [_size_entry(size, program) for size in program.sizes],
            "arena_bytes": program.arena_bytes,
            "inputs": [_interface(name, type) for name, type in program.inputs],
            "outputs": [_interface(name, type) for name, type in program.outputs],
            "checks": [
                {"low": c.low, "most": c.most, "message": c.message} for c in program.checks
            ],
            "constants": [
                {"dtype": str(c.dtype), "shape": list(c.shape)} for c in program.constants
            ],
            "launches": [_launch_entry(step) for step in self.steps],
        }
        if self.flow is not None:
            counts = [{"name": s.name, "low": s.lo, "high": s.hi} for s in program.counts]
            most = {size.name: largest(size) for size in program.all_sizes}
            plan |= {"counts": counts, "steps": self.flow}
            plan["captured"] = is_captured(self.flow, most)
        return plan


def emit(program: Program) -> CudaSource:
    """CUDA C of a program; UnsupportedError if a kernel uses what CUDA lacks (strings)."""
    speller = DeviceSpeller(INDEX)
    functions: list[str] = []
    instructions: set[str] = set()
    taken: set[str] = set()
    aliased = overwriting(program)
    misplaced = {s.kernel for s in program.calls if any(x.offset % VECTOR_BYTES for x in s.slots)}

    def printed(kernel: Kernel) -> list[tuple[str, Launch]]:
        made = []
        for launch in launches(shorten(for_c(kernel))):
            function = identifier(launch.kernel.name, taken)
            taken.add(function)
            printer = LaunchPrinter(
                launch, function, speller, kernel.name not in aliased, kernel.name not in misplaced
            )
            functions.append(printer.text())
            instructions.update(printer.instructions)
            made.append((function, launch))
        return made

    entries = {
        name: printed(_with_nodes(kernel, program)) for name, kernel in program.kernels.items()
    }
    counting = printed(COUNTER) if counts_trips(program) else []
    planner = Planner(
        lambda step: [_step(*entry, step) for entry in entries[step.kernel]],
        lambda counter, loop: _counting(*counting[0], counter, loop),
    )
    flow = planner.steps(program.steps)
    title = comment(
        f"{program.name}: {len(planner.launches)} launches of {len(functions)} kernels, "
        f"arena {program.arena_bytes} bytes"
    )
    helpers = f"{device_helpers(speller.needed)}{instruction_text(instructions)}"
    text = f"{title}\n{INCLUDES}\n{helpers}" + "\n".join(functions)
    return CudaSource(program, text, planner.launches, flow if has_flow(program) else None)


def _counting(function: str, launch: Launch, counter: Slot, loop: While) -> LaunchStep:
    return LaunchStep(function, launch.grid, launch.block, (counter,), ("out",), loop.loc)


def _step(function: str, launch: Launch, step: Step) -> LaunchStep:
    access = tuple(buffer.access for buffer in launch.kernel.params)
    given: dict[Expr, Expr] = {
        size: as_expr(value, i64) for size, value in zip(launch.kernel.sizes, step.sizes)
    }
    sizes = tuple(at(size, given) for size in used_sizes(launch.kernel))
    return LaunchStep(
        function, at(launch.grid, given), launch.block, step.slots, access, step.loc,
        launch.shared, sizes, launch.maps,
    )  # fmt: skip


def _with_nodes(kernel: Kernel, program: Program) -> Kernel:
    """The kernel with a comment that names the ONNX nodes it computes."""
    steps = [step for step in program.calls if step.kernel == kernel.name]
    named = [", ".join(step.loc) for step in steps if step.loc]
    listed = [f"  {text}" for text in dict.fromkeys(named)]
    if len(listed) > MAX_NAMED:
        listed = [*listed[:MAX_NAMED], f"  and {len(listed) - MAX_NAMED} more"]
    return replace(kernel, comment="\n".join([kernel.comment or kernel.name, *listed]))


def _interface(name: str, type: TensorType) -> dict[str, Any]:
    return {"name": name, "dtype": str(type.dtype), "shape": [number(dim) for dim in type.dims]}


def _size_entry(size: Sym, program: Program) -> dict[str, Any]:
    """A size: its bounds, and the dimension of an input it is read from: `factor` times the size,
    plus `offset`."""
    for position, (_, type) in enumerate(program.inputs):
        for axis, dim in enumerate(type.dims):
            line = line_of(dim, size)
            if line is not None:
                return {
                    "name": size.name, "low": size.lo, "high": size.hi, "input": position,
                    "axis": axis, "factor": line[0], "offset": line[1],
                }  # fmt: skip
    raise InternalError(f"size {size.name} cannot be read from an input")


def _launch_entry(step: LaunchStep) -> dict[str, Any]:
    return {
        "function": step.function,
        "grid": number(step.grid),
        "sizes": [number(size) for size in step.sizes],
        "block": step.block,
        "shared": step.shared,
        "maps": [map.entry() for map in step.maps],
        "arguments": [
            {"space": slot.space, "index": slot.index, "offset": slot.offset,
             "elements": number(slot.elements), "dtype": str(slot.dtype)}
            for slot in step.slots
        ],
        "nodes": list(step.nodes),
    }  # fmt: skip
