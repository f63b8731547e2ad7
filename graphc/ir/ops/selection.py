"""Operators whose output length depends on data: NonZero, Compress and NonMaxSuppression.

All are "bounded": buffers are as large as the result can get, and the kernel stores its true size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.errors import ModelError
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import DType, i32, i64
from graphc.ir.expr import Const, Expr, as_expr, isnan, maximum, minimum, select
from graphc.ir.imperative.collectives import Collectives, Kept, Picked, Place
from graphc.ir.imperative.lowering import store_size
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Any_, Bool, Float, Int, Known, Operand, imperative
from graphc.ir.ops.helpers import normal_axis
from graphc.ir.ops.sorting import order_of
from graphc.ir.types import Dim, TensorType
from graphc.ir.window import dim


@imperative("NonZero", infer=lambda x: TensorType(i64, (x.rank, x.size)), traits=("bounded",))
def non_zero(k: Collectives, x: Any_) -> None:
    """The indices of the elements other than zero, one column each, in row-major order."""
    (y,) = k.outputs

    def put(where: Place, column: Expr, _: Place) -> None:
        for row, position in enumerate(where):
            k.store(y, (row, column), position)

    def finish(count: Expr) -> None:
        store_size(k, 0, 1, count)

    k.kept(Kept(x.shape, (), lambda where: x[where].ne(_zero(x)), put, finish))


def _zero(x: Buffer) -> Const:
    return Const("" if x.dtype.kind == "string" else 0, x.dtype)


def fewer(a: Dim, b: Dim) -> Dim:
    """The smaller one of two extents."""
    return a if a is b else dim(minimum(as_expr(a, i64), as_expr(b, i64)))


def _compress_type(x: Operand, condition: Operand, axis: int | None) -> TensorType:
    if condition.rank != 1:
        raise ModelError(f"condition must have rank 1, found {condition.type}")
    if axis is None:
        return x.type.with_shape((fewer(x.size, condition.shape[0]),))
    axis = normal_axis(axis, x.rank)
    kept = fewer(x.shape[axis], condition.shape[0])
    return x.type.with_shape((*x.shape[:axis], kept, *x.shape[axis + 1 :]))


@imperative("Compress", infer=_compress_type, traits=("bounded",))
def compress(k: Collectives, x: Any_, condition: Bool, *, axis: int | None = None) -> None:
    """The slices of x along `axis` (or elements of flattened x) where the condition holds."""
    (y,) = k.outputs
    along = 0 if axis is None else axis % x.rank
    rest = () if axis is None else (*x.shape[:along], *x.shape[along + 1 :])

    def put(where: Place, place: Expr, inner: Place) -> None:
        (j,), before, after = where, inner[:along], inner[along:]
        source = unflatten_index(j, x.shape) if axis is None else (*before, j, *after)
        k.store(y, (*before, place, *after), x[source])

    def finish(count: Expr) -> None:
        store_size(k, 0, along, count)

    k.kept(Kept((y.shape[along],), rest, lambda where: condition[where], put, finish))


# ---------------------------------------------------------------- NonMaxSuppression


def _limit(max_output: np.ndarray | None) -> int:
    return 0 if max_output is None else max(0, int(np.asarray(max_output).reshape(-1)[0]))


def _selected_type(
    boxes: Operand, scores: Operand, max_output: np.ndarray | None, *_: object
) -> TensorType:
    batch, classes, count = scores.shape
    if boxes.shape != (batch, count, 4):
        raise ModelError(
            f"boxes have shape {list(boxes.shape)}, expected {[batch, count, 4]} for scores of "
            f"shape {list(scores.shape)}"
        )
    return TensorType(i64, (batch * classes * fewer(count, _limit(max_output)), 3))


@imperative("NonMaxSuppression", infer=_selected_type, traits=("bounded",))
def non_max_suppression(
    k: Collectives,
    boxes: Float,
    scores: Float,
    max_output: Known(Int) = None,
    iou_threshold: Float = None,
    score_threshold: Float = None,
    *,
    center_point_box: int = 0,
) -> None:
    """Rows (batch, class, box) of the boxes kept per class, best score first.

    A box is kept unless its score is not above score_threshold, or its intersection over union with
    a better box that was kept is above iou_threshold. Equal scores: the lower index is better.
    """
    (rows,) = k.outputs
    batch, classes, count = scores.shape
    overlap = _Overlap(k, boxes, center_point_box, _scalar(iou_threshold, boxes))

    def score(group: Place, box: Expr) -> Expr:
        image, kind = group
        return scores[image, kind, box]

    def takes_part(group: Place, box: Expr) -> Expr:
        if score_threshold is None:
            return Const(True)
        return score(group, box) > _scalar(score_threshold, scores)

    def put(row: Expr, group: Place, box: Expr) -> None:
        for column, value in enumerate((*group, box)):
            k.store(rows, (row, column), value)

    def finish(number: Expr) -> None:
        store_size(k, 0, 0, number)

    k.picked(Picked(
        (batch, classes), count, fewer(count, _limit(max_output)), takes_part, score,
        (boxes.dtype,) * 5, lambda group, box: overlap.traits(group[0], box), overlap.above,
        put, lambda row: rows[row, 2], finish, _order(scores.dtype),
    ))  # fmt: skip


def _order(dtype: DType) -> Callable[[Expr], Expr] | None:
    """Numbers of type i32 in the order of scores, of which NaN is the worst."""
    order, least = order_of(dtype, 1), Const(i32.min + 1, i32)  # below -inf
    return order and (lambda score: select(isnan(score), least, order(score)))


def _scalar(threshold: Buffer | None, boxes: Buffer) -> Expr:
    if threshold is None:
        return Const(0, boxes.dtype)
    return threshold[(0,) * threshold.rank].cast(boxes.dtype)


class _Overlap:
    """Whether two boxes of an image intersect by more than a threshold."""

    def __init__(self, k: KernelBuilder, boxes: Buffer, center: int, threshold: Expr):
        self.k, self.boxes, self.center, self.threshold = k, boxes, center, threshold

    def traits(self, image: Expr, box: Expr) -> Place:
        """low y, low x, high y, high x (corners may be given in any order), and the area."""
        low_y, low_x, high_y, high_x = map(self.k.let, self._corners(image, box))
        return low_y, low_x, high_y, high_x, self.k.let((high_y - low_y) * (high_x - low_x))

    def _corners(self, image: Expr, box: Expr) -> Place:
        a, b, c, d = (self.k.let(self.boxes[image, box, n]) for n in range(4))
        if self.center:  # x, y of the centre, width, height
            return b - d / 2, a - c / 2, b + d / 2, a + c / 2
        return minimum(a, c), minimum(b, d), maximum(a, c), maximum(b, d)

    def above(self, one: Place, two: Place) -> Expr:
        k = self.k
        height = k.let(minimum(one[2], two[2]) - maximum(one[0], two[0]))
        width = k.let(minimum(one[3], two[3]) - maximum(one[1], two[1]))
        shared = k.let(select((height > 0) & (width > 0), height * width, 0))
        total = k.let(one[4] + two[4] - shared)
        return (total > 0) & (shared / total > self.threshold)
