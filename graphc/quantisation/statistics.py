"""What is kept of a value over all samples: its range, and a histogram that widens.

The histogram has bins of equal width around 0. An element outside makes it twice as wide: two bins
become one. So one pass over the samples does, whatever comes, and memory does not grow. Zeros are
counted apart: they are exact in every quantised type, and activations make many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

BINS = 4096  # of a histogram; even, so that 0 is an edge


@dataclass
class Statistics:
    """Least and largest element, how many there were and how many of them 0, and `bins` over
    [-reach, reach]."""

    low: float = np.inf
    high: float = -np.inf
    count: int = 0
    zeros: int = 0
    reach: float = 0.0
    bins: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, array: np.ndarray) -> None:
        """Takes the elements of an array, which are finite."""
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += array.size
        zeros = array.size - int(np.count_nonzero(array))
        self.zeros += zeros
        largest = max(-low, high)
        if largest == 0:
            return
        self._reach(largest)
        places = (array.reshape(-1) * np.float32(BINS / 2 / self.reach)).astype(np.int32)
        places += np.signbit(array.reshape(-1)) * np.int32(-1) + np.int32(BINS // 2)
        np.clip(places, 0, BINS - 1, out=places)
        self.bins += np.bincount(places, minlength=BINS)
        self.bins[BINS // 2] -= zeros - self._negative_zeros(array)
        self.bins[BINS // 2 - 1] -= self._negative_zeros(array)

    @staticmethod
    def _negative_zeros(array: np.ndarray) -> int:
        return int(np.count_nonzero((array == 0) & np.signbit(array)))

    def _reach(self, largest: float) -> None:
        """Widens the histogram until it holds an element."""
        if not self.reach:
            self.reach = float(2.0 ** np.ceil(np.log2(largest)))
        while self.reach < largest:
            pairs = self.bins.reshape(-1, 2).sum(1)
            self.bins = np.zeros(BINS, np.int64)
            self.bins[BINS // 4 : BINS // 4 + len(pairs)] = pairs
            self.reach *= 2

    def merged(self, other: Statistics) -> Statistics:
        """The statistics of the elements of both."""
        both = Statistics()
        for one in (self, other):
            both.low, both.high = min(both.low, one.low), max(both.high, one.high)
            both.count, both.zeros = both.count + one.count, both.zeros + one.zeros
            if one.reach:
                copy = Statistics(reach=one.reach, bins=one.bins)
                copy._reach(max(both.reach, one.reach))
                both._reach(copy.reach)
                both.bins = both.bins + copy.bins
        return both

    @property
    def centres(self) -> np.ndarray:
        """The middle of each bin."""
        width = 2 * self.reach / BINS
        return (np.arange(BINS) + 0.5) * width - self.reach
