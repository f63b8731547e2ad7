"""Losses: functions of the DSL from a model's first result and a target to a scalar. The mean over
all elements, or over all labels, as PyTorch's of the same name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.errors import UnsupportedError
from graphc.frontend.dsl import scan
from graphc.frontend.dsl_tensor import Tensor, apply, constant
from graphc.ir import dtypes

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
    rest = list(range(1, len(target.shape)))
    return mean(apply("ReduceSum", terms, rest, keepdims=0) if rest else terms)


NEVER = -1e30  # stands for the logarithm of zero, so that no difference is NaN


def ctc(
    log_probabilities: Tensor,
    labels: Tensor,
    input_lengths: Tensor | None = None,
    blank: int = 0,
) -> Tensor:
    """-log of the probability that the steps spell the labels, with blanks and repeats between
    them (Graves et al., 2006), divided by the number of labels, averaged over samples.

    `log_probabilities` [T, N, classes], `labels` [N, S], where -1 fills up rows that have fewer;
    `input_lengths` [N] says how many steps of each sample count (default: all).
    """
    steps, samples, _ = _extents(log_probabilities)
    _, count = _extents(labels)
    own = apply("Cast", labels, to=dtypes.i64.onnx)
    real = apply("Cast", own >= 0, to=dtypes.i64.onnx)
    lengths = apply("ReduceSum", real, [1], keepdims=1)
    symbols = _with_blanks(apply("Max", own, np.zeros((), np.int64)), samples, count, blank)
    at = apply("Expand", apply("Unsqueeze", symbols, [0]), np.array([steps, 1, 1]))
    scores = apply("GatherElements", log_probabilities, at, axis=2)
    # a label may follow another one at once, unless both are the same
    ahead, behind = symbols[:, 2:], symbols[:, :-2]
    other = apply("And", ahead != behind, ahead != blank)
    skips = apply("Concat", np.zeros((samples, 2), bool), other, axis=1)
    never = np.asarray(NEVER, log_probabilities.dtype.np)

    def shifted(state: Tensor, by: int) -> Tensor:
        before = np.full((samples, by), never)
        return apply("Concat", before, state[:, :-by], axis=1)

    def step(state: Tensor, score: Tensor, number: Tensor) -> Tensor:
        two = apply("Where", skips, shifted(state, 2), never)
        made = _log_of_sum(state, shifted(state, 1), two) + score
        if input_lengths is None:
            return made
        goes_on = number < apply("Cast", input_lengths, to=dtypes.i64.onnx)
        return apply("Where", apply("Unsqueeze", goes_on, [1]), made, state)

    last = apply("Where", np.arange(2 * count + 1) < 2, scores[0], never)
    if steps > 1:
        last = scan(step, last, over=[scores[1:], constant(np.arange(1, steps))])
    ends = apply("GatherElements", last, lengths * 2, axis=1)
    label = apply("GatherElements", last, apply("Max", lengths * 2 - 1, [[0]]), axis=1)
    total = _log_of_sum(ends, apply("Where", lengths > 0, label, never))
    return -mean(total / apply("CastLike", apply("Max", lengths, [[1]]), total))


def _extents(x: Tensor) -> list[int]:
    if not all(isinstance(extent, int) for extent in x.shape):
        raise UnsupportedError(f"ctc takes tensors of static shapes, found {x}; leave out dims")
    return [int(extent) for extent in x.shape]  # type: ignore[arg-type]


def _with_blanks(labels: Tensor, samples: int, count: int, blank: int) -> Tensor:
    """Labels [N, S] with blanks between them and at both ends, [N, 2 * S + 1]."""
    blanks = np.full((samples, count, 1), blank, np.int64)
    pairs = apply("Concat", blanks, apply("Unsqueeze", labels, [2]), axis=2)
    end = np.full((samples, 1), blank, np.int64)
    return apply("Concat", pairs.reshape(samples, 2 * count), end, axis=1)


def _log_of_sum(*terms: Tensor) -> Tensor:
    """log(exp(a) + exp(b) + ...)."""
    largest = apply("graphc.StopGradient", apply("Max", *terms))
    powers = [apply("Exp", term - largest) for term in terms]
    return largest + apply("Log", sum(powers[1:], powers[0]))


LOSSES: dict[str, Loss] = {
    f.__name__: f for f in (cross_entropy, nll, bce, mse, l1, huber, kl, ctc)
}
"""Losses by name."""
