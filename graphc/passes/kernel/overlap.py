"""Overlap of input and output: how far below an input an output may lie that its kernel computes.

The outermost loop of a kernel (or a nest of such loops) is a sequence of steps, in which ever later
parts of the input are read and ever later parts of the output written. Let R(t) be the first byte
of the input that step t or a later one reads, and W(t) the end of what steps up to t write. An
output that begins at least max W(t) - R(t) bytes before the input only overwrites bytes that no
later step reads. R and W come from intervals: positions are evaluated for all steps at once, with
the indices of inner loops anywhere between their bounds. Memory planning may then overlap the two,
a generalisation of working in place.

This holds where steps run in order: not for parallel loops, and not for kernels that write through
instructions or read what they write. Kernels of more accesses than the verifier can play through
(`ir/verify/overlap.py`) get no overlap, nor do buffers accessed at positions that depend on data,
since nothing would prove it.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, walk
from graphc.ir.kernel import (
    Body,
    Buffer,
    For,
    Intrin,
    Kernel,
    Stmt,
    Store,
    bodies,
    exprs,
    walk_stmts,
)
from graphc.ir.simplify import simplify, to_poly
from graphc.ir.verify.overlap import can_judge, unknown

MOST_STEPS = 1 << 16
FAR = 2.0**60  # beyond every position

Interval = tuple[np.ndarray, np.ndarray]  # in float64, which holds positions exactly
Env = dict[Expr, Interval]


def distances(kernel: Kernel) -> dict[tuple[str, str], int]:
    """By (output, input), the greatest distance in bytes from the start of the input to that of the
    output for which nothing is overwritten that is read later; none where there is no such."""
    if not _in_order(kernel) or not can_judge(kernel):
        return {}
    others = unknown(kernel)
    known = [b for b in kernel.params if len(b.shape) == 1 and b.name not in others]
    outputs = [b for b in known if b.access == "out"]
    inputs = [b for b in known if b.access == "in"]
    distances = {}
    reach = {b.name: _Reach(b) for b in (*outputs, *inputs)}
    for stmt in kernel.body:
        steps, body, env = _steps(stmt)
        accesses = _Accesses(reach, steps)
        accesses.body(body, env)
    for out in outputs:
        for source in inputs:
            if not _may_alias(out, source):
                continue
            reads, writes = reach[source.name].first_reads(), reach[out.name].last_writes()
            distance = int((reads * source.dtype.size - writes * out.dtype.size).min())
            if distance > -out.size * out.dtype.size:
                distances[out.name, source.name] = distance
    return distances


def _may_alias(out: Buffer, source: Buffer) -> bool:
    """Whether compilers keep the order of accesses: of one type, or of bytes (C99, 6.5 p7)."""
    return out.dtype is source.dtype or 1 in (out.dtype.size, source.dtype.size)


def _in_order(kernel: Kernel) -> bool:
    """Whether statements run one after the other and touch parameters by loads and stores only."""
    outputs = {b.name for b in kernel.params if b.access != "in"}
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, For) and stmt.kind not in ("serial", "unroll", "vector"):
            return False
        if isinstance(stmt, Intrin) and any(
            isinstance(n, Load) and n.source in outputs for e in stmt.args for n in walk(e)
        ):
            return False
    return not kernel.sizes


def _steps(stmt: Stmt) -> tuple[int, Body, Env]:
    """The steps of a statement: their number, what each runs, and the values of the loops."""
    loops: list[Index] = []
    body: Body = (stmt,)
    count = 1
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "serial":
        var = body[0].var
        if not isinstance(var.extent, int) or count * var.extent > MOST_STEPS or not var.extent:
            break
        count *= var.extent
        loops.append(var)
        body = body[0].body
    env: Env = {}
    values_of = np.indices([x.count for x in loops]).reshape(len(loops), count)
    for var, values in zip(loops, values_of):
        env[var] = (values.astype(np.float64),) * 2
    return count, body, env


class _Reach:
    """The elements of a buffer that every step touches, as intervals."""

    def __init__(self, buffer: Buffer):
        self.size = buffer.size
        self.low: list[np.ndarray] = []
        self.high: list[np.ndarray] = []

    def enter(self, steps: int) -> None:
        self.low.append(np.full(steps, self.size, np.float64))
        self.high.append(np.full(steps, -1.0))

    def touch(self, interval: Interval) -> None:
        np.minimum(self.low[-1], np.clip(interval[0], 0, self.size), out=self.low[-1])
        np.maximum(self.high[-1], np.clip(interval[1], -1, self.size - 1), out=self.high[-1])

    def first_reads(self) -> np.ndarray:
        """For every step the first element that it or a later one touches."""
        return np.minimum.accumulate(np.concatenate(self.low)[::-1])[::-1]

    def last_writes(self) -> np.ndarray:
        """For every step the end of what it and earlier ones touch."""
        return np.maximum.accumulate(np.concatenate(self.high)) + 1


class _Accesses:
    """Notes what the statements of a step touch, for all steps at once."""

    def __init__(self, reach: dict[str, _Reach], steps: int):
        self.reach, self.steps = reach, steps
        for touched in reach.values():
            touched.enter(steps)

    def body(self, body: Body, env: Env) -> None:
        env = dict(env)
        for stmt in body:
            for root in exprs(stmt):
                for node in walk(root):
                    if isinstance(node, Load) and node.source in self.reach:
                        self.reach[node.source].touch(self.value(node.index[0], env))
            if isinstance(stmt, Store) and stmt.buffer in self.reach:
                self.reach[stmt.buffer].touch(self.value(stmt.index[0], env))
            if isinstance(stmt, For):
                last = self.value(stmt.extent, env)[1] - 1
                env[stmt.var] = (self.constant(0)[0], np.maximum(last, 0))
            for inner in bodies(stmt):
                self.body(inner, env)

    def constant(self, value: float) -> Interval:
        return (np.full(self.steps, value, np.float64),) * 2

    def value(self, node: Expr | int, env: Env) -> Interval:
        """The interval of a position, for every step."""
        if isinstance(node, int):
            return self.constant(node)
        total = self.constant(0)
        for atoms, coefficient in to_poly(simplify(node)).items():
            term = self.constant(coefficient)
            for atom in atoms:
                term = _product(term, self.atom(atom, env))
            total = (total[0] + term[0], total[1] + term[1])
        return total

    def atom(self, node: Expr, env: Env) -> Interval:
        if node in env:
            return env[node]
        if isinstance(node, Call) and node.dtype is i64 and node.op.name in ("min", "max"):
            pick = np.minimum if node.op.name == "min" else np.maximum
            (a, b), (c, d) = (self.value(x, env) for x in node.args)
            return pick(a, c), pick(b, d)
        if isinstance(node, Call) and node.op.name == "floordiv" and _is_positive(node.args[1]):
            low, high = self.value(node.args[0], env)
            divisor = node.args[1].value  # type: ignore[attr-defined]
            return low // divisor, high // divisor
        if isinstance(node, Call) and node.op.name == "mod" and _is_positive(node.args[1]):
            return self.constant(0)[0], self.constant(node.args[1].value - 1)[0]  # type: ignore[attr-defined]
        return self.constant(-FAR)[0], self.constant(FAR)[0]


def _is_positive(node: Expr) -> bool:
    return isinstance(node, Const) and node.value > 0


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)
