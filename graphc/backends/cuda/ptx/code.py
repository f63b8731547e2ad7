"""Code of the machine: instructions as numbers, registers as places in a warp's register file.

Constants and special registers are registers like others, so every operand is one. A register holds
a value for each lane: 2, 4 or 8 bytes; a predicate is a word, of which each lane has a bit.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from graphc.backends.cuda.ptx.operations import BITS, NUMBERS, OPERATIONS

LANES = 32
MACHINE = (
    "BRANCH", "EXIT", "TRAP", "NOTHING", "LOAD", "STORE", "PARAMETER", "ATOMIC_OPERATION", "COPY",
    "COMMIT_COPIES", "WAIT_COPIES", "LOAD_MATRICES", "STORE_MATRICES", "MMA", "WGMMA",
    "WGMMA_FENCE", "WGMMA_COMMIT", "WGMMA_WAIT", "PROXY_FENCE", "SHUFFLE", "VOTE", "MATCH",
    "REDUCE", "ACTIVE", "MEET", "BARRIER", "ELECT", "PHASE", "ARRIVE_WITH_COPIES", "INIT_FENCE",
    "CLUSTER_ARRIVE", "CLUSTER_WAIT", "BULK_COPY", "BULK_TENSOR", "COMMIT_BULK", "WAIT_BULK",
    "JOIN", "SPLIT",
)  # fmt: skip
"""Instructions that are more than an operation of each lane, in the order of their numbers."""
TOLERANT = "JOIN"  # from here on results of what was never written are so too
KNOWN_BY = {"selp": 1, "and.pred": 2, "or.pred": 3}  # how operations tell what is known

FIRST = len(MACHINE)
SPECIALS = {
    "%tid.x": 0, "%ctaid.x": 1, "%ntid.x": 2, "%nctaid.x": 3, "%laneid": 4, "%warpid": 5,
    "%nwarpid": 6, "%lanemask_eq": 7, "%lanemask_lt": 8, "%lanemask_le": 9, "%lanemask_gt": 10,
    "%lanemask_ge": 11, "%dynamic_smem_size": 12, "%total_smem_size": 12, "%clock": 13,
    "%cluster_ctarank": 14, "%cluster_ctaid.x": 14, "%cluster_nctarank": 15,
    "%cluster_nctaid.x": 15, "%clusterid.x": 16, "%nclusterid.x": 17,
}  # fmt: skip
FIXED = {"WARP_SZ": 32} | {
    f"%{name}.{axis}": int("n" in (name[0], name[8:9]))
    for name in ("tid", "ctaid", "ntid", "nctaid", "cluster_ctaid", "clusterid", "cluster_nctaid",
                 "nclusterid")
    for axis in "yz"
}  # fmt: skip
AUX = 8
FIELDS = 11  # of an instruction before `aux`
LINE = 7  # of these, which has the line of PTX


@dataclass(frozen=True)
class Reg:
    """A register of the machine: its number, place in the file, and bits (1: a predicate)."""

    id: int
    place: int
    bits: int


@dataclass
class Code:
    """What the machine runs, and what a launch must know of it."""

    name: str
    words: list[int] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    file: bytearray = field(default_factory=bytearray)
    defined: list[int] = field(default_factory=list)
    specials: list[int] = field(default_factory=list)
    lines: dict[int, str] = field(default_factory=dict)
    parameters: list[tuple[str, int]] = field(default_factory=list)  # type and offset
    shared: int = 0
    dynamic: int = -1  # where shared memory that a launch asks for begins
    local: int = 0
    shared_width: int = 16  # of the narrowest access
    global_width: int = 16
    threads: int = 0
    cluster: int = 1  # blocks, as the kernel says it
    has_products: bool = False
    count: int = 0
    targets: dict[int, str] = field(default_factory=dict)
    ends: dict[int, bool] = field(default_factory=dict)

    def line_of_each(self) -> np.ndarray:
        """The line of PTX that each instruction comes from."""
        width = FIELDS + AUX
        return np.array(self.words[LINE::width], np.int64)


class Assembler:
    """Appends instructions to code, and finds registers for operands."""

    def __init__(self, name: str):
        self.code = Code(name)
        self._constants: dict[tuple[int, int], Reg] = {}
        self._specials: dict[str, Reg] = {}
        self.guard: tuple[Reg, bool] | None = None
        self.line = 0

    def register(self, bits: int, defined: bool = False) -> Reg:
        """A new register; of 8 bits are kept in 16."""
        bits = 16 if bits == 8 else bits
        width = 4 if bits == 1 else bits // 8 * LANES
        file = self.code.file
        file.extend(bytes(-len(file) % min(width, 64)))
        made = Reg(len(self.code.defined), len(file), bits)
        file.extend(bytes(width))
        self.code.defined.append(0xFFFFFFFF if defined else 0)
        return made

    def constant(self, value: int, bits: int) -> Reg:
        """A register that holds a number for all lanes."""
        bits = 16 if bits == 8 else bits
        value &= 1 if bits == 1 else (1 << bits) - 1
        if (value, bits) not in self._constants:
            made = self.register(bits, defined=True)
            lanes = value.to_bytes(max(bits // 8, 1), "little") * LANES
            lanes = struct.pack("<I", 0xFFFFFFFF * value) if bits == 1 else lanes
            self.code.file[made.place : made.place + len(lanes)] = lanes
            self._constants[value, bits] = made
        return self._constants[value, bits]

    def special(self, name: str) -> Reg:
        """A register like %tid.x, of 32 bits."""
        if name not in self._specials:
            made = self.register(32, defined=True)
            self.code.specials += [SPECIALS[name], made.place]
            self._specials[name] = made
        return self._specials[name]

    def emit(
        self, name: str, results: list[Reg] | tuple[Reg, ...] = (),
        operands: list[Reg] | tuple[Reg, ...] = (), *aux: int, aligned: int = 0,
    ) -> None:  # fmt: skip
        """An instruction of the machine, or an operation of each lane."""
        aux = aux or (KNOWN_BY.get(name) or KNOWN_BY.get(name.split(".")[0], 0),)
        number = MACHINE.index(name) if name in MACHINE else FIRST + NUMBERS[name]
        guard, negated = self.guard or (None, False)
        self.code.words += [
            number, guard.id if guard else -1, guard.place if guard else 0, int(negated),
            len(results), len(operands), len(self.code.operands) // 2, self.line, -1, -1, aligned,
            *aux, *[0] * (AUX - len(aux)),
        ]  # fmt: skip
        for register in (*results, *operands):
            self.code.operands += [register.id, register.place]
        self.code.count += 1

    def operate(self, name: str, result: Reg, operands: list[Reg]) -> None:
        """An operation of each lane, with conversions where registers are wider than its types."""
        operation = OPERATIONS[name]
        given = [self._narrowed(r, t) for r, t in zip(operands, operation.operands)]
        wanted = 1 if operation.result == "pred" else max(BITS[operation.result], 16)
        if result.bits == wanted:
            self.emit(name, [result], given)
            return
        widened = self.register(wanted)
        self.emit(name, [widened], given)
        sign = "s" if operation.result[0] == "s" else "u"
        self.emit(f"cvt.{sign}{result.bits}.{sign}{wanted}", [result], [widened])

    def _narrowed(self, register: Reg, type: str) -> Reg:
        wanted = 1 if type == "pred" else max(BITS[type], 16)
        if register.bits == wanted or 1 in (register.bits, wanted):
            return register
        widened = self.register(wanted)
        self.emit(f"cvt.u{wanted}.u{register.bits}", [widened], [register])
        return widened
