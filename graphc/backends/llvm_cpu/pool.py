"""Thread pools for compiled models, whose native code is that of pool_ir.py.

Workers take no signals, which are Python's. A pool is destroyed with the last object that refers to
it. A forked child inherits the memory but not the workers: Python's fork hook sets its pools to one
thread; pools made in the child have workers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import weakref
from functools import lru_cache

from graphc.backends.cache import default_cache
from graphc.backends.llvm_cpu.objects import Library, cached_object, load_object
from graphc.backends.llvm_cpu.pool_ir import SYMBOLS, pool_ir
from graphc.backends.llvm_cpu.target import default_threads, host_target
from graphc.errors import InternalError

MAX_THREADS = 1024
SPIN_MICROSECONDS = 50


class ThreadPool:
    """Workers for compiled models. `handle` is the pool's address, passed as `ptr pool`.

    `threads` counts the caller, so a pool of one has no workers: it is a null pool, which needs no
    native code. Workers spin only if every thread
    can have a core. Do not start a model on a pool that another thread may be closing.
    """

    def __init__(self, threads: int | None = None, spin_microseconds: int | None = None):
        wanted = default_threads() if threads is None else max(1, min(threads, MAX_THREADS))
        if spin_microseconds is None:
            spin_microseconds = SPIN_MICROSECONDS if wanted <= default_threads() else 0
        self.handle: int = 0
        if wanted == 1:
            self._finish = weakref.finalize(self, _nothing, 0)
            return
        self._native = _native()
        with _SignalsBlocked():
            handle = self._native.create(wanted, spin_microseconds * 1000)
        if not handle:
            raise InternalError("cannot allocate a thread pool")
        self.handle = handle
        _live.add(self)
        self._finish = weakref.finalize(self, self._native.destroy, handle)

    @property
    def threads(self) -> int:
        """Threads that take part, the caller included (fewer than asked if the system refused)."""
        if not self._finish.alive:
            return 0
        return self._native.threads(self.handle) if self.handle else 1

    def close(self) -> None:
        """Stops and joins the workers. `handle` becomes 0: a null pool, which runs serially."""
        self.handle = 0
        self._finish()

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing(handle: int) -> None:
    """What there is to do when a pool without workers ends."""


def shared_pool(threads: int) -> ThreadPool:
    """The process's pool of that many threads, shared by its users and closed after the last."""
    with _shared_lock:
        pool = _shared.get(threads)
        if pool is None or not pool.handle:
            pool = _shared[threads] = ThreadPool(threads)
        return pool


def pool_symbols(threads: int = MAX_THREADS) -> dict[str, int]:
    """Addresses of the pool's functions: the `imports` of compiled models that so many threads run.
    Never unloaded. Models that one thread runs call none of them: they would end the process."""
    if threads == 1:
        abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value or 0
        return dict.fromkeys(SYMBOLS, abort)
    library = _native().library
    return {name: library.address(name) for name in SYMBOLS}


# ---------------------------------------------------------------- the native side


class _Native:
    """The loaded pool code and its functions."""

    def __init__(self) -> None:
        target = host_target()
        data = cached_object(pool_ir(target), target, default_cache())
        self.library: Library = load_object(data, SYMBOLS)
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.create = self.library.function("graphc_pool_create", pointer, i64, i64)
        self.destroy = self.library.function("graphc_pool_destroy", None, pointer)
        self.forked = self.library.function("graphc_pool_forked", None, pointer)
        self.threads = self.library.function("graphc_pool_threads", i64, pointer)


_native_lock = threading.Lock()
_shared_lock = threading.Lock()
_live: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[int, ThreadPool] = weakref.WeakValueDictionary()


def _native() -> _Native:
    with _native_lock:
        return _make_native()


@lru_cache(maxsize=1)
def _make_native() -> _Native:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    return _Native()


def _after_fork() -> None:
    """In a forked child: the workers are gone, and so may be the threads that held locks."""
    global _native_lock, _shared_lock
    _native_lock, _shared_lock = threading.Lock(), threading.Lock()
    _shared.clear()
    for pool in list(_live):
        if pool.handle:
            pool._native.forked(pool.handle)


class _SignalsBlocked:
    """Threads made inside inherit a mask that leaves all signals to Python's own threads."""

    def __enter__(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def __exit__(self, *_: object) -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
