"""LLVM IR text to machine code, and machine code to callable addresses.

Three steps, each usable alone: `compile_module` (text to the bytes of an object file),
`load_object` (object bytes to a `Library` of addresses), and `cached_object` around the first.
Vectors are explicit in graphc's IR, so the pass pipeline only cleans up: registers from stack
slots, common subexpressions, loop-invariant code. No loop is unrolled or vectorised again, and no
function is inlined. (LLVM's whole module pipeline took two to three times as long and the code it
made ran no faster, on a transformer layer and on a residual block.)

Invariants: an address got from a `Library` is valid while that library, or a function got from it,
is alive. Code may refer to C functions of this process (libm, libc, pthread), to the symbols passed
as `imports`, and to nothing else. Compiling is serialised: LLVM's global context is not made for
several threads.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from threading import RLock
from typing import Any

import llvmlite.binding as llvm

from graphc.backends.cache import DiskCache, cache_key, default_cache
from graphc.backends.llvm_cpu.soft_float import SOFT_FLOAT_IR, SYMBOLS
from graphc.backends.llvm_cpu.target import HostTarget, host_target, target_machine
from graphc.errors import InternalError

PIPELINES = ("light", "full", "none")

_lock = RLock()
_library_numbers = itertools.count()


def compile_module(text: str, target: HostTarget | None = None, pipeline: str = "full") -> bytes:
    """The object file of a module of LLVM IR.

    `pipeline` is "full" for LLVM's function simplification (registers, value numbering, loop-
    invariant code), "light" for registers and instruction combining alone, which does for
    micro-kernels and takes half the time, or "none". Raises InternalError for IR that does not
    parse or verify: it was made here.
    """
    with _lock:
        machine = target_machine(target or host_target())
        return machine.emit_object(_optimised(text, machine, pipeline))


def assembly(text: str, target: HostTarget | None = None, pipeline: str = "full") -> str:
    """The assembly code of a module of LLVM IR, for reading."""
    with _lock:
        machine = target_machine(target or host_target())
        return machine.emit_assembly(_optimised(text, machine, pipeline))


def cached_object(
    text: str, target: HostTarget, cache: DiskCache | None, pipeline: str = "full"
) -> bytes:
    """Like compile_module, but looks in the disk cache first; the text itself is the key."""
    if cache is None:
        return compile_module(text, target, pipeline)
    key = cache_key("object", target.key, pipeline, text)
    data = cache.get(key)
    if data is None:
        data = compile_module(text, target, pipeline)
        cache.put(key, data)
    return data


class Library:
    """Loaded machine code and the addresses of the functions asked for."""

    def __init__(self, addresses: Mapping[str, int], keep: Iterable[Any]):
        self._addresses = dict(addresses)
        self._keep = tuple(keep)  # the code is unmapped when these go

    def address(self, name: str) -> int:
        """The address of an exported function, as an integer."""
        return self._addresses[name]

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """A ctypes function; it releases the GIL while it runs and keeps this library alive."""
        function = ctypes.CFUNCTYPE(result, *arguments)(self._addresses[name])
        function.library = self  # type: ignore[attr-defined]
        return function


def load_object(
    data: bytes, exports: Iterable[str], imports: Mapping[str, int] | None = None
) -> Library:
    """Maps an object file into this process and resolves it.

    `imports` gives addresses of symbols that the process itself does not export. Raises
    InternalError if a symbol is missing.
    """
    support = _support()
    symbols = {name: support.address(name) for name in SYMBOLS} | dict(imports or {})
    return _link(data, tuple(exports), symbols, (support,))


def _link(
    data: bytes, exports: Iterable[str], imports: Mapping[str, int], keep: Iterable[Any]
) -> Library:
    builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
    for symbol, address in imports.items():
        builder.import_symbol(symbol, address)
    for name in exports:
        builder.export_symbol(name)
    with _lock:
        try:
            tracker = builder.link(_engine(), f"graphc.{next(_library_numbers)}")
        except RuntimeError as error:
            raise InternalError(f"cannot load compiled code: {error}") from error
    return Library({name: tracker[name] for name in exports}, (tracker, *keep))


# ---------------------------------------------------------------- passes


def _optimised(text: str, machine: llvm.TargetMachine, pipeline: str) -> llvm.ModuleRef:
    if pipeline not in PIPELINES:
        raise ValueError(f"pipeline {pipeline!r} is not one of {', '.join(PIPELINES)}")
    module = _parsed(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    if pipeline != "none":
        _run_passes(module, machine, pipeline)
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
    if pipeline == "full":
        passes = builder.getFunctionPassManager()
    else:
        passes = llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
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


@lru_cache(maxsize=1)
def _support() -> Library:
    """Conversions of small floats, which the C runtime of the process may lack."""
    data = cached_object(SOFT_FLOAT_IR, host_target(), default_cache(), "light")
    return _link(data, SYMBOLS, {}, ())
