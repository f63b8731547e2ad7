"""The text of the steps of a program.

run @kernel(slot, ...) flops n bytes n macs n sizes n, ...
copy slot by stride to slot by stride
count size slot
while slot trips n counter slot { steps }     `trips` is a number, a slot, or an expression: [n]
if slot { steps } else { steps }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphc.ir.expr import Expr
from graphc.ir.program import AnyStep, Copy, Count, If, Slot, Step, While
from graphc.ir.text.literals import loc_text, sigil_text


def slot_text(slot: Slot) -> str:
    """Where a slot lies: `arena + 64 : f32[16]`."""
    number = f" {slot.index}" if slot.space != "arena" or slot.index else ""
    offset = f" + {slot.offset}" if slot.offset or slot.space == "arena" else ""
    return f"{slot.space}{number}{offset} : {slot.dtype}[{slot.elements}]"


def step_lines(steps: Sequence[AnyStep], indent: str) -> Iterator[str]:
    """The lines of steps, those inside others indented further."""
    for step in steps:
        if isinstance(step, Step):
            yield indent + _step_text(step)
        elif isinstance(step, Copy):
            yield indent + _copy_text(step)
        elif isinstance(step, Count):
            most = "" if step.most is None else f" most {step.most}"
            yield f"{indent}count {step.size} {slot_text(step.slot)}{most}{loc_text(step.loc)}"
        elif isinstance(step, If):
            yield f"{indent}if {slot_text(step.condition)}{loc_text(step.loc)} {{"
            yield from step_lines(step.then, indent + "  ")
            yield indent + "} else {"
            yield from step_lines(step.orelse, indent + "  ")
            yield indent + "}"
        else:
            yield f"{indent}while{_loop_header(step)}{loc_text(step.loc)} {{"
            yield from step_lines(step.body, indent + "  ")
            yield indent + "}"


def _step_text(step: Step) -> str:
    slots = ", ".join(map(slot_text, step.slots))
    work = f" flops {step.flops}" if step.flops else ""
    work += f" bytes {step.nbytes}" if step.nbytes else ""
    work += f" macs {step.macs}" if step.macs else ""
    work += f" sizes {', '.join(map(str, step.sizes))}" if step.sizes else ""
    return f"run {sigil_text('@', step.kernel)}({slots}){work}{loc_text(step.loc)}"


def _copy_text(step: Copy) -> str:
    source = slot_text(step.source) + _stride_text(step.source_stride)
    target = slot_text(step.target) + _stride_text(step.target_stride)
    return f"copy {source} to {target}{loc_text(step.loc)}"


def _stride_text(stride: Any) -> str:
    return "" if stride == 0 else f" by {stride}"


def _loop_header(loop: While) -> str:
    """` slot trips 10 counter slot`: as far as there are any."""
    text = "" if loop.condition is None else f" {slot_text(loop.condition)}"
    if loop.trips is not None:
        trips = slot_text(loop.trips) if isinstance(loop.trips, Slot) else str(loop.trips)
        text += f" trips [{trips}]" if isinstance(loop.trips, Expr) else f" trips {trips}"
    return text + ("" if loop.counter is None else f" counter {slot_text(loop.counter)}")
