"""Weights as integers: scales per output channel, and rounding with error feedback.

Rounding each weight on its own is blind to what layers read. With the second moments H = E[x x'] of
what a layer reads, the squared error of its sums is e H e' for an error e of the weights. Rounding
one column after the other, and correcting those that are left for the error made so far, lowers
that (optimal brain quantisation; Frantar et al., GPTQ, 2022).
"""

from __future__ import annotations

import numpy as np

BLOCK = 128  # columns whose corrections are applied at once
DAMPING = 0.01  # of the mean of the diagonal, which keeps H invertible
SHRINKS = np.linspace(1.0, 0.8, 9)  # of a channel's range that are tried


def scales_of(rows: np.ndarray, largest: int, moments: np.ndarray | None = None) -> np.ndarray:
    """A scale for each row (output channel): of least squared error, weighted by the mean squares
    of what the weights are multiplied by."""
    top = np.abs(rows).max(1, initial=0)
    top = np.where(top > 0, top, 1.0)
    weights = np.ones(rows.shape[1]) if moments is None else np.diagonal(moments)
    best, least = top / largest, np.full(len(rows), np.inf)
    for share in SHRINKS:
        scales = top * share / largest
        whole = np.clip(np.rint(rows / scales[:, None]), -largest, largest)
        errors = (((whole * scales[:, None] - rows) ** 2) * weights).sum(1)
        better = errors < least
        best, least = np.where(better, scales, best), np.where(better, errors, least)
    return np.maximum(best, 1e-30).astype(np.float32).astype(np.float64)


def nearest(rows: np.ndarray, scales: np.ndarray, largest: int) -> np.ndarray:
    """The nearest integers."""
    return np.clip(np.rint(rows / scales[:, None]), -largest, largest)


def with_feedback(
    rows: np.ndarray, scales: np.ndarray, largest: int, moments: np.ndarray
) -> np.ndarray:
    """Integers whose error the later columns of a row make up for."""
    columns = rows.shape[1]
    damped = moments + np.eye(columns) * max(DAMPING * np.trace(moments) / columns, 1e-12)
    order = np.argsort(-np.diagonal(damped), kind="stable")
    damped = damped[np.ix_(order, order)]
    try:
        factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    except np.linalg.LinAlgError:
        return nearest(rows, scales, largest)
    left, whole = rows[:, order].astype(np.float64), np.empty(rows.shape)
    for start in range(0, columns, BLOCK):
        end = min(start + BLOCK, columns)
        errors = np.empty((len(rows), end - start))
        for column in range(start, end):
            code = np.clip(np.rint(left[:, column] / scales), -largest, largest)
            whole[:, column] = code
            errors[:, column - start] = (left[:, column] - code * scales) / factor[column, column]
            left[:, column + 1 : end] -= np.outer(
                errors[:, column - start], factor[column, column + 1 : end]
            )
        left[:, end:] -= errors @ factor[start:end, end:]
    back = np.empty_like(order)
    back[order] = np.arange(columns)
    better = whole[:, back]
    plain = nearest(rows, scales, largest)
    return np.where(_worse(rows, better, plain, scales, moments)[:, None], plain, better)


def _worse(
    rows: np.ndarray, one: np.ndarray, other: np.ndarray, scales: np.ndarray, moments: np.ndarray
) -> np.ndarray:
    """The rows of which the first integers have the larger error."""

    def errors(whole: np.ndarray) -> np.ndarray:
        wrong = whole * scales[:, None] - rows
        return ((wrong @ moments) * wrong).sum(1)

    return errors(one) > errors(other)
