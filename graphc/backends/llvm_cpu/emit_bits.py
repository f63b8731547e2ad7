"""mask and lowest (graphc/ir/instructions.py) as LLVM IR: one bit for each lane, and the places of
the bits that are set, from the lowest on."""

from __future__ import annotations

from graphc.backends.llvm_cpu import spell
from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.backends.llvm_cpu.spell import Typed
from graphc.errors import InternalError
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Const, Load
from graphc.ir.kernel import Intrin


def emit_mask(e: ExprEmitter, stmt: Intrin) -> None:
    """Emits the statement; there must be several lanes."""
    bits, held, lanes = stmt.args
    assert isinstance(bits, Load) and isinstance(held, Load) and isinstance(lanes, Const)
    count, storage = lanes.value, e.storage[held.source]
    if e.vector is not None or count < 2:
        raise InternalError(f"{stmt} stands in a vector loop, or is of one lane")
    if storage.registers is not None:
        flags = storage.registers.read(0, count)
    else:
        kind = spell.vector_of(spell.storage_type(storage.dtype), count)
        loaded = e.read(f"load {kind}, ptr {storage.pointer}, align 1")
        flags = e.op(f"icmp ne {kind} {loaded}, zeroinitializer", boolean, count)
    word = e.name(f"bitcast {flags.type} {flags.text} to i{count}")
    if count < 8 * i64.size:
        word = e.name(f"zext i{count} {word} to i64")
    e.put(e.storage[bits.source], bits.index[0], Typed(word, i64))


def emit_lowest(e: ExprEmitter, stmt: Intrin) -> None:
    """Emits the statement."""
    place, bits = stmt.args
    assert isinstance(place, Load) and isinstance(bits, Load)
    if e.vector is not None:
        raise InternalError(f"{stmt} stands in a vector loop")
    e.declare("declare i64 @llvm.cttz.i64(i64, i1)")
    word = e.value(bits).text
    lowest = e.op(f"call i64 @llvm.cttz.i64(i64 {word}, i1 true)", i64, 1)
    less = e.name(f"sub i64 {word}, 1")
    rest = e.op(f"and i64 {word}, {less}", i64, 1)
    e.put(e.storage[place.source], place.index[0], lowest)
    e.put(e.storage[bits.source], bits.index[0], rest)
