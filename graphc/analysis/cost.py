"""Operations and bytes of typed ops and of kernels, read off their bodies.

Operations are those of ir/operations.py. Bytes are those an op must move at the least: the parts of
its operands that it reads, each once, and its results.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Op, Region
from graphc.ir.imperative.lowering import imperative_kernel
from graphc.ir.infer import expand, op_body
from graphc.ir.kernel import Intrin, Kernel, walk_stmts
from graphc.ir.operations import elements_read, kernel_operations, operations
from graphc.ir.types import TensorType
from graphc.passes.analysis.structure import has_body


@dataclass(frozen=True)
class Cost:
    """Operations and bytes."""

    flops: int = 0
    nbytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.nbytes + other.nbytes)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0


def op_cost(op: Op) -> Cost:
    """The cost of an op; what has no static type counts nothing."""
    if op.name == "Constant":
        return Cost()
    return Cost(op_flops(op), op_bytes(op))


# ---------------------------------------------------------------- operations


def op_flops(op: Op) -> int:
    """Operations of an op. Bodies of control flow count once, whatever the trip count."""
    if has_body(op):
        static = [n for n, v in enumerate(op.outputs) if v.tensor.is_static]
        return operations(op_body(op, n) for n in static)
    if op.defn.form == "composite" and _is_typed(op):
        return region_flops(expand(op)[0])
    if op.defn.form == "imperative" and _is_typed(op):
        return kernel_operations(imperative_kernel(op))
    return sum(region_flops(region) for region in op.regions)


def region_flops(region: Region) -> int:
    """Operations of all ops of a region."""
    return sum(op_flops(op) for op in region.ops)


def _is_typed(op: Op) -> bool:
    values = [v for v in (*op.inputs, *op.outputs) if v is not None]
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in values)


def instructions(kernel: Kernel) -> set[str]:
    """The names of the instructions that a kernel uses."""
    return {stmt.name for stmt in walk_stmts(kernel.body) if isinstance(stmt, Intrin)}


# ---------------------------------------------------------------- bytes


def op_bytes(op: Op) -> int:
    """Bytes an op must read and write at the least."""
    total = 0
    for value in op.outputs:
        if isinstance(value.type, TensorType) and value.type.is_static:
            total += value.type.nbytes
    static = [n for n, v in enumerate(op.outputs) if v.tensor.is_static] if has_body(op) else []
    read = elements_read(op_body(op, n) for n in static)
    operands = dict.fromkeys(v for v in op.inputs if v is not None)
    for value in operands:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            continue
        numbers = [n for n, v in enumerate(op.inputs) if v is value]
        wanted = sum(read[str(n)] for n in numbers) if has_body(op) else value.type.size
        total += min(wanted, value.type.size) * value.type.dtype.size
    return total
