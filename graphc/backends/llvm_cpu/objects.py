"""Object files: from the cache or the compiler, and as callable addresses.

Invariants: an address got from a `Library` is valid while that library, or a function got from it,
is alive. Code may refer to C functions of this process (libm, libc, pthread), to the symbols passed
as `imports`, and to nothing else. LLVM is loaded only for what neither the cache nor the loader of
elf.py can do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from graphc.backends.cache import DiskCache, cache_key, default_cache
from graphc.backends.llvm_cpu import elf
from graphc.backends.llvm_cpu.soft_float import SOFT_FLOAT_IR, SYMBOLS
from graphc.backends.llvm_cpu.target import CpuTarget, host_target


def cached_object(
    text: str, target: CpuTarget, cache: DiskCache | None, pipeline: str = "full"
) -> bytes:
    """Like jit.compile_module, but looks in the disk cache first; the text itself is the key."""
    key = cache_key("object", target.key, pipeline, text)
    data = None if cache is None else cache.get(key)
    if data is None:
        from graphc.backends.llvm_cpu import jit  # loads LLVM

        data = jit.compile_module(text, target, pipeline)
        if cache is not None:
            cache.put(key, data)
    return data


class Library:
    """Loaded machine code and the addresses of the functions asked for."""

    def __init__(self, addresses: Mapping[str, int], keep: Iterable[object]):
        self._addresses, self._keep = dict(addresses), tuple(keep)

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
    symbols = dict(imports or {})
    keep: list[Library] = []
    if any(name.encode() in data for name in SYMBOLS):
        keep = [_support()]
        symbols |= {name: keep[0].address(name) for name in SYMBOLS}
    return _link(data, tuple(exports), symbols, keep)


def _link(
    data: bytes, exports: Iterable[str], imports: Mapping[str, int], keep: Iterable[object]
) -> Library:
    loaded = elf.load(data, exports, imports)
    if loaded is not None:
        return Library(loaded.addresses, (loaded.memory, *keep))
    from graphc.backends.llvm_cpu import jit  # loads LLVM

    tracker = jit.link(data, exports, imports)
    return Library({name: tracker[name] for name in exports}, (tracker, *keep))


@lru_cache(maxsize=1)
def _support() -> Library:
    """Conversions of small floats, which the C runtime of the process may lack."""
    data = cached_object(SOFT_FLOAT_IR, host_target(), default_cache(), "light")
    return _link(data, SYMBOLS, {}, ())
