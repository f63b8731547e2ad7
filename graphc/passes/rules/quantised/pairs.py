"""What ONNX Runtime gives for all pairs of two 8-bit values, and which integer form gives the same.

Round scales put many sums halfway between two integers, where the errors of float32 decide. There
are only 65536 pairs, so every form is tried on all of them. With scales sa, sb, sy, zero points za,
zb, zy, and fl() for the rounding of every operation to float32:

    floats      fl(fl((a - za) sa) +- fl((b - zb) sb)) / sy, rounded, plus zy
    one kernel  fl(a ra + fl(b rb + c)), rounded, with ra = fl(sa / sy), rb = fl(sb / sy) and
                c = fl(zy - fl(za ra + fl(zb rb)));
                for products fl(fl((a - za) (b - zb) r) + zy) with r = fl(fl(sa sb) / sy)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from graphc.ir.dtypes import i64
from graphc.ir.graph import Value
from graphc.ir.ops.fixed_point import DOMAIN, NEAR, SHIFTS, TO_EVEN, TO_ODD, UP
from graphc.ir.scalar.ops import TABLE, apply
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.rescale import LARGEST_SHIFT, MULTIPLIER_BITS
from graphc.passes.rules.quantised.values import Quantised, Target, codes
from graphc.records import dataclass

SUM_BITS = 12  # that the sum of two multiplied bytes has beyond the multipliers
COARSEST_SUM = 12  # bits below the unit that sums of table entries have at least
NUDGE = 18  # bits fewer than the unit has, in what is added to see if it rounds better
CLOSE = 6  # bits fewer than the unit has, in which sums are close to halfway
HALVES = (UP, TO_EVEN, TO_ODD)

Tables = tuple[np.ndarray, np.ndarray, np.ndarray, int]


@dataclass(frozen=True)
class Pairs:
    """Two operands, what their sum or product is quantised to, and how ONNX Runtime computes it:
    on floats, or in one kernel, which adds `shift` to all codes (see kernels.py)."""

    a: Quantised
    b: Quantised
    target: Target
    one_kernel: bool
    shift: int = 0

    def codes(self) -> tuple[np.ndarray, np.ndarray]:
        """All values of both operands as int64, along one axis each."""
        a, b = (codes(q.value).astype(np.int64) for q in (self.a, self.b))
        return a[:, None], b

    def scales(self) -> tuple[np.float32, np.float32, np.float32]:
        """Those of the operands and of the result."""
        return np.float32(self.a.step), np.float32(self.b.step), np.float32(self.target.step)

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        """All values of both operands less their zero points."""
        a, b = self.codes()
        return a - self.a.zero_point, b - self.b.zero_point

    def reals(self) -> tuple[np.ndarray, np.ndarray]:
        """All values of both operands, dequantised to float32; infinite ones if a scale is that of
        a mask which takes in the lowest float."""
        (a, b), (sa, sb, _) = self.centred(), self.scales()
        with np.errstate(over="ignore"):
            return a.astype(np.float32) * sa, b.astype(np.float32) * sb

    def quantised(self, real: np.ndarray) -> np.ndarray:
        """Floats as QuantizeLinear has them."""
        return self.target.rounded(real / self.scales()[2])

    def products(self) -> np.ndarray:
        """What ONNX Runtime gives for a * b."""
        if not self.one_kernel:
            a, b = self.reals()
            return self.quantised(a * b)
        (a, b), zero = self.centred(), np.float32(self.target.zero_point + self.shift)
        real = (a * b).astype(np.float32) * self.ratio() + zero
        return self.target.clipped(np.rint(real) - self.shift)

    def ratio(self) -> np.float32:
        """What the kernel multiplies products by."""
        sa, sb, sy = self.scales()
        return sa * sb / sy


@dataclass(frozen=True)
class Linear:
    """(a * by[0] + b * by[1] + offset) / 2**shift, rounded; `offset` includes one half."""

    by: tuple[int, int]
    offset: int
    shift: int
    halves: int = UP

    def results(self, pairs: Pairs) -> np.ndarray:
        """What it gives for all pairs, as graphc.ir.ops.fixed_point defines it."""
        a, b = pairs.codes()
        total = a * self.by[0] + b * self.by[1] + self.offset
        return pairs.target.clipped(shifted(total, self.shift, self.halves))


def shifted(total: np.ndarray, shift: int, halves: int) -> np.ndarray:
    """total / 2**shift rounded down, where one half has been added and `halves` are treated so."""
    if halves != UP and shift > NEAR:
        total = (total + (1 << shift - NEAR - 1)) >> shift - NEAR
        shift = NEAR
    return apply(TABLE[SHIFTS[halves]], i64, total, np.int64(shift))


def best_halves(totals: np.ndarray, shift: int, target: Target, expected: np.ndarray) -> int:
    """What halves have to become for most totals / 2**shift to be what is expected; the totals
    include one half."""

    def failed(halves: int) -> int:
        results = target.clipped(shifted(totals, shift, halves) + target.zero_point)
        return int((results != expected).sum())

    return min(HALVES, key=failed)


class Sum:
    """a + sign * b."""

    def __init__(self, pairs: Pairs, sign: int):
        self.pairs, self.sign = pairs, sign

    def expected(self) -> np.ndarray:
        """What ONNX Runtime gives for all pairs."""
        pairs = self.pairs
        left, right = self.parts()
        if not pairs.one_kernel:
            return pairs.quantised(left + right)
        whole = np.rint((left + right).astype(np.float32))
        return pairs.target.clipped(whole - pairs.shift)

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that are added: float32, or for the kernel exact products and floats, which
        are in units of the result."""
        pairs = self.pairs
        if not pairs.one_kernel:
            a, b = pairs.reals()
            return a, b if self.sign > 0 else -b
        (a, b), (ra, rb, constant) = pairs.codes(), self._kernel()
        inner = ((b + pairs.shift) * rb + constant).astype(np.float32)
        return (a + pairs.shift) * ra, inner.astype(np.float64)

    def _kernel(self) -> tuple[float, float, float]:
        """ra, rb and c."""
        pairs = self.pairs
        sa, sb, sy = pairs.scales()
        za, zb = (np.float32(q.zero_point + pairs.shift) for q in (pairs.a, pairs.b))
        ra, rb = sa / sy, sb / sy
        both = np.float32(float(za) * float(ra) + float(zb * rb))
        constant = np.float32(pairs.target.zero_point + pairs.shift) - both
        return float(ra), float(rb), float(constant)

    def best(self) -> tuple[Linear | None, int]:
        """The linear form that gives most pairs what they should be, and how many it fails; None
        if the factors are out of reach of fixed point."""
        expected, failed = self.expected(), 1 << 30
        best = None
        for form in self._forms():
            wrong = int((form.results(self.pairs) != expected).sum())
            if wrong < failed:
                best, failed = form, wrong
        return best, failed

    def _forms(self) -> Iterator[Linear]:
        step, constant = self.pairs.target.step, None
        left, right = self.pairs.a.step / step, self.sign * self.pairs.b.step / step
        if self.pairs.one_kernel:
            left, right, constant = self._kernel()
        shift = MULTIPLIER_BITS - 1 - math.frexp(max(abs(left), abs(right)))[1]
        if not (1 <= shift <= LARGEST_SHIFT - SUM_BITS and left * right != 0):
            return
        by = round(math.ldexp(left, shift)), round(math.ldexp(right, shift))
        offset = self._offset(by, shift, constant) + (1 << shift - 1)
        little = max(1 << shift >> NUDGE, 1)
        for more in (0, little, -little):
            yield Linear(by, offset + more, shift)
        for halves in (TO_EVEN, TO_ODD):
            yield Linear(by, offset, shift, halves)

    def _offset(self, by: tuple[int, int], shift: int, constant: float | None) -> int:
        pairs = self.pairs
        if constant is None:
            offset = pairs.target.zero_point << shift
            return offset - pairs.a.zero_point * by[0] - pairs.b.zero_point * by[1]
        return round(math.ldexp(constant, shift)) + pairs.shift * (sum(by) - (1 << shift))

    def tables(self) -> Tables | None:
        """Tables whose entries add up to the result and 1/4, in units of 2**-shift, and the limits
        from which on sums belong to the next result; None if they are out of reach."""
        pairs = self.pairs
        left, right = (part.astype(np.float64) for part in self.parts())
        if pairs.one_kernel:
            right = right - pairs.shift
        else:
            left = left / pairs.target.step
            right = right / pairs.target.step + pairs.target.zero_point
        right = right - pairs.target.low + 0.25
        left, right = _finite(left, right, pairs.target.high - pairs.target.low)
        shift = MULTIPLIER_BITS - 1 - math.frexp(np.abs(left).max() + np.abs(right).max())[1]
        if shift < COARSEST_SUM or pairs.target.low == pairs.target.high:
            return None
        left, right = (np.rint(np.ldexp(t, shift)) for t in (left, right))
        limits = self._limits((left + right).astype(np.int64), shift)
        return left.reshape(-1).astype(np.int32), right.astype(np.int32), limits, shift

    def _limits(self, totals: np.ndarray, shift: int) -> np.ndarray:
        """The sums from which on results are at least the second, the third..., for most pairs:
        where they are halfway, unless pairs that are close to that have it otherwise."""
        target, expected, one = self.pairs.target, self.expected(), 1 << shift
        limits = (np.arange(1, target.high - target.low + 1) << shift) - one // 4
        close = np.abs((totals & one - 1) - one // 4 * 3) < one >> CLOSE
        totals, above = totals[close], expected[close] - target.low
        number = totals >> shift  # of the limit close to which they are
        for n in np.unique(number):
            if 0 <= n < limits.size:
                mine, over = totals[number == n], above[number == n] > n
                limits[n] = _limit(mine[over], mine[~over])
        return np.maximum.accumulate(limits).astype(np.int32)


def _finite(left: np.ndarray, right: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray]:
    """Parts of a sum with numbers in place of infinities, so large that nothing finite brings sums
    back to results within `span`."""
    largest = [np.abs(part[np.isfinite(part)]).max(initial=0) for part in (left, right)]
    reach = 2 * (span + sum(largest))
    return np.clip(left, -reach, reach), np.clip(right, -reach, reach)


def _limit(above: np.ndarray, under: np.ndarray) -> int:
    """The limit that has most of one kind not under it, and most of the other under it."""
    if not above.size:
        return int(under.max()) + 1
    least = int(above.min())
    unclear = np.unique(np.append(under[under >= least] + 1, least))
    failed = [int((above < n).sum() + (under >= n).sum()) for n in unclear]
    return int(unclear[int(np.argmin(failed))])


def by_tables(rw: Rewriter, sum_: Sum, tables: Tables) -> Value:
    """The sum of two table entries, compared with where results change."""
    left, right, limits, shift = tables
    target = sum_.pairs.target
    terms = [
        rw.op("Lookup", q.value, rw.constant(table), domain=DOMAIN)
        for q, table in ((sum_.pairs.a, left), (sum_.pairs.b, right))
    ]
    return rw.op(
        "Stepwise", rw.Add(*terms), rw.constant(limits), domain=DOMAIN, shift=shift,
        low=target.low, to=target.dtype.onnx,
    )  # fmt: skip
