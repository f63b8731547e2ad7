"""Instructions that kernels of several targets name in `Intrin` statements, and their meaning.

    dot4(sum, a, w, centre)    sum += (a[0] - centre) * w[0] + ... + (a[3] - centre) * w[3]

`sum` is an element of type i32 (sums wrap), `a` and `w` are loads of the first of four consecutive
elements (`a` int8 or uint8, `w` int8), `centre` is a constant within -256..255. In a vector loop
every lane has a sum and four elements of `w` of its own.
"""

from __future__ import annotations

from graphc.errors import InternalError
from graphc.ir.dtypes import i8, i32, u8
from graphc.ir.expr import Const, Expr, Load
from graphc.ir.kernel import Intrin, Store
from graphc.ir.simplify import simplify

DOT4 = "dot4"
LANES = 4


def dot4(total: Load, a: Load, w: Load, centre: int) -> Intrin:
    """The statement; the types must be those of the module's text."""
    if total.dtype is not i32 or a.dtype not in (i8, u8) or w.dtype is not i8:
        raise InternalError(f"dot4 of {total.dtype}, {a.dtype} and {w.dtype}")
    return Intrin(DOT4, (total, a, w, Const(centre, i32)))


def meaning_of_dot4(stmt: Intrin) -> Store:
    """The same in plain arithmetic."""
    total, a, w, centre = stmt.args
    assert stmt.name == DOT4 and isinstance(total, Load)
    value: Expr = total
    for lane in range(LANES):
        value = value + (_lane(a, lane).cast(i32) - centre) * _lane(w, lane).cast(i32)
    return Store(total.source, total.index, value)


def _lane(load: Expr, lane: int) -> Load:
    assert isinstance(load, Load)
    return Load(load.source, (simplify(load.index[0] + lane),), load.dtype)
