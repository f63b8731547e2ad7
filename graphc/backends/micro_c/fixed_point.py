"""Fixed-point arithmetic in 64 bits, as vectors of 32: (sum of products + offset) >> shift.

With h and l the high and the low word of a product p = h * 2**32 + l, and the carry of l + c0

    (p + c) >> s  ==  (h + c1 + carry) >> (s - 32)                         for s > 32
    (p + 2**(s - 1)) >> s  ==  (h << (32 - s)) + rounded(l >> s)           for s <= 32, modulo 2**32

and with numbers x, y of few bits times constants split as m = m1 * 2**q + m0

    (x * m + y * n + c) >> s  ==  (x * m1 + y * n1 + c1 + ((x * m0 + y * n0 + c0) >> q)) >> (s - q)

for the least q with which all of this fits 32 bits: taking the floor twice is taking it once. Where
halves become even (or odd), what was rounded up is too large by one if it is odd (or even) and the
bits that were shifted out, from a certain one on, are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Call, Const, Expr

WORD = 32
LEAST, MOST = -(1 << 31), (1 << 31) - 1


UP, TO_EVEN, TO_ODD = 0, 1, 2  # what becomes of halves


@dataclass(frozen=True)
class Shifted:
    """(sum of number * factor + offset) >> shift, and what becomes of `halves`, which are those
    whose bits from `first` on, of those shifted out, are 0."""

    terms: tuple[tuple[Expr, Expr], ...]
    offset: int
    shift: int
    halves: int = UP
    first: int = 0

    def lost(self, start: int, end: int) -> int:
        """A mask of the bits from `first` on that are shifted out, within start..end - 1, as those
        of a word that begins with `start`."""
        low, high = max(self.first, start), min(self.shift, end)
        return (1 << high - start) - (1 << low - start) if high > low else 0


def range_of(node: Expr) -> tuple[int, int]:
    """Limits of an integer: of its type, and of what is known of how it was computed."""
    if isinstance(node, Const):
        return node.value, node.value
    low, high = int(node.dtype.min), int(node.dtype.max)
    if not isinstance(node, Call):
        return low, high
    if node.op.name in ("min", "max"):
        pick = min if node.op.name == "min" else max
        lows, highs = zip(*map(range_of, node.args))
        return pick(lows), pick(highs)
    if node.op.name == "cast" and node.args[0].dtype.is_integer:
        inner = range_of(node.args[0])
        if low <= inner[0] and inner[1] <= high:
            return inner
    return low, high


def shifted(value: Expr) -> Shifted | None:
    """What an i64 expression is, if it is of this form."""
    halves = UP
    if _is(value, "sub") and _is(value.args[1], "select"):  # type: ignore[attr-defined]
        value, wrong = value.args  # type: ignore[attr-defined]
        halves = _halves(value, wrong)
        if halves == UP:
            return None
    total, shift = _shift(value)
    first = 0
    if halves != UP and _is(total, "shr"):
        total, first = _shift(total)
    terms: list[tuple[Expr, Expr]] = []
    offset = _collect(total, terms)
    if offset is None or not terms or not 0 < shift + first < 2 * WORD:
        return None
    return Shifted(tuple(terms), offset, shift + first, halves, first)


def _shift(node: Expr) -> tuple[Expr, int]:
    """What is shifted right, and how far."""
    if _is(node, "shr") and isinstance(node.args[1], Const):  # type: ignore[attr-defined]
        return node.args[0], int(node.args[1].value)  # type: ignore[attr-defined]
    return node, 0


def _halves(whole: Expr, wrong: Expr) -> int:
    """What halves become if `wrong` is: 1 where `whole` is odd (or even) and the bits that it has
    lost are 0, else 0; UP if it is something else."""
    condition, then, otherwise = wrong.args  # type: ignore[attr-defined]
    total, shift = _shift(whole)
    zero, one = Const(0, i64), Const(1, i64)
    lost = Const((1 << shift) - 1, i64)
    if not (shift and _is(condition, "eq") and otherwise is zero and condition.args[1] is zero):
        return UP
    kept = condition.args[0]
    if not (_is(kept, "band") and set(kept.args) == {total, lost}):
        return UP
    way = TO_EVEN
    if _is(then, "bxor") and one in then.args:
        then = then.args[0] if then.args[1] is one else then.args[1]
        way = TO_ODD
    return way if _is(then, "band") and set(then.args) == {whole, one} else UP


def _is(node: Expr, name: str) -> bool:
    return isinstance(node, Call) and node.op.name == name


def _collect(node: Expr, terms: list[tuple[Expr, Expr]], sign: int = 1) -> int | None:
    """Adds the products of a sum to `terms`; its constant, or None if it is no such sum."""
    if isinstance(node, Const):
        return sign * int(node.value)
    if _is(node, "add") or _is(node, "sub"):
        left, right = node.args  # type: ignore[attr-defined]
        a = _collect(left, terms, sign)
        b = _collect(right, terms, -sign if _is(node, "sub") else sign)
        return None if a is None or b is None else a + b
    if not _is(node, "mul"):
        return None
    left, right = (_narrow(x) for x in node.args)  # type: ignore[attr-defined]
    if isinstance(left, Const):
        left, right = right, left
    if left is None or right is None or isinstance(left, Const):
        return None
    if sign < 0:
        if not isinstance(right, Const):
            return None
        right = Const(-right.value, i32)
    terms.append((left, right))
    return 0


def _narrow(node: Expr) -> Expr | None:
    """An i64 factor as the i32 (or narrower) value it was widened from."""
    if isinstance(node, Const):
        return Const(node.value, i32) if LEAST < node.value <= MOST else None
    if _is(node, "cast"):
        inner: Expr = node.args[0]  # type: ignore[attr-defined]
        if inner.dtype.is_integer and (inner.dtype is i32 or inner.dtype.bits < WORD):
            return inner
    return None


class VectorLoop(Protocol):
    """A loop that prints vectors: calls, names for results, expressions, and numbers of 32 bits."""

    def call(self, name: str, *args: str) -> str: ...

    def named(self, text: str) -> str: ...

    def vector(self, node: Expr) -> str: ...

    def number(self, value: int) -> str: ...


class FixedPoint:
    """Prints such arithmetic in a vector loop."""

    def __init__(self, loop: VectorLoop):
        self.loop = loop

    def narrowed(self, value: Expr) -> str | None:
        """The text of cast<i32>(value); None if it is not of this form."""
        shift = shifted(value)
        if shift is None:
            return None
        text = self._product(shift) if len(shift.terms) == 1 else None
        return self._split(shift) if text is None else text

    def call(self, name: str, *args: str) -> str:
        return self.loop.call(name, *args)

    def _product(self, shift: Shifted) -> str | None:
        """One product of 32 by 32 bits."""
        ((number, factor),) = shift.terms
        half = 1 << shift.shift - 1
        low_offset = (shift.offset + (1 << WORD - 1)) % (1 << WORD) - (1 << WORD - 1)
        high_offset = shift.offset - low_offset >> WORD
        if abs(high_offset) > MOST // 2:
            return None
        if shift.shift <= WORD and (shift.offset != half or shift.halves != UP):
            return None
        x, m = self._vector(number), self._vector(factor)
        if shift.shift > WORD and shift.offset == half and shift.halves == UP:
            high = self.call("vmulhq_s32", x, m)
            return self.call("vrshrq_n_s32", high, str(shift.shift - WORD))
        x, m = self.loop.named(x), self.loop.named(m)
        high = self.call("vmulhq_s32", x, m)
        if shift.shift <= WORD:
            return self._low_word(high, self.call("vmulq_s32", x, m), shift.shift)
        total = self.call("vaddq_n_s32", high, self._literal(high_offset))
        lost, matters = "", shift.halves != UP and shift.first < WORD
        if low_offset or matters:
            low = self.loop.named(self.call("vmulq_s32", x, m))
            if low_offset:
                total, low = self._with_carry(total, low, low_offset)
            lost = self._masked(low, shift.lost(0, WORD)) if matters else ""
        return self._finish(total, lost, WORD, shift)

    def _with_carry(self, high: str, low: str, offset: int) -> tuple[str, str]:
        """The high and the low word after adding a number of 32 bits to the low one."""
        new = self.loop.named(self.call("vaddq_n_s32", low, self._literal(offset)))
        # The sign bit goes from 1 to 0 with a carry, and from 0 to 1 with a borrow.
        before, after, function = low, new, "vsubq_s32"
        if offset < 0:
            before, after, function = new, low, "vaddq_s32"
        turned = self.call("vshrq_n_s32", self.call("vbicq_s32", before, after), "31")
        return self.call(function, high, turned), new

    def _low_word(self, high: str, low: str, shift: int) -> str:
        unsigned = self.call("vreinterpretq_u32_s32", low)
        rounded = self.call("vrshrq_n_u32", unsigned, str(shift))
        rest = self.call("vreinterpretq_s32_u32", rounded)
        if shift < WORD:
            high = self.call("vshlq_n_s32", high, str(WORD - shift))
        return self.call("vaddq_s32", high, rest)

    def _split(self, shift: Shifted) -> str | None:
        """Numbers of few bits times constants."""
        ranges = [range_of(x) for x, _ in shift.terms]
        if not all(isinstance(m, Const) for _, m in shift.terms):
            return None
        factors = [int(m.value) for _, m in shift.terms]  # type: ignore[attr-defined]
        bits = next((q for q in range(shift.shift) if _fits(ranges, factors, shift, q)), None)
        if bits is None:
            return None
        numbers = [self._vector(x) for x, _ in shift.terms]
        if bits == 0:
            return self._finish(self._linear(numbers, factors, shift.offset), "", 0, shift)
        numbers = [self.loop.named(x) for x in numbers]
        mask = (1 << bits) - 1
        low = self._linear(numbers, [m & mask for m in factors], shift.offset & mask)
        lost = ""
        if shift.halves != UP and shift.first < bits:
            low = self.loop.named(low)
            lost = self._masked(low, shift.lost(0, bits))
        high = self._linear(numbers, [m >> bits for m in factors], shift.offset >> bits)
        total = self.call("vaddq_s32", high, self.call("vshrq_n_s32", low, str(bits)))
        return self._finish(total, lost, bits, shift)

    def _linear(self, numbers: list[str], factors: list[int], offset: int) -> str:
        """The sum of numbers times factors, and the offset."""
        text = self.call("vdupq_n_s32", self._literal(offset))
        for number, factor in zip(numbers, factors):
            text = self.call("vmlaq_n_s32", text, number, self._literal(factor))
        return text

    def _finish(self, total: str, lost: str, start: int, found: Shifted) -> str:
        """`total`, whose lowest bit is number `start`, shifted by the rest, halves as they should;
        `lost` holds those of the bits before that matter."""
        shift = found.shift - start
        if found.halves == UP:
            return self.call("vshrq_n_s32", total, str(shift)) if shift else total
        total = self.loop.named(total)
        rest = self._masked(total, found.lost(start, found.shift))
        rest = self.loop.named(self.call("vorrq_s32", lost, rest) if lost else rest)
        whole = self.loop.named(self.call("vshrq_n_s32", total, str(shift)) if shift else total)
        # -1 unless all of them are 0: a number or its negative has the sign bit
        uneven = self.call("vorrq_s32", rest, self.call("vnegq_s32", rest))
        some = self.call("vshrq_n_s32", uneven, "31")
        one = self.call("vdupq_n_s32", "1")
        if found.halves == TO_EVEN:
            wrong = self.call("vandq_s32", whole, one)
        else:
            wrong = self.call("vbicq_s32", one, whole)
        return self.call("vsubq_s32", whole, self.call("vbicq_s32", wrong, some))

    def _masked(self, text: str, mask: int) -> str:
        mask -= 1 << WORD if mask > MOST else 0
        return (
            text
            if mask == -1
            else self.call("vandq_s32", text, self.call("vdupq_n_s32", self._literal(mask)))
        )

    def _literal(self, value: int) -> str:
        return self.loop.number(value)

    def _vector(self, node: Expr) -> str:
        """An integer of at most 32 bits as a vector of i32."""
        return self.loop.vector(node if node.dtype is i32 else node.cast(i32))


def _fits(ranges: Sequence[tuple[int, int]], factors: list[int], shift: Shifted, bits: int) -> bool:
    """Whether both parts stay within 32 bits when constants are split at `bits`."""
    mask = (1 << bits) - 1
    low = _limits(ranges, [m & mask for m in factors], shift.offset & mask)
    high = _limits(ranges, [m >> bits for m in factors], shift.offset >> bits)
    total = high[0] + (low[0] >> bits), high[1] + (low[1] >> bits)
    return all(LEAST <= x <= MOST for x in (*low, *high, *total))


def _limits(ranges: Sequence[tuple[int, int]], factors: list[int], offset: int) -> tuple[int, int]:
    low = high = offset
    for (least, most), factor in zip(ranges, factors):
        ends = least * factor, most * factor
        low, high = low + min(ends), high + max(ends)
    return low, high
