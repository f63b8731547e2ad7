"""prefetch (graphc/ir/instructions.py) as LLVM IR: reads into the second level of cache, as the
first is full of what is multiplied at the moment."""

from __future__ import annotations

from graphc.backends.llvm_cpu import spell
from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.ir.expr import Const, Load
from graphc.ir.instructions import LINE
from graphc.ir.kernel import Intrin

READ, SECOND_LEVEL, DATA = 0, 2, 1  # arguments of llvm.prefetch


def emit_prefetch(e: ExprEmitter, stmt: Intrin) -> None:
    """Emits the statement."""
    place, lines = stmt.args
    assert isinstance(place, Load) and isinstance(lines, Const)
    storage, offset = e.storage[place.source], e.value(place.index[0])
    e.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    element = spell.storage_type(storage.dtype)
    first = e.name(f"getelementptr {element}, ptr {storage.pointer}, i64 {offset.text}")
    for line in range(lines.value):
        at = e.name(f"getelementptr i8, ptr {first}, i64 {line * LINE}") if line else first
        e.effect(
            f"call void @llvm.prefetch.p0(ptr {at}, i32 {READ}, i32 {SECOND_LEVEL}, i32 {DATA})"
        )
