"""Fixed-point arithmetic in 64 bits, as vectors of 32: (sum of products + offset) >> shift.

With h and l the high and the low word of a product p = h * 2**32 + l, exactly:

    (p + c * 2**32) >> s  ==  (h + c) >> (s - 32)                          for s > 32
    (p + 2**(s - 1)) >> s  ==  (h << (32 - s)) + rounded(l >> s)           for s <= 32, modulo 2**32

and with numbers x, y of few bits times constants split as m = m1 * 2**q + m0

    (x * m + y * n + c) >> s  ==  (x * m1 + y * n1 + c1 + ((x * m0 + y * n0 + c0) >> q)) >> (s - q)

for the least q with which all of this fits 32 bits: taking the floor twice is taking it once. Where
halves are rounded to even, what was rounded up is an odd number too large by one if everything
shifted out is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Call, Const, Expr

if TYPE_CHECKING:
    from graphc.backends.micro_c.vectors import _VectorLoop

WORD = 32
LEAST, MOST = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class Shifted:
    """(sum of number * factor + offset) >> shift; halves to even if `even`."""

    terms: tuple[tuple[Expr, Expr], ...]
    offset: int
    shift: int
    even: bool


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
    even = False
    if _is(value, "sub") and _is(value.args[1], "select"):  # type: ignore[attr-defined]
        whole, odd = value.args  # type: ignore[attr-defined]
        if not _takes_odd_halves(whole, odd):
            return None
        value, even = whole, True
    if not (_is(value, "shr") and isinstance(value.args[1], Const)):  # type: ignore[attr-defined]
        return None
    total, shift = value.args  # type: ignore[attr-defined]
    terms: list[tuple[Expr, Expr]] = []
    offset = _collect(total, terms)
    if offset is None or not terms or not 0 < shift.value < 2 * WORD:
        return None
    return Shifted(tuple(terms), offset, int(shift.value), even)


def _takes_odd_halves(whole: Expr, odd: Expr) -> bool:
    """Whether `odd` is: whole & 1 where the bits that `whole` has lost are 0, else 0."""
    condition, then, otherwise = odd.args  # type: ignore[attr-defined]
    if not (_is(whole, "shr") and _is(then, "band") and _is(condition, "eq")):
        return False
    total, shift = whole.args  # type: ignore[attr-defined]
    lost, zero = condition.args
    return (
        isinstance(shift, Const)
        and _is(lost, "band")
        and set(lost.args) == {total, Const((1 << shift.value) - 1, i64)}
        and set(then.args) == {whole, Const(1, i64)}
        and isinstance(zero, Const) and isinstance(otherwise, Const)
        and zero.value == 0 == otherwise.value
    )  # fmt: skip


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


class FixedPoint:
    """Prints such arithmetic in a vector loop."""

    def __init__(self, loop: _VectorLoop):
        self.loop = loop

    def narrowed(self, value: Expr) -> str:
        """The text of cast<i32>(value); NotVectors if it is not of this form."""
        from graphc.backends.micro_c.vectors import NotVectors

        found = shifted(value)
        text = None
        if found is not None and len(found.terms) == 1:
            text = self._product(found)
        if found is not None and text is None:
            text = self._split(found)
        if text is None:
            raise NotVectors(f"`{value}`")
        return text

    def call(self, name: str, *args: str) -> str:
        return self.loop.call(name, *args)

    def _product(self, found: Shifted) -> str | None:
        """One product of 32 by 32 bits."""
        ((number, factor),) = found.terms
        shift, half = found.shift, 1 << found.shift - 1
        if shift > WORD and (found.offset % (1 << WORD) or abs(found.offset >> WORD) > MOST // 2):
            return None
        if shift <= WORD and (found.offset != half or found.even):
            return None
        x, m = self._vector(number), self._vector(factor)
        if shift > WORD and found.offset == half and not found.even:
            high = self.call("vmulhq_s32", x, m)
            return self.call("vrshrq_n_s32", high, str(shift - WORD))
        x, m = self.loop.named(x), self.loop.named(m)
        high = self.call("vmulhq_s32", x, m)
        low = self.call("vmulq_s32", x, m)
        if shift <= WORD:
            return self._low_word(high, low, shift)
        total = self.call("vaddq_n_s32", high, str(found.offset >> WORD))
        return self._finish(total, low, shift - WORD, found.even)

    def _low_word(self, high: str, low: str, shift: int) -> str:
        unsigned = self.call("vreinterpretq_u32_s32", low)
        rounded = self.call("vrshrq_n_u32", unsigned, str(shift))
        rest = self.call("vreinterpretq_s32_u32", rounded)
        if shift < WORD:
            high = self.call("vshlq_n_s32", high, str(WORD - shift))
        return self.call("vaddq_s32", high, rest)

    def _split(self, found: Shifted) -> str | None:
        """Numbers of few bits times constants."""
        ranges = [range_of(x) for x, _ in found.terms]
        if not all(isinstance(m, Const) for _, m in found.terms):
            return None
        factors = [int(m.value) for _, m in found.terms]  # type: ignore[attr-defined]
        bits = next((q for q in range(found.shift) if _fits(ranges, factors, found, q)), None)
        if bits is None:
            return None
        numbers = [self._vector(x) for x, _ in found.terms]
        if bits == 0:
            high = self._linear(numbers, factors, found.offset)
            return self._finish(high, "", found.shift, found.even)
        numbers = [self.loop.named(x) for x in numbers]
        mask = (1 << bits) - 1
        low = self._linear(numbers, [m & mask for m in factors], found.offset & mask)
        if found.even:
            low = self.loop.named(low)
        high = self._linear(numbers, [m >> bits for m in factors], found.offset >> bits)
        total = self.call("vaddq_s32", high, self.call("vshrq_n_s32", low, str(bits)))
        lost = self._masked(low, mask) if found.even else ""
        return self._finish(total, lost, found.shift - bits, found.even)

    def _linear(self, numbers: list[str], factors: list[int], offset: int) -> str:
        """The sum of numbers times factors, and the offset."""
        text = self.call("vdupq_n_s32", self._literal(offset))
        for number, factor in zip(numbers, factors):
            text = self.call("vmlaq_n_s32", text, number, self._literal(factor))
        return text

    def _finish(self, total: str, lost: str, shift: int, even: bool) -> str:
        """total >> shift, halves to even if asked for; `lost` holds what was shifted out before."""
        if not even:
            return self.call("vshrq_n_s32", total, str(shift)) if shift else total
        total = self.loop.named(total)
        rest = self._masked(total, (1 << shift) - 1)
        rest = self.loop.named(self.call("vorrq_s32", lost, rest) if lost else rest)
        whole = self.loop.named(self.call("vshrq_n_s32", total, str(shift)) if shift else total)
        # -1 unless everything that was shifted out is 0: a number or its negative has the sign bit
        uneven = self.call("vorrq_s32", rest, self.call("vnegq_s32", rest))
        some = self.call("vshrq_n_s32", uneven, "31")
        odd = self.call("vbicq_s32", self._masked(whole, 1), some)
        return self.call("vsubq_s32", whole, odd)

    def _masked(self, text: str, mask: int) -> str:
        return self.call("vandq_s32", text, self.call("vdupq_n_s32", self._literal(mask)))

    def _literal(self, value: int) -> str:
        return self.loop.p.spell.constant(value, i32).text

    def _vector(self, node: Expr) -> str:
        """An integer of at most 32 bits as a vector of i32."""
        return self.loop.vector(node if node.dtype is i32 else node.cast(i32))


def _fits(ranges, factors: list[int], found: Shifted, bits: int) -> bool:
    """Whether both parts stay within 32 bits when constants are split at `bits`."""
    mask = (1 << bits) - 1
    low = _limits(ranges, [m & mask for m in factors], found.offset & mask)
    high = _limits(ranges, [m >> bits for m in factors], found.offset >> bits)
    total = high[0] + (low[0] >> bits), high[1] + (low[1] >> bits)
    return all(LEAST <= x <= MOST for x in (*low, *high, *total))


def _limits(ranges, factors: list[int], offset: int) -> tuple[int, int]:
    low = high = offset
    for (least, most), factor in zip(ranges, factors):
        ends = least * factor, most * factor
        low, high = low + min(ends), high + max(ends)
    return low, high
