"""Fast Fourier transforms as graphs: short transforms, each a matrix product, and turns between.

A transform of length n = r * m (Cooley and Tukey 1965; here decimation in time, any factors): with
inputs numbered n1 * m + n2 and outputs k1 + r * k2,

    X[k1 + r k2] = sum over n2: W(m)^(n2 k2) * W(n)^(n2 k1) * inner(n2, k1)
    inner(n2, k1) = sum over n1: W(r)^(n1 k1) * x[n1 m + n2]

with W(n) = exp(-2 pi j / n). The inner sums are a product with a constant matrix, the factors
W(n)^(n2 k1) a turn by constants, the outer sums a transform of length m for every k1, to which the
same applies. Values lie as (transforms, parts, positions), where the parts are real and imaginary
ones: so every step finds what it needs in place, and one transposition at the end puts the digits
of the output's number in order.

A length with a large prime factor is a convolution with a chirp of a length that has none
(Bluestein 1970): nk = (n^2 + k^2 - (k - n)^2) / 2.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.ops.helpers import check_table, sliced
from graphc.ir.types import Dim
from graphc.records import dataclass

SHORT = 128  # transforms up to this length are one product
LARGEST_PRIME = (
    256  # factors up to this one are products; lengths with larger ones are convolutions
)
STEP = 48  # what a step costs besides its product, which costs its factor


def turns(length: int, numbers: np.ndarray, inverse: bool) -> np.ndarray:
    """exp(-2 pi j number / length), or the conjugate; exact for any integer."""
    angles = 2 * np.pi * (numbers % length / length)
    return np.exp(angles * (1j if inverse else -1j))


def fourier_matrix(length: int, rows: int, columns: int, parts: int, inverse: bool) -> np.ndarray:
    """(rows, parts, columns, 2): what input `n` (real, then imaginary part) adds to output `k`.

    exp(-2 pi j k n / length), or its conjugate / length for the inverse.
    """
    check_table(rows, columns, 2, parts)
    factor = turns(length, np.outer(np.arange(rows), np.arange(columns)), inverse)
    if inverse:
        factor = factor / length
    of_real = np.stack([factor.real, factor.imag], axis=-1)
    of_imaginary = np.stack([-factor.imag, factor.real], axis=-1)
    return np.stack([of_real, of_imaginary][:parts], axis=1)


def half_spectrum_matrix(length: int, rows: int) -> np.ndarray:
    """(rows, 2, length, 1): a real signal from the first half of its spectrum."""
    whole = fourier_matrix(length, rows, length, 2, inverse=True)
    return (whole * mirrored(length, rows)[:, None, None, None])[..., :1]


def mirrored(length: int, bins: int) -> np.ndarray:
    """How often the first bins of a real signal's spectrum count: all but the first and (of even
    lengths) the last of a half stand for their mirror images too."""
    counts = np.full(bins, 2.0)
    counts[0] = 1
    if length % 2 == 0 and bins == length // 2 + 1:
        counts[-1] = 1
    return counts


# ---------------------------------------------------------------- factors


def prime_factors(number: int) -> list[int]:
    """In ascending order."""
    factors, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return [*factors, number] if number > 1 else factors


@cache
def radices(length: int) -> tuple[int, ...]:
    """Factors of a length, those of the least costs, descending: one step for each."""
    best: dict[int, tuple[int, int, tuple[int, ...]]] = {1: (0, 0, ())}  # costs, and how many
    divisors = [1]
    for prime in prime_factors(length):
        divisors = sorted({d * p for d in divisors for p in (1, prime)})
    for whole in divisors[1:]:
        options = []
        for factor in divisors[1:]:
            if whole % factor == 0:
                cost, steps, rest = best[whole // factor]
                factors = tuple(sorted((factor, *rest), reverse=True))
                options.append((cost + factor + STEP, steps + 1, factors))
        best[whole] = min(options)
    return best[length][2]


def is_direct(length: int) -> bool:
    """Whether a transform of this length is one product."""
    return length <= SHORT or radices(length) == (length,) and length <= LARGEST_PRIME


def smooth_length(least: int) -> int:
    """The smallest length from `least` on with no prime factors but 2, 3 and 5."""
    ceiling = 1 << max(least - 1, 1).bit_length()
    threes = (3**a for a in range(ceiling.bit_length()))
    odd = [t * 5**c for t in threes for c in range(ceiling.bit_length()) if t * 5**c <= ceiling]
    doubled = (o << max(-(-least // o) - 1, 0).bit_length() for o in odd)
    return min(doubled)


# ---------------------------------------------------------------- transforms


@dataclass(frozen=True)
class Transform:
    """A Fourier transform of `length`, of which the first `columns` outputs are wanted, and of
    these the first `parts` (2: real and imaginary ones, 1: real ones)."""

    length: int
    inverse: bool
    columns: int
    parts: int = 2

    def of(self, b: Builder, x: Value) -> Value:
        """(count, columns, parts) from (count, length, parts of the input)."""
        if prime_factors(self.length)[-1] > LARGEST_PRIME:
            return self._by_chirps(b, x)
        return self._by_factors(b, x)

    # ------------------------------------------------ factors

    def _by_factors(self, b: Builder, x: Value) -> Value:
        count, length, parts = x.tensor.dims
        *steps, last = radices(self.length)
        x = _reshape(b, b.Transpose(x, perm=(0, 2, 1)), count, parts, length)
        for radix in steps:
            x = self._step(b, x, radix)
        done, parts, _ = x.tensor.dims
        used = -(-self.columns // (length // last))  # digits of the outputs that are wanted
        matrix = self._matrix(last, used, parts, self.parts).transpose(1, 0, 2, 3)
        if self.inverse:
            matrix = matrix / length
        matrix = matrix.reshape(parts * last, used * self.parts)
        rows = _reshape(b, x, done, parts * last)
        sums = b.MatMul(rows, b.constant(matrix, x.tensor.dtype))
        digits = _reshape(b, sums, count, *steps, used, self.parts)
        order = (0, *range(len(steps) + 1, 0, -1), len(steps) + 2)
        whole = _reshape(b, b.Transpose(digits, perm=order), count, -1, self.parts)
        return sliced(b, whole, 0, self.columns, axis=1)

    def _matrix(self, radix: int, columns: int, parts: int, results: int) -> np.ndarray:
        """(inputs, parts, outputs, parts of them) of a short transform that does not scale."""
        matrix = fourier_matrix(radix, radix, columns, parts, self.inverse)
        return matrix[..., :results] * (radix if self.inverse else 1)

    def _step(self, b: Builder, x: Value, radix: int) -> Value:
        """(transforms * radix, 2, length / radix) from (transforms, parts, length)."""
        count, parts, length = x.tensor.dims
        rest, dtype = length // radix, x.tensor.dtype
        matrix = self._matrix(radix, radix, parts, 2).transpose(2, 3, 1, 0)
        left = b.constant(matrix.reshape(radix * 2, parts * radix), dtype)
        sums = b.MatMul(left, _reshape(b, x, count, parts * radix, rest))
        numbers = np.outer(np.arange(radix), np.arange(rest))
        by = turns(length, numbers, self.inverse)[:, None]
        turned = turn(b, _reshape(b, sums, count, radix, 2, rest), by)
        return _reshape(b, turned, count * radix, 2, rest)

    # ------------------------------------------------ chirps

    def _by_chirps(self, b: Builder, x: Value) -> Value:
        _, length, parts = x.tensor.dims
        chirp = turns(2 * length, np.arange(length) ** 2, self.inverse)
        wide = smooth_length(length + self.columns - 1)
        x = b.Transpose(x, perm=(0, 2, 1))
        if parts == 1:
            turned = b.Mul(x, b.constant(np.stack([chirp.real, chirp.imag]), x.tensor.dtype))
        else:
            turned = turn(b, x, chirp[None])
        more = np.array([0, 0, 0, 0, 0, wide - length])
        given = b.Pad(turned, more)
        spectrum = Transform(wide, False, wide).of(b, b.Transpose(given, perm=(0, 2, 1)))
        kernel = np.zeros(wide, complex)
        kernel[:length] = chirp.conj()
        kernel[wide - length + 1 :] = chirp.conj()[:0:-1]
        product = turn(b, b.Transpose(spectrum, perm=(0, 2, 1)), np.fft.fft(kernel)[None])
        columns = Transform(wide, True, self.columns).of(b, b.Transpose(product, perm=(0, 2, 1)))
        last = chirp[: self.columns] / (length if self.inverse else 1)
        result = turn(b, b.Transpose(columns, perm=(0, 2, 1)), last[None])
        return b.Transpose(sliced(b, result, 0, self.parts, axis=1), perm=(0, 2, 1))


def turn(b: Builder, x: Value, by: np.ndarray) -> Value:
    """x (..., 2, n) times complex constants (..., 1, n): turned, and stretched."""
    real, imaginary = by.real, by.imag
    dtype = x.tensor.dtype
    axis = x.tensor.rank - 2
    swapped = b.Slice(x, np.array([1]), np.array([-3]), np.array([axis]), np.array([-1]))
    across = np.stack([-imaginary, imaginary], axis=-2).reshape(*by.shape[:-2], 2, by.shape[-1])
    return b.Add(b.Mul(x, b.constant(real, dtype)), b.Mul(swapped, b.constant(across, dtype)))


def _reshape(b: Builder, x: Value, *shape: Dim) -> Value:
    return b.Reshape(x, b.dims(shape))
