"""Weights as integers: scales per output channel, and rounding with error feedback.

Rounding each weight on its own is blind to what layers read. With the second moments H = E[x x'] of
what a layer reads, the squared error of its sums is e H e' for an error e of the weights. Rounding
one column after the other, each so that it makes up for the errors made so far, lowers that
(Frantar et al., GPTQ, 2022).
"""

from __future__ import annotations

import numpy as np

BLOCK = 128  # columns whose corrections are applied at once
DAMPING = 0.01  # of the mean of the diagonal, which keeps H invertible
SHRINKS = np.linspace(1.0, 0.8, 9)  # of a channel's range that are tried,
SHARED = np.linspace(1.0, 0.5, 11)  # and of the range that all channels share


def scales_of(rows: np.ndarray, largest: int, moments: np.ndarray | None = None) -> np.ndarray:
    """A scale for each row (output channel): of least squared error, weighted by the mean squares
    of what the weights are multiplied by."""
    top = np.abs(rows).max(1, initial=0)
    top = np.where(top > 0, top, 1.0)
    best, least = top / largest, np.full(len(rows), np.inf)
    for share in SHRINKS:
        scales = top * share / largest
        errors = _errors(rows, scales, largest, moments)
        better = errors < least
        best, least = np.where(better, scales, best), np.where(better, errors, least)
    return np.maximum(best, 1e-30).astype(np.float32).astype(np.float64)


def shared_scale(
    rows: np.ndarray, scales: np.ndarray, largest: int, moments: np.ndarray | None = None
) -> np.ndarray:
    """The scales of rows replaced by one for all, at most the largest: of least squared error."""
    tried = [np.full_like(scales, np.float32(scales.max() * share)) for share in SHARED]
    return min(tried, key=lambda shared: float(_errors(rows, shared, largest, moments).sum()))


def _errors(
    rows: np.ndarray, scales: np.ndarray, largest: int, moments: np.ndarray | None
) -> np.ndarray:
    """The squared error of each row of nearest integers, weighted by mean squares."""
    weights = np.ones(rows.shape[1]) if moments is None else np.diagonal(moments)
    wrong = nearest(rows, scales, largest) * scales[:, None] - rows
    return (wrong**2 * weights).sum(1)


def nearest(rows: np.ndarray, scales: np.ndarray, largest: int) -> np.ndarray:
    """The nearest integers; a scale for each row, or for each element."""
    return np.clip(np.rint(rows / _spread(rows, scales)), -largest, largest)


def _spread(rows: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """A scale for each element."""
    return np.broadcast_to(scales if scales.ndim == 2 else scales[:, None], rows.shape)


def with_feedback(
    rows: np.ndarray, scales: np.ndarray, largest: int, moments: np.ndarray
) -> np.ndarray:
    """Integers whose error the columns that come later make up for; a scale for each row, or for
    each element.

    With moments = A' A for an upper triangular A, the error of a row is |A e|. Columns are rounded
    from the last to the first: what the later ones have done to a component of A e is known, and
    the column that it ends with is rounded to cancel it (nearest plane). That is the feedback of
    GPTQ without an inverse. Columns that matter most come first.
    """
    columns, scales = rows.shape[1], _spread(rows, scales)
    damped = moments + np.eye(columns) * max(DAMPING * np.trace(moments) / columns, 1e-12)
    order = np.argsort(np.diagonal(damped), kind="stable")
    try:
        factor = np.linalg.cholesky(damped[np.ix_(order, order)]).T
    except np.linalg.LinAlgError:
        return nearest(rows, scales, largest)
    wanted, whole = rows[:, order], np.empty(rows.shape)
    errors, steps = np.zeros(rows.shape), scales[:, order]
    for end in range(columns, 0, -BLOCK):
        start = max(end - BLOCK, 0)
        carried = errors[:, end:] @ factor[start:end, end:].T
        for column in range(end - 1, start - 1, -1):
            aim = wanted[:, column] + carried[:, column - start] / factor[column, column]
            code = np.clip(np.rint(aim / steps[:, column]), -largest, largest)
            error = wanted[:, column] - code * steps[:, column]
            whole[:, column], errors[:, column] = code, error
            carried[:, : column - start] += np.outer(error, factor[start:column, column])
    back = np.empty_like(order)
    back[order] = np.arange(columns)
    better, plain = whole[:, back], nearest(rows, scales, largest)
    return np.where(_worse(rows, better, plain, scales, moments)[:, None], plain, better)


def _worse(
    rows: np.ndarray, one: np.ndarray, other: np.ndarray, scales: np.ndarray, moments: np.ndarray
) -> np.ndarray:
    """The rows of which the first integers have the larger error."""

    def errors(whole: np.ndarray) -> np.ndarray:
        wrong = whole * scales - rows
        return ((wrong @ moments) * wrong).sum(1)

    return errors(one) > errors(other)
