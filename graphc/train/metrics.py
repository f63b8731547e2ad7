"""Metrics: functions of the DSL from a model's first result and a target to a scalar, a mean over
samples."""

from __future__ import annotations

from graphc.frontend.dsl_tensor import Tensor, apply
from graphc.ir import dtypes
from graphc.train.losses import Loss, l1, mean, mse


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of labels with the largest score; scores [N, classes, ...], labels [N, ...]."""
    return _share(apply("ArgMax", scores, axis=1, keepdims=0), labels)


def top5(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of labels that are among the five with the largest scores."""
    count = min(5, scores.shape[1])  # type: ignore[type-var]
    _, best = apply("TopK", scores, [count], axis=1, outputs=2)
    wanted = apply("Unsqueeze", apply("Cast", labels, to=dtypes.i64.onnx), [1])
    hits = apply("Cast", apply("Equal", best, wanted), to=dtypes.f32.onnx)
    return mean(apply("ReduceMax", hits, [1], keepdims=0))


def binary_accuracy(logits: Tensor, target: Tensor) -> Tensor:
    """The share of logits that are above 0 where the target is above one half, and only there."""
    half, zero = (apply("CastLike", value, x) for value, x in ((0.5, target), (0.0, logits)))
    hits = apply("Equal", logits > zero, target > half)
    return mean(apply("Cast", hits, to=dtypes.f32.onnx))


def _share(predicted: Tensor, labels: Tensor) -> Tensor:
    hits = apply("Equal", predicted, apply("Cast", labels, to=dtypes.i64.onnx))
    return mean(apply("Cast", hits, to=dtypes.f32.onnx))


METRICS: dict[str, Loss] = {f.__name__: f for f in (accuracy, top5, binary_accuracy, mse, l1)}
"""Metrics by name."""
