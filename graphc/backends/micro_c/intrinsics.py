"""Instructions that kernels for microcontrollers may name, their meaning, and their C.

    dot4(sum, a, w, centre)    sum += (a[0] - centre) * w[0] + ... + (a[3] - centre) * w[3]

`sum` is a scalar variable of type i32, `a` and `w` are loads of the first of four consecutive
elements (`a` int8 or uint8, `w` int8), `centre` is a constant within -256..255. On cores with the
Arm DSP extension four bytes are widened to two pairs of 16 bits, the centre being subtracted on
the way, and two instructions do two products each. Everywhere else it is four products.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.backends.cfamily.printer import KernelPrinter, Unit, identifier
from graphc.errors import InternalError
from graphc.ir.dtypes import DType, i8, i32, u8
from graphc.ir.expr import Const, Expr, Load
from graphc.ir.kernel import Body, For, If, Intrin, Kernel, Stmt, Store, While
from graphc.ir.simplify import simplify

DOT4 = "dot4"
LANES = 4

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


PRAGMA = """\
/* The loads stand where they are needed: moved up, they would not fit the registers. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__arm__)
#pragma GCC optimize("no-schedule-insns")
#endif

"""


def dot4(total: Load, a: Load, w: Load, centre: int) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype not in (i8, u8) or w.dtype is not i8:
        raise InternalError(f"dot4 of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT4, (total, a, w, Const(centre, i32)))


def in_plain_loops(kernel: Kernel) -> Kernel:
    """The kernel with every instruction replaced by what it means."""
    return replace(kernel, body=_plain(kernel.body))


def _plain(body: Body) -> Body:
    return tuple(plain for stmt in body for plain in _meaning(stmt))


def _meaning(stmt: Stmt) -> Body:
    if isinstance(stmt, (For, While)):
        return (replace(stmt, body=_plain(stmt.body)),)
    if isinstance(stmt, If):
        return (replace(stmt, then=_plain(stmt.then), orelse=_plain(stmt.orelse)),)
    if not isinstance(stmt, Intrin):
        return (stmt,)
    total, a, w, centre = stmt.args
    assert stmt.name == DOT4 and isinstance(total, Load)
    value: Expr = total
    for lane in range(LANES):
        value = value + (_lane(a, lane).cast(i32) - centre) * _lane(w, lane).cast(i32)
    return (Store(total.source, (), value),)


def _lane(load: Expr, lane: int) -> Load:
    assert isinstance(load, Load)
    return Load(load.source, (simplify(load.index[0] + lane),), load.dtype)


# ---------------------------------------------------------------- printing


class MicroPrinter(KernelPrinter):
    """Prints kernels with these instructions."""

    def __init__(self, *args, instructions: set[DType]):
        super().__init__(*args)
        self.instructions = instructions

    def _intrin(self, stmt: Intrin) -> None:
        if stmt.name != DOT4:
            raise self.fail(f"instruction {stmt.name} has no meaning in C")
        total, a, w, centre = stmt.args
        assert isinstance(total, Load) and isinstance(a, Load) and isinstance(w, Load)
        self.instructions.add(a.dtype)
        with self.scope(*a.index, *w.index):
            places = [f"&{self._place(self._buffer(x.source), x.index)}" for x in (a, w)]
            name = self.name(total.source)
            arguments = ", ".join([name, *places, str(self.expr(centre))])
            self.line(f"{name} = dot4_{a.dtype}({arguments});")


class MicroUnit(Unit):
    """A C file with the helpers of the instructions it uses."""

    def __init__(self, *args):
        super().__init__(*args)
        self.instructions: set[DType] = set()

    def kernel(self, kernel: Kernel) -> str:
        """Adds a kernel; returns the name of its C function."""
        name = identifier(kernel.name, self.names.values())
        self.names[kernel.name] = name
        printer = MicroPrinter(
            kernel, name, self.speller, self.dialect, instructions=self.instructions
        )
        self.functions.append(printer.text())
        return name

    def text(self) -> str:
        """Helpers, instructions, functions."""
        used = sorted(self.instructions, key=lambda dtype: dtype.name)
        helpers = "".join(_helper(dtype) + "\n" for dtype in used)
        return (PRAGMA if used else "") + helpers + super().text()


def _helper(dtype: DType) -> str:
    signed = dtype is i8
    return DOT4_TEXT.format(
        type=dtype.name, c_type="int8_t" if signed else "uint8_t", letter="s" if signed else "u"
    )
