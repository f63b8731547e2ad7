"""transpose (graphc/ir/instructions.py) as LLVM IR: a square tile in registers.

Blocks beside the diagonal change places, first halves of the tile, then halves of these, down to
single elements: each step is one shuffle of two rows per row, and log2 of the side are needed
(J. O. Eklundh, A Fast Computer Method for Matrix Transposing, 1972).
"""

from __future__ import annotations

from graphc.backends.llvm_cpu import spell
from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.backends.llvm_cpu.spell import Typed
from graphc.errors import InternalError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Load
from graphc.ir.kernel import Intrin


def emit_transpose(e: ExprEmitter, stmt: Intrin) -> None:
    """Emits the statement; the side must be a power of two."""
    first, count = stmt.args
    assert isinstance(first, Load) and isinstance(count, Const)
    side, storage = count.value, e.storage[first.source]
    if e.vector is not None or side & (side - 1):
        raise InternalError(f"{stmt} stands in a vector loop, or {side} is no power of two")
    kind = spell.vector_of(spell.storage_type(storage.dtype), side)
    places = [e.element_pointer(storage, Typed(str(r * side), i64)) for r in range(side)]
    rows = [e.read(f"load {kind}, ptr {place}, align {storage.dtype.size}") for place in places]
    step = side // 2
    while step:
        for r in range(side):
            if not r & step:
                pair = f"{kind} {rows[r]}, {kind} {rows[r + step]}"
                for row, picks in zip((r, r + step), _exchange(side, step)):
                    text = f"shufflevector {pair}, <{side} x i32> {picks}"
                    rows[row] = e.op(text, first.dtype, side).text
        step //= 2
    for place, row in zip(places, rows):
        e.effect(f"store {kind} {row}, ptr {place}, align {storage.dtype.size}")


def _exchange(side: int, step: int) -> tuple[str, str]:
    """What of two rows that are `step` apart makes the two new ones: the upper of each pair of
    blocks of the first row changes places with the lower of the second."""
    upper = [c if not c & step else side + c - step for c in range(side)]
    lower = [c + step if not c & step else side + c for c in range(side)]
    return _picks(upper), _picks(lower)


def _picks(places: list[int]) -> str:
    return f"<{', '.join(f'i32 {place}' for place in places)}>"
