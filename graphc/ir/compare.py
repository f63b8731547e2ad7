"""How the outputs of a model agree with others'.

The error of an output is the largest difference of an element, over the range of the expected ones:
max(largest - smallest, largest magnitude). Infinities and NaN must be where they are expected.
Strings, booleans and integers of more than 8 bits must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.records import dataclass

TINY = 1e-30  # the least range, for outputs that are all zero


@dataclass(frozen=True)
class Agreement:
    """How one output agrees with what is expected. `error` is relative to the range; infinite if
    `problem` says why the two cannot be compared at all."""

    name: str
    error: float
    problem: str = ""

    def within(self, tolerance: float) -> bool:
        """Whether the error is at most `tolerance`."""
        return self.error <= tolerance

    def __str__(self) -> str:
        return f"{self.name}: {self.problem or f'differs by {self.error:.3g} of its range'}"


def agreements(
    names: Sequence[str], found: Sequence[object], expected: Sequence[object]
) -> list[Agreement]:
    """Compares outputs one by one."""
    return [compare(n, a, b) for n, a, b in zip(names, found, expected, strict=True)]


def difference(found: Sequence[object], expected: Sequence[object], tolerance: float) -> str | None:
    """How the first output that disagrees does so; None if all agree within `tolerance`."""
    if len(found) != len(expected):
        return f"{len(found)} outputs, expected {len(expected)}"
    names = [f"output {number}" for number in range(len(found))]
    wrong = (
        output for output in agreements(names, found, expected) if not output.within(tolerance)
    )
    return next(map(str, wrong), None)


def compare(name: str, found: object, expected: object) -> Agreement:
    """Compares one output: an array, a list for a sequence, a dict for a map, or None for an empty
    optional."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return Agreement(name, np.inf, f"{_kind(found)}, expected {_kind(expected)}")
        members = [compare(f"{name}[{n}]", a, b) for n, (a, b) in enumerate(zip(found, expected))]
        return max(members, key=lambda m: m.error, default=Agreement(name, 0.0))
    if isinstance(expected, dict):
        return _compare_maps(name, found, expected)
    if found is None or expected is None:
        same = found is expected
        return Agreement(name, 0.0 if same else np.inf, "" if same else "only one is present")
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or (a.dtype != b.dtype and "O" not in (a.dtype.kind, b.dtype.kind)):
        return Agreement(name, np.inf, f"{_kind(a)}, expected {_kind(b)}")
    if b.dtype.kind in "OUSb" or (b.dtype.kind in "iu" and b.dtype.itemsize > 1):
        wrong = int(np.count_nonzero(a != b))
        problem = f"{wrong} of {a.size} elements differ" if wrong else ""
        return Agreement(name, np.inf if wrong else 0.0, problem)
    return _compare_numbers(name, a, b)


def _compare_maps(name: str, found: object, expected: dict) -> Agreement:
    if not isinstance(found, dict) or list(found) != list(expected):
        return Agreement(name, np.inf, f"{_kind(found)}, expected {_kind(expected)}")
    return compare(name, np.array(list(found.values())), np.array(list(expected.values())))


def _kind(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {list(value)}"
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else str(value)


def _compare_numbers(name: str, a: np.ndarray, b: np.ndarray) -> Agreement:
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(b)
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    if not same or not np.isfinite(a[finite]).all():
        return Agreement(name, np.inf, "the infinite and NaN elements differ")
    if not finite.any():
        return Agreement(name, 0.0)
    a, b = a[finite], b[finite]
    return Agreement(name, float(np.abs(a - b).max() / extent_of(b)))


def extent_of(expected: np.ndarray) -> float:
    """What errors are relative to: the range of finite numbers, at least their magnitude."""
    largest = float(np.abs(expected).max())
    return max(largest if expected.dtype.kind == "c" else max(np.ptp(expected), largest), TINY)
