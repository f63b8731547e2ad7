"""Products of pairs of int16, two at a time (SMLAD of the Arm DSP extension), and what makes pairs.

A word is an i32 that holds two int16, (low, high).

    spread(to, a, centre, groups)   to[0], to[1] = (a[0], a[2]), (a[1], a[3]), each less centre; so
                                    for every group of four of `a`, four words of `to` apart
    spread_row(to, a, centre, groups)
                                    the same, two words of `to` apart
    spread_pairs(to, a, groups)     the same of two groups at a time, two words of `to` apart,
                                    without centre
    pair_up(to, other, x, centre, apart, words)
        for n in 0..words - 1, y = x + 2 n apart:
                                    to[n] = (y[0], y[apart]), other[n] = (y[1], y[apart + 1]), each
                                    less centre
    dot_2x2(s, t, u, v, a, w, groups)
                                    sums of two rows of `a` by two columns of `w`, both four words
                                    to a group: those of the first row, then those of the second,
        for g in 0..groups - 1, i in 0, 1:  s += a[4 g + i] . w[4 g + i]
                                            t += a[4 g + i] . w[4 g + 2 + i]
                                            u += a[4 g + 2 + i] . w[4 g + i]
                                            v += a[4 g + 2 + i] . w[4 g + 2 + i]
    dot_1x4(s, t, u, v, a, w, groups)
                                    sums of a row of `a` by four columns of `w`, of four bytes each,
        for g in 0..groups - 1:     s += a[2 g] . (w[16 g], w[16 g + 2])
                                         + a[2 g + 1] . (w[16 g + 1], w[16 g + 3]), and the others
                                    likewise from w[16 g + 4], w[16 g + 8], w[16 g + 12] on
    dot2(sum, x, w)                 sum += x . w, which is low(x) * low(w) + high(x) * high(w)
    dot_low_high(sum, x, w)         sum += low(x) * high(w)
    dot_high_low(sum, x, w)         sum += high(x) * low(w)

There is at least one group, or word. Of the first six, `to`, `other`, `a`, `w` and `x` are loads
of the first of several elements: of words, or, where they are less `centre`, a constant, of int8 or
uint8. In dot2 and what follows `x` and `w` are words. Sums are scalar variables of type i32.
"""

from __future__ import annotations

from graphc.ir.addresses import element_after
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Index, Load
from graphc.ir.kernel import Body, Buffer, For, Intrin, Store
from graphc.ir.simplify import simplify

SPREAD4, SPREAD_ROW, SPREAD_PAIRS = "spread", "spread_row", "spread_pairs"
DOT_2X2, DOT_1X4, PAIR_UP = "dot_2x2", "dot_1x4", "pair_up"
DOT2, LOW_HIGH, HIGH_LOW = "dot2", "dot_low_high", "dot_high_low"
OF_WORDS = (DOT2, LOW_HIGH, HIGH_LOW)
NAMES = (SPREAD4, SPREAD_ROW, SPREAD_PAIRS, DOT_2X2, DOT_1X4, PAIR_UP, *OF_WORDS)
LANES, PAIR = 4, 2  # elements of a group; of a word; rows, and columns, of a tile


def spread(to: Load, a: Load, centre: int, groups: int) -> Intrin:
    """The statement."""
    return Intrin(SPREAD4, (to, a, Const(centre, i32), Const(groups, i64)))


def spread_row(to: Load, a: Load, centre: int, groups: int) -> Intrin:
    """The statement."""
    return Intrin(SPREAD_ROW, (to, a, Const(centre, i32), Const(groups, i64)))


def spread_pairs(to: Load, a: Load, groups: int) -> Intrin:
    """The statement."""
    return Intrin(SPREAD_PAIRS, (to, a, Const(groups, i64)))


def dot_2x2(sums: list[Load], a: Load, w: Load, groups: int) -> Intrin:
    """The statement, of four sums."""
    return Intrin(DOT_2X2, (*sums, a, w, Const(groups, i64)))


def dot_1x4(sums: list[Load], a: Load, w: Load, groups: int) -> Intrin:
    """The statement, of four sums."""
    return Intrin(DOT_1X4, (*sums, a, w, Const(groups, i64)))


def pair_up(to: Load, other: Load, x: Load, centre: int, apart: int, words: int) -> Intrin:
    """The statement."""
    numbers = Const(centre, i32), Const(apart, i64), Const(words, i64)
    return Intrin(PAIR_UP, (to, other, x, *numbers))


def product(name: str, total: Buffer, x: Expr, w: Expr) -> Intrin:
    """A statement of OF_WORDS."""
    return Intrin(name, (total[()], x, w))


def word(low: Expr, high: Expr) -> Expr:
    """Two numbers of 16 bits as one of 32."""
    return (low & 0xFFFF) | (high << 16)


def meaning(stmt: Intrin) -> Body:
    """The same in plain statements."""
    if stmt.name in (SPREAD4, SPREAD_ROW):
        apart = PAIR if stmt.name == SPREAD_ROW else 2 * PAIR
        return (_spread(apart, *stmt.args),)
    if stmt.name == DOT_1X4:
        return (_row(stmt),)
    if stmt.name == SPREAD_PAIRS:
        to, a, groups = stmt.args
        return (_spread(PAIR, to, a, Const(0, i32), simplify(groups * PAIR)),)
    if stmt.name == DOT_2X2:
        return (_tile(stmt),)
    return (_pair_up(stmt) if stmt.name == PAIR_UP else _product(stmt),)


def _stored(load: Load, value: Expr) -> Store:
    return Store(load.source, load.index, value)


def _spread(apart: int, to: Expr, a: Expr, centre: Expr, groups: Expr) -> For:
    assert isinstance(groups, Const) and isinstance(to, Load)
    group = Index(f"group_of_{to.source}", int(groups.value))
    x = [element_after(a, group * LANES + lane).cast(i32) - centre for lane in range(LANES)]
    stores = (
        _stored(element_after(to, group * apart + n), word(x[n], x[n + 2])) for n in range(PAIR)
    )
    return For(group, tuple(stores))


def _pair_up(stmt: Intrin) -> For:
    to, other, x, centre, apart, words = stmt.args
    assert isinstance(words, Const) and isinstance(to, Load)
    n = Index(f"word_of_{to.source}", int(words.value))
    start = n * PAIR * apart
    stores = []
    for channel, into in enumerate((to, other)):
        near, far = (element_after(x, start + m + channel).cast(i32) - centre for m in (0, apart))
        stores.append(_stored(element_after(into, n), word(near, far)))
    return For(n, tuple(stores))


def _tile(stmt: Intrin) -> For:
    *sums, a, w, groups = stmt.args
    assert isinstance(groups, Const) and isinstance(sums[0], Load)
    group = Index(f"group_of_{sums[0].source}", int(groups.value))
    stores = []
    for n, total in enumerate(sums):
        assert isinstance(total, Load)
        row, column = divmod(n, PAIR)
        value: Expr = total
        for i in range(PAIR):
            x = element_after(a, group * (2 * PAIR) + (row * PAIR + i))
            value = value + _dot(x, element_after(w, group * (2 * PAIR) + (column * PAIR + i)))
        stores.append(_stored(total, value))
    return For(group, tuple(stores))


def _row(stmt: Intrin) -> For:
    *sums, a, w, groups = stmt.args
    assert isinstance(groups, Const) and isinstance(sums[0], Load)
    group = Index(f"group_of_{sums[0].source}", int(groups.value))
    x = [element_after(a, group * PAIR + n) for n in range(PAIR)]
    stores = []
    for n, total in enumerate(sums):
        assert isinstance(total, Load)
        b = [element_after(w, (group * len(sums) + n) * LANES + i).cast(i32) for i in range(LANES)]
        value = total + _low(x[0]) * b[0] + (x[0] >> 16) * b[2]
        stores.append(_stored(total, value + _low(x[1]) * b[1] + (x[1] >> 16) * b[3]))
    return For(group, tuple(stores))


def _product(stmt: Intrin) -> Store:
    total, x, w = stmt.args
    assert isinstance(total, Load)
    if stmt.name == LOW_HIGH:
        return _stored(total, total + _low(x) * (w >> 16))
    if stmt.name == HIGH_LOW:
        return _stored(total, total + (x >> 16) * _low(w))
    return _stored(total, total + _dot(x, w))


def _low(x: Expr) -> Expr:
    return (x << 16) >> 16


def _dot(x: Expr, w: Expr) -> Expr:
    return _low(x) * _low(w) + (x >> 16) * (w >> 16)


# ---------------------------------------------------------------- C

SPREAD_TEXT = """\
/* Of every group of four of a, less centre, two words of 16 bits by 2: (0, 2) and (1, 3). */
APART static void {name}_{type}(int32_t *to, const {c_type} *a, int32_t centre, int32_t groups)
{{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && defined(__thumb2__) && \\
    defined(__ARM_FEATURE_UNALIGNED) && !defined(__ARM_BIG_ENDIAN)
    const uint32_t shift = ((uint32_t)-centre & 0xffffu) * 0x10001u;
    uint32_t x, y;
#define GROUP \\
    "ldr %[x], [%[a]], #4\\n\\t" \\
    "{letter}xtab16 %[y], %[shift], %[x]\\n\\t" \\
    "{letter}xtab16 %[x], %[shift], %[x], ror #8\\n\\t" \\
    "strd %[y], %[x], [%[to]], #{bytes}\\n\\t"
    if (groups & 1) {{
        __asm__ volatile(GROUP
                         : [a] "+r"(a), [to] "+r"(to), [x] "=&r"(x), [y] "=&r"(y)
                         : [shift] "r"(shift)
                         : "memory");
    }}
    if ((groups >>= 1) > 0) {{
        __asm__ volatile("1:\\n\\t" GROUP GROUP "subs %[n], %[n], #1\\n\\tbne 1b"
                         : [a] "+r"(a), [to] "+r"(to), [x] "=&r"(x), [y] "=&r"(y), [n] "+r"(groups)
                         : [shift] "r"(shift)
                         : "cc", "memory");
    }}
#undef GROUP
#else
    for (; groups > 0; --groups, a += 4, to += {words}) {{
        to[0] = (int32_t)(((uint32_t)(a[0] - centre) & 0xffffu) | (uint32_t)(a[2] - centre) << 16);
        to[1] = (int32_t)(((uint32_t)(a[1] - centre) & 0xffffu) | (uint32_t)(a[3] - centre) << 16);
    }}
#endif
}}
"""

SPREAD_PAIRS_TEXT = """\
/* Of every group of four of a, two words of 16 bits by 2: (0, 2) and (1, 3); two groups at once. */
APART static void spread_pairs_i8(int32_t *to, const int8_t *a, int32_t groups)
{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && defined(__thumb2__) && \\
    defined(__ARM_FEATURE_UNALIGNED) && !defined(__ARM_BIG_ENDIAN)
    uint32_t x, y;
#define GROUP \\
    "ldr %[x], [%[a]], #4\\n\\t" \\
    "sxtb16 %[y], %[x]\\n\\t" \\
    "sxtb16 %[x], %[x], ror #8\\n\\t" \\
    "strd %[y], %[x], [%[to]], #8\\n\\t"
    __asm__ volatile("1:\\n\\t" GROUP GROUP "subs %[n], %[n], #1\\n\\tbne 1b"
                     : [a] "+r"(a), [to] "+r"(to), [x] "=&r"(x), [y] "=&r"(y), [n] "+r"(groups)
                     :
                     : "cc", "memory");
#undef GROUP
#else
    for (groups *= 2; groups > 0; --groups, a += 4, to += 2) {
        to[0] = (int32_t)(((uint32_t)a[0] & 0xffffu) | (uint32_t)a[2] << 16);
        to[1] = (int32_t)(((uint32_t)a[1] & 0xffffu) | (uint32_t)a[3] << 16);
    }
#endif
}
"""

PAIR_UP_TEXT = """\
/* Words of 16 bits by 2 of two neighbours, in two columns that lie `apart`, each less centre. */
APART static void pair_up_{type}(int32_t *to, int32_t *other, const {c_type} *x, int32_t centre,
    int32_t apart, int32_t words)
{{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && defined(__thumb2__) && \\
    defined(__ARM_FEATURE_UNALIGNED) && !defined(__ARM_BIG_ENDIAN)
    const uint32_t shift = ((uint32_t)-centre & 0xffffu) * 0x10001u;
    uint32_t near, far;
    __asm__ volatile("1:\\n\\t"
                     "ldrh %[near], [%[x]]\\n\\t"
                     "ldrh %[far], [%[x], %[apart]]\\n\\t"
                     "add %[x], %[x], %[apart], lsl #1\\n\\t"
                     "orr %[near], %[near], %[far], lsl #16\\n\\t"
                     "{letter}xtab16 %[far], %[shift], %[near]\\n\\t"
                     "{letter}xtab16 %[near], %[shift], %[near], ror #8\\n\\t"
                     "str %[far], [%[to]], #4\\n\\t"
                     "str %[near], [%[other]], #4\\n\\t"
                     "subs %[n], %[n], #1\\n\\t"
                     "bne 1b"
                     : [x] "+r"(x), [to] "+r"(to), [other] "+r"(other), [near] "=&r"(near),
                       [far] "=&r"(far), [n] "+r"(words)
                     : [apart] "r"(apart), [shift] "r"(shift)
                     : "cc", "memory");
#else
    for (; words > 0; --words, x += 2 * apart) {{
        const {c_type} *y = x + apart;
        *to++ = (int32_t)(((uint32_t)(x[0] - centre) & 0xffffu) | (uint32_t)(y[0] - centre) << 16);
        *other++ =
            (int32_t)(((uint32_t)(x[1] - centre) & 0xffffu) | (uint32_t)(y[1] - centre) << 16);
    }}
#endif
}}
"""

_PRODUCT_TEXT = """\
/* sum + {comment}. */
static inline int32_t {name}(int32_t sum, int32_t x, int32_t w)
{{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__)
    __asm__("{instruction} %0, %1, %2, %0" : "+r"(sum) : "r"(x), "r"(w));
    return sum;
#else
    return (int32_t)((uint32_t)sum + {value});
#endif
}}
"""
_HALF = "(int16_t)({x} & 0xffff)", "({x} >> 16)"


def _halves(x: int, w: int) -> str:
    return f"(uint32_t)({_HALF[x].format(x='x')} * {_HALF[w].format(x='w')})"


DOT_2X2_TEXT = """\
/* Sums of products of two rows of a by two columns of w, four elements of each to a group, which
 * are two words of 16 bits by 2. */
static inline void dot_2x2(int32_t *s, int32_t *t, int32_t *u, int32_t *v, const int32_t *a,
    const int32_t *w, int32_t groups)
{
#if defined(__ARM_FEATURE_SIMD32) && defined(__thumb2__) && defined(__GNUC__) && \\
    defined(__OPTIMIZE__) && !defined(__ARM_BIG_ENDIAN)
    int32_t s0 = *s, s1 = *t, s2 = *u, s3 = *v, x, y, turns = (groups + 1) >> 1;
#define GROUP \\
    "ldmia %[w]!, {r2, r3, r12, lr}\\n\\t" \\
    "ldrd %[x], %[y], [%[a]], #8\\n\\t" \\
    "smlad %[s0], %[x], r2, %[s0]\\n\\t" \\
    "smlad %[s1], %[x], r12, %[s1]\\n\\t" \\
    "smlad %[s0], %[y], r3, %[s0]\\n\\t" \\
    "smlad %[s1], %[y], lr, %[s1]\\n\\t" \\
    "ldrd %[x], %[y], [%[a]], #8\\n\\t" \\
    "smlad %[s2], %[x], r2, %[s2]\\n\\t" \\
    "smlad %[s3], %[x], r12, %[s3]\\n\\t" \\
    "smlad %[s2], %[y], r3, %[s2]\\n\\t" \\
    "smlad %[s3], %[y], lr, %[s3]\\n\\t"
#define GROUPS(start) \\
    __asm__(start "1:\\n\\t" GROUP "2:\\n\\t" GROUP "subs %[n], %[n], #1\\n\\tbne 1b" \\
            : [s0] "+r"(s0), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3), [a] "+r"(a), \\
              [w] "+r"(w), [x] "=&r"(x), [y] "=&r"(y), [n] "+r"(turns) \\
            : \\
            : "r2", "r3", "r12", "lr", "cc", "memory")
    if (groups & 1) {
        GROUPS("b 2f\\n\\t");
    } else {
        GROUPS("");
    }
#undef GROUPS
#undef GROUP
    *s = s0, *t = s1, *u = s2, *v = s3;
#else
    for (; groups > 0; --groups, a += 4, w += 4) {
        for (int i = 0; i < 2; ++i) {
            *s = dot2(*s, a[i], w[i]);
            *t = dot2(*t, a[i], w[i + 2]);
            *u = dot2(*u, a[i + 2], w[i]);
            *v = dot2(*v, a[i + 2], w[i + 2]);
        }
    }
#endif
}
"""


DOT_1X4_TEXT = """\
/* Sums of products of a row of a by four columns of w, four elements of each to a group: two words
 * of 16 bits by 2, and four bytes. */
static inline void dot_1x4_i8(int32_t *s, int32_t *t, int32_t *u, int32_t *v, const int32_t *a,
    const int8_t *w, int32_t groups)
{
#if defined(__ARM_FEATURE_SIMD32) && defined(__thumb2__) && defined(__GNUC__) && \\
    defined(__OPTIMIZE__) && !defined(__ARM_BIG_ENDIAN)
    int32_t s0 = *s, s1 = *t, s2 = *u, s3 = *v, x, y, z;
#define COLUMN(sum, w) \\
    "sxtb16 %[z], " w "\\n\\t" \\
    "sxtb16 " w ", " w ", ror #8\\n\\t" \\
    "smlad " sum ", %[x], %[z], " sum "\\n\\t" \\
    "smlad " sum ", %[y], " w ", " sum "\\n\\t"
#define GROUP \\
    "ldrd %[x], %[y], [%[a]], #8\\n\\t" \\
    "ldmia %[w]!, {r2, r3, r12, lr}\\n\\t" \\
    COLUMN("%[s0]", "r2") COLUMN("%[s1]", "r3") COLUMN("%[s2]", "r12") COLUMN("%[s3]", "lr")
#define GROUPS(several) \\
    __asm__(several \\
            : [s0] "+r"(s0), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3), [a] "+r"(a), \\
              [w] "+r"(w), [x] "=&r"(x), [y] "=&r"(y), [z] "=&r"(z) \\
            : \\
            : "r2", "r3", "r12", "lr", "memory")
    for (; groups >= 4; groups -= 4) {
        GROUPS(GROUP GROUP GROUP GROUP);
    }
    for (; groups > 0; --groups) {
        GROUPS(GROUP);
    }
#undef COLUMN
#undef GROUP
#undef GROUPS
    *s = s0, *t = s1, *u = s2, *v = s3;
#else
    int32_t *const sums[4] = {s, t, u, v};
    for (; groups > 0; --groups, a += 2) {
        for (int i = 0; i < 4; ++i, w += 4) {
            *sums[i] += (int16_t)(a[0] & 0xffff) * w[0] + (a[0] >> 16) * w[2] +
                        (int16_t)(a[1] & 0xffff) * w[1] + (a[1] >> 16) * w[3];
        }
    }
#endif
}
"""


def _of_bytes(text: str, name: str, words: int = 0) -> dict[str, str]:
    types = (("i8", "int8_t", "s"), ("u8", "uint8_t", "u"))
    return {
        f"{name}_{t}": text.format(
            name=name, type=t, c_type=c, letter=x, words=words, bytes=4 * words
        )
        for t, c, x in types
    }


APART = "apart"
APART_TEXT = """\
/* Functions that many kernels call, once in a program. */
#ifdef __GNUC__
#define APART __attribute__((noinline))
#else
#define APART
#endif
"""
NEEDED = {
    SPREAD4: (APART,),
    SPREAD_ROW: (APART,),
    SPREAD_PAIRS: (APART,),
    PAIR_UP: (APART,),
    DOT_2X2: (DOT2,),
}  # by them
HELPERS = {
    APART: APART_TEXT,
    **_of_bytes(SPREAD_TEXT, SPREAD4, 2 * PAIR),
    **_of_bytes(SPREAD_TEXT, SPREAD_ROW, PAIR),
    f"{DOT_1X4}_i8": DOT_1X4_TEXT,
    f"{SPREAD_PAIRS}_i8": SPREAD_PAIRS_TEXT,
    **_of_bytes(PAIR_UP_TEXT, PAIR_UP),
    DOT_2X2: DOT_2X2_TEXT,
    DOT2: _PRODUCT_TEXT.format(
        name=DOT2, instruction="smlad",
        comment="low(x) * low(w) + high(x) * high(w), of words of two int16",
        value=f"{_halves(0, 0)} + {_halves(1, 1)}"),
    LOW_HIGH: _PRODUCT_TEXT.format(
        name=LOW_HIGH, instruction="smlabt", comment="low(x) * high(w)", value=_halves(0, 1)),
    HIGH_LOW: _PRODUCT_TEXT.format(
        name=HIGH_LOW, instruction="smlatb", comment="high(x) * low(w)", value=_halves(1, 0)),
}  # fmt: skip
