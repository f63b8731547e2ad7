"""Sums of products of rows of bytes by columns of bytes, for the M-profile Vector Extension.

    dots_ROWSxCOLUMNSxCOUNT(sums, x, w, apart)
        for t in 0..rows - 1, c in 0..columns - 1:
            sums[stride t + c] = x[apart t] * w[count c] + ... (`count` products of neighbours)

`sums`, `x` and `w` are loads of the first of several i32, int8 and int8; there are 1 to 3 rows.
`stride` is `columns`, rounded up to a vector (`stride_of`).

Compilers move sums between registers and memory in such loops, so that they are assembler, a
function for every number of rows, columns and products. Sixteen products are one instruction
(vmladava), whose sum is an even register. A tile is all rows by a few columns. Rows of a few
vectors stay in registers for all columns, or the products of a tile are unrolled; of longer ones
they are in a loop. What is left of a row is loaded with zeros in the other lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from graphc.backends.micro_c.vectors import BYTES, LANES
from graphc.ir.addresses import element_after
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Index, Load
from graphc.ir.kernel import Body, For, Intrin, Store
from graphc.ir.simplify import simplify

ROWS = 3  # the most of a tile
TILE_COLUMNS = {1: 4, 2: 2, 3: 2}  # by rows
KEPT = 6  # vectors of rows in registers
UNROLLED = 5  # vectors of a row, up to which there is no loop over them
NAME = re.compile(r"dots_(\d)x(\d+)x(\d+)")


def dots(sums: Load, x: Load, w: Load, rows: int, apart: int, count: int, columns: int) -> Intrin:
    """The statement."""
    return Intrin(f"dots_{rows}x{columns}x{count}", (sums, x, w, Const(apart, i64)))


def stride_of(columns: int) -> int:
    """How far apart the sums of rows are."""
    return -(-columns // LANES) * LANES


def meaning(stmt: Intrin) -> Body:
    """The same in plain statements."""
    sums, x, w, apart = stmt.args
    assert isinstance(sums, Load) and isinstance(x, Load) and isinstance(w, Load)
    rows, columns, count = _shape(stmt.name)
    t, c, k = (
        Index(f"{name}_of_{sums.source}", extent)
        for name, extent in (("row", rows), ("column", columns), ("element", count))
    )
    place = simplify(sums.index[0] + (t * stride_of(columns) + c))
    total = Load(sums.source, (place,), i32)
    product = element_after(x, apart * t + k).cast(i32) * element_after(w, c * count + k).cast(i32)
    inner = For(k, (Store(sums.source, (place,), total + product),))
    column = For(c, (Store(sums.source, (place,), Const(0, i32)), inner))
    return (For(t, (column,)),)


def _shape(name: str) -> tuple[int, int, int]:
    """Rows, columns and products of a name."""
    named = NAME.fullmatch(name)
    assert named is not None
    rows, columns, count = map(int, named.groups())
    return rows, columns, count


def vectors(stmt: Intrin) -> int:
    """How many times sixteen products there are."""
    rows, columns, count = _shape(stmt.name)
    return rows * columns * -(-count // BYTES)


def arguments(stmt: Intrin) -> tuple[Expr, ...]:
    """Those of the C function: a single row is not apart from others."""
    return stmt.args if _shape(stmt.name)[0] > 1 else stmt.args[:3]


# ---------------------------------------------------------------- C


def text(name: str) -> str:
    """The function of a name."""
    return _Function(*_shape(name)).text()


FUNCTION = """\
/* Sums of products of {what} by {columns} of w, {count} bytes each. */
APART static void {name}(int32_t *sums, const int8_t *x, const int8_t *w{apart})
{{
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__) && !defined(__clang__) && \\
    defined(__OPTIMIZE__) && !defined(__ARM_BIG_ENDIAN)
{vectors}#else
    for (int32_t t = 0; t < {rows}; ++t) {{
        for (int32_t c = 0; c < {columns_number}; ++c) {{
            int32_t sum = 0;
            for (int32_t k = 0; k < {count}; ++k) {{
                sum += x[{row}k] * w[c * {count} + k];
            }}
            sums[t * {stride} + c] = sum;
        }}
    }}
#endif
}}
"""


@dataclass(frozen=True)
class _Function:
    """Rows by columns, `count` products for each sum."""

    rows: int
    columns: int
    count: int

    def text(self) -> str:
        several = self.rows > 1
        return FUNCTION.format(
            what=f"{self.rows} rows of x" if several else "x",
            columns=f"{self.columns} columns" if self.columns > 1 else "a column",
            columns_number=self.columns, count=self.count, rows=self.rows,
            name=f"dots_{self.rows}x{self.columns}x{self.count}",
            apart=", int32_t apart" if several else "",
            row="t * apart + " if several else "",
            stride=stride_of(self.columns), vectors=self._vectors(),
        )  # fmt: skip

    def _vectors(self) -> str:
        tiles = _Tiles(self, min(TILE_COLUMNS[self.rows], self.columns))
        lines = [*_pointers(tiles.named, "apart", 4), *tiles.lines()]
        return "".join(line + "\n" for line in lines)


@dataclass(frozen=True)
class _Tiles:
    """Tiles of some columns, one after another, as a statement of assembler. If columns are left
    over, a tile of the last ones follows. Three rows take twelve registers: none is left to count
    tiles where one points to the frame."""

    of: _Function
    columns: int

    @property
    def number(self) -> int:
        """Of whole tiles."""
        return self.of.columns // self.columns

    @property
    def again(self) -> int:
        """The columns that the last tile computes anew; 0 if there are none left over."""
        return -self.of.columns % self.columns

    @property
    def several(self) -> bool:
        """Whether there is more than one tile."""
        return self.number > 1 or self.again > 0

    @property
    def chunks(self) -> int:
        return -(-self.of.count // BYTES)

    @property
    def tail(self) -> int:
        """The bytes of the last vector of a row; 0 if it is whole."""
        return self.of.count % BYTES

    @property
    def kept(self) -> bool:
        """Whether rows stay in registers."""
        return self.of.rows * self.chunks <= KEPT

    @property
    def looped(self) -> bool:
        """Whether there is a loop over the vectors of a row."""
        return not self.kept and self.chunks > UNROLLED

    @property
    def named(self) -> list[str]:
        """The pointers to rows."""
        return ["x", *(f"x{t}" for t in range(1, self.of.rows))]

    @property
    def pointers(self) -> list[str]:
        """Those to columns: one for each, or one that runs through all."""
        return ["w"] if self.kept else ["w", *(f"w{c}" for c in range(1, self.columns))]

    def lines(self) -> Iterator[str]:
        count, columns = self.of.count, self.columns
        sums = [f"s{t}{c}" for t in range(self.of.rows) for c in range(columns)]
        yield f"    int32_t {', '.join(sums)};"
        yield "    {"
        yield from _pointers(self.pointers, str(count), 8)
        ends = self.looped and self.several
        if ends:
            yield f"        const int8_t *const end = w + {self.number * columns * count};"
        code = [*self._before(), *self._tile(), *self._after()]
        yield "        __asm__ volatile("
        yield from (f'            "{line}\\n\\t"' for line in code)
        outputs = [f'[{s}] "=&Te"({s})' for s in sums]
        outputs += [f'[{p}] "+r"({p})' for p in [*self.named, *self.pointers, "sums"]]
        yield "            : " + ",\n              ".join(outputs)
        yield "            :" + (' [end] "m"(end)' if ends else "")
        used = [*(f'"q{n}"' for n in range(8)), *(['"p0"'] if self.tail else [])]
        yield f'            : {", ".join(used)}, "lr", "cc", "memory");'
        yield "    }"

    def _before(self) -> Iterator[str]:
        if self.tail:
            yield f"movw lr, #{self.tail}"
            yield "vctp.8 lr"
        if self.kept:
            yield from self._rows_kept()
        if self.looped:
            yield from ["2:"] if self.several else []
            return
        if self.again:
            yield "cmp %[sums], %[sums]"  # equal until the last columns follow
        if self.number > 1:
            yield from self._counted(self.number)
        yield from ["1:"] if self.several else []

    def _after(self) -> Iterator[str]:
        """The next tile, and the last columns."""
        if self.looped and self.several:
            yield "ldr lr, %[end]"
            yield "cmp %[w], lr"
            yield "blo 2b"
        elif self.number > 1:
            yield "le lr, 1b"
        if not self.again:
            return
        yield f"{'bhi' if self.looped else 'bne'} 3f"
        yield from _moved("sub", self.pointers, self.pointers, self.again * self.of.count)
        yield f"sub %[sums], %[sums], #{4 * self.again}"
        if self.looped:
            yield "b 2b"
        else:
            yield from self._counted(1)
            yield "cmp lr, #0"
            yield "b 1b"
        yield "3:"

    def _counted(self, turns: int) -> Iterator[str]:
        yield f"movw lr, #{turns}"
        yield "dls lr, lr"

    def _rows_kept(self) -> Iterator[str]:
        for t, x in enumerate(self.named):
            for n in range(self.chunks):
                q = f"q{t * self.chunks + n}"
                last = bool(self.tail) and n == self.chunks - 1
                yield from ["vpst"] if last else []
                yield f"vldrb{'t' if last else ''}.8 {q}, [%[{x}], #{n * BYTES}]"

    def _tile(self) -> Iterator[str]:
        """The sums of a tile, and their stores."""
        if self.kept:
            yield from self._by_column()
        elif self.looped:
            yield from self._in_a_loop()
        else:
            for n in range(self.chunks):
                yield from self._chunk(n, n == 0, fixed=True)
            yield from self._next_columns()
        yield from self._stores()

    def _by_column(self) -> Iterator[str]:
        """All products of a column with the rows that are in registers."""
        for c in range(self.columns):
            for n in range(self.chunks):
                q, last = f"q{6 + n % 2}", bool(self.tail) and n == self.chunks - 1
                guarded = last and c == self.columns - 1
                yield from ["vpst"] if guarded else []
                step = self.tail if last else BYTES
                yield f"vldrb{'t' if guarded else ''}.8 {q}, [%[w]], #{step}"
                for t in range(self.of.rows):
                    yield _product(t, c, f"q{t * self.chunks + n}", q, n == 0)

    def _in_a_loop(self) -> Iterator[str]:
        whole = self.of.count // BYTES
        unroll = 3 if whole % 3 == 0 else 2
        turns, left = divmod(whole, unroll)
        for t in range(self.of.rows):
            for c in range(self.columns):
                yield f"mov %[s{t}{c}], #0"
        yield from self._counted(turns)
        yield "1:"
        for _ in range(unroll):
            yield from self._chunk(0, False, fixed=False)
        yield "le lr, 1b"
        for n in range(left + bool(self.tail)):
            yield from self._chunk(self.chunks - left - bool(self.tail) + n, False, fixed=False)
        yield from _moved("sub", self.named, self.named, self.chunks * BYTES)
        yield from self._next_columns()

    def _chunk(self, n: int, first: bool, fixed: bool) -> Iterator[str]:
        """Sixteen products for every sum of a tile: the rows' bytes in q0 on, those of columns in
        the registers after. Rows are read at `fixed` places, or the pointers move on."""
        rows, columns, last = self.of.rows, self.columns, n == self.chunks - 1 and bool(self.tail)
        place = f"[%[{{}}], #{n * BYTES}]" if fixed else f"[%[{{}}]], #{BYTES}"
        step = self.tail if last else BYTES
        t = "t" if last else ""
        loads = [f"vldrb{t}.8 q{r}, {place.format(x)}" for r, x in enumerate(self.named)]
        columns_loaded = [
            f"vldrb{t if c == columns - 1 else ''}.8 q{rows + c}, [%[{w}]], #{step}"
            for c, w in enumerate(self.pointers)
        ]
        if last:
            yield "vpst" + "t" * rows
            yield from [*loads, columns_loaded[-1], *columns_loaded[:-1]]
        else:
            yield from [*loads, columns_loaded[0]]
        for c in range(columns):
            if c and not last:
                yield columns_loaded[c]
            for r in range(rows):
                yield _product(r, c, f"q{r}", f"q{rows + c}", first)

    def _next_columns(self) -> Iterator[str]:
        """The pointers are past their columns: those of the next tile follow the last."""
        if len(self.pointers) > 1:
            yield f"mov %[w], %[{self.pointers[-1]}]"
            if self.several:
                yield from _moved("add", self.pointers[1:], self.pointers, self.of.count)

    def _stores(self) -> Iterator[str]:
        stride = 4 * stride_of(self.of.columns)
        for t in range(self.of.rows - 1, -1, -1):
            moves = f", #{t * stride}]" if t else f"], #{4 * self.columns}"
            if self.columns == 4:
                yield f"strd %[s{t}2], %[s{t}3], [%[sums], #{t * stride + 8}]"
            if self.columns == 3:
                yield f"str %[s{t}2], [%[sums], #{t * stride + 8}]"
            if self.columns == 1:
                yield f"str %[s{t}0], [%[sums]{moves}"
            else:
                yield f"strd %[s{t}0], %[s{t}1], [%[sums]{moves}"


def _pointers(names: list[str], apart: str, indent: int) -> Iterator[str]:
    """The declarations of pointers so far apart, but for the first, which is a parameter."""
    for before, name in zip(names, names[1:]):
        yield f"{' ' * indent}const int8_t *{name} = {before} + {apart};"


def _product(row: int, column: int, x: str, w: str, first: bool) -> str:
    """Sixteen products added to a sum, or the first of it."""
    return f"vmladav{'' if first else 'a'}.s8 %[s{row}{column}], {x}, {w}"


def _moved(operation: str, results: list[str], pointers: list[str], distance: int) -> Iterator[str]:
    """Pointers so far from others; lr holds distances that instructions cannot."""
    far = distance >= 1 << 12
    if far:
        yield f"movw lr, #{distance & 0xFFFF}"
    if distance >> 16:
        yield f"movt lr, #{distance >> 16}"
    for result, pointer in zip(results, pointers):
        by = "lr" if far else f"#{distance}"
        yield f"{operation}{'' if far else 'w'} %[{result}], %[{pointer}], {by}"
