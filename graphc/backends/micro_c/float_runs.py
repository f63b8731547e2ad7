"""Sums of products of floats that lie in a row, for cores that multiply and add single floats.

    run_ROWSxCOLUMNS_f32(sums, x, w, apart, count)    sum_...: after sums = 0
        for k in 0..count - 1, t in 0..rows - 1, c in 0..columns - 1:
            sums[columns t + c] = fma(x[apart t + k], w[columns k + c], sums[columns t + c])

`sums`, `x` and `w` are loads of the first of several f32. Compilers load floats one by one. In
assembler one instruction loads those of some steps for a row, and one those of all columns: a
function for every shape that fits the registers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from graphc.ir.addresses import element_after
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Expr, Index, Load, call
from graphc.ir.kernel import Body, For, Intrin, Store
from graphc.ir.types import largest

NAME = re.compile(r"(run|sum)_(\d+)x(\d+)_f32")
REGISTERS = 32
MOST_LOADED = 16  # registers of an instruction
MOST_ROWS = 8  # each has a pointer, and 12 registers are free for those, w, sums, zeros and count
TWICE = 2  # how often what is loaded at once is loaded in a loop


def run(
    sums: Load, x: Load, w: Load, shape: tuple[int, int], apart: int, count: int, alone: bool
) -> Intrin:
    """The statement, for rows by columns: `alone` if there are no sums yet."""
    numbers, (rows, columns) = (Const(apart, i64), Const(count, i64)), shape
    return Intrin(f"{'sum' if alone else 'run'}_{rows}x{columns}_f32", (sums, x, w, *numbers))


def fits(rows: int, columns: int) -> bool:
    """Whether there are registers for sums, for what a step loads and for pointers."""
    return rows <= MOST_ROWS and rows * columns + rows + columns <= REGISTERS


def meaning(stmt: Intrin) -> Body:
    """The same in plain statements."""
    sums, x, w, apart, count = stmt.args
    assert isinstance(sums, Load) and isinstance(x, Load) and isinstance(w, Load)
    rows, columns = _shape(stmt.name)
    extent = int(count.value) if isinstance(count, Const) else count
    k = Index(f"step_of_{sums.source}", extent)
    t, c = Index(f"row_of_{sums.source}", rows), Index(f"column_of_{sums.source}", columns)
    total = element_after(sums, t * columns + c)
    value = call("fma", element_after(x, apart * t + k), element_after(w, k * columns + c), total)
    inner = For(c, (Store(total.source, total.index, value),))
    zero = For(c, (Store(total.source, total.index, Const(0, f32)),))
    before = (For(t, (zero,)),) if _is_alone(stmt.name) else ()
    return (*before, For(k, (For(t, (inner,)),)))


def _shape(name: str) -> tuple[int, int]:
    """Rows and columns of a name."""
    named = NAME.fullmatch(name)
    assert named is not None
    return int(named[2]), int(named[3])


def _is_alone(name: str) -> bool:
    """Whether sums are set, not added to."""
    return name.startswith("sum")


def operations(stmt: Intrin) -> tuple[int, int]:
    """How many products there are, and how many instructions load what is multiplied."""
    (rows, columns), count = _shape(stmt.name), largest(stmt.args[4])
    return rows * columns * count, (rows + 1) * -(-count // 2)


def arguments(stmt: Intrin) -> tuple[Expr, ...]:
    """Those of the C function: a single row is not apart from others."""
    return stmt.args if _shape(stmt.name)[0] > 1 else (*stmt.args[:3], stmt.args[4])


# ---------------------------------------------------------------- C


def text(name: str) -> str:
    """The function of a name."""
    return _Function(*_shape(name), _is_alone(name)).text()


ZEROED = """\
    for (int32_t n = 0; n < {sums}; ++n) {{
        sums[n] = 0.0f;
    }}
"""
FUNCTION = """\
/* Sums of products of `count` floats of {what} by as many of {columns} columns of w{added}. */
APART static void {name}(float *sums, const float *x, const float *w, {apart}int32_t count)
{{
#if defined(__ARM_FP) && defined(__ARM_FEATURE_FMA) && defined(__thumb2__) && \\
    defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
{assembler}#else
{zeroed}    for (int32_t k = 0; k < count; ++k) {{
        for (int32_t t = 0; t < {rows}; ++t) {{
            for (int32_t c = 0; c < {columns}; ++c) {{
                sums[t * {columns} + c] += x[{row}k] * w[k * {columns} + c];
            }}
        }}
    }}
#endif
}}
"""


@dataclass(frozen=True)
class _Function:
    rows: int
    columns: int
    alone: bool

    def text(self) -> str:
        several = self.rows > 1
        return FUNCTION.format(
            what=f"each of {self.rows} rows of x" if several else "x", columns=self.columns,
            added="" if self.alone else ", added to sums", 
            zeroed=ZEROED.format(sums=self._sums) if self.alone else "",
            rows=self.rows, name=f"{'sum' if self.alone else 'run'}_{self.rows}x{self.columns}_f32",
            apart="int32_t apart, " if several else "", row="t * apart + " if several else "",
            assembler="".join(line + "\n" for line in self._assembler()),
        )  # fmt: skip

    def _assembler(self) -> Iterator[str]:
        pointers = ["x", *(f"x{t}" for t in range(1, self.rows))]
        if self.alone:
            yield f"    static const float zeros[{self._sums}] = {{0}};"
        for before, pointer in zip(pointers, pointers[1:]):
            yield f"    const float *{pointer} = {before} + apart;"
        yield "    __asm__ volatile("
        yield from (f'        "{line}\\n\\t"' for line in self._code(pointers))
        operands = [f'[{p}] "+r"({p})' for p in (*pointers, "w", "count")]
        yield f"        : {', '.join(operands)}"
        start = ', [start] "r"(zeros)' if self.alone else ""
        yield f'        : [sums] "r"(sums){start}'
        used = ", ".join(f'"s{n}"' for n in range(self._used))
        yield f'        : {used}, "cc", "memory");'

    @property
    def _sums(self) -> int:
        return self.rows * self.columns

    @property
    def _used(self) -> int:
        steps, together = self._steps
        return self._sums + together * self.columns + steps * self.rows

    @property
    def _steps(self) -> tuple[int, int]:
        """The steps that are unrolled, for which a row is loaded at once; and those for which
        columns are."""
        left = REGISTERS - self._sums
        fitting = [
            (steps, together)
            for steps in (1, 2, 4) for together in (1, 2, 4)
            if together <= steps and together * self.columns <= MOST_LOADED
            and together * self.columns + steps * self.rows <= left
        ]  # fmt: skip
        return min(fitting, key=lambda p: self.rows / p[0] + 1 / p[1])

    def _code(self, pointers: list[str]) -> Iterator[str]:
        """Sums are in the first registers, then columns, then rows."""
        steps, together = self._steps
        yield f"vldmia %[{'start' if self.alone else 'sums'}], {_registers(0, self._sums)}"
        yield f"subs %[count], %[count], #{TWICE * steps}"
        yield "blt 2f"
        yield "1:"
        for _ in range(TWICE):
            yield from self._unrolled(pointers, steps, together)
        yield f"subs %[count], %[count], #{TWICE * steps}"
        yield "bge 1b"
        yield "2:"
        yield f"adds %[count], %[count], #{TWICE * steps}"
        yield "beq 4f"
        yield "3:"
        yield from self._unrolled(pointers, 1, 1)
        yield "subs %[count], %[count], #1"
        yield "bne 3b"
        yield "4:"
        yield f"vstmia %[sums], {_registers(0, self._sums)}"

    def _unrolled(self, pointers: list[str], steps: int, together: int) -> Iterator[str]:
        w, x = self._sums, self._sums + together * self.columns
        for t, pointer in enumerate(pointers):
            yield f"vldmia %[{pointer}]!, {_registers(x + steps * t, steps)}"
        for k in range(steps):
            if k % together == 0:
                yield f"vldmia %[w]!, {_registers(w, together * self.columns)}"
            for t in range(self.rows):
                for c in range(self.columns):
                    a, b = x + steps * t + k, w + k % together * self.columns + c
                    yield f"vfma.f32 s{t * self.columns + c}, s{a}, s{b}"


def _registers(first: int, number: int) -> str:
    return "{" + ", ".join(f"s{n}" for n in range(first, first + number)) + "}"
