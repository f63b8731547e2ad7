"""How far the outputs of a model are from those of another, over samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError


@dataclass(frozen=True)
class Accuracy:
    """`noise` is the squared error of all outputs over their squares; `agreement` the share of
    rows whose largest element is where it was; with labels, `right` and `float_right` are the
    shares of rows that are classified as labelled, by the model and by the float one."""

    noise: float
    agreement: float
    right: float | None = None
    float_right: float | None = None

    @property
    def kept(self) -> float:
        """What a bound is about: the accuracy relative to the float model's, or the agreement."""
        if self.right is None or not self.float_right:
            return self.agreement
        return self.right / self.float_right


class Comparison:
    """Sums over samples, for each output: of squares, of squared errors; and how often the largest
    element along the last axis of the first output is the same, and the one labelled."""

    def __init__(self, labels: np.ndarray | None = None) -> None:
        self.squares: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self.rows = self.agreeing = 0
        self.labels = None if labels is None else labels.reshape(-1)
        self.right = self.float_right = 0

    def add(self, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
        """Takes the outputs for one sample; the first output decides about agreement."""
        for number, (name, want) in enumerate(expected.items()):
            if want.dtype.kind != "f" or not want.size:
                continue
            have, wide = found[name].astype(np.float64), want.astype(np.float64)
            self.squares[name] = self.squares.get(name, 0.0) + float((wide**2).sum())
            self.errors[name] = self.errors.get(name, 0.0) + float(((have - wide) ** 2).sum())
            if number == 0 and want.ndim:
                self._count(wide.argmax(-1).reshape(-1), have.argmax(-1).reshape(-1))

    def _count(self, want: np.ndarray, have: np.ndarray) -> None:
        if self.labels is not None:
            labels = self.labels[self.rows : self.rows + want.size]
            if labels.size < want.size:
                raise ModelError(
                    f"labels: there are {self.labels.size} for more rows of the first output"
                )
            self.right += int((have == labels).sum())
            self.float_right += int((want == labels).sum())
        self.rows += want.size
        self.agreeing += int((want == have).sum())

    def decibels(self, name: str | None = None) -> float:
        """The signal-to-quantisation-noise ratio of an output, in dB; of all, if none is named."""
        names = list(self.squares) if name is None else [name]
        return decibels(sum(self.squares[n] for n in names), sum(self.errors[n] for n in names))

    @property
    def accuracy(self) -> Accuracy:
        """What all samples say together."""
        signal, rows = sum(self.squares.values()), max(self.rows, 1)
        noise = sum(self.errors.values()) / signal if signal else 0.0
        agreement = self.agreeing / rows if self.rows else 1.0
        if self.labels is None:
            return Accuracy(noise, agreement)
        return Accuracy(noise, agreement, self.right / rows, self.float_right / rows)


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); infinite without noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
