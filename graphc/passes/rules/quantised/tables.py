"""Functions of one 8-bit value as tables of 256 results, computed at compile time.

Whatever elementwise operators stand between a DequantizeLinear and a QuantizeLinear, in a chain or
in any other shape (x * sigmoid(x)), the result is a function of the integer. It is evaluated for
all 256, by the interpreter, so that it is what the graph of floats would have given. A function
that only keeps its operand within limits is a minimum and a maximum.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.graph import Op, Value
from graphc.ir.interp import run_op
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.passes.analysis.facts import is_pointwise
from graphc.passes.pattern import P, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of
from graphc.passes.rules.quantised.values import BYTES, GROUP, activation, codes

MOST_OPS = 32  # in one function

y, scale, zero = var("y scale zero")


@rule("tabulate", P.QuantizeLinear(y, scale, opt(zero)), group=GROUP)
def tabulate(rw: Rewriter, op: Op, y: Value, scale: Value, zero: Value | None) -> Value | None:
    """q(f(d(x))) == table[x] for elementwise f of one 8-bit x."""
    if op.output.tensor.dtype not in BYTES:
        return rw.skip("{} is neither int8 nor uint8", op.output.tensor.dtype)
    ops = _function(op)
    if ops is None:
        return rw.skip("it is no elementwise function of one 8-bit value with one scale")
    source = ops[0].inputs[0]
    assert source is not None  # it has 8 bits
    table = _results(ops, source)
    if table is None:
        return rw.skip("the function cannot be evaluated")
    rw.takes(ops)
    return looked_up(rw, source, table)


def looked_up(rw: Rewriter, x: Value, table: np.ndarray) -> Value:
    """table[x], or x within limits if that is what the table says."""
    every = codes(x)
    if table.dtype == every.dtype and (np.diff(table.astype(int)) >= 0).all():
        low, high = table[0], table[-1]
        if (np.clip(every, low, high) == table).all():
            return _limited(rw, x, low, high)
    inner = x.producer
    if inner is not None and inner.name == "Lookup" and len(x.uses) == 1:
        first = array_of(inner.inputs[1])
        if first is not None and inner.inputs[0].tensor.dtype in BYTES:  # type: ignore[union-attr]
            table, x = table[first.astype(int) - int(x.tensor.dtype.min)], inner.inputs[0]  # type: ignore[assignment]
    return rw.op("Lookup", x, rw.constant(table), domain=DOMAIN)


def _limited(rw: Rewriter, x: Value, low: np.generic, high: np.generic) -> Value:
    dtype = x.tensor.dtype
    if int(low) > dtype.min:
        x = rw.Max(x, rw.constant(low))
    return rw.Min(x, rw.constant(high)) if int(high) < dtype.max else x


def _function(root: Op) -> list[Op] | None:
    """The ops from the DequantizeLinear to the QuantizeLinear `root`, in the order of execution;
    None if they are not elementwise, or do not all come from one DequantizeLinear."""
    chain: dict[Op, None] = {}
    shape = root.output.tensor.dims

    def visit(op: Op | None) -> bool:
        if op in chain:
            return True
        if op is None or len(chain) >= MOST_OPS:
            return False
        if op.name == "DequantizeLinear":
            first = next(iter(chain), op)
            known = activation(op.output) is not None and op.output.tensor.dims == shape
            chain.setdefault(op)
            return known and (first is op or first.inputs[0] is op.inputs[0] and _same(first, op))
        if op is not root and not is_pointwise(op):
            return False
        operands = [v for v in op.inputs if v is not None and not _is_number(v)]
        if not operands or not all(visit(v.producer) for v in operands):
            return False
        chain.setdefault(op)
        return op.output.tensor.dims == shape and len(op.outputs) == 1

    return list(chain) if visit(root) else None


def _same(one: Op, other: Op) -> bool:
    """Two DequantizeLinear with the same parameters."""
    a, b = activation(one.output), activation(other.output)
    return a is not None and b is not None and a.reads_like(b)


def _is_number(value: Value) -> bool:
    array = array_of(value)
    return array is not None and array.size == 1


def _results(ops: list[Op], source: Value) -> np.ndarray | None:
    """What the last op gives for every value of the source."""
    values: dict[Value, np.ndarray] = {source: codes(source)}
    try:
        with np.errstate(all="ignore"):
            for op in ops:
                operands = [_argument(values, v) for v in op.inputs]
                values[op.output] = run_op(op, operands)[0]
    except GraphcError:
        return None
    result = values[ops[-1].output]
    return result if math.prod(result.shape) == 256 else None


def _argument(values: dict[Value, np.ndarray], value: Value | None) -> np.ndarray | None:
    if value is None or value in values:
        return None if value is None else values[value]
    number = array_of(value)
    assert number is not None
    return number.reshape(())
