"""What models of ai.onnx.ml make of scores: labels, post transforms, a column for a second class.

Definitions: ONNX's operator documentation; where it is silent, ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.graph import Value

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # TreeEnsemble's numbers
NEARLY_ZERO = 1e-7  # what SOFTMAX_ZERO takes for 0


def label_array(ints: Sequence[int] | None, strings: Sequence[str] | None) -> np.ndarray:
    """The labels of classes, whichever attribute gives them."""
    if not ints and not strings:
        raise ModelError("needs class labels, as integers or as strings")
    return np.asarray(ints, np.int64) if ints else np.asarray(strings, object)


def chosen(b: Builder, labels: np.ndarray, number: Value) -> Value:
    """The label of each number."""
    return b.Gather(b.constant(labels), number)


def either(b: Builder, labels: np.ndarray, second: Value) -> Value:
    """The second label where `second` ([N] or [N, 1]) holds, else the first."""
    flat = second if second.tensor.rank == 1 else b.Squeeze(second, b.constant([1], i64))
    return chosen(b, labels[:2], b.Cast(flat, to=i64.onnx))


def check_transform(post_transform: str) -> None:
    """ModelError if there is no such transform."""
    if post_transform not in TRANSFORMS:
        known = ", ".join(TRANSFORMS)
        raise ModelError(f"post_transform must be one of {known}, found {post_transform!r}")


def post_transformed(b: Builder, scores: Value, post_transform: str) -> Value:
    """Scores as the model wants them: raw, logistic, probit, or softmax over the classes."""
    check_transform(post_transform)
    if post_transform == "LOGISTIC":
        return b.Sigmoid(scores)
    if post_transform == "SOFTMAX":
        return b.Softmax(scores, axis=-1)
    if post_transform == "SOFTMAX_ZERO":
        return _softmax_of_nonzero(b, scores)
    return probit(b, scores) if post_transform == "PROBIT" else scores


def transformed_targets(b: Builder, scores: Value, post_transform: str) -> Value:
    """Transformed scores. Of a single column only PROBIT is taken, as in ONNX Runtime."""
    check_transform(post_transform)
    single = scores.tensor.dims[-1] == 1 and post_transform != "PROBIT"
    return scores if single else post_transformed(b, scores, post_transform)


def _softmax_of_nonzero(b: Builder, scores: Value) -> Value:
    """Softmax over the scores that are not 0, which stay (nearly) 0; rows of zeros are 0 / 0."""
    kind, last = scores.tensor.dtype, b.constant([-1], i64)
    largest = b.ReduceMax(scores, last)
    absent = b.LessOrEqual(b.Abs(scores), b.constant(NEARLY_ZERO, kind))
    powers = b.Exp(b.Sub(scores, largest))
    total = b.ReduceSum(b.Where(absent, b.constant(0, kind), powers), last)
    return b.Div(b.Where(absent, b.Mul(scores, b.Exp(b.Neg(largest))), powers), total)


def probit(b: Builder, scores: Value) -> Value:
    """The quantile of the normal distribution: sqrt(2) * erfinv(2 s - 1).

    The inverse of erf is Winitzki's ("A handy approximation for the error function and its
    inverse", 2008) with a = 0.147, as ONNX Runtime has it: good to 0.002 of the result.
    """
    kind = scores.tensor.dtype
    one, a = b.constant(1, kind), 0.147
    x = b.Sub(b.Mul(scores, b.constant(2, kind)), one)
    log = b.Log(b.Mul(b.Sub(one, x), b.Add(one, x)))
    half = b.Add(b.Mul(log, b.constant(0.5, kind)), b.constant(2 / (np.pi * a), kind))
    inner = b.Sub(b.Mul(half, half), b.Mul(log, b.constant(1 / a, kind)))
    size = b.Sqrt(b.Sub(b.Sqrt(inner), half))
    signed = b.Where(b.Less(x, b.constant(0, kind)), b.Neg(size), size)
    return b.Mul(signed, b.constant(np.sqrt(2.0), kind))


def two_columns(b: Builder, score: Value, post_transform: str, positive: bool) -> Value:
    """The scores of two classes from the only score s [N, 1].

    1 - s and s if all weights are `positive`, else -s and s; LOGISTIC of -s and s. No other
    transform is taken, but for PROBIT, which gives one score, twice.
    """
    check_transform(post_transform)
    kind = score.tensor.dtype
    if post_transform == "PROBIT":
        only = probit(b, score)
        return b.Concat(only, only, axis=1)
    if post_transform == "LOGISTIC":
        return b.Sigmoid(b.Concat(b.Neg(score), score, axis=1))
    first = b.Sub(b.constant(1, kind), score) if positive else b.Neg(score)
    return b.Concat(first, score, axis=1)
