"""How far arrays are from those expected, summed up over samples without keeping any.

Differences are relative to the range of what is expected, as in ir/compare.py. SQNR is the ratio of
the energy of the signal to that of the difference, in dB. ULP counts the floating-point numbers
between two, of elements that are at least a thousandth of the largest: next to zero every error has
many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graphc.finite import finite
from graphc.ir.compare import TINY

NEAR_ZERO = 1e-3  # of the largest magnitude
BITS = {2: np.int16, 4: np.int32, 8: np.int64}


@dataclass
class Difference:
    """What was seen so far. `problem` says why arrays cannot be compared; else it is empty."""

    count: int = 0
    max_abs: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    signal: float = 0.0
    found_signal: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    ulp: int | None = None
    problem: str = ""

    def add(self, found: object, expected: object) -> None:
        """Takes one more pair of arrays."""
        if not (isinstance(found, np.ndarray) and isinstance(expected, np.ndarray)):
            self.problem = self.problem or "it is no tensor"
            return
        if found.shape != expected.shape:
            self.problem = self.problem or f"has shape {found.shape}, expected {expected.shape}"
            return
        if "O" in (found.dtype.kind, expected.dtype.kind) or expected.dtype.kind in "USc":
            wrong = int(np.count_nonzero(found != expected))
            self.problem = self.problem or (f"{wrong} elements differ" if wrong else "")
            return
        self._add_numbers(found, expected)

    def _add_numbers(self, found: np.ndarray, expected: np.ndarray) -> None:
        a, b = found.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
        usable = np.isfinite(b)
        if not usable.all() or not np.isfinite(a).all():
            same = np.array_equal(a[~usable], b[~usable], equal_nan=True)
            if not same or not np.isfinite(a[usable]).all():
                self.problem = self.problem or "infinite and NaN elements are elsewhere"
            usable &= np.isfinite(a)
            a, b = a[usable], b[usable]
        if not a.size:
            return
        apart = np.abs(a - b)
        self.count += a.size
        self.max_abs = max(self.max_abs, float(apart.max()))
        self.least, self.most = min(self.least, float(b.min())), max(self.most, float(b.max()))
        self.signal += float(b @ b)
        self.found_signal += float(a @ a)
        self.noise += float(apart @ apart)
        self.product += float(a @ b)
        if found.dtype == expected.dtype and expected.dtype.kind == "f":
            self._add_ulp(found.reshape(-1)[usable], expected.reshape(-1)[usable])

    def _add_ulp(self, a: np.ndarray, b: np.ndarray) -> None:
        large = np.abs(b) >= NEAR_ZERO * np.abs(b).max()
        steps = np.abs(_ordered(a[large]) - _ordered(b[large]))
        self.ulp = max(self.ulp or 0, int(steps.max(initial=0)))

    @property
    def extent(self) -> float:
        """The range of what is expected, at least its largest magnitude."""
        if not self.count:
            return TINY
        return max(self.most - self.least, abs(self.most), abs(self.least), TINY)

    @property
    def relative(self) -> float:
        """The largest difference, relative to the range; infinite if there is a problem."""
        return math.inf if self.problem else self.max_abs / self.extent

    @property
    def noise_to_signal(self) -> float:
        """The root of the ratio of energies; infinite if there is a problem."""
        if self.problem:
            return math.inf
        if not self.noise:
            return 0.0
        return math.sqrt(self.noise / self.signal) if self.signal else math.inf

    @property
    def sqnr(self) -> float:
        """In dB; infinite if there is no difference."""
        ratio = self.noise_to_signal
        if not ratio:
            return math.inf
        return -20 * math.log10(ratio) if ratio < math.inf else -math.inf

    @property
    def cosine(self) -> float:
        """Of the angle between the two; 1 if both are zero."""
        norm = math.sqrt(self.signal) * math.sqrt(self.found_signal)
        return self.product / norm if norm else float(self.signal == self.found_signal)

    def data(self) -> dict[str, object]:
        """As JSON, which has no infinite numbers: None for these."""
        measures = {
            "max_abs": self.max_abs, "relative": self.relative, "sqnr_db": self.sqnr,
            "cosine": self.cosine, "ulp": self.ulp, "problem": self.problem,
        }  # fmt: skip
        return finite(measures, 6)


def _ordered(x: np.ndarray) -> np.ndarray:
    """The number of floats from zero to each element, negative below."""
    bits = np.ascontiguousarray(x).view(BITS[x.dtype.itemsize])
    magnitude = (bits & np.iinfo(bits.dtype).max).astype(np.int64)
    return np.where(bits < 0, -magnitude, magnitude)
