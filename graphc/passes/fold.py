"""Constant folding: ops are evaluated at compile time, by cost.

An op is evaluated when everything that its result depends on is known: all operands it *reads* are
known (Shape reads none), or its result is empty. The result becomes a constant only if it is small,
or not larger than the constants it is computed from: an Expand, Tile or Range is cheaper than its
result. An empty one stays symbolic until checks are in the graph, as those of the ops before it
would go with it. A value that stays symbolic for these reasons is still *known*: its contents are
computed when a type depends on them, or when something smaller follows from them.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.expr import Reduce, free_indices, loads
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.interp import check_operands, evaluate, factors, run_op
from graphc.ir.ops.counts import is_counted
from graphc.ir.ops.in_range import EFFECT
from graphc.ir.types import TensorType, largest
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.facts import is_conversion
from graphc.records import dataclass

EINSUM = 16  # products and sums of einsum in the time of another scalar operation
WIDENED = 16  # elements of narrow floats that are kept in a wider type; readers convert more


@dataclass(frozen=True)
class FoldPolicy:
    """When to keep a result as a constant.

    `small`: up to this many elements always. Larger ones if they take at most `growth` times the
    bytes of the constants they come from. `largest`: elements of an array computed on the way;
    `work`: scalar operations spent on one op. `keep`: names of ops whose results never are, nor
    what is computed from them.
    """

    small: int = 16384
    growth: float = 1.0
    largest: int = 1 << 26
    work: int = 1 << 28
    keep: frozenset[str] = frozenset()


def operands_read(op: Op) -> list[int]:
    """Numbers of the operands whose contents (not just types) the results depend on."""
    if op.defn.form in ("elementwise", "indexed"):
        sources = set()
        for k in range(len(op.outputs)):
            sources |= {int(e.source) for e in loads(op_body(op, k))}
        return sorted(sources)
    return [n for n, v in enumerate(op.inputs) if v is not None]


def work_of(op: Op) -> int:
    """Roughly how many scalar operations it takes to evaluate an op with static types: a reduction
    is evaluated once for the indices that it depends on; those of sums of products, which einsum
    takes, are much cheaper than others."""
    total = 0
    for k, value in enumerate(op.outputs):
        size = value.type.size if isinstance(value.type, TensorType) else 1
        if op.defn.form not in ("elementwise", "indexed"):
            total += 16 * size
            continue
        total += max(size, sum(map(_terms, reductions_in([op_body(op, k)]))))
    return total


def _terms(node: Reduce) -> int:
    """How many terms a reduction has at the largest sizes, for all indices that it depends on."""
    count = math.prod(largest(x.extent) for x in free_indices(node.body).union(node.axes))
    return count // EINSUM if factors(node) else count


def _widens(op: Op) -> bool:
    """Whether an op only converts narrow floats, of which matrix units take the products as they
    are, to a wider type."""
    if not is_conversion(op):
        return False
    source, result = op.inputs[0].tensor.dtype, op.output.tensor.dtype  # type: ignore[union-attr]
    return source.is_float and result.is_float and source.bits < result.bits


def is_static(op: Op) -> bool:
    """Whether all results are tensors of known shape."""
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in op.outputs)


def _empty(op: Op) -> list[np.ndarray]:
    """The results of an op whose results are empty."""
    return [np.zeros(v.tensor.static_shape, v.tensor.dtype.np) for v in op.outputs]


class Contents:
    """What is known about the contents of values while a graph is walked forwards. `checked` says
    that what ops ask of their operands is in the graph (checks.py), or will not be asked."""

    def __init__(self, policy: FoldPolicy | None = None, checked: bool = True):
        self.policy, self.checked = policy or FoldPolicy(), checked
        self.lazy: dict[Value, int] = {}  # known values that stay symbolic: bytes of their sources
        self.computed: dict[Value, np.ndarray] = {}
        self.kept: set[Value] = set()  # results of ops to keep, and what depends on them

    def known(self, value: Value | None) -> bool:
        """Whether the contents can be computed now."""
        return value is None or value.constant is not None or value in self.lazy

    def of(self, value: Value | None) -> np.ndarray | None:
        """The contents of a known value (None for None)."""
        if value is None or value.constant is not None:
            return None if value is None else value.constant
        if value not in self.computed:
            assert value.producer is not None
            results = self.run(value.producer)
            self.computed.update(zip(value.producer.outputs, results))
        return self.computed[value]

    def run(self, op: Op) -> list[np.ndarray]:
        """The results of an op whose operands, as far as it reads them, are known."""
        read = operands_read(op)
        if op.defn.form in ("elementwise", "indexed"):
            arrays = {str(n): self.of(op.inputs[n]) for n in read}
            check_operands(op, op, [arrays.get(str(n)) for n in range(len(op.inputs))])
            return [
                evaluate(op_body(op, k), v.tensor.static_shape, arrays)  # type: ignore[arg-type]
                for k, v in enumerate(op.outputs)
            ]
        return run_op(op, [self.of(v) for v in op.inputs])

    def fold(self, op: Op) -> list[np.ndarray] | None:
        """The results of an op if they should become constants; else notes those that are known."""
        if op.defn.form in ("core", "region") or not op.outputs or EFFECT in op.defn.traits:
            return None
        if is_counted(op):  # whose kernel tells the counts
            return None
        if not is_static(op):
            return self._fold_untyped(op)
        sizes = [v.tensor.size for v in op.outputs]
        is_empty = not any(sizes) and "bounded" not in op.defn.traits
        if is_empty and self.checked:
            return _empty(op)
        read = operands_read(op)
        if not all(self.known(op.inputs[n]) for n in read):
            if is_empty:
                self._keep_empty(op)
            return None
        if max(sizes) > self.policy.largest or work_of(op) > self.policy.work:
            return None
        sources = sum(self.source_bytes(op.inputs[n]) for n in read)
        nbytes = sum(v.tensor.nbytes for v in op.outputs)
        small = WIDENED if _widens(op) else self.policy.small
        large = max(sizes) > small and nbytes > self.policy.growth * sources
        kept = op.name in self.policy.keep or any(op.inputs[n] in self.kept for n in read)
        if kept:
            self.kept.update(op.outputs)
        if large or kept:
            self.lazy.update((v, sources) for v in op.outputs)
            return None
        return self._attempt(op)

    def _keep_empty(self, op: Op) -> None:
        """Notes empty results of an op that stays."""
        self.computed.update(zip(op.outputs, _empty(op)))
        self.lazy.update(dict.fromkeys(op.outputs, 0))
        self.kept.update(op.outputs)

    def _fold_untyped(self, op: Op) -> list[np.ndarray] | None:
        """Ops whose types are known only once they have run, on known operands."""
        if not all(self.known(v) for v in op.inputs):
            return None
        arrays = self._attempt(op)
        return arrays if arrays and all(isinstance(a, np.ndarray) for a in arrays) else None

    def _attempt(self, op: Op) -> list[np.ndarray] | None:
        """The results, or None where the op fails: then it fails at run time, if it is reached."""
        try:
            return self.run(op)
        except (GraphcError, ArithmeticError, ValueError, IndexError, TypeError):
            return None

    def source_bytes(self, value: Value | None) -> int:
        """Bytes of the constants that a known value is computed from."""
        if value is None:
            return 0
        known = self.lazy.get(value)
        return value.tensor.nbytes if known is None else known
