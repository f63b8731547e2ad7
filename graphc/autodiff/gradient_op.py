"""`graphc.Gradient`: the gradients of the sum of a graph's result by the first of its parameters.

It is a composite operator with the trait "body", that is with a graph of its own: the operands are
the parameters of that graph. Its own graph is found once types are known, by differentiation. So an
importer can have it before there are types, and it nests: a body may hold it.
"""

from __future__ import annotations

import numpy as np

from graphc.autodiff.reverse import gradients
from graphc.autodiff.values import is_float
from graphc.errors import ModelError, NeedsValue
from graphc.ir.build import Builder
from graphc.ir.expr import loads
from graphc.ir.graph import Op, Value, copy_op
from graphc.ir.infer import infer_op, op_body
from graphc.ir.interp import run_op
from graphc.ir.opdef import Any_, composite

BODIES = ("elementwise", "indexed")


@composite("Gradient", domain="graphc", outputs=None, traits=("body",))
def gradient(b: Builder, *values: Any_) -> list[Value]:  # type: ignore[valid-type]
    """The gradients of the sum of what the body gives, by as many operands as there are results."""
    if b.body is None:
        raise ModelError("the graph to differentiate is missing")
    for value in values:
        if value is not None and not value.is_static:
            raise NeedsValue(f"a gradient needs static shapes, found {value}")
    wanted = [b.Identity(value) for value in values[: b.count]]  # which are no constants
    mapping = dict(zip(b.body.params, [*wanted, *values[b.count :]], strict=True))
    active = set(wanted)
    for op in b.body.ops:
        copy = copy_op(op, b.region, mapping)
        if op.name != "Constant":
            infer_op(copy)
            constants = _constants(copy, active)
            for old, array in zip(op.outputs, constants):
                mapping[old] = b.constant(array)
            if not constants and any(v in active for v in copy.inputs):
                active.update(copy.outputs)
    y = mapping[b.body.results[0]]
    for value in (*wanted, y):
        if not is_float(value):
            raise ModelError(f"a gradient is one of floats by floats, found {value}")
    ones = b.constant(np.ones(y.tensor.static_shape, y.tensor.dtype.np))
    return gradients(b.region, {y: ones}, wanted)


def _constants(op: Op, active: set[Value]) -> list[np.ndarray]:
    """The results of an op where they depend neither on active values nor on what others hold, as
    shapes do not; else none."""
    arguments = [None if v is None or v in active else v.constant for v in op.inputs]
    if any(v is not None and a is None for v, a in zip(op.inputs, arguments)):
        if op.defn.form not in BODIES:
            return []
        if any(loads(op_body(op, n)) for n in range(len(op.outputs))):
            return []
        arguments = [None if v is None else _any_of(v) for v in op.inputs]
    return [np.asarray(array) for array in run_op(op, arguments)]


def _any_of(value: Value) -> np.ndarray:
    """An array of the type of a value, without memory of its own."""
    return np.broadcast_to(np.zeros((), value.tensor.dtype.np), value.tensor.static_shape)
