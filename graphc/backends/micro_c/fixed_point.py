"""Fixed-point arithmetic in 64 bits, in terms of 32: (sum of products + offset) >> shift.

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

from graphc.ir.dtypes import i32, u32
from graphc.ir.expr import Call, Const, Expr, bitcast, call
from graphc.ir.ops.fixed_point import SHIFTS, TO_EVEN, UP
from graphc.ir.simplify import to_poly

WORD = 32
LEAST, MOST = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class Shifted:
    """(sum of number * factor + offset) >> shift, and what becomes of `halves`, which are those
    whose bits from `first` on, of those shifted out, are 0. Numbers and factors are i32."""

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


def in_words(value: Expr) -> Expr | None:
    """cast<i32>(value), of an i64, in arithmetic of 32 bits; None if it is not of this form."""
    shifted = _shifted(value)
    if shifted is None:
        return None
    whole = _product(shifted) if len(shifted.terms) == 1 else None
    return _split(shifted) if whole is None else whole


def _shifted(value: Expr) -> Shifted | None:
    """What an i64 expression is, if it is of this form."""
    total, shift, halves = _shift(value)
    first = 0
    if halves != UP:
        total, first, inner = _shift(total)
        if inner != UP:
            return None
    poly = to_poly(total)
    offset = poly.pop((), 0)
    terms = [_term(atoms, factor) for atoms, factor in poly.items()]
    if not terms or None in terms or not 0 < shift + first < 2 * WORD:
        return None
    return Shifted(tuple(t for t in terms if t), offset, shift + first, halves, first)


def _shift(node: Expr) -> tuple[Expr, int, int]:
    """What is shifted right, how far, and what becomes of halves."""
    if isinstance(node, Call) and node.op.name in SHIFTS and isinstance(node.args[1], Const):
        return node.args[0], int(node.args[1].value), SHIFTS.index(node.op.name)
    return node, 0, UP


def _term(atoms: tuple[Expr, ...], factor: int) -> tuple[Expr, Expr] | None:
    """A number of 32 bits and its factor, of a product in 64."""
    numbers = [narrow(atom) for atom in atoms]
    if len(numbers) == 1 and LEAST <= factor <= MOST:
        numbers.append(Const(factor, i32))
    elif factor != 1:
        return None
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return numbers[0], numbers[1]


def narrow(node: Expr) -> Expr | None:
    """An i64 factor as the i32 (or narrower) value it was widened from, or the number it is."""
    if isinstance(node, Const) and LEAST <= node.value <= MOST:
        return Const(node.value, i32)
    if isinstance(node, Call) and node.op.name == "cast":
        (inner,) = node.args
        if inner.dtype.is_integer and (inner.dtype is i32 or inner.dtype.bits < WORD):
            return inner
    return None


def _product(shift: Shifted) -> Expr | None:
    """One product of 32 by 32 bits."""
    x, m = (node.cast(i32) for node in shift.terms[0])
    half = 1 << shift.shift - 1
    low_offset = (shift.offset + (1 << WORD - 1)) % (1 << WORD) - (1 << WORD - 1)
    high_offset = shift.offset - low_offset >> WORD
    if abs(high_offset) > MOST // 2:
        return None
    rounded = shift.offset == half and shift.halves == UP
    if shift.shift <= WORD and not rounded:
        return None
    if rounded and shift.shift == WORD:
        return call("mul_high_rounded", x, m)
    high, low = call("mul_high", x, m), x * m
    if rounded and shift.shift > WORD:
        return call("shr_rounded", high, shift.shift - WORD)
    if rounded:
        rest = bitcast(call("shr_rounded", bitcast(low, u32), shift.shift), i32)
        return (high << WORD - shift.shift if shift.shift < WORD else high) + rest
    total = high + high_offset
    if low_offset:
        total, low = _with_carry(total, low, low_offset)
    return _finished(total, _masked(low, shift.lost(0, WORD)), WORD, shift)


def _with_carry(high: Expr, low: Expr, offset: int) -> tuple[Expr, Expr]:
    """The high and the low word after adding a number of 32 bits to the low one."""
    new = low + offset
    # The sign bit goes from 1 to 0 with a carry, and from 0 to 1 with a borrow.
    if offset < 0:
        return high + ((new & ~low) >> WORD - 1), new
    return high - ((low & ~new) >> WORD - 1), new


def _split(shift: Shifted) -> Expr | None:
    """Numbers of few bits times constants."""
    ranges = [range_of(x) for x, _ in shift.terms]
    factors = [m.value for _, m in shift.terms if isinstance(m, Const)]
    if len(factors) < len(shift.terms):
        return None
    bits = next((q for q in range(shift.shift) if _fits(ranges, factors, shift, q)), None)
    if bits is None:
        return None
    numbers = [x.cast(i32) for x, _ in shift.terms]
    mask = (1 << bits) - 1
    low = _linear(numbers, [m & mask for m in factors], shift.offset & mask)
    high = _linear(numbers, [m >> bits for m in factors], shift.offset >> bits)
    total = high + (low >> bits) if bits else high
    return _finished(total, _masked(low, shift.lost(0, bits)), bits, shift)


def _linear(numbers: Sequence[Expr], factors: Sequence[int], offset: int) -> Expr:
    """The sum of numbers times factors, and the offset."""
    total: Expr = Const(offset, i32)
    for number, factor in zip(numbers, factors):
        total = total + number * factor
    return total


def _finished(total: Expr, lost: Expr, start: int, shift: Shifted) -> Expr:
    """`total`, whose lowest bit is number `start`, shifted by the rest, halves as they should;
    `lost` holds those of the bits before that matter."""
    distance = shift.shift - start
    whole = total >> distance if distance else total
    if shift.halves == UP:
        return whole
    rest = _masked(total, shift.lost(start, shift.shift))
    rest = rest if _is_zero(lost) else lost | rest
    # -1 unless all of them are 0: a number or its negative has the sign bit
    some = (rest | -rest) >> WORD - 1
    wrong = whole & 1 if shift.halves == TO_EVEN else Const(1, i32) & ~whole
    return whole - (wrong & ~some)


def _masked(value: Expr, mask: int) -> Expr:
    """The bits of a mask."""
    if mask in (0, (1 << WORD) - 1):
        return value if mask else Const(0, i32)
    return value & mask


def _is_zero(node: Expr) -> bool:
    return isinstance(node, Const) and node.value == 0


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
