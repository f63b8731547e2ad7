"""Running a program on the host CPU: one native call per inference."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np

from graphc.backends.llvm_cpu.emit_program import ENTRY, emit_program
from graphc.ir.dtypes import bf16
from graphc.ir.narrow import BELOW_BYTES
from graphc.ir.program import Program
from graphc.passes.kernel.prepare import prepare_kernel

LACKS = BELOW_BYTES | {bf16}  # types that few CPUs convert in hardware

_POOL = """
define void @graphc_parallel_for(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain) {
  call void %fn(ptr %args, i64 0, i64 %extent)
  ret void
}
"""


def llvm_text(program: Program) -> str:
    """The LLVM IR of a program."""
    prepared = {n: prepare_kernel(k, LACKS) for n, k in program.kernels.items()}
    return emit_program(replace(program, kernels=prepared))


class NativeModel:
    """A program compiled to native code. Calls may overlap: each has an arena of its own."""

    def __init__(self, program: Program, threads: int):
        self.program = program
        text = llvm_text(program).replace("declare void @graphc_parallel_for(ptr, ptr, ptr, i64, i64)", _POOL)
        self._engine = _jit(text)
        address = self._engine.get_function_address(ENTRY)
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)(address)
        self._constants = [np.ascontiguousarray(c) for c in program.constants]
        self._constant_pointers = _pointers(self._constants)
        self._shapes = [(t.static_shape, t.dtype.np) for _, t in program.outputs]
        self._arenas: list[np.ndarray] = []

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        held = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in inputs]
        outputs = [np.empty(shape, dtype) for shape, dtype in self._shapes]
        arena = self._arenas.pop() if self._arenas else self._new_arena()
        base = arena.__array_interface__["data"][0]
        self._run(_pointers(held), _pointers(outputs), base + (-base) % 64,
                  self._constant_pointers, None)  # fmt: skip
        self._arenas.append(arena)
        return outputs

    def _new_arena(self) -> np.ndarray:
        return np.empty(self.program.arena_bytes + 128, np.uint8)


def _pointers(arrays: Sequence[np.ndarray]):
    addresses = [a.__array_interface__["data"][0] for a in arrays]
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


def _jit(text: str):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
