"""Losses over class labels. Samples labelled `ignore_index` count for nothing."""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, cast, maximum, minimum, reduce, select
from graphc.ir.opdef import Float, Int, Operand, axes, composite, op
from graphc.ir.window import TRUE


def _loss_shape(x, target, weight=None, *, reduction):
    if x.rank < 2:
        raise ModelError(f"scores must have rank 2 or more, found {x.type}")
    if weight is not None and weight.shape != x.shape[1:2]:
        raise ModelError(f"found weight {weight.type} for {x.shape[1]} classes")
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"reduction {reduction!r} is not one of none, sum, mean")
    if target.shape != (x.shape[0], *x.shape[2:]):
        raise ModelError(f"labels of shape {list(target.shape)} for scores {list(x.shape)}")
    return target.shape if reduction == "none" else ()


@op("NegativeLogLikelihoodLoss", infer=_loss_shape)
def negative_log_likelihood_loss(
    i, x: Float, target: Int, weight: Float | None = None, *, ignore_index=None, reduction="mean"
):
    """-x at the labelled class times its weight; summed, or averaged by the weights' sum."""
    where = i if reduction == "none" else axes(*target.shape)
    counts = _counts(target, where, ignore_index)
    share: Expr = Const(1, x.dtype) if weight is None else weight[_label(target, where, x)]
    at = (where[0], _label(target, where, x), *where[1:])
    loss = -x[at] * share
    loss, share = select(counts, loss, 0), select(counts, share, 0)
    if reduction == "none":
        return loss
    total = reduce("sum", loss, where)
    if reduction == "sum":
        return total
    if isinstance(share, Const):
        return total / cast(Const(1, i64) * target.size, x.dtype)
    return total / reduce("sum", share, where)


def _label(target: Operand, where, x: Operand) -> Expr:
    """The label, kept inside the classes so that an ignored one reads no foreign memory."""
    return minimum(maximum(cast(target[tuple(where)], i64), 0), x.shape[1] - 1)


def _counts(target: Operand, where, ignore_index) -> Expr:
    """Whether a sample is not ignored."""
    if ignore_index is None:
        return TRUE
    return target[tuple(where)].ne(ignore_index)


@composite("SoftmaxCrossEntropyLoss", outputs=None)
def softmax_cross_entropy_loss(
    b, scores: Float, labels: Int, weights: Float | None = None, *, ignore_index=None,
    reduction="mean",
):  # fmt: skip
    """The negative log likelihood of the labels under softmax(scores); also log(softmax)."""
    log_prob = b.LogSoftmax(scores, axis=1)
    loss = b.NegativeLogLikelihoodLoss(
        log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction
    )
    return loss, log_prob
