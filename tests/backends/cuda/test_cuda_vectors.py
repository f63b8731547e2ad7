"""Neighbours in memory that one access reads or writes."""

from graphc.backends.cuda.strategies.vectors import are_neighbours, elements, loaded, unconditional
from graphc.ir.dtypes import f16, f32, i4, i64
from graphc.ir.expr import Const, Index, Load, select
from graphc.ir.kernel import Buffer, Intrin, KernelBuilder

ROW, COLUMN = Index("row", 8), Index("column", 16)


def offsets(count: int, stride: int = 32, start: int = 0) -> list:
    return [ROW * stride + COLUMN * count + n + start for n in range(count)]


def test_neighbours_are_aligned_and_fit_an_access():
    assert are_neighbours(f32, offsets(4)) and are_neighbours(f16, offsets(8))
    assert are_neighbours(i64, offsets(2))
    assert not are_neighbours(f32, offsets(8))  # 32 bytes
    assert not are_neighbours(f32, offsets(1))
    assert not are_neighbours(f32, offsets(4, stride=30))  # not aligned in every row
    assert not are_neighbours(f32, offsets(4, start=2))
    assert not are_neighbours(f32, [ROW, ROW + 2])
    assert not are_neighbours(i4, offsets(4))  # two to a byte


def test_guarded_loads_stay_where_they_are():
    plain, guarded = Load("x", (COLUMN,), f32), Load("y", (COLUMN,), f32)
    expr = plain + select(COLUMN < 3, guarded, Const(0, f32))
    assert unconditional([expr]) == [plain]


def test_loads_of_neighbours_become_one():
    x = Buffer("x", f32, (16,), "in")
    k = KernelBuilder()
    places = [{COLUMN: ROW * 2 + n} for n in range(2)]
    every, twice = x[COLUMN], x[COLUMN * 2]
    held = loaded(k, [every + twice], places)
    assert list(held) == [every]
    last = k.body()[-1]
    assert isinstance(last, Intrin) and last.args == (x[ROW * 2], *elements(held[every]))
