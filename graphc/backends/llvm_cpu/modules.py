"""A program and what stands around it as one object file, which no linker has to join.

Weights are not compiled: LLVM makes room for them in constant data, which begins with a mark, and
they are written there afterwards. So an object of any format takes no time for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np

from graphc.backends.block import Block
from graphc.backends.llvm_cpu.interface_ir import WEIGHTS, literal
from graphc.backends.llvm_cpu.jit import assemble
from graphc.backends.llvm_cpu.math_ir import functions_needed
from graphc.backends.llvm_cpu.pool_ir import SERIAL_IR, pool_ir
from graphc.backends.llvm_cpu.soft_float import SOFT_FLOAT_IR
from graphc.backends.llvm_cpu.target import CpuTarget
from graphc.backends.llvm_cpu.triples import Platform
from graphc.errors import InternalError
from graphc.ir.alignment import ALIGNMENT

_MARK = hashlib.sha256(b"the weights of a model begin here").digest()


class Weights:
    """The constants of a program, one after another; `offsets` are where they begin."""

    def __init__(self, constants: Sequence[np.ndarray]):
        self.block = Block(ALIGNMENT)
        self.offsets = [self.block.add_array(array) for array in constants]

    def ir(self) -> str:
        """The module that makes room for them."""
        room = max(self.block.size, ALIGNMENT) - len(_MARK)
        kind = f"<{{ [{len(_MARK)} x i8], [{room} x i8] }}>"
        value = f'<{{ [{len(_MARK)} x i8] c"{literal(_MARK)}", [{room} x i8] zeroinitializer }}>'
        return f"@{WEIGHTS} = externally_initialized constant {kind} {value}, align {ALIGNMENT}\n"

    def fill(self, data: bytes) -> bytearray:
        """An object file with the weights where there is room for them."""
        filled, start = bytearray(data), data.find(_MARK)
        if start < 0 or data.find(_MARK, start + 1) >= 0:
            raise InternalError("an object file has not one place for weights")
        filled[start : start + len(_MARK)] = bytes(len(_MARK))
        for part in self.block.parts:
            filled[start : start + part.nbytes] = part
            start += part.nbytes
        return filled


def object_of(
    code: str, around: str, weights: Weights, exports: Collection[str], target: CpuTarget,
    platform: Platform, pipeline: str = "light", hidden: bool = False,
) -> bytearray:  # fmt: skip
    """The object file of a program's `code` and the module `around` it, of which others see the
    functions in `exports`; `hidden`: others within the same library. `pipeline` as in jit.py."""
    threads = pool_ir(target) if platform.has_threads else SERIAL_IR
    texts = [code, around, threads]
    if weights.offsets:
        texts.append(weights.ir())
    if "half" in code or "bfloat" in code:
        texts.append(SOFT_FLOAT_IR.replace("\ndefine half", "\ndefine weak_odr hidden half")
                     .replace("\ndefine bfloat", "\ndefine weak_odr hidden bfloat")
                     .replace("\ndefine float @", "\ndefine weak_odr hidden float @"))  # fmt: skip
    if not platform.has_libc:
        texts += functions_needed(code)
    data = assemble(texts, exports, target, pipeline, hidden=hidden)
    return weights.fill(data) if weights.offsets else bytearray(data)
