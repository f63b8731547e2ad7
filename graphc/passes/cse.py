"""Common subexpression elimination: equal ops are computed once.

Ops are equal if their operator, operands and attributes are. Constants are equal if their dtype,
shape and bits are. Each region is treated on its own; ops with regions are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.ir.graph import Graph, Op, Region, same_array
from graphc.ir.ops.in_range import is_check
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass


def attribute_key(value: Any) -> Any:
    """A hashable stand-in for an attribute; 0.0 and -0.0 differ, and so do 1 and 1.0."""
    if isinstance(value, np.ndarray):
        contents = tuple(value.reshape(-1)) if value.dtype.kind == "O" else value.tobytes()
        return ("array", value.dtype.str, value.shape, contents)
    if isinstance(value, (list, tuple)):
        return tuple(map(attribute_key, value))
    return (type(value).__name__, repr(value))


def op_key(op: Op) -> tuple:
    """Equal for ops that compute the same; of equal checks, the first says what is wrong."""
    attrs = tuple(
        sorted(
            (name, attribute_key(v)) for name, v in op.attrs.items()
            if not (is_check(op) and name == "message")
        )
    )  # fmt: skip
    return (op.defn, tuple(op.inputs), attrs, len(op.outputs))


def constant_key(array: np.ndarray) -> tuple:
    """Equal for equal constants, and rarely for different ones: a sample of the contents."""
    flat = array.reshape(-1)
    sample = flat[:: max(1, flat.size // 64)][:128]
    contents = tuple(sample) if array.dtype.kind == "O" else sample.tobytes()
    return (array.dtype.str, array.shape, contents)


class _Merger:
    def __init__(self, ctx: Context):
        self.ctx, self.changed = ctx, False

    def region(self, region: Region) -> None:
        seen: dict[tuple, Op] = {}
        constants: dict[tuple, list[Op]] = {}
        for op in list(region.ops):
            for inner in op.regions:
                self.region(inner)
            if op.regions or not op.outputs:
                continue
            if op.name == "Constant":
                self.constant(op, constants.setdefault(constant_key(op.attrs["value"]), []))
            else:
                self.merge(op, seen.setdefault(op_key(op), op))

    def constant(self, op: Op, alike: list[Op]) -> None:
        array = op.attrs["value"]
        for other in alike:
            if same_array(array, other.attrs["value"]) and other.output.type == op.output.type:
                return self.merge(op, other)
        alike.append(op)
        return None

    def merge(self, op: Op, first: Op) -> None:
        same_types = all(a.type == b.type for a, b in zip(op.outputs, first.outputs))
        if first is op or not same_types or not self.ctx.spend("cse", op):
            return
        for old, new in zip(op.outputs, first.outputs):
            old.replace_uses(new)
        op.erase()
        first.loc = tuple(dict.fromkeys((*first.loc, *op.loc)))
        self.changed = True


@register_pass
@dataclass
class CommonSubexpressions(Pass):
    """Merges equal ops and equal constants."""

    name = "cse"
    symbolic = True

    def run(self, graph: Graph, ctx: Context) -> bool:
        merger = _Merger(ctx)
        merger.region(graph)
        return merger.changed
