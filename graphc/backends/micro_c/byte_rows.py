"""Sums of products of rows of bytes by columns of bytes, for the M-profile Vector Extension.

    dots(sums, x, w, rows, apart, stride, count, columns)
        for t in 0..rows - 1, c in 0..columns - 1:
            sums[stride t + c] = x[apart t] * w[count c] + ... (`count` products of neighbours)

`sums`, `x` and `w` are loads of the first of several i32, int8 and int8; `rows` is 1 or 3, and all
that follows are constants. Compilers move sums between registers and memory in such loops, so that
the loops are written in assembler: sixteen products are one instruction (vmladava), whose sum is an
even register; the loop ends with what is left of a row (dlstp, letp).
"""

from __future__ import annotations

from graphc.backends.micro_c.vectors import BYTES
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Index, Load
from graphc.ir.kernel import Body, For, Intrin, Store
from graphc.ir.simplify import simplify

DOTS = "dots"
ROWS = 3  # of a tile


def dots(
    sums: Load, x: Load, w: Load, rows: int, apart: int, stride: int, count: int, columns: int
) -> Intrin:
    """The statement."""
    numbers = (rows, apart, stride, count, columns)
    return Intrin(DOTS, (sums, x, w, *(Const(n, i64) for n in numbers)))


def meaning(stmt: Intrin) -> Body:
    """The same in plain statements."""
    sums, x, w, *numbers = stmt.args
    assert isinstance(sums, Load) and isinstance(x, Load) and isinstance(w, Load)
    rows, apart, stride, count, columns = (_number(n) for n in numbers)
    t, c, k = (
        Index(f"{name}_of_{sums.source}", extent)
        for name, extent in (("row", rows), ("column", columns), ("element", count))
    )
    place = simplify(sums.index[0] + (t * stride + c))
    total = Load(sums.source, (place,), i32)
    product = _at(x, t * apart + k).cast(i32) * _at(w, c * count + k).cast(i32)
    inner = For(k, (Store(sums.source, (place,), total + product),))
    column = For(c, (Store(sums.source, (place,), Const(0, i32)), inner))
    return (For(t, (column,)),)


def _number(x: Expr) -> int:
    assert isinstance(x, Const)
    return int(x.value)


def _at(load: Load, distance: Expr) -> Load:
    return Load(load.source, (simplify(load.index[0] + distance),), load.dtype)


def vectors(stmt: Intrin) -> int:
    """How many times sixteen products there are."""
    rows, _, _, count, columns = map(_number, stmt.args[3:])
    return rows * columns * -(-count // BYTES)


def function_of(stmt: Intrin) -> str:
    """The C function of a statement."""
    return f"{DOTS}_{_number(stmt.args[3])}"


def arguments(stmt: Intrin) -> tuple[Expr, ...]:
    """Its arguments: a single row is not apart from others."""
    sums, x, w, rows, *numbers = stmt.args
    return (sums, x, w, *(numbers if _number(rows) > 1 else numbers[2:]))


_VECTORS = """\
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__) && !defined(__clang__) && \\
    defined(__OPTIMIZE__) && !defined(__ARM_BIG_ENDIAN)
"""

DOTS_1_TEXT = f"""\
/* Sums of products of `count` bytes of x by as many of each column of w. */
APART static void dots_1(int32_t *sums, const int8_t *x, const int8_t *w, int32_t count,
    int32_t columns)
{{
{_VECTORS}\
    for (; columns >= 4; columns -= 4) {{
        const int8_t *y = x, *w0 = w, *w1 = w0 + count, *w2 = w1 + count, *w3 = w2 + count;
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        w = w3 + count;
        __asm__ volatile("dlstp.8 lr, %[n]\\n"
                         "1:\\n\\t"
                         "vldrb.8 q0, [%[y]], #16\\n\\t"
                         "vldrb.8 q1, [%[w0]], #16\\n\\t"
                         "vmladava.s8 %[s0], q0, q1\\n\\t"
                         "vldrb.8 q2, [%[w1]], #16\\n\\t"
                         "vmladava.s8 %[s1], q0, q2\\n\\t"
                         "vldrb.8 q1, [%[w2]], #16\\n\\t"
                         "vmladava.s8 %[s2], q0, q1\\n\\t"
                         "vldrb.8 q2, [%[w3]], #16\\n\\t"
                         "vmladava.s8 %[s3], q0, q2\\n\\t"
                         "letp lr, 1b"
                         : [s0] "+Te"(s0), [s1] "+Te"(s1), [s2] "+Te"(s2), [s3] "+Te"(s3),
                           [y] "+r"(y), [w0] "+r"(w0), [w1] "+r"(w1), [w2] "+r"(w2), [w3] "+r"(w3)
                         : [n] "r"(count)
                         : "q0", "q1", "q2", "lr", "memory");
        sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
        sums += 4;
    }}
    for (; columns > 0; --columns) {{
        const int8_t *y = x, *w0 = w;
        int32_t s0 = 0;
        w += count;
        __asm__ volatile("dlstp.8 lr, %[n]\\n"
                         "1:\\n\\t"
                         "vldrb.8 q0, [%[y]], #16\\n\\t"
                         "vldrb.8 q1, [%[w0]], #16\\n\\t"
                         "vmladava.s8 %[s0], q0, q1\\n\\t"
                         "letp lr, 1b"
                         : [s0] "+Te"(s0), [y] "+r"(y), [w0] "+r"(w0)
                         : [n] "r"(count)
                         : "q0", "q1", "lr", "memory");
        *sums++ = s0;
    }}
#else
    for (; columns > 0; --columns, w += count) {{
        int32_t sum = 0;
        for (int32_t k = 0; k < count; ++k) {{
            sum += x[k] * w[k];
        }}
        *sums++ = sum;
    }}
#endif
}}
"""

DOTS_3_TEXT = f"""\
/* Sums of products of three rows of x by columns of w, `count` bytes of each. */
APART static void dots_3(int32_t *sums, const int8_t *x, const int8_t *w, int32_t apart,
    int32_t stride, int32_t count, int32_t columns)
{{
{_VECTORS}\
#define SIXTEEN \\
    "vldrb.8 q0, [%[x0]], #16\\n\\t" \\
    "vldrb.8 q3, [%[w0]], #16\\n\\t" \\
    "vmladava.s8 %[s0], q0, q3\\n\\t" \\
    "vldrb.8 q1, [%[x1]], #16\\n\\t" \\
    "vmladava.s8 %[s1], q1, q3\\n\\t" \\
    "vldrb.8 q2, [%[x2]], #16\\n\\t" \\
    "vmladava.s8 %[s2], q2, q3\\n\\t" \\
    "vldrb.8 q3, [%[w1]], #16\\n\\t" \\
    "vmladava.s8 %[t0], q0, q3\\n\\t" \\
    "vmladava.s8 %[t1], q1, q3\\n\\t" \\
    "vmladava.s8 %[t2], q2, q3\\n\\t"
#define LOOP(begin, body, end, times) \\
    __asm__ volatile(begin " lr, %[n]\\n1:\\n\\t" body end " lr, 1b" \\
                     : [s0] "+Te"(s0), [s1] "+Te"(s1), [s2] "+Te"(s2), [t0] "+Te"(t0), \\
                       [t1] "+Te"(t1), [t2] "+Te"(t2), [x0] "+r"(x0), [x1] "+r"(x1), \\
                       [x2] "+r"(x2), [w0] "+r"(w0), [w1] "+r"(w1) \\
                     : [n] "r"(times) \\
                     : "q0", "q1", "q2", "q3", "lr", "memory")
    const int32_t turns = count % 48 == 0 ? count / 48 : count % 32 == 0 ? count / 32 : count;
    for (; columns >= 2; columns -= 2) {{
        const int8_t *x0 = x, *x1 = x + apart, *x2 = x1 + apart, *w0 = w, *w1 = w + count;
        int32_t s0 = 0, s1 = 0, s2 = 0, t0 = 0, t1 = 0, t2 = 0;
        w = w1 + count;
        if (3 * 16 * turns == count) {{
            LOOP("dls", SIXTEEN SIXTEEN SIXTEEN, "le", turns);
        }} else if (2 * 16 * turns == count) {{
            LOOP("dls", SIXTEEN SIXTEEN, "le", turns);
        }} else {{
            LOOP("dlstp.8", SIXTEEN, "letp", turns);
        }}
        sums[0] = s0, sums[1] = t0;
        sums[stride] = s1, sums[stride + 1] = t1;
        sums[2 * stride] = s2, sums[2 * stride + 1] = t2;
        sums += 2;
    }}
#undef LOOP
#undef SIXTEEN
#endif
    for (int32_t t = 0; t < 3; ++t) {{
        dots_1(sums + t * stride, x + t * apart, w, count, columns);
    }}
}}
"""
