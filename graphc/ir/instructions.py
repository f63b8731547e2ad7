"""Instructions that kernels of several targets name in `Intrin` statements, and their meaning.

    dot2_wide(sum, a, w)                sum += a[0] * w[0] + a[1] * w[1]
    dot4(sum, a, w, centre)             sum += (a[0] - centre) * w[0] + ... + (a[3] - centre) * w[3]
    dot4_wide(sum, a, w)                sum += a[0] * w[0] + ... + a[3] * w[3]
    dot4_mixed(sum, a, w)               as dot4_wide, with the weights of a[0], a[2], a[1], a[3]
    dot4_codes(sum, a, w, shift, bits)  sum += a[0] * c(w[0]) + ... + a[3] * c(w[3]), where c(x) are
                                        the `bits` bits of x from bit `shift` on
    transpose(tile, side)               tile[r * side + c] and tile[c * side + r] change places
    mask(bits, held, lanes)             bit j of bits[0] becomes held[j], for so many lanes
    lowest(place, bits)                 place[0] becomes the lowest bit set in bits[0], which has
                                        one and loses it
    prefetch(place, lines)              nothing changes; so many lines of caches from an element on,
                                        which need not exist, are about to be read

`sum` is an element of type i32 (sums wrap), `a` and `w` are loads of the first of two or four
consecutive elements (of dot4 `a` int8 or uint8 and `w` int8, of wide ones both int16, of dot4_mixed
`a` int16 and `w` int8, of dot4_codes `a` int8 and `w` uint8), `centre` is a constant within
-256..255, `shift` and `bits` are constants whose sum is at most 8. Elements of int16 begin at
multiples of 4 bytes, but for those of dot4_mixed. In a vector loop every lane has a sum and
elements of `w` of its own. `tile` is a load of the first element of a local array of `side * side`,
which stands outside of vector loops.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphc.errors import InternalError
from graphc.ir.addresses import element_after
from graphc.ir.dtypes import boolean, i8, i16, i32, i64, u8
from graphc.ir.expr import Const, Expr, Load, Ref, select
from graphc.ir.kernel import Body, Buffer, Intrin, Let, Stmt, Store

DOT2_WIDE = "dot2_wide"
DOT4 = "dot4"
DOT4_WIDE = "dot4_wide"
SPREAD = (0, 2, 1, 3)  # whose weights dot4_mixed reads, one after the other
DOT4_MIXED = "dot4_mixed"
DOT4_CODES = "dot4_codes"
TRANSPOSE = "transpose"
MASK = "mask"
LOWEST = "lowest"
PREFETCH = "prefetch"
NAMES = (DOT2_WIDE, DOT4, DOT4_WIDE, DOT4_MIXED, DOT4_CODES, TRANSPOSE, MASK, LOWEST, PREFETCH)
LINE = 64  # bytes of a line of caches
LANES, PAIR = 4, 2
MASK_BITS = 64


def dot2_wide(total: Load, a: Load, w: Load) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype is not i16 or w.dtype is not i16:
        raise InternalError(f"dot2_wide of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT2_WIDE, (total, a, w))


def dot4(total: Load, a: Load, w: Load, centre: int) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype not in (i8, u8) or w.dtype is not i8:
        raise InternalError(f"dot4 of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT4, (total, a, w, Const(centre, i32)))


def dot4_wide(total: Load, a: Load, w: Load) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype is not i16 or w.dtype is not i16:
        raise InternalError(f"dot4_wide of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT4_WIDE, (total, a, w))


def dot4_mixed(total: Load, a: Load, w: Load) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype is not i16 or w.dtype is not i8:
        raise InternalError(f"dot4_mixed of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT4_MIXED, (total, a, w))


def dot4_codes(total: Load, a: Load, w: Load, shift: int, bits: int) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype is not i8 or w.dtype is not u8:
        raise InternalError(f"dot4_codes of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT4_CODES, (total, a, w, Const(shift, i32), Const(bits, i32)))


def transpose(tile: Buffer, side: int) -> Intrin:
    """The statement; the tile must have so many rows and columns."""
    if tile.shape != (side * side,):
        raise InternalError(f"transpose of {side} rows of an array of shape {list(tile.shape)}")
    return Intrin(TRANSPOSE, (tile[0], Const(side, i64)))


def mask(bits: Buffer, held: Buffer) -> Intrin:
    """The statement; `held` must have at most 64 elements."""
    if bits.dtype is not i64 or held.dtype is not boolean or held.size > MASK_BITS:
        raise InternalError(f"mask {bits.dtype} of {held.size} elements {held.dtype}")
    return Intrin(MASK, (bits[0], held[0], Const(held.size, i64)))


def lowest(place: Buffer, bits: Buffer) -> Intrin:
    """The statement."""
    if place.dtype is not i64 or bits.dtype is not i64:
        raise InternalError(f"lowest bit as {place.dtype} of {bits.dtype}")
    return Intrin(LOWEST, (place[0], bits[0]))


def prefetch(place: Load, lines: int) -> Intrin:
    """The statement."""
    return Intrin(PREFETCH, (place, Const(lines, i64)))


def meaning(stmt: Intrin) -> Body:
    """The same in plain statements."""
    if stmt.name in (DOT2_WIDE, DOT4, DOT4_WIDE, DOT4_MIXED):
        return (_meaning_of_dot(stmt),)
    if stmt.name == DOT4_CODES:
        return (_meaning_of_dot4_codes(stmt),)
    if stmt.name == TRANSPOSE:
        return tuple(_meaning_of_transpose(stmt))
    if stmt.name == MASK:
        return (_meaning_of_mask(stmt),)
    if stmt.name == LOWEST:
        return tuple(_meaning_of_lowest(stmt))
    if stmt.name == PREFETCH:
        return ()
    raise InternalError(f"no instruction of several targets is named {stmt.name}")


def _meaning_of_transpose(stmt: Intrin) -> Iterator[Stmt]:
    first, side = stmt.args
    assert isinstance(first, Load) and isinstance(side, Const)
    for r in range(side.value):
        for c in range(r):
            here, there = (Const(n, i64) for n in (r * side.value + c, c * side.value + r))
            kept = Ref(f"kept{r}_{c}", first.dtype)
            yield Let(kept, Load(first.source, (here,), first.dtype))
            yield Store(first.source, (here,), Load(first.source, (there,), first.dtype))
            yield Store(first.source, (there,), kept)


def _meaning_of_mask(stmt: Intrin) -> Store:
    bits, held, lanes = stmt.args
    assert isinstance(bits, Load) and isinstance(lanes, Const)
    value: Expr = Const(0, i64)
    for lane in range(lanes.value):
        value = value | (element_after(held, lane).cast(i64) << lane)
    return Store(bits.source, bits.index, value)


def _meaning_of_lowest(stmt: Intrin) -> Iterator[Store]:
    place, bits = stmt.args
    assert isinstance(place, Load) and isinstance(bits, Load)
    value: Expr = Const(MASK_BITS - 1, i64)
    for bit in reversed(range(MASK_BITS - 1)):
        value = select((bits & (1 << bit)).ne(0), bit, value)
    yield Store(place.source, place.index, value)
    yield Store(bits.source, bits.index, bits & (bits - 1))


def _meaning_of_dot(stmt: Intrin) -> Store:
    total, a, w, centre = (*stmt.args, Const(0, i32))[:4]
    assert isinstance(total, Load)
    value: Expr = total
    lanes = range(PAIR if stmt.name == DOT2_WIDE else LANES)
    for place, lane in enumerate(SPREAD if stmt.name == DOT4_MIXED else lanes):
        value = value + (element_after(a, lane).cast(i32) - centre) * element_after(w, place).cast(
            i32
        )
    return Store(total.source, total.index, value)


def _meaning_of_dot4_codes(stmt: Intrin) -> Store:
    total, a, w, shift, bits = stmt.args
    assert isinstance(total, Load) and isinstance(bits, Const)
    value: Expr = total
    for lane in range(LANES):
        code = (element_after(w, lane).cast(i32) >> shift) & ((1 << bits.value) - 1)
        value = value + element_after(a, lane).cast(i32) * code
    return Store(total.source, total.index, value)
