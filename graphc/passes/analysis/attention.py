"""Attention: which computations are a row softmax between two contractions.

    out[rows, columns] = sum over keys of  weight(rows, key) * value(key, columns)
    weight             = exp(score - largest) / total,  up to guards for rows without keys
    score(rows, key)   = any function of  sum over depth of  a(rows, depth) * b(key, depth)

where `largest` and `total` are the maximum of the scores of a row and the sum of the exponentials.
Masks, scales, caps and causality are part of the function, whatever they look like. A match lets a
kernel go over the keys once with running maxima and sums (M. Milakov and N. Gimelshein, Online
normalizer calculation for softmax, 2018), so that no matrix of scores is ever stored (T. Dao et
al., FlashAttention, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.dtypes import f32
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Reduce,
    Ref,
    call,
    cast,
    free_indices,
    select,
    substitute,
    walk,
)
from graphc.ir.extents import least
from graphc.ir.scalar.arithmetic import OF_TF32
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, memoised
from graphc.passes.analysis.core import Core, Role, core_of, reductions_in
from graphc.passes.analysis.guards import conjuncts
from graphc.passes.analysis.spaces import merge_adjacent
from graphc.records import dataclass

PRODUCT, LARGEST, TOTAL, SUM, RESULT = (
    Ref(name, f32) for name in ("product", "largest", "total", "sum", "result")
)


@dataclass
class Softmax:
    """A row softmax. `score` is the expression at a key, and `result` the weighted sum over SUM (of
    exponentials times values), TOTAL and LARGEST. With all of a row at hand, weights can be had as
    the graph rounds them: `exponential` over `marker` (a score) and LARGEST, and `weight` over
    `exponent` (an exponential), TOTAL and LARGEST."""

    score: Expr
    result: Expr
    exponential: Expr
    weight: Expr
    marker: Ref
    exponent: Ref


@dataclass
class Attention:
    """A matched attention; loads are flat. `rows` (none: one row), `columns` and `outer` partition
    the output indices. `score` is over PRODUCT, and `exprs` are the outputs over RESULT; all are
    float32."""

    computation: Computation
    offset: Expr
    exprs: list[Expr]
    softmax: Softmax
    score: Expr
    a: Expr
    b: Expr
    value: Expr
    outer: list[Index]
    rows: list[Index]
    columns: list[Index]
    key: Index
    depth: list[Index]


def merged(match: Attention) -> Attention:
    """The same attention, with indices that address memory as if they were one made one."""
    m, soft = match, match.softmax
    dependent = [m.offset, m.a, m.score, soft.result, soft.exponential, soft.weight, *m.exprs]
    rows, exprs = merge_adjacent(m.rows, dependent)
    offset, a, score, result, exponential, weight, *exprs = exprs
    depth, (a, b) = merge_adjacent(m.depth, [a, m.b])
    columns, (offset, value, *exprs) = merge_adjacent(m.columns, [offset, m.value, *exprs])
    softmax = replace(soft, result=result, exponential=exponential, weight=weight)
    return replace(
        m, offset=offset, exprs=exprs, softmax=softmax, score=score, a=a, b=b, value=value,
        rows=rows, columns=columns, depth=depth,
    )  # fmt: skip


class _Mismatch(Exception):
    """Why a computation is no attention."""


@memoised
def match_attention(computation: Computation) -> Attention | str:
    """The attention that a computation is, or why it is none."""
    try:
        return _match(computation)
    except _Mismatch as reason:
        return f"attention: {reason}"


def _match(computation: Computation) -> Attention:
    if not any(r.op == "max" for r in reductions_in(o.expr for o in computation.outputs)):
        raise _Mismatch("there must be a maximum of scores, found none")
    core = core_of(computation, "attention", flat=True, nested=False)
    if isinstance(core, str):
        raise _Mismatch(core.removeprefix("attention: "))
    hole = _only_sum(core.exprs, "the outputs")
    weight, value = _factors(hole)
    if not reductions_in([weight]):
        weight, value = value, weight
    core.a, core.b = weight, _unwidened(value)
    if reductions_in([value]) or not reductions_in([weight]):
        raise _Mismatch(
            "one factor, the weights, must have reductions, found them in both or in none"
        )
    key = _only_axis(hole)
    softmax = _softmax(weight, key)
    product = _only_sum([softmax.score], "the scores")
    a, b = map(_unwidened, _factors(product))
    if key in free_indices(a):
        a, b = b, a
    if key in free_indices(a) or key not in free_indices(b) & free_indices(core.b):
        raise _Mismatch(
            "keys must be in one factor of the scores and in the values, found them elsewhere"
        )
    if any(k not in free_indices(a) & free_indices(b) for k in product.axes):
        raise _Mismatch(
            "indices of the inner products must be in both factors, found one that is not"
        )
    if any(x.dtype.compute is not f32 for x in (hole, product)):
        raise _Mismatch(
            f"scores and sums must be computed in float32, found {product.dtype} and {hole.dtype}"
        )
    return _attention(core, softmax, key, product, a, b)


def _attention(
    core: Core, softmax: Softmax, key: Index, product: Reduce, a: Expr, b: Expr
) -> Attention:
    """The attention that a sum of values by weights is, its output indices told apart by role."""
    columns = [x for x in core.indices if core.role(x) is Role.COLUMN]
    rows = [x for x in core.indices if core.role(x) is Role.ROW and x not in free_indices(b)]
    outer = [x for x in core.indices if x not in columns and x not in rows]
    if not columns:
        raise _Mismatch("the values must have columns, found none")
    score = cast(substitute(softmax.score, {product: cast(PRODUCT, product.dtype)}), f32)
    result = cast(RESULT, core.hole.dtype)
    exprs = [substitute(e, {core.hole: result}) for e in core.exprs]
    assert core.b is not None
    return Attention(
        core.computation, core.offset, exprs, softmax, score, a, b, core.b,
        outer, rows, columns, key, list(product.axes),
    )  # fmt: skip


def _plain(expr: Expr) -> Expr:
    """The expression less conversions between floats."""
    while isinstance(expr, Call) and expr.op.name == "cast" and expr.dtype.is_float:
        if not expr.args[0].dtype.is_float:
            break
        expr = expr.args[0]
    return expr


def _unwidened(expr: Expr) -> Expr:
    """The expression less conversions to wider floats."""
    while isinstance(expr, Call) and expr.op.name == "cast" and expr.dtype.is_float:
        operand = expr.args[0]
        if not operand.dtype.is_float or operand.dtype.bits >= expr.dtype.bits:
            break
        expr = operand
    return expr


def _only_sum(exprs: list[Expr], what: str) -> Reduce:
    sums = reductions_in(exprs, nested=False)
    if len(sums) != 1 or sums[0].op != "sum":
        raise _Mismatch(f"{what} must have one sum of products, found {len(sums)} reductions")
    return sums[0]


def _factors(total: Reduce) -> tuple[Expr, Expr]:
    body = _plain(total.body)
    if not (isinstance(body, Call) and body.op.name == "mul"):
        raise _Mismatch("it must sum products, found other terms")
    return body.args[0], body.args[1]


def _only_axis(total: Reduce) -> Index:
    axes = [a for a in total.axes if a.extent != 1]
    if len(total.axes) != 1 and len(axes) != len(total.axes) or len(axes) != 1:
        raise _Mismatch(f"keys must have one index, found {len(axes)}")
    if least(axes[0].extent) < 1:  # sums of no terms are 0, whatever they are divided by
        raise _Mismatch("there must be a key at all sizes, found that there may be none")
    return axes[0]


def _moved(reduction: Reduce, key: Index) -> Expr | None:
    """The body at `key`, if the reduction is over as many keys."""
    if len(reduction.axes) != 1 or reduction.axes[0].extent != key.extent:
        return None
    return _plain(simplify(reduction.body, {reduction.axes[0]: key}))


def _softmax(weight: Expr, key: Index) -> Softmax:
    """The row softmax that the weight at `key` is."""
    for node in walk(weight):
        if not (isinstance(node, Call) and node.op.name == "exp"):
            continue
        difference = _plain(node.args[0])
        if not (isinstance(difference, Call) and difference.op.name == "sub"):
            continue
        score, largest = (_plain(x) for x in difference.args)
        if not isinstance(largest, Reduce) or largest.op != "max":
            continue
        if key in free_indices(score) and _moved(largest, key) is score:
            marker, exponent = Ref("score", score.dtype), Ref("exponential", node.dtype)
            marked = _marked(weight, node, score, key, exponent)
            known: dict[Expr, Expr] = {score: marker, largest: cast(LARGEST, largest.dtype)}
            return Softmax(
                score, _proportional(marked, exponent), substitute(node, known), marked,
                marker, exponent,
            )  # fmt: skip
    raise _Mismatch("the weights must have exponentials of scores less their maximum, found none")


def _marked(weight: Expr, exponential: Expr, score: Expr, key: Index, marker: Ref) -> Expr:
    """The weight with the exponential, its sum and the maximum replaced by what rows have."""
    mapping: dict[Expr, Expr] = {exponential: marker}
    for reduction in reductions_in([substitute(weight, mapping)], nested=False):
        moved = _moved(reduction, key)
        if reduction.op == "max" and moved is score:
            mapping[reduction] = cast(LARGEST, reduction.dtype)
        elif reduction.op == "sum" and moved is exponential:
            mapping[reduction] = cast(TOTAL, reduction.dtype)
        else:
            raise _Mismatch("the weights must hold one maximum and total, found another reduction")
    marked = substitute(weight, mapping)
    if key in free_indices(marked):
        raise _Mismatch("the weights must depend on keys in the exponential alone, found more")
    return marked


def _proportional(node: Expr, marker: Ref) -> Expr:
    """A function of the exponential that is proportional to it, taken at SUM instead."""
    if node is marker:
        return SUM
    if not isinstance(node, Call) or not node.dtype.is_float:
        raise _Mismatch("the weights must be proportional to the exponentials, found others")
    name, args = node.op.name, node.args
    if name == "cast" or name in OF_TF32:
        return _proportional(args[0], marker)
    if name == "div" and not _mentions(args[1], marker):
        return call("div", _proportional(args[0], marker), cast(args[1], f32))
    if name == "mul":
        scaled, factor = args if _mentions(args[0], marker) else args[::-1]
        if not _mentions(factor, marker):
            return call("mul", _proportional(scaled, marker), cast(factor, f32))
    if name == "select":
        condition = _row_condition(args[0], marker)
        sides = [_zero_or_proportional(x, marker) for x in args[1:]]
        return select(condition, *sides)
    raise _Mismatch("the weights must be proportional to the exponentials, found others")


def _zero_or_proportional(node: Expr, marker: Ref) -> Expr:
    if isinstance(node, Const) and node.value == 0:
        return Const(0, f32)
    return _proportional(node, marker)


def _row_condition(node: Expr, marker: Ref) -> Expr:
    """A condition that holds for all keys of a row or for none. A weight is NaN exactly if the
    total divided by itself is: the exponentials are at most 1, and one is 1 unless some are NaN."""
    if not _mentions(node, marker):
        return node
    if isinstance(node, Call) and node.op.name == "isnan":
        return call("isnan", substitute(_proportional(node.args[0], marker), {SUM: TOTAL}))
    raise _Mismatch("guards of sums must be the same for all keys, found one that differs")


def _mentions(node: Expr, marker: Ref) -> bool:
    return any(n is marker for n in walk(node))


def last_key(match: Attention) -> Expr | None:
    """The last key that a row may see, as an expression over its indices; None if scores beyond it
    are not written as -inf."""
    return next(_bounds(match, upper=True), None)


def first_key(match: Attention) -> Expr | None:
    """The first key that a row may see; None if scores before it are not written as -inf."""
    return next(_bounds(match, upper=False), None)


def _bounds(match: Attention, upper: bool) -> Iterator[Expr]:
    """The bounds of the keys beyond which scores are written as -inf."""
    score = match.score
    while isinstance(score, Call) and score.op.name in ("cast", "select"):
        if score.op.name == "cast":
            score = score.args[0]
            continue
        condition, score, other = score.args
        if not (isinstance(other, Const) and other.value == -math.inf):
            return
        bounds = (_bound(c, match.key, upper) for c in conjuncts(condition))
        yield from (bound for bound in bounds if bound is not None)


def _bound(condition: Expr, key: Index, upper: bool) -> Expr | None:
    """x of `key <= x`, or x - 1 of `key < x`; otherwise x of `key >= x`, or x + 1 of `key > x`."""
    if not (isinstance(condition, Call) and condition.op.name in ("le", "ge", "lt", "gt")):
        return None
    less, more = condition.args if condition.op.name in ("le", "lt") else condition.args[::-1]
    own, bound = (less, more) if upper else (more, less)
    if own is not key or key in free_indices(bound):
        return None
    if condition.op.name in ("le", "ge"):
        return bound
    return bound - 1 if upper else bound + 1
