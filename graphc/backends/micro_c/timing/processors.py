"""The cycles of instructions, by processor.

Processors issue instructions in order, one or two in a cycle. An instruction occupies the issue
stage for some cycles, and its result can be read after its latency. The cycles of the Cortex-M0+
and M4 are those of Arm's Technical Reference Manuals (r0p1, 3.3; the M4's floats 7.2). The manuals
of the M7, M33 and M55 give none: they are what the schedulers of compilers assume, and `error` is
larger where no board confirmed that. No number depends on a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphc.backends.micro_c.timing.disassembly import (
    BRANCH,
    CALL,
    DIV,
    FDIV,
    FLOAT,
    FMA,
    FMUL,
    JUMP,
    LOAD,
    LOADS,
    LONG,
    LOOP,
    MAC,
    MUL,
    STORE,
    STORES,
    VALU,
    VLOAD,
    VMAC,
    VSTORE,
    Instruction,
)  # fmt: skip

MEMORY = frozenset((LOAD, STORE, LOADS, STORES, VLOAD, VSTORE))
FLOW = frozenset((BRANCH, JUMP, CALL, LOOP))
VECTOR = frozenset((VALU, VMAC, VLOAD, VSTORE))


@dataclass(frozen=True)
class Processor:
    """A processor's pipeline.

    A class occupies the issue stage for its `cycles` (1 where none are given), and its result can
    be used after its `latency` (as its cycles, where none is given). A list of N registers takes
    `listed` + N. A branch that is taken adds `taken`, a jump through a register or by a load
    `jumped`, and a branch that goes the rarer of its two ways `mispredicted`. `pipelined`: a load
    directly behind a load takes a cycle less. `pairs`: two instructions in a cycle, not both of one
    of the units in `single`; `narrow_pairs`: of 16 bits each. `beats`: vector instructions of
    different units overlap. `error` is the part by which cycles can be off: docs/board_times.md
    says what it rests on.
    """

    cycles: Mapping[str, int] = field(default_factory=dict)
    latency: Mapping[str, int] = field(default_factory=dict)
    listed: int = 1
    taken: int = 0
    jumped: int = 0
    mispredicted: int = 0
    pipelined: bool = False
    pairs: bool = False
    narrow_pairs: bool = False
    single: tuple[frozenset[str], ...] = ()
    beats: bool = False
    error: float = 0.5

    def block(self, code: Sequence[Instruction]) -> int:
        """The cycles of a block of code that runs from its first to its last instruction."""
        ready: dict[str, int] = {}
        time = 0  # when the next instruction can be issued
        started = -1  # when the last one was
        last: Instruction | None = None
        alone = True  # whether the last one shares its cycle with none
        for this in code:
            begin = max([time, *(ready[r] for r in this.reads if r in ready)])
            occupied = self._occupied(this, last)
            if last is not None and alone and self._pairs(last, this, ready, started):
                begin, alone = started, False
            else:
                alone = True
            ends = begin + occupied
            latency = max(self.latency.get(this.kind, occupied), occupied)
            ready.update(dict.fromkeys(this.writes, begin + latency))
            time, started, last = max(time, ends), begin, this
        return time

    def _occupied(self, this: Instruction, last: Instruction | None) -> int:
        if this.kind in (LOADS, STORES):
            return self.listed + this.count
        cycles = self.cycles.get(this.kind, 1)
        behind = last is not None and not last.writes & this.reads
        if self.pipelined and this.kind == LOAD and behind and last is not None:
            return 1 if last.kind in (LOAD, LOADS) else cycles
        if self.beats and this.kind in VECTOR and last is not None and last.kind in VECTOR:
            return 1 if last.kind != this.kind else cycles
        if self.pipelined and this.kind == STORE and this.indexed:
            return 2
        return cycles

    def _pairs(
        self, last: Instruction, this: Instruction, ready: Mapping[str, int], started: int
    ) -> bool:
        """Whether an instruction is issued together with the last one."""
        if not self.pairs or this.kind in (LOADS, STORES) or last.kind in (LOADS, STORES, *FLOW):
            return False
        if self.narrow_pairs and (last.size > 2 or this.size > 2):
            return False
        if self.cycles.get(last.kind, 1) > 1 or self.cycles.get(this.kind, 1) > 1:
            return False
        if last.writes & (this.reads | this.writes):
            return False
        if any(ready.get(register, 0) > started for register in this.reads):
            return False
        return not any(last.kind in unit and this.kind in unit for unit in self.single)

    def left(self, last: Instruction, runs: int, jumps: int) -> float:
        """The cycles that a block takes beside its instructions as it is left, over all runs."""
        if last.kind == LOOP:
            return 0
        if last.jumps or last.kind == JUMP and "lr" in last.reads:
            return jumps * self.jumped
        wrong = min(jumps, runs - jumps) if last.kind == BRANCH else 0
        return jumps * self.taken + wrong * self.mispredicted


_PRODUCTS = frozenset((MUL, MAC, LONG, DIV))
_FLOATS = frozenset((FLOAT, FMUL, FMA, FDIV))

# Floats without a unit for them are functions of libgcc: about so many cycles each, for estimates.
_CALLED = {FLOAT: 100, FMUL: 105, FMA: 205, FDIV: 300}

_M55 = Processor(
    {DIV: 8, FDIV: 14, VALU: 2, VMAC: 2, VLOAD: 2, VSTORE: 2},
    {LOAD: 2, MUL: 2, MAC: 2, LONG: 2, FLOAT: 2, FMUL: 3, FMA: 4, VLOAD: 3, VMAC: 3},
    taken=2,
    jumped=3,
    pairs=True,
    narrow_pairs=True,
    beats=True,
    single=(MEMORY, _PRODUCTS, _FLOATS | VECTOR, FLOW),
)
PROCESSORS = {
    "cortex-m0plus": Processor({LOAD: 2, STORE: 2, **_CALLED}, taken=1, jumped=1,
                               error=0.3),  # fmt: skip
    "cortex-m4": Processor(
        {LOAD: 2, DIV: 7, FMA: 3, FDIV: 14}, {FLOAT: 2, FMUL: 2, FMA: 4}, taken=2, jumped=3,
        pipelined=True, error=0.15,
    ),
    "cortex-m7": Processor(
        {DIV: 8, FDIV: 14}, {LOAD: 2, LOADS: 3, MUL: 2, MAC: 2, LONG: 2, FLOAT: 3, FMUL: 3, FMA: 5},
        listed=0, jumped=1, mispredicted=8, pairs=True,
        single=(MEMORY, _PRODUCTS, _FLOATS, FLOW), error=0.3,
    ),
    "cortex-m33": Processor(
        {DIV: 6, FMA: 3, FDIV: 14}, {LOAD: 2, FLOAT: 2, FMUL: 2, FMA: 4}, taken=2, jumped=3,
        error=0.15,
    ),
    "cortex-m55": _M55,
    # of these no compiler tells the cycles: they are taken for the M55
    "cortex-m52": replace(_M55, error=0.8),
    "cortex-m85": replace(_M55, error=0.8),
    "rv32": Processor({DIV: 32, **_CALLED}, {LOAD: 2, MUL: 2}, taken=2, jumped=2, error=0.3),
}  # fmt: skip
