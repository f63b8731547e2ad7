"""Rounding of weights with error feedback, against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.quantisation import rounding

RNG = np.random.default_rng(0)
ROWS, COLUMNS, LARGEST = 5, 2 * rounding.BLOCK + 9, 7


def moments():
    """Second moments of columns that depend on one another, and differ in size."""
    x = RNG.standard_normal((400, COLUMNS)) * np.geomspace(0.1, 3, COLUMNS)
    x += 0.7 * np.roll(x, 1, 1)
    return x.T @ x / len(x)


def by_definition(rows, steps, seconds):
    """Column after column from the last of the order: each makes its component of A e least."""
    damped = seconds + np.eye(COLUMNS) * rounding.DAMPING * np.trace(seconds) / COLUMNS
    order = np.argsort(np.diagonal(seconds), kind="stable")
    a = np.linalg.cholesky(damped[np.ix_(order, order)]).T
    whole = np.zeros_like(rows)
    for row, step, out in zip(rows[:, order], steps[:, order], whole):
        wrong = np.zeros(COLUMNS)
        for c in reversed(range(COLUMNS)):
            aim = row[c] + a[c, c + 1 :] @ wrong[c + 1 :] / a[c, c]
            out[order[c]] = np.clip(np.rint(aim / step[c]), -LARGEST, LARGEST)
            wrong[c] = row[c] - out[order[c]] * step[c]
    return whole


@pytest.mark.parametrize("kind", ["a scale for each row", "a scale for each element"])
def test_feedback(kind):
    rows, seconds = RNG.standard_normal((ROWS, COLUMNS)), moments()
    rows[0] *= 5  # of which many are clipped: feedback that makes it worse is dropped
    scales = RNG.uniform(0.2, 0.4, (ROWS, 1 if "row" in kind else COLUMNS))
    steps = np.broadcast_to(scales, rows.shape)
    given = scales[:, 0] if "row" in kind else scales
    found = rounding.with_feedback(rows, given, LARGEST, seconds)
    fed, plain = by_definition(rows, steps, seconds), rounding.nearest(rows, steps, LARGEST)

    def errors(whole):
        wrong = whole * steps - rows
        return ((wrong @ seconds) * wrong).sum(1)

    worse = errors(fed) > errors(plain)
    assert not worse[1:].any() and (errors(fed) < 0.8 * errors(plain))[1:].all()
    np.testing.assert_array_equal(found, np.where(worse[:, None], plain, fed))


def test_scales_are_those_of_least_error():
    rows = RNG.standard_normal((4, 50))
    rows[1, 0] = 9.0
    weights = RNG.uniform(0.1, 2, 50)
    found = rounding.scales_of(rows, LARGEST, np.diag(weights))
    for row, scale in zip(rows, found):
        tried = np.abs(row).max() * rounding.SHRINKS / LARGEST
        errors = [
            ((rounding.nearest(row[None], np.array([s]), LARGEST)[0] * s - row) ** 2) @ weights
            for s in tried
        ]
        assert scale == np.float32(tried[int(np.argmin(errors))])
    assert found[1] < 9.0 / LARGEST
