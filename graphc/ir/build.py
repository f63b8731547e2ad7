"""Building graphs: a Builder appends typed ops, `b.Add(x, y, ...)` for every defined operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.ir import opdef
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Expr
from graphc.ir.graph import Graph, Op, Region, Value, constant_op, sizes_op
from graphc.ir.infer import infer_op
from graphc.ir.types import Dim, TensorType
from graphc.ir.wide_bodies import is_narrow


class Builder:
    """Inserts ops into a region, before `anchor` (None: at the end), inferring types as it goes.

    Operands may be Values, None (omitted), numpy arrays, or Python numbers and sizes, which become
    scalars of the dtype of the first Value operand. `loc` is given to every op made. `count` is the
    number of outputs asked of the composite operator that is being expanded. `batched`: what may be
    done at once should be one op, which makes fewer kernels, but of more operands at a time.
    `body`: the graph that a composite operator with the trait "body" is about.
    `digits`: constants keep those that narrow floats lack, for ops that turn out to compute in
    float32.
    """

    def __init__(
        self,
        region: Region,
        anchor: Op | None = None,
        loc: Sequence[Any] = (),
        count: int = 1,
        batched: bool = False,
        digits: bool = False,
    ):
        self.region, self.anchor, self.loc, self.count = region, anchor, tuple(loc), count
        self.batched, self.digits = batched, digits
        self.held: list[Value] = []
        self.body: Region | None = None

    def op(
        self,
        name: str,
        *operands: Any,
        outputs: int = 1,
        domain: str = "",
        regions: Sequence[Region] = (),
        **attrs: Any,
    ) -> Any:
        """Adds an op and returns its output, or the tuple of its outputs if there are several."""
        defn = opdef.lookup(name, domain)
        typed = (v.type for v in operands if isinstance(v, Value))
        like = next((t.dtype for t in typed if isinstance(t, TensorType)), None)
        inputs = [self._operand(v, like) for v in operands]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attrs = {k: _freeze(v) for k, v in attrs.items() if v is not None}
        new = Op(defn, inputs, attrs, outputs, regions, self.loc)
        try:
            infer_op(new)
        except Exception:
            new.drop_inputs()  # as if it had never been
            raise
        self.region.insert_before(self.anchor, new)
        return new.output if outputs == 1 else tuple(new.outputs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name[:1].isupper():
            raise AttributeError(name)
        return lambda *operands, **options: self.op(name, *operands, **options)

    def constant(self, value: Any, dtype: DType | None = None) -> Value:
        """A constant from anything numpy takes. With `digits`, numbers that a narrow float type
        rounds are converted to it from float32."""
        array = np.asarray(value, dtype.np if dtype else None)
        if self.digits and dtype is not None and is_narrow(dtype):
            wide = np.asarray(value, np.float32)
            if not np.array_equal(wide, array.astype(np.float32), equal_nan=True):
                return self.op("Cast", self.constant(wide), to=dtype.onnx)  # type: ignore
        new = constant_op(array, loc=self.loc)
        self.region.insert_before(self.anchor, new)
        return new.output

    def dims(self, dims: Sequence[Dim] | np.ndarray) -> Value:
        """Dimensions: a constant if all are integers, else an op that gives them."""
        array = np.array(dims, object)
        if not any(isinstance(d, Expr) for d in array.flat):
            return self.constant(array.astype(np.int64))
        new = sizes_op(array, loc=self.loc)
        self.region.insert_before(self.anchor, new)
        return new.output

    def rounded(self, value: Value) -> Value:
        """A value of a composite that everybody reads as its type holds it, as if it were a result
        of the operator. Others of narrow floats are rounded nowhere (wide_graphs.py)."""
        self.held.append(value)
        return value

    def _operand(self, value: Any, like: DType | None) -> Value | None:
        if value is None or isinstance(value, Value):
            return value
        if isinstance(value, Expr):  # of sizes
            size = self.dims(np.array(value, object))
            dtype = like or i64
            return size if dtype is i64 else self.op("Cast", size, to=dtype.onnx)
        if isinstance(value, np.ndarray) and any(isinstance(x, Expr) for x in value.flat):
            return self.dims(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return self.constant(value)
        return self.constant(value, like)


def _freeze(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    return value


def new_graph(name: str = "main", **inputs: TensorType) -> Graph:
    """A graph with these typed inputs."""
    graph = Graph(name)
    for key, type in inputs.items():
        graph.add_param(type, key)
    return graph
