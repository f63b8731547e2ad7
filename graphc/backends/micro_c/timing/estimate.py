"""Cycles without a compiler: the operations of kernels by class, as ordinary compilers make them.

What kernels compute is there to be counted: loads, stores, products, other operations, iterations
of loops. Addresses count nothing, as compilers step them with the loop or put them into the
instruction. What a compiler adds is not: spilled registers, moves, constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from graphc.backends.micro_c import byte_rows, float_runs, pairs
from graphc.backends.micro_c.timing.cycles import Cycles
from graphc.backends.micro_c.timing.disassembly import (
    ALU,
    BRANCH,
    DIV,
    FDIV,
    FLOAT,
    FMA,
    FMUL,
    LOAD,
    MAC,
    MUL,
    STORE,
    VALU,
    VLOAD,
    VMAC,
    VSTORE,
)  # fmt: skip
from graphc.backends.micro_c.timing.processors import VECTOR, Processor
from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Load, walk
from graphc.ir.instructions import DOT4, DOT4_CODES, DOT4_MIXED, DOT4_WIDE
from graphc.ir.kernel import (
    Alloc,
    Body,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Store,
    While,
    walk_stmts,
)
from graphc.ir.types import largest

_FREE = frozenset(("bitcast",))
_FUNCTION = 20  # operations of a polynomial that stands for exp, log and the like
_ROOTS = frozenset(("div", "sqrt", "recip", "rsqrt"))
_FUNCTIONS = frozenset(("exp", "log", "tanh", "erf", "sin", "cos", "pow", "tan", "sigmoid"))
_VECTORS = {LOAD: VLOAD, STORE: VSTORE, MUL: VMAC, MAC: VMAC, ALU: VALU, FLOAT: VALU, FMUL: VMAC,
            FMA: VMAC}  # fmt: skip
# four products: with pairs two loads, the widening of bytes, and two products; else four of each
_DOTS = {
    DOT4: {LOAD: 2, ALU: 4, MAC: 2},
    DOT4_WIDE: {LOAD: 2, MAC: 2},
    DOT4_MIXED: {LOAD: 2, ALU: 2, MAC: 2},
    DOT4_CODES: {LOAD: 2, ALU: 4, MAC: 2},
}
_DOT_BYTES = {LOAD: 8, MAC: 4}
# of pairs.py: for each of as many turns as the last argument says
_OF_PAIRS = {
    pairs.SPREAD4: {LOAD: 1, ALU: 3, STORE: 2},
    pairs.SPREAD_ROW: {LOAD: 1, ALU: 3, STORE: 2},
    pairs.DOT_1X4: {LOAD: 6, MAC: 8, ALU: 9},
    pairs.SPREAD_PAIRS: {LOAD: 2, ALU: 5, STORE: 4, BRANCH: 1},
    pairs.PAIR_UP: {LOAD: 2, ALU: 5, STORE: 2, BRANCH: 1},
    pairs.DOT_2X2: {LOAD: 8, MAC: 8, ALU: 1},
}


def estimate(kernel: Kernel, processor: Processor, pairs: bool, vectors: bool) -> Cycles:
    """The cycles of a kernel on a processor with products of pairs, or with vectors."""
    held = {s.buffer.name for s in walk_stmts(kernel.body) if isinstance(s, Alloc)
            if s.scope == "reg"}  # fmt: skip
    classes = _Counting(pairs, vectors, held).body(kernel.body)
    cycles = sum(n * _cycles_of(kind, processor) for kind, n in classes.items())
    cycles += classes[BRANCH] * processor.taken
    return Cycles(sum(classes.values()), float(cycles), 0.0, dict(classes))


def _cycles_of(kind: str, processor: Processor) -> float:
    """The cycles of an instruction; half way to one, of those that may overlap with another."""
    cycles = processor.cycles.get(kind, 1)
    overlaps = processor.pipelined and kind == LOAD or processor.beats and kind in VECTOR
    return (cycles + 1) / 2 if overlaps else cycles


@dataclass(frozen=True)
class _Counting:
    """Counts by class; `held` are arrays that are registers."""

    pairs: bool
    vectors: bool
    held: Set[str]

    def body(self, body: Body) -> Counter[str]:
        total: Counter[str] = Counter()
        for stmt in body:
            if isinstance(stmt, For):
                total += self._loop(stmt)
            elif isinstance(stmt, (Let, Store)):
                total += self._values(stmt.value)
                if isinstance(stmt, Store) and stmt.index and stmt.buffer not in self.held:
                    total[STORE] += 1
            elif isinstance(stmt, Intrin):
                total += self._intrin(stmt)
            elif isinstance(stmt, If):
                then, other = self.body(stmt.then), self.body(stmt.orelse)
                total += then if then.total() >= other.total() else other
                total += Counter({ALU: 1, BRANCH: 1}) + self._values(stmt.condition)
            elif isinstance(stmt, While):
                total += self.body(stmt.body) + self._values(stmt.condition)
        return total

    def _intrin(self, stmt: Intrin) -> Counter[str]:
        name = stmt.name
        if name in _OF_PAIRS:
            turns = stmt.args[-1]
            assert isinstance(turns, Const)
            return Counter({kind: n * int(turns.value) for kind, n in _OF_PAIRS[name].items()})
        if byte_rows.NAME.fullmatch(name):
            vectors = byte_rows.vectors(stmt)
            return Counter({VMAC: vectors, VLOAD: vectors})
        if float_runs.NAME.fullmatch(name):
            products, loads = float_runs.operations(stmt)
            return Counter({FMA: products, LOAD: loads, BRANCH: 2})
        if name not in _DOTS:
            return Counter({MAC if name in pairs.OF_WORDS else VMAC: 1})
        return Counter(_DOTS[name] if self.pairs else _DOT_BYTES)

    def _loop(self, loop: For) -> Counter[str]:
        trips = largest(loop.extent)
        inner = self.body(loop.body)
        if loop.kind == "vector" and self.vectors:
            trips = -(-trips // max(loop.width, 1))
            whole: Counter[str] = Counter()
            for kind, n in inner.items():
                whole[_VECTORS.get(kind, kind)] += n
            inner = whole
        if trips > 1 and loop.kind != "unroll":
            inner += Counter({ALU: 1, BRANCH: 1})
        return Counter({kind: n * trips for kind, n in inner.items()})

    def _values(self, expr: Expr) -> Counter[str]:
        """What computing a value takes, each part once."""
        total: Counter[str] = Counter()
        for node in dict.fromkeys(walk(expr)):
            if isinstance(node, Load) and node.index and node.source not in self.held:
                total[LOAD] += 1
            elif isinstance(node, Call) and node.op.name not in _FREE and node.dtype is not i64:
                total += _operation(node)
        return total


def _operation(node: Call) -> Counter[str]:
    name, real = node.op.name, node.dtype.is_float
    if name in _FUNCTIONS:
        return Counter({FMA if real else MUL: _FUNCTION})
    if name in _ROOTS:
        return Counter({FDIV if real else DIV: 1})
    if name == "fma":
        return Counter({FMA if real else MAC: 1})
    if name == "mul":
        return Counter({FMUL if real else MUL: 1})
    if name in ("cast", "cast_sat") and not real and not node.args[0].dtype.is_float:
        return Counter()
    return Counter({FLOAT if real else ALU: 1})
