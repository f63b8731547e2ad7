"""How far the outputs of a model are from those of another, over samples."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np


class Comparison:
    """Sums over samples, for each output: of squares, of squared errors; and how often the largest
    element along the last axis is the same."""

    def __init__(self) -> None:
        self.squares: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self.rows = self.agreeing = 0

    def add(self, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
        """Takes the outputs for one sample; the first output decides about agreement."""
        for number, (name, want) in enumerate(expected.items()):
            if want.dtype.kind != "f" or not want.size:
                continue
            have, wide = found[name].astype(np.float64), want.astype(np.float64)
            self.squares[name] = self.squares.get(name, 0.0) + float((wide**2).sum())
            self.errors[name] = self.errors.get(name, 0.0) + float(((have - wide) ** 2).sum())
            if number == 0 and want.ndim:
                same = have.argmax(-1) == wide.argmax(-1)
                self.rows += same.size
                self.agreeing += int(same.sum())

    def decibels(self, name: str | None = None) -> float:
        """The signal-to-quantisation-noise ratio of an output, in dB; of all, if none is named."""
        names = list(self.squares) if name is None else [name]
        return decibels(sum(self.squares[n] for n in names), sum(self.errors[n] for n in names))

    @property
    def agreement(self) -> float:
        """The share of rows whose largest element is the same."""
        return self.agreeing / self.rows if self.rows else 1.0


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); infinite without noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
