"""Losses: functions of the DSL from a model's first result and a target to a scalar. The mean over
all elements, or over all labels, as PyTorch's of the same name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.frontend.dsl_tensor import Tensor, apply

Loss = Callable[[Tensor, Tensor], Tensor]


def mean(x: Tensor) -> Tensor:
    """The mean of all elements."""
    return apply("ReduceMean", x, keepdims=0)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """-log(softmax(scores)) at the labels; scores [N, classes, ...], labels [N, ...]."""
    return apply("SoftmaxCrossEntropyLoss", scores, labels, outputs=1)


def nll(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """-log_probabilities at the labels, of the shapes that cross_entropy takes."""
    return apply("NegativeLogLikelihoodLoss", log_probabilities, labels)


def bce(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of sigmoid(logits): max(x, 0) - x * target + log(1 + exp(-|x|))."""
    return mean(apply("Softplus", logits) - logits * target)


def mse(x: Tensor, target: Tensor) -> Tensor:
    """The squared difference."""
    return mean((x - target) * (x - target))


def l1(x: Tensor, target: Tensor) -> Tensor:
    """The absolute difference."""
    return mean(abs(x - target))


def huber(x: Tensor, target: Tensor) -> Tensor:
    """Half the squared difference where that is below 1, else the difference less one half."""
    distance = abs(x - target)
    inside = distance < np.ones((), distance.dtype.np)
    return mean(apply("Where", inside, distance * distance * 0.5, distance - 0.5))


def kl(log_probabilities: Tensor, target: Tensor) -> Tensor:
    """The divergence target * (log(target) - log_probabilities), summed over all but the first
    axis, and averaged over that ("batchmean"); zero where the target is."""
    zero = np.zeros((), target.dtype.np)
    positive = target > zero
    safe = apply("Where", positive, target, zero + 1)
    terms = apply("Where", positive, target * (apply("Log", safe) - log_probabilities), zero)
    return apply("ReduceSum", terms, keepdims=0) / float(target.shape[0])  # type: ignore[arg-type]


LOSSES: dict[str, Loss] = {f.__name__: f for f in (cross_entropy, nll, bce, mse, l1, huber, kl)}
"""Losses by name."""
