"""From programs to machine code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from graphc.backends.cache import default_cache
from graphc.backends.llvm_cpu.emit_program import emit_program
from graphc.backends.llvm_cpu.emit_timed import TimedSteps, counter_of
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.memory import aligned
from graphc.backends.llvm_cpu.objects import cached_object
from graphc.backends.llvm_cpu.processors.table import HALVES, SCALES
from graphc.backends.llvm_cpu.target import CpuTarget, host_target
from graphc.ir.dtypes import DType, bf16, f16
from graphc.ir.program import Program, shared_places
from graphc.ir.scalar.functions import IN_ORDER, SCALED
from graphc.ir.scalar.narrow import BELOW_BYTES
from graphc.passes.kernel.fixed_offsets import name_fixed_offsets
from graphc.passes.kernel.prepare import prepare_kernel
from graphc.progress import counted, tell

LACKS = BELOW_BYTES | {bf16}  # types that few CPUs convert in hardware


def lacked_by(target: CpuTarget) -> frozenset[DType]:
    """The types that are made of others, as the CPU does not convert them."""
    return LACKS if HALVES in target.instructions else LACKS | {f16}


def pipeline_of(program: Program) -> str:
    """The pipeline of LLVM passes: vectors and tiles are explicit already."""
    return "ordered" if program.all_sizes else "light"


def llvm_text(program: Program, target: CpuTarget | None = None, timed: bool = False) -> str:
    """The LLVM IR of a program; `timed`: with the function that times its steps too."""
    kernels = counted("preparing kernels", program.kernels.items())
    target = target or host_target()
    lacks = lacked_by(target)
    functions = SCALED if SCALES in target.instructions else IN_ORDER
    prepared = {
        name: name_fixed_offsets(prepare_kernel(kernel, lacks, functions))
        for name, kernel in kernels
    }
    more = [partial(TimedSteps, counter=counter_of(target))] if timed else []
    return emit_program(replace(program, kernels=prepared), target.instructions, more)


def compile_program(
    program: Program, target: CpuTarget | None = None, timed: bool = False
) -> Image:
    """Machine code for a program; from the disk cache if equal code was compiled before. `timed`:
    it has the function that times steps (emit_timed.py) beside the one that runs them."""
    target = target or host_target()
    text = llvm_text(program, target, timed)
    tell("generating machine code")
    code = cached_object(text, target, default_cache(), pipeline_of(program))
    return image_of(program, target, code)


def image_of(program: Program, target: CpuTarget, code: bytes = b"") -> Image:
    """The image of a program with its code; with none, what others must know of it."""
    return Image(
        program.name, target.key, code, tuple(program.inputs), tuple(program.outputs),
        tuple(aligned(c) for c in program.constants), program.arena_bytes,
        tuple(program.kernels), len(program.calls), program.checks, sizes=program.sizes,
        shared=tuple(shared_places(program)), counts=program.counts,
    )  # fmt: skip
