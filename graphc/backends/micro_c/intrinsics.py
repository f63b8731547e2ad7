"""Instructions that kernels for microcontrollers may name, their meaning, and their C.

    dot4(sum, a, w, centre)    see graphc/ir/instructions.py
    dot4_wide(sum, a, w)       likewise
    dot4_mixed(sum, a, w)
    dot4_codes(sum, a, w, shift, bits)

The `sum` of all is a scalar variable of type i32. On cores with the Arm DSP extension the four
bytes of dot4 are widened to two pairs of 16 bits, the centre being subtracted on the way, and two
instructions do two products each. Everywhere else these are four products. What multiplies
pairs that are there already is in pairs.py; byte_rows.py has dot products of whole rows of bytes,
and float_runs.py those of floats.

`clamp` of i32 is printed as `limit_i32`, which is one instruction where the limits are those of a
byte, and `mul_high_rounded` as a function of that name, which is one on cores with the DSP
extension; so is its sum with another number, and that of a number and a rounded shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphc.backends.cfamily.names import identifier
from graphc.backends.cfamily.printer import Unit
from graphc.backends.cfamily.spell import Text, function
from graphc.backends.micro_c import byte_rows, float_runs, pairs
from graphc.backends.micro_c.code_size import operators
from graphc.backends.micro_c.fixed_point import narrow
from graphc.backends.micro_c.mve import NAMES, definitions
from graphc.backends.micro_c.vector_printer import VectorPrinter
from graphc.ir.dtypes import i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Load, call, transform
from graphc.ir.instructions import DOT4, DOT4_CODES, DOT4_MIXED, DOT4_WIDE, meaning
from graphc.ir.kernel import Body, Intrin, Kernel, Stmt, map_body, map_nested

OF_ROWS = (byte_rows, float_runs)
HIGH = "mul_high_rounded"
CALLED = {"clamp": "limit_i32", HIGH: "mul_high_rounded_i32"}
HALF = "an upper half"  # sorts before the functions that call it
NEEDED = {"mul_high_rounded_i32": HALF, "mul_high_added_i32": HALF}

LIMIT_TEXT = """\
/* x kept within low..high. */
static inline int32_t limit_i32(int32_t x, int32_t low, int32_t high)
{
#if defined(__ARM_FEATURE_SAT) && defined(__GNUC__) && defined(__OPTIMIZE__)
    if (__builtin_constant_p(low) && __builtin_constant_p(high)) {
        int32_t y;
        if (low == -128 && high == 127) {
            __asm__("ssat %0, #8, %1" : "=r"(y) : "r"(x));
            return y;
        }
        if (low == 0 && high == 255) {
            __asm__("usat %0, #8, %1" : "=r"(y) : "r"(x));
            return y;
        }
    }
#elif defined(__thumb__) && !defined(__thumb2__) && defined(__GNUC__) && defined(__OPTIMIZE__)
    if (__builtin_constant_p(low) && __builtin_constant_p(high) && low == -128 && high == 127)
        return x == (int8_t)x ? x : (x >> 31) ^ 127;
#endif
    x = x < low ? low : x;
    return x > high ? high : x;
}
"""

HALF_TEXT = """\
/* The upper half of a product, rounded; of products of halves where there is no longer one. */
#if defined(__thumb__) && !defined(__thumb2__) && defined(__GNUC__)
static __attribute__((noinline)) int32_t upper_half_i32(int32_t a, int32_t b)
{
    const int32_t a_low = a & 65535, b_low = b & 65535, a_high = a >> 16, b_high = b >> 16;
    const int32_t lowest = (int32_t)(((uint32_t)a_low * (uint32_t)b_low) >> 16);
    const int32_t first = a_high * b_low + lowest + 32768; /* at most 2147483647 */
    const int32_t second = a_low * b_high + (first & 65535);
    return a_high * b_high + (first >> 16) + (second >> 16);
}
#else
static inline int32_t upper_half_i32(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + INT64_C(2147483648)) >> 32);
}
#endif
"""

HIGH_TEXT = """\
/* The upper half of a product, rounded. */
static inline int32_t mul_high_rounded_i32(int32_t a, int32_t b)
{
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && defined(__OPTIMIZE__)
    int32_t y;
    __asm__("smmulr %0, %1, %2" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    return upper_half_i32(a, b);
#endif
}
"""

ADDED_TEXT = """\
/* sum, and the upper half of a product, rounded. */
static inline int32_t mul_high_added_i32(int32_t sum, int32_t a, int32_t b)
{
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && defined(__OPTIMIZE__)
    int32_t y;
    __asm__("smmlar %0, %1, %2, %3" : "=r"(y) : "r"(a), "r"(b), "r"(sum));
    return y;
#else
    return (int32_t)((uint32_t)sum + (uint32_t)upper_half_i32(a, b));
#endif
}
"""

SHIFT_TEXT = """\
/* sum + x / 2**distance, rounded; distance is 2 to 30. */
static inline int32_t shr_rounded_added_i32(int32_t sum, int32_t x, int32_t distance)
{
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && defined(__OPTIMIZE__)
    int32_t y;
    __asm__("smmlar %0, %1, %2, %3" : "=r"(y) : "r"(x), "r"(1 << (32 - distance)), "r"(sum));
    return y;
#else
    return sum + ((x + (1 << (distance - 1))) >> distance);
#endif
}
"""

DOT4_TEXT = """\
/* sum + (a[0] - centre) * w[0] + ... + (a[3] - centre) * w[3]. */
static inline int32_t dot4_{type}(int32_t sum, const {c_type} *a, const int8_t *w, int32_t centre)
{{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
    const uint32_t shift = ((uint32_t)-centre & 0xffffu) * 0x10001u;
    uint32_t x, y, even, odd, even_w, odd_w;
    memcpy(&x, a, sizeof x);
    memcpy(&y, w, sizeof y);
    __asm__("{letter}xtab16 %0, %1, %2" : "=r"(even) : "r"(shift), "r"(x));
    __asm__("{letter}xtab16 %0, %1, %2, ror #8" : "=r"(odd) : "r"(shift), "r"(x));
    __asm__("sxtb16 %0, %1" : "=r"(even_w) : "r"(y));
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd_w) : "r"(y));
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(even), "r"(even_w), "r"(sum));
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(odd), "r"(odd_w), "r"(sum));
    return sum;
#else
    return sum + (a[0] - centre) * w[0] + (a[1] - centre) * w[1] + (a[2] - centre) * w[2] +
           (a[3] - centre) * w[3];
#endif
}}
"""

DOT4_WIDE_TEXT = """\
/* sum + a[0] * w[0] + ... + a[3] * w[3]. */
static inline int32_t dot4_wide(int32_t sum, const int16_t *a, const int16_t *w)
{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
    uint32_t x, more_x, y, more_y;
    a = __builtin_assume_aligned(a, 4);
    w = __builtin_assume_aligned(w, 4);
    memcpy(&x, a, sizeof x);
    memcpy(&more_x, a + 2, sizeof x);
    memcpy(&y, w, sizeof y);
    memcpy(&more_y, w + 2, sizeof y);
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(x), "r"(y), "r"(sum));
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(more_x), "r"(more_y), "r"(sum));
    return sum;
#else
    return sum + a[0] * w[0] + a[1] * w[1] + a[2] * w[2] + a[3] * w[3];
#endif
}
"""

DOT4_MIXED_TEXT = """\
/* sum + a[0] * w[0] + a[1] * w[2] + a[2] * w[1] + a[3] * w[3]. */
static inline int32_t dot4_mixed(int32_t sum, const int16_t *a, const int8_t *w)
{
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
    uint32_t x, more_x, y, first_w, last_w;
    memcpy(&x, a, sizeof x);
    memcpy(&more_x, a + 2, sizeof x);
    memcpy(&y, w, sizeof y);
    __asm__("sxtb16 %0, %1" : "=r"(first_w) : "r"(y));
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(last_w) : "r"(y));
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(x), "r"(first_w), "r"(sum));
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(more_x), "r"(last_w), "r"(sum));
    return sum;
#else
    return sum + a[0] * w[0] + a[1] * w[2] + a[2] * w[1] + a[3] * w[3];
#endif
}
"""

DOT4_CODES_TEXT = """\
/* sum + a[0] * c(w[0]) + ... + a[3] * c(w[3]); c(x) are so many bits of x from bit `shift` on. */
static inline int32_t dot4_codes(int32_t sum, const int8_t *a, const uint8_t *w, int32_t shift,
    int32_t bits)
{
    const uint32_t mask = (1u << bits) - 1u;
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
    uint32_t x, y, even, odd;
    memcpy(&x, a, sizeof x);
    memcpy(&y, w, sizeof y);
    __asm__("sxtb16 %0, %1" : "=r"(even) : "r"(x));
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(x));
    __asm__("smlad %0, %1, %2, %3"
            : "=r"(sum) : "r"(even), "r"(y >> shift & mask * 0x10001u), "r"(sum));
    __asm__("smlad %0, %1, %2, %3"
            : "=r"(sum) : "r"(odd), "r"(y >> (shift + 8) & mask * 0x10001u), "r"(sum));
    return sum;
#else
    return sum + a[0] * (int32_t)(w[0] >> shift & mask) + a[1] * (int32_t)(w[1] >> shift & mask) +
           a[2] * (int32_t)(w[2] >> shift & mask) + a[3] * (int32_t)(w[3] >> shift & mask);
#endif
}
"""

PRAGMA = """\
/* Everything stands where it is needed: moved elsewhere, it would not fit the registers. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__arm__)
#pragma GCC optimize({options})
#endif

"""


UNROLLED = """\
/* Loops are unrolled as far as it pays: more of it, as -O3 does, makes code longer, not faster. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__arm__) && defined(__OPTIMIZE__) && \\
    !defined(__OPTIMIZE_SIZE__)
#pragma GCC optimize("O2")
#endif

"""


def in_plain_loops(kernel: Kernel) -> Kernel:
    """The kernel with every instruction replaced by what it means."""
    return replace(kernel, body=_plain(kernel.body))


def _plain(body: Body) -> Body:
    return tuple(plain for stmt in body for plain in _meaning(stmt))


def _meaning(stmt: Stmt) -> Body:
    if not isinstance(stmt, Intrin):
        return (map_nested(stmt, _plain),)
    if stmt.name in pairs.NAMES:
        return pairs.meaning(stmt)
    if (of := _of_rows(stmt.name)) is not None:
        return of.meaning(stmt)
    return meaning(stmt)


def with_instructions(kernel: Kernel) -> Kernel:
    """The kernel with limits of constants, min(max(x, low), high) in i32, as `clamp`, and with
    `mul_high_rounded` in place of arithmetic in i64."""
    return replace(kernel, body=map_body(kernel.body, lambda e: transform(e, _instruction)))


def _instruction(node: Expr) -> Expr | None:
    if not (isinstance(node, Call) and node.dtype is i32):
        return None
    if node.op.name == "min":
        return _clamped(*node.args)
    return _high_half(node.args[0]) if node.op.name == "cast" else None


def _clamped(inner: Expr, high: Expr) -> Expr | None:
    if not (isinstance(inner, Call) and inner.op.name == "max" and isinstance(high, Const)):
        return None
    x, low = inner.args
    is_range = isinstance(low, Const) and low.value <= high.value
    return call("clamp", x, low, high) if is_range else None


def _high_half(node: Expr) -> Expr | None:
    """(a * b + 2**31) >> 32 of two i32, in i64."""
    total = _shifted_by_a_word(node)
    if not (isinstance(total, Call) and total.op.name == "add"):
        return None
    product, half = total.args
    if not (isinstance(half, Const) and half.value == 1 << 31 and isinstance(product, Call)):
        return None
    numbers = [narrow(factor) for factor in product.args] if product.op.name == "mul" else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return call(HIGH, numbers[0].cast(i32), numbers[1].cast(i32))


def _shifted_by_a_word(node: Expr) -> Expr | None:
    """What is shifted right by 32."""
    if not (isinstance(node, Call) and node.op.name == "shr" and node.dtype is i64):
        return None
    value, distance = node.args
    return value if isinstance(distance, Const) and distance.value == 32 else None


def _rounded_shift(node: Call) -> tuple[Expr, Expr] | None:
    """x and n of (x + 2**(n - 1)) >> n, if x is the upper half of a product: then nothing
    overflows."""
    if node.op.name != "shr":
        return None
    total, distance = node.args
    if not (isinstance(distance, Const) and 2 <= distance.value <= 30):
        return None
    if not (isinstance(total, Call) and total.op.name == "add"):
        return None
    x, half = total.args
    if not (isinstance(half, Const) and half.value == 1 << distance.value - 1):
        return None
    if not (isinstance(x, Call) and x.op.name == "cast" and x.dtype is i32):
        return None
    product = _shifted_by_a_word(x.args[0])
    is_product = isinstance(product, Call) and product.op.name == "mul"
    return (x, distance) if is_product else None


# ---------------------------------------------------------------- printing


class MicroPrinter(VectorPrinter):
    """Prints kernels with these instructions; `functions` collects what it needs."""

    def _fresh(self, node: Expr) -> Text:
        name, args = self._called(node) if isinstance(node, Call) else ("", ())
        if not name:
            return super()._fresh(node)
        self.functions |= {name, NEEDED.get(name, name)}
        return function(name, *map(self.expr, args))

    def _called(self, node: Call) -> tuple[str, Sequence[Expr]]:
        """The function that an operation is printed as, if any, and its arguments."""
        if node.op.name == "add" and node.dtype is i32:
            for total, high in (node.args, node.args[::-1]):
                if not isinstance(high, Call) or self.uses[high] > 1:
                    continue
                if high.op.name == HIGH:
                    return "mul_high_added_i32", (total, *high.args)
                if (parts := _rounded_shift(high)) is not None and self.uses[high.args[0]] < 2:
                    return "shr_rounded_added_i32", (total, *parts)
        return CALLED.get(node.op.name, ""), node.args

    def _intrin(self, stmt: Intrin) -> None:
        if stmt.name in pairs.NAMES:
            self._pairs(stmt)
            return
        if (of := _of_rows(stmt.name)) is not None:
            self._rows(stmt, of.arguments(stmt))
            return
        if stmt.name not in (DOT4, DOT4_WIDE, DOT4_MIXED, DOT4_CODES):
            raise self.fail(f"instruction {stmt.name} has no meaning in C")
        total, a, w, *numbers = stmt.args
        assert isinstance(total, Load) and isinstance(a, Load) and isinstance(w, Load)
        function = f"{stmt.name}_{a.dtype}" if stmt.name == DOT4 else stmt.name
        self.functions.add(function)
        with self.scope(*a.index, *w.index):
            places = [f"&{self.place(self.buffer(x.source), x.index)}" for x in (a, w)]
            name = self.place(self.buffer(total.source), total.index)
            arguments = ", ".join([name, *places, *(str(self.expr(x)) for x in numbers)])
            self.line(f"{name} = {function}({arguments});")

    def _pairs(self, stmt: Intrin) -> None:
        """An instruction of pairs.py: places are pointers, but for the sums of OF_WORDS."""
        total, *rest = stmt.args
        assert isinstance(total, Load)
        if stmt.name in pairs.OF_WORDS:
            self.functions.add(stmt.name)
            with self.scope(*rest):
                name, values = self.name(total.source), [str(self.expr(x)) for x in rest]
                self.line(f"{name} = {stmt.name}({', '.join([name, *values])});")
            return
        bytes_read = [x.dtype for x in rest if isinstance(x, Load) and x.dtype in (i8, u8)]
        function = f"{stmt.name}_{bytes_read[0]}" if bytes_read else stmt.name
        self.functions |= {function, *pairs.NEEDED.get(stmt.name, ())}
        with self.scope(*(i for x in stmt.args if isinstance(x, Load) for i in x.index)):
            arguments = ", ".join(map(self._argument, stmt.args))
            self.line(f"{function}({arguments});")

    def _rows(self, stmt: Intrin, values: Sequence[Expr]) -> None:
        """An instruction of byte_rows.py or float_runs.py."""
        self.functions |= {pairs.APART, stmt.name}
        with self.scope(*(i for x in values if isinstance(x, Load) for i in x.index)):
            self.line(f"{stmt.name}({', '.join(map(self._argument, values))});")

    def _argument(self, value: Expr) -> str:
        """A pointer to what a load reads; else the value."""
        if not isinstance(value, Load):
            return str(self.expr(value))
        if not value.index:
            return f"&{self.name(value.source)}"
        return f"&{self.place(self.buffer(value.source), value.index)}"


class MicroUnit(Unit):
    """A C file with the helpers of the instructions it uses. `as_written`: compilers are asked
    to unroll no loop."""

    def __init__(self, *args: Any, as_written: bool = False):
        super().__init__(*args)
        self.as_written = as_written
        self.functions_needed: set[str] = set()

    def kernel(self, kernel: Kernel) -> str:
        """Adds a kernel; returns the name of its C function."""
        name = identifier(kernel.name, self.names.values())
        self.names[kernel.name] = name
        printer = MicroPrinter(
            kernel, name, self.speller, self.dialect, functions=self.functions_needed
        )
        self.functions.append(self._qualified(printer.text(), name))
        return name

    def _qualified(self, text: str, name: str) -> str:
        """A function, marked if it is a long one of vectors."""
        if operators(text) <= LONG or not self.functions_needed & NAMES:
            return text
        self.functions_needed.add(LONG_KERNEL)
        qualifiers, _, result = self.dialect.function.rpartition(" ")
        head = f"{self.dialect.function} {name}("
        return text.replace(head, f"{qualifiers} {LONG_KERNEL} {result} {name}(", 1)

    def text(self) -> str:
        """Helpers, instructions, functions."""
        vectors = self.functions_needed & NAMES
        own = sorted(self.functions_needed - NAMES)
        helpers = "".join(_helper(name) + "\n" for name in own)
        if vectors:
            helpers = definitions(vectors) + "\n" + helpers
        options = ['"no-schedule-insns"'] if vectors or DOT4_NAMES.intersection(own) else []
        options += ['"no-tree-ter"'] if vectors else []
        pragma = PRAGMA.format(options=", ".join(options)) if options else ""
        unrolled = pairs.HELPERS.keys() & own and not any(map(float_runs.NAME.fullmatch, own))
        pragma = UNROLLED + pragma if unrolled or self.as_written else pragma
        return pragma + helpers + super().text()


def _helper(name: str) -> str:
    """The C of a function that instructions need."""
    of = _of_rows(name)
    return HELPERS[name] if of is None else of.text(name)


def _of_rows(name: str) -> Any:
    """The module of an instruction whose name tells its shape; None if it is another."""
    return next((of for of in OF_ROWS if of.NAME.fullmatch(name)), None)


DOT4_NAMES = {
    "dot4_i8", "dot4_u8", DOT4_WIDE, DOT4_MIXED, DOT4_CODES, pairs.DOT2, "dot_1x4_i8",
}  # fmt: skip
LONG = 165  # operators
LONG_KERNEL = "LONG_KERNEL"
LONG_TEXT = """\
/* Of functions that are long: unrolling their loops, as -O3 does, makes them longer, not faster. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__arm__) && defined(__OPTIMIZE__) && \\
    !defined(__OPTIMIZE_SIZE__)
#define LONG_KERNEL __attribute__((optimize("O2", "no-schedule-insns", "no-tree-ter")))
#else
#define LONG_KERNEL
#endif
"""
HELPERS = {
    **pairs.HELPERS,
    LONG_KERNEL: LONG_TEXT,
    HALF: HALF_TEXT,
    "limit_i32": LIMIT_TEXT,
    DOT4_WIDE: DOT4_WIDE_TEXT,
    DOT4_CODES: DOT4_CODES_TEXT,
    DOT4_MIXED: DOT4_MIXED_TEXT,
    "mul_high_rounded_i32": HIGH_TEXT,
    "mul_high_added_i32": ADDED_TEXT,
    "shr_rounded_added_i32": SHIFT_TEXT,
    "dot4_i8": DOT4_TEXT.format(type="i8", c_type="int8_t", letter="s"),
    "dot4_u8": DOT4_TEXT.format(type="u8", c_type="uint8_t", letter="u"),
}
