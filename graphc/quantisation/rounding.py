"""Weights as integers: scales per output channel, and rounding with error feedback.

Rounding each weight on its own is blind to what layers read. With the second moments H = E[x x'] of
what a layer reads, the squared error of its sums is e H e' for an error e of the weights. Rounding
one column after the other, each so that it makes up for the errors made so far, lowers that
(Frantar et al., GPTQ, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK = 64  # columns whose corrections are applied at once
CACHED = 1 << 15  # numbers of weights that are compared with their integers at once
DAMPING = 0.01  # of the mean of the diagonal, which keeps H invertible
SHRINKS = np.linspace(1.0, 0.8, 9)  # of a channel's range that are tried,
SHARED = np.linspace(1.0, 0.5, 11)  # and of the range that all channels share


def scales_of(rows: np.ndarray, largest: int, moments: np.ndarray | None = None) -> np.ndarray:
    """A scale for each row (output channel): of least squared error, weighted by the mean squares
    of what the weights are multiplied by."""
    top = np.abs(rows).max(1, initial=0)
    top = np.where(top > 0, top, 1.0)
    best, least = top / largest, np.full(len(rows), np.inf)
    weights = None if moments is None else np.diagonal(moments).copy()
    at_once = max(CACHED // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        for share in SHRINKS:
            scales = top[part] * share / largest
            errors = _errors(rows[part], scales, largest, weights)
            better = errors < least[part]
            best[part] = np.where(better, scales, best[part])
            least[part] = np.where(better, errors, least[part])
    return np.maximum(best, 1e-30).astype(np.float32).astype(np.float64)


def shared_scale(
    rows: np.ndarray, scales: np.ndarray, largest: int, moments: np.ndarray | None = None
) -> np.ndarray:
    """The scales of rows replaced by one for all, at most the largest: of least squared error."""
    tried = [np.full_like(scales, np.float32(scales.max() * share)) for share in SHARED]
    weights = None if moments is None else np.diagonal(moments).copy()
    return min(tried, key=lambda shared: float(_errors(rows, shared, largest, weights).sum()))


def _errors(
    rows: np.ndarray, scales: np.ndarray, largest: int, weights: np.ndarray | None
) -> np.ndarray:
    """The squared error of each row of nearest integers, weighted by mean squares."""
    wrong = nearest(rows, scales, largest)
    wrong *= scales[:, None]
    wrong -= rows
    wrong *= wrong
    return wrong.sum(1) if weights is None else wrong @ weights


def nearest(rows: np.ndarray, scales: np.ndarray, largest: int) -> np.ndarray:
    """The nearest integers; a scale for each row, or for each element."""
    whole = rows / (scales if scales.ndim == 2 else scales[:, None])
    np.rint(whole, out=whole)
    return np.clip(whole, -largest, largest, out=whole)


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
    columns = rows.shape[1]
    damping = max(DAMPING * np.trace(moments) / columns, 1e-12)
    order = np.argsort(np.diagonal(moments), kind="stable")
    damped = moments[np.ix_(order, order)]
    np.fill_diagonal(damped, np.diagonal(damped) + damping)
    plain = nearest(rows, scales, largest)
    try:
        factor = np.ascontiguousarray(np.linalg.cholesky(damped).T)
    except np.linalg.LinAlgError:
        return plain
    fed = _Feedback.of(rows, scales, order, plain)
    for end in range(columns, 0, -BLOCK):
        fed.round(factor, max(end - BLOCK, 0), end, largest)
    back = np.empty_like(order)
    back[order] = np.arange(columns)
    return np.where(fed.worse(damping)[:, None], plain, fed.whole[back].T)


@dataclass
class _Feedback:
    """Rows while they are rounded, as columns in their order: [columns, rows]. `wrong` and `losses`
    are the errors and the squares of A e so far, `plain` and `plain_losses` those of the nearest
    integers."""

    wanted: np.ndarray
    steps: np.ndarray
    whole: np.ndarray
    wrong: np.ndarray
    plain: np.ndarray
    losses: np.ndarray
    plain_losses: np.ndarray

    @staticmethod
    def of(
        rows: np.ndarray, scales: np.ndarray, order: np.ndarray, nearest: np.ndarray
    ) -> _Feedback:
        wanted = rows.T[order]
        steps = scales.T[order] if scales.ndim == 2 else scales[None]
        plain = nearest.T[order]
        plain *= steps
        np.subtract(wanted, plain, out=plain)
        empty = np.empty_like(wanted)
        zeros = np.zeros(len(rows))
        return _Feedback(wanted, steps, empty, np.empty_like(wanted), plain, zeros, zeros.copy())

    def round(self, factor: np.ndarray, start: int, end: int, largest: int) -> None:
        """Rounds the columns of a block; those behind it are rounded."""
        carried = factor[start:end, end:] @ self.wrong[end:]
        for column in range(end - 1, start - 1, -1):
            own, steps = factor[column, column], self.steps[column % len(self.steps)]
            carry = factor[column, column + 1 : end] @ self.wrong[column + 1 : end]
            carry += carried[column - start]
            code = (self.wanted[column] + carry / own) / steps
            np.rint(code, out=code)
            np.clip(code, -largest, largest, out=self.whole[column])
            error = self.wrong[column]
            np.subtract(self.wanted[column], self.whole[column] * steps, out=error)
            carry += own * error
            self.losses += carry * carry
        lost = factor[start:end, start:] @ self.plain[start:]
        self.plain_losses += np.einsum("cr,cr->r", lost, lost)

    def worse(self, damping: float) -> np.ndarray:
        """The rows of which the nearest integers have the smaller error. |A e| has that of the
        damping in it."""
        own, plain = (np.einsum("cr,cr->r", e, e) * damping for e in (self.wrong, self.plain))
        return self.losses - own > self.plain_losses - plain
