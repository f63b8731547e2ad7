"""Losses over class labels. Samples labelled `ignore_index` count for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.checks import must_lie
from graphc.ir.dtypes import i64
from graphc.ir.expr import TRUE, Const, Expr, Index, cast, maximum, minimum, reduce, select
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, Operand, OutIndex, axes, composite, op
from graphc.ir.types import Shape

REDUCTIONS = ("none", "sum", "mean")


def _loss_shape(
    x: Operand, target: Operand, weight: Operand | None = None, *, reduction: str
) -> Shape:
    if x.rank < 2:
        raise ModelError(f"scores must have rank 2 or more, found {x.type}")
    if weight is not None and weight.shape != x.shape[1:2]:
        raise ModelError(f"found weight {weight.type} for {x.shape[1]} classes")
    if target.shape != (x.shape[0], *x.shape[2:]):
        raise ModelError(f"labels of shape {list(target.shape)} for scores {list(x.shape)}")
    return _reduced_shape(target, reduction)


def _reduced_shape(target: Operand, reduction: str) -> Shape:
    if reduction not in REDUCTIONS:
        raise ModelError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
    return target.shape if reduction == "none" else ()


@op("NegativeLogLikelihoodLoss", infer=_loss_shape)
def negative_log_likelihood_loss(
    i: OutIndex, x: Float, target: Int, weight: Float | None = None, *,
    ignore_index: int | None = None, reduction: str = "mean",
) -> Expr:  # fmt: skip
    """-x at the labelled class times its weight; summed, or averaged by the weights' sum."""
    where = i if reduction == "none" else axes(*target.shape)
    label, classes = target[tuple(where)].cast(i64), x.shape[1]
    must_lie(select(_counts(target, where, ignore_index), label, 0), -classes, classes - 1, "label")
    at = (where[0], _label(target, where, classes), *where[1:])
    return _reduced(x[at], where, target, weight, ignore_index, reduction)


def _labelled_shape(
    x: Operand, target: Operand, weight: Operand | None = None, *, reduction: str
) -> Shape:
    return _reduced_shape(target, reduction)


@op("LabelledLoss", infer=_labelled_shape, domain="graphc")
def labelled_loss(
    i: OutIndex, x: Float, target: Int, weight: Float | None = None, *,
    ignore_index: int | None = None, reduction: str = "mean",
) -> Expr:  # fmt: skip
    """The same, of x at the labelled classes alone: x has the shape of the labels."""
    where = i if reduction == "none" else axes(*target.shape)
    return _reduced(x[tuple(where)], where, target, weight, ignore_index, reduction)


def _reduced(
    score: Expr, where: OutIndex | Sequence[Index], target: Operand, weight: Operand | None,
    ignore_index: int | None, reduction: str,
) -> Expr:  # fmt: skip
    """The loss of labelled samples that have a score at `where`, or of all of them."""
    counts = _counts(target, where, ignore_index)
    share: Expr = Const(1, score.dtype)
    if weight is not None:
        share = weight[_label(target, where, weight.shape[0])]
    loss = select(counts, -score * share, 0)
    share = select(counts, share, 0)
    if reduction == "none":
        return loss
    total = reduce("sum", loss, where)
    if reduction == "sum":
        return total
    if isinstance(share, Const):
        return total / cast(Const(1, i64) * target.size, score.dtype)
    return total / reduce("sum", share, where)


def _label(target: Operand, where: OutIndex | Sequence[Index], classes: int) -> Expr:
    """The label, kept inside the classes so that an ignored one reads no foreign memory; negative
    ones count from the end."""
    label = cast(target[tuple(where)], i64)
    return minimum(maximum(select(label < 0, label + classes, label), 0), classes - 1)


def _counts(target: Operand, where: OutIndex | Sequence[Index], ignore_index: int | None) -> Expr:
    """Whether a sample is not ignored."""
    if ignore_index is None:
        return TRUE
    return target[tuple(where)].ne(ignore_index)


@composite("SoftmaxCrossEntropyLoss", outputs=None)
def softmax_cross_entropy_loss(
    b: Builder, scores: Float, labels: Int, weights: Float | None = None, *,
    ignore_index: int | None = None, reduction: str = "mean",
) -> tuple[Value, ...]:  # fmt: skip
    """The negative log likelihood of the labels under softmax(scores); also log(softmax).

    The loss needs the latter at the labels alone, so it is computed there: if that output is not
    used, nothing as large as the scores is stored.
    """
    shape = (scores.tensor.dims[0], *scores.tensor.dims[2:])
    if scores.tensor.rank < 2 or labels.tensor.dims != shape:
        raise ModelError(f"labels {labels.type} do not fit scores {scores.type}")
    if weights is not None and weights.tensor.dims != scores.tensor.dims[1:2]:
        raise ModelError(f"found weight {weights.type} for {scores.tensor.dims[1]} classes")
    classes = np.array([1])
    largest = b.ReduceMax(scores, classes, keepdims=1)
    shifted = b.Sub(scores, largest)
    logarithm = b.Log(b.ReduceSum(b.Exp(shifted), classes, keepdims=1))
    counted = labels
    if ignore_index is not None:
        ignored = b.constant(ignore_index, labels.tensor.dtype)
        counted = b.Where(b.Equal(labels, ignored), b.constant(0, labels.tensor.dtype), labels)
    chosen = b.GatherElements(scores, b.Unsqueeze(counted, classes), axis=1)
    likelihood = b.Squeeze(b.Sub(b.Sub(chosen, largest), logarithm), classes)
    loss = b.op(
        "LabelledLoss", likelihood, labels, weights, domain="graphc", ignore_index=ignore_index,
        reduction=reduction,
    )  # fmt: skip
    return loss, b.Sub(shifted, logarithm)
