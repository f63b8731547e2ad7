"""Cycles from counts: those of a processor's pipeline, and those that it waits for flash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from graphc.backends.micro_c.timing.chips import Chip
from graphc.backends.micro_c.timing.counting import Counts
from graphc.backends.micro_c.timing.disassembly import Instruction
from graphc.backends.micro_c.timing.processors import Processor


@dataclass(frozen=True)
class Cycles:
    """Of a layer: instructions, by class too; cycles of the pipeline, and of waiting for flash."""

    instructions: int
    pipeline: float
    waiting: float
    classes: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return self.pipeline + self.waiting


def cycles_of(
    counts: Counts, code: Mapping[int, Instruction], processor: Processor, chip: Chip | None
) -> Cycles:
    """The cycles of a layer."""
    pipeline, classes = 0.0, Counter[str]()
    for block in counts.blocks:
        run = instructions(code, block.first, block.last)
        if run:
            pipeline += block.runs * processor.block(run)
            pipeline += processor.left(run[-1], block.runs, block.jumps)
            for instruction in run:
                classes[instruction.kind] += block.runs
    return Cycles(sum(classes.values()), pipeline, _waiting(counts, chip), dict(classes))


def instructions(code: Mapping[int, Instruction], first: int, last: int) -> list[Instruction]:
    """Those from one address to another, as they lie behind each other."""
    sequence = []
    while first <= last and first in code:
        sequence.append(code[first])
        first += code[first].size
    return sequence


def _waiting(counts: Counts, chip: Chip | None) -> float:
    if chip is None:
        return 0.0
    return float((counts.fetches + counts.reads) * chip.wait)
