"""A node on its way from ONNX to the graph: operands are values, attributes are Python values.

Upgrading rewrites a node in place, and may put ops before it (`emit`) and behind it (`finish`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from onnx import GraphProto

from graphc.errors import ModelError
from graphc.frontend.scope import Scope
from graphc.ir import opdef
from graphc.ir.dtypes import DType, f32
from graphc.ir.graph import Op, Value, constant_op
from graphc.ir.types import TensorType
from graphc.records import dataclass


@dataclass
class Node:
    """One ONNX node in a scope. `outputs` are names, empty for those that nobody asked for; `build`
    appends the ops of another node and gives its outputs."""

    op_type: str
    domain: str
    version: int
    inputs: list[Value | None]
    attrs: dict[str, Any]
    graphs: dict[str, GraphProto]
    outputs: list[str]
    scope: Scope
    build: Callable[[Node], list[Value]]
    loc: tuple[str, ...]
    finish: list[Callable[[list[Value]], list[Value]]] = field(default_factory=list)
    overload: str = ""
    built: list[Value] | None = None  # the outputs, where a rewrite made the ops itself

    @property
    def full_name(self) -> str:
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Adds an op with one output before this node."""
        made = Op(opdef.lookup(op), inputs, attrs, loc=self.loc)
        self.scope.region.append(made)
        made.output.name = f"{self.loc[0]}.{op}"
        return made.output

    def constant(self, value: Any, dtype: DType) -> Value:
        """Adds a constant before this node."""
        made = constant_op(np.array(value, dtype.np), loc=self.loc)
        return self.scope.region.append(made).output

    def like(self, number: float, value: Value) -> Value:
        """A rank-0 constant of the dtype of `value`."""
        if isinstance(value.type, TensorType):
            return self.constant(number, value.type.dtype)
        return self.emit("CastLike", self.constant(number, f32), value)

    def input(self, position: int) -> Value | None:
        """The operand at a position, None where omitted."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required(self, position: int) -> Value:
        """The operand at a position; ModelError where omitted."""
        value = self.input(position)
        if value is None:
            raise ModelError(f"operand {position} is missing")
        return value

    def set_input(self, position: int, value: Value | None) -> None:
        self.inputs += [None] * (position + 1 - len(self.inputs))
        self.inputs[position] = value

    def output_wanted(self, position: int) -> bool:
        return position < len(self.outputs) and bool(self.outputs[position])

    def rank_of(self, value: Value) -> int | None:
        """The rank, where the model declares it."""
        known = isinstance(value.type, TensorType) and value.type.shape is not None
        return len(value.type.shape) if known else None  # type: ignore[union-attr, arg-type]

    def rename(self, op_type: str, inputs: Sequence[Value | None], **attrs: Any) -> None:
        """Makes this node another operator."""
        self.op_type, self.inputs, self.attrs = op_type, list(inputs), attrs
