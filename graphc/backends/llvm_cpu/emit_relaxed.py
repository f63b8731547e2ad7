"""Choices by lanes where WebAssembly has relaxed vectors, as LLVM IR.

For a choice between the two sides of a comparison LLVM takes the relaxed minimum or maximum
(github.com/WebAssembly/relaxed-simd), and these may lose a NaN. Here it is a choice of bits.
"""

from __future__ import annotations

from graphc.backends.llvm_cpu.emit_scalar import ScalarEmitter
from graphc.backends.llvm_cpu.processors.table import RELAXED, RELAXED_BITS
from graphc.backends.llvm_cpu.spell import Typed, vector_of
from graphc.ir.dtypes import DType, i32, i64


def is_choice_of_bits(e: ScalarEmitter, condition: Typed, dtype: DType) -> bool:
    """Whether LLVM might take a minimum or a maximum for a choice by lanes."""
    return RELAXED in e.features and condition.lanes > 1 and dtype.is_float and dtype.bits >= 32


def chosen(e: ScalarEmitter, condition: Typed, then: Typed, other: Typed) -> Typed:
    """`then` in the lanes where the condition holds, elsewhere `other`."""
    dtype, lanes, width = then.dtype, then.lanes, RELAXED_BITS // then.dtype.bits
    word = i32 if dtype.bits == 32 else i64
    whole, kind = vector_of(word.name, lanes), vector_of(word.name, width)
    mask = e.op(f"sext {condition.type} {condition.text} to {whole}", word, lanes)
    a, b = (e.op(f"bitcast {v.type} {v.text} to {whole}", word, lanes) for v in (then, other))
    name = f"llvm.wasm.bitselect.v{width}{word.name}"
    e.declare(f"declare {kind} @{name}({kind}, {kind}, {kind})")
    parts = []
    for start in range(0, lanes, width):
        values = ", ".join(f"{kind} {e.part(v, start, width).text}" for v in (a, b, mask))
        parts.append(e.op(f"call {kind} @{name}({values})", word, width))
    bits = e.joined(parts, lanes)
    return e.op(f"bitcast {bits.type} {bits.text} to {then.type}", dtype, lanes)
