"""LLVM IR text to machine code.

`compile_module` makes the bytes of an object file of text; objects.py keeps and loads these, and
asks `link` where its own loader cannot.
Vectors are explicit in graphc's IR, so the pass pipeline only cleans up: registers from stack
slots, common subexpressions, loop-invariant code. No loop is unrolled or vectorised again, and no
function is inlined. (LLVM's whole module pipeline took two to three times as long and the code it
made ran no faster, on a transformer layer and on a residual block.)

Nor does LLVM reduce the strength of addresses in loops (LSR), which took a quarter of the time of
code generation: addresses in kernels are a base and constant offsets already. That is an option of
the whole process, set for as long as a module is compiled.

In pipeline "ordered" instructions stay in the order of the text, as LLVM reads all rows of a tile
first where these have a register each, and has too few vector registers then: a product of open
rows took 1.6 times as long (AVX2).

Code is generated at LLVM's level 1, which takes a fourteenth less time than level 3: most of what
the levels differ in is the second scheduling of instructions, which CPUs do themselves.

Compiling is serialised: LLVM's global context is not made for several threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock

import llvmlite.binding as llvm

from graphc.backends.llvm_cpu.target import CpuTarget, host_target, target_machine
from graphc.errors import InternalError

PIPELINES = ("light", "ordered", "full", "none")

_lock = RLock()
_library_numbers = itertools.count()


def compile_module(text: str, target: CpuTarget | None = None, pipeline: str = "full") -> bytes:
    """The object file of a module of LLVM IR.

    `pipeline` is "full" for LLVM's function simplification (registers, value numbering, loop-
    invariant code), "light" for registers and instruction combining alone, which does for
    micro-kernels and takes half the time, "ordered" for that without scheduling, or "none". Raises
    InternalError for IR that does not parse or verify: it was made here.
    """
    with _lock, _as_given(pipeline):
        machine = target_machine(target or host_target())
        return machine.emit_object(_optimised(_parsed(text), machine, pipeline))


def assemble(
    texts: Sequence[str], exports: Collection[str], target: CpuTarget, pipeline: str = "light",
    hidden: bool = False,
) -> bytes:  # fmt: skip
    """One object file of several modules, of whose functions only `exports`, and those that are
    weak, are seen from outside; where they are `hidden`, by the library alone that it is part
    of."""
    with _lock, _as_given(pipeline):
        machine = target_machine(target)
        module, *others = map(_parsed, texts)
        for other in others:
            module.link_in(other)
        for value in (*module.functions, *module.global_variables):
            own = value.linkage is llvm.Linkage.external and not value.is_declaration
            if own and value.name not in exports:
                value.linkage = "internal"
            elif own and hidden:
                value.visibility = "hidden"
        return machine.emit_object(_optimised(module, machine, pipeline, whole=True))


def assembly(text: str, target: CpuTarget | None = None, pipeline: str = "full") -> str:
    """The assembly code of a module of LLVM IR, for reading."""
    with _lock, _as_given(pipeline):
        machine = target_machine(target or host_target())
        return machine.emit_assembly(_optimised(_parsed(text), machine, pipeline))


def link(data: bytes, exports: Iterable[str], imports: Mapping[str, int]) -> llvm.ResourceTracker:
    """Maps an object file by LLVM's own linker; what it gives has the addresses of `exports`, which
    are valid as long as it is alive. InternalError if a symbol is missing."""
    builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
    for symbol, address in imports.items():
        builder.import_symbol(symbol, address)
    for name in exports:
        builder.export_symbol(name)
    with _lock:
        try:
            return builder.link(_engine(), f"graphc.{next(_library_numbers)}")
        except RuntimeError as error:
            raise InternalError(f"cannot load compiled code: {error}") from error


@contextmanager
def _as_given(pipeline: str) -> Iterator[None]:
    """Has LLVM compute addresses as the code says, and in an "ordered" module do all in the order
    of the code."""
    options = {"-disable-lsr": "-disable-lsr=false"}
    if pipeline == "ordered":
        options["-enable-misched=false"] = "-enable-misched"
    for option in options:
        llvm.set_option("graphc", option)
    try:
        yield
    finally:
        for usual in options.values():
            llvm.set_option("graphc", usual)


# ---------------------------------------------------------------- passes


def _optimised(
    module: llvm.ModuleRef, machine: llvm.TargetMachine, pipeline: str, whole: bool = False
) -> llvm.ModuleRef:
    """The module after the passes; `whole`: nothing else refers to what is internal in it."""
    if pipeline not in PIPELINES:
        raise ValueError(f"pipeline {pipeline!r} is not one of {', '.join(PIPELINES)}")
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    if pipeline != "none":
        _run_passes(module, machine, pipeline)
    if whole:
        unused = llvm.create_new_module_pass_manager()
        unused.add_global_dead_code_eliminate_pass()
        unused.run(module, llvm.create_pass_builder(machine, _tuning()))
    return module


def _parsed(text: str) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"emitted LLVM IR is not valid: {error}") from error
    return module


def _run_passes(module: llvm.ModuleRef, machine: llvm.TargetMachine, pipeline: str) -> None:
    builder = llvm.create_pass_builder(machine, _tuning())
    if pipeline in ("light", "ordered"):
        whole = llvm.create_new_module_pass_manager()  # what it needs is set up once, not each time
        whole.add_sroa_pass()
        whole.add_instruction_combine_pass()
        whole.add_simplify_cfg_pass()
        whole.run(module, builder)
        return
    passes = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _tuning() -> llvm.PipelineTuningOptions:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.loop_interleaving = False
    options.slp_vectorization = False
    return options


# ---------------------------------------------------------------- the engine


@lru_cache(maxsize=1)
def _engine() -> llvm.LLJIT:
    """The process's one JIT engine. It owns its target machine."""
    return llvm.create_lljit_compiler(target_machine(host_target()), use_jit_link=True)
