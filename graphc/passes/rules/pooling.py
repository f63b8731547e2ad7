"""The largest elements of windows and rows: fewer functions of them, and fewer reads.

A function that never falls keeps the order of elements, so it is computed of the largest alone. The
largest of a window is the largest of those of its columns, and neighbouring windows share columns:
five times five elements are read as five and five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

from graphc.ir.expr import Call, Const, Expr, Load, Reduce, cost
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.ir.window import WindowAxis, make_window
from graphc.passes.analysis.facts import choice, is_monotone, scalar_function
from graphc.passes.pattern import P, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import is_static, shape_of

x = var("x")
LESS = 0.65  # so much of what is read in one step is worth steps
DEAR = 8  # the cost of a function that is worth applying to fewer elements
MOST_TAPS = 128  # that are looked at


def _is_extreme(op: Op) -> bool:
    """Whether the results are each the largest, or the smallest, of elements of one operand."""
    known = choice(op) if len(op.outputs) == 1 else None
    is_extreme = known is not None and known.extreme and known.is_of_elements
    return is_extreme and len(known.operands) == 1 and not known.by_data  # type: ignore[union-attr]


@rule("largest-before-function", P.where(_is_extreme)(rest("operands")), group="lowering")
def largest_before_function(rw: Rewriter, op: Op, operands: list[Value | None]) -> Value | None:
    """max(f(x)) == f(max(x)) for an f that never falls, and so for min."""
    known = choice(op)
    assert known is not None
    value = op.operand(known.operands[0])
    inner = value.producer
    function = None if inner is None else scalar_function(inner)
    if inner is None or function is None or cost(function) < DEAR:
        return rw.skip("the elements are no function of others, or a cheap one")
    variable = [n for n, v in enumerate(inner.inputs) if v is not None and v.constant is None]
    if len(variable) != 1 or not is_monotone(inner, variable[0]):
        return rw.skip("{} may fall where its operand grows", inner)
    (number,) = variable
    x = inner.operand(number)
    numbers = all(v is None or v is x or v.tensor.size == 1 for v in inner.inputs)
    if x.type != value.type or not numbers or len(value.uses) != 1:
        return rw.skip("others read the elements, or they are functions of more than one")
    if op.output.tensor.size * 2 > value.tensor.size or not _always_of_elements(op_body(op)):
        return rw.skip("the largest are hardly fewer, or some are those of no elements")
    rw.takes([inner])
    largest = rw.again(op, *(x if v is value else v for v in operands))
    return rw.again(inner, *(largest if v is x else v for v in inner.inputs))


def _always_of_elements(body: Expr) -> bool:
    """Whether a reduction has an element at every position, whatever it leaves out elsewhere."""
    if not isinstance(body, Reduce):
        return False
    if isinstance(body.body, Load):
        return all(axis.extent != 0 for axis in body.axes)
    inside = body.body.args[0] if isinstance(body.body, Call) else None
    extents = [axis.extent for axis in body.axes if isinstance(axis.extent, int)]
    if inside is None or len(extents) < len(body.axes) or math.prod(extents) > MOST_TAPS:
        return False
    for taps in product(*map(range, extents)):
        condition = simplify(inside, {a: Const(n, a.dtype) for a, n in zip(body.axes, taps)})
        if isinstance(condition, Const) and condition.value:
            return True
    return False


@rule("max-pool-by-axes", P.MaxPool(x), group="windows")
def max_pool_by_axes(rw: Rewriter, pool: Op, x: Value) -> Value | None:
    """max over windows (a, b)  ==  max over windows b of max over windows a"""
    if not is_static(x) or any(value.uses for value in pool.outputs[1:]):
        return rw.skip("sizes are not known, or positions are asked for")
    names = ("auto_pad", "pads", "strides", "dilations", "ceil_mode")
    attrs = {name: rw.attr(pool, name) for name in names}
    window = make_window(shape_of(x)[2:], rw.attr(pool, "kernel_shape"), **attrs)
    changed = [a for a, axis in enumerate(window) if axis.kernel > 1 or axis.stride > 1]
    order = min(permutations(changed), key=lambda order: _read(window, order))
    if min((pad for axis in window for pad in (axis.begin, axis.end)), default=0) < 0:
        return rw.skip("it crops elements that are not padding")
    at_once = math.prod(axis.out * axis.kernel for axis in window)
    if len(order) < 2 or _read(window, order) > LESS * at_once:
        return rw.skip("steps read hardly less")
    return _steps(rw, pool, x, window, order)


def _read(window: Sequence[WindowAxis], order: Sequence[int]) -> int:
    """The elements of an image that all steps read."""
    total: Any = 0
    extents = [axis.extent for axis in window]
    for a in order:
        extents[a] = window[a].out
        total += math.prod(extents) * window[a].kernel
    return total


def _steps(
    rw: Rewriter, pool: Op, value: Value, window: Sequence[WindowAxis], order: Sequence[int]
) -> Value:
    rank = len(window)
    for a in order:
        axis = window[a]
        here = [d == a for d in range(rank)]
        value = rw.op(
            "MaxPool", value,
            kernel_shape=[axis.kernel if own else 1 for own in here],
            strides=[axis.stride if own else 1 for own in here],
            dilations=[axis.dilation if own else 1 for own in here],
            pads=[axis.begin * own for own in here] + [axis.end * own for own in here],
            ceil_mode=rw.attr(pool, "ceil_mode"),
        )  # fmt: skip
    return value
