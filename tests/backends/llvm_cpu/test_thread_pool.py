"""The native thread pool: coverage of ranges, wake-ups, sharing, nesting, fork, idleness."""

import ctypes
import gc
import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from graphc.backends.llvm_cpu import jit, objects
from graphc.backends.llvm_cpu.jit import compile_module
from graphc.backends.llvm_cpu.pool import ThreadPool, pool_symbols, shared_pool
from graphc.backends.llvm_cpu.pool_ir import STACK, SYMBOLS, pool_ir
from graphc.backends.llvm_cpu.target import default_threads, named_target

USERS = """
declare void @graphc_parallel_for(ptr, ptr, ptr, i64, i64)

define internal void @increment(ptr %counts, i64 %begin, i64 %end) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %p = getelementptr i32, ptr %counts, i64 %i
  %old = load i32, ptr %p
  %new = add i32 %old, 1
  store i32 %new, ptr %p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @repeat(ptr %pool, ptr %counts, i64 %times, i64 %extent, i64 %grain) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @graphc_parallel_for(ptr %pool, ptr @increment, ptr %counts, i64 %extent, i64 %grain)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}

; args: the pool, the counts. Each range runs a loop of its own on the same pool.
define internal void @inner(ptr %args, i64 %begin, i64 %end) {
  %pool = load ptr, ptr %args
  %cell = getelementptr ptr, ptr %args, i64 1
  %counts = load ptr, ptr %cell
  %offset = mul i64 %begin, 100
  %mine = getelementptr i32, ptr %counts, i64 %offset
  %size = sub i64 %end, %begin
  %extent = mul i64 %size, 100
  call void @graphc_parallel_for(ptr %pool, ptr @increment, ptr %mine, i64 %extent, i64 7)
  ret void
}

define void @nested(ptr %pool, ptr %args, i64 %extent) {
  call void @graphc_parallel_for(ptr %pool, ptr @inner, ptr %args, i64 %extent, i64 1)
  ret void
}

define void @with_callback(ptr %pool, ptr %callback, i64 %extent, i64 %grain) {
  call void @graphc_parallel_for(ptr %pool, ptr %callback, ptr null, i64 %extent, i64 %grain)
  ret void
}
"""
POINTER, I64 = ctypes.c_void_p, ctypes.c_int64
CALLBACK = ctypes.CFUNCTYPE(None, POINTER, I64, I64)


@pytest.fixture(scope="module")
def users():
    names = ["repeat", "nested", "with_callback"]
    return objects.load_object(jit.compile_module(USERS), names, pool_symbols())


@pytest.fixture(scope="module")
def repeat(users):
    return users.function("repeat", None, POINTER, POINTER, I64, I64, I64)


def _repeated(repeat, handle, times, extent, grain):
    counts = np.zeros(extent, np.int32)
    repeat(handle, counts.ctypes.data, times, extent, grain)
    return counts


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("extent, grain", [(1, 1), (2, 1), (7, 3), (100, 1), (1000, 64), (64, 99)])
def test_every_index_once(repeat, threads, extent, grain):
    with ThreadPool(threads) as workers:
        assert workers.threads == threads
        assert (_repeated(repeat, workers.handle, 200, extent, grain) == 200).all()


def test_no_spinning_and_long_spinning(repeat):
    for spin in (0, 2000):
        with ThreadPool(3, spin_microseconds=spin) as workers:
            assert (_repeated(repeat, workers.handle, 500, 50, 1) == 500).all()


def test_null_pool_and_closed_pool_run_serially(repeat):
    workers = ThreadPool(2)
    workers.close()
    workers.close()
    assert workers.handle == 0 and workers.threads == 0
    assert (_repeated(repeat, workers.handle, 3, 10, 1) == 3).all()


def test_sleeping_workers_are_woken(users):
    """Two ranges that each wait for the other finish only if two threads run them."""
    call = users.function("with_callback", None, POINTER, CALLBACK, I64, I64)
    barrier, seen = threading.Barrier(2, timeout=20), set()

    @CALLBACK
    def meet(_, begin, end):
        barrier.wait()
        seen.add((begin, end, threading.get_ident()))

    with ThreadPool(2, spin_microseconds=1) as workers:
        for _ in range(5):
            time.sleep(0.005)
            seen.clear()
            call(workers.handle, meet, 2, 1)
            assert {x[:2] for x in seen} == {(0, 1), (1, 2)}
            assert len({x[2] for x in seen}) == 2


ROOM = """
import ctypes, threading
from graphc.backends.llvm_cpu.pool import ThreadPool, pool_symbols
libc, both, rooms = ctypes.CDLL(None), threading.Barrier(2, timeout=20), {}
libc.pthread_self.restype = ctypes.c_void_p
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

@CALLBACK
def measure(_, begin, end):
    both.wait()
    attributes, room = ctypes.create_string_buffer(128), ctypes.c_size_t()
    libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes)
    libc.pthread_attr_getstacksize(attributes, ctypes.byref(room))
    rooms[threading.get_native_id()] = room.value

kinds = ctypes.c_void_p, CALLBACK, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
call = ctypes.CFUNCTYPE(None, *kinds)(pool_symbols()["graphc_parallel_for"])
with ThreadPool(2) as workers:
    call(workers.handle, measure, None, 2, 1)
del rooms[threading.get_native_id()]
print(*rooms.values())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the C library of Linux")
def test_workers_have_room_for_blocks():
    """In a process whose threads have 512 KB otherwise, as on macOS."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    done = subprocess.run(
        [sys.executable, "-c", ROOM], capture_output=True, timeout=60, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (512 << 10, hard)),
    )  # fmt: skip
    assert done.stdout.split() == [str(STACK)], done.stderr


def test_one_pool_and_many_python_threads(repeat):
    results = []
    with ThreadPool(3) as workers:

        def work():
            results.append(_repeated(repeat, workers.handle, 300, 64, 1))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 4 and all((r == 300).all() for r in results)


def test_several_pools_at_once(repeat):
    results = []

    def work(count):
        with ThreadPool(count) as workers:
            results.append(_repeated(repeat, workers.handle, 300, 64, 3))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all((r == 300).all() for r in results)


def test_nested_loops(users):
    nested = users.function("nested", None, POINTER, POINTER, I64)
    counts = np.zeros(1000, np.int32)
    with ThreadPool(3) as workers:
        args = (ctypes.c_void_p * 2)(workers.handle, counts.ctypes.data)
        for _ in range(50):
            nested(workers.handle, args, 10)
    assert (counts == 50).all()


def test_idle_workers_use_no_processor_time(repeat):
    with ThreadPool(4, spin_microseconds=100) as workers:
        _repeated(repeat, workers.handle, 10, 64, 1)
        time.sleep(0.02)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.3)
        after = resource.getrusage(resource.RUSAGE_SELF)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.05


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs_serially_and_can_make_pools(repeat):
    with ThreadPool(3) as workers:
        _repeated(repeat, workers.handle, 10, 64, 1)
        child = os.fork()
        if child == 0:
            good = workers.threads == 1 and (_repeated(repeat, workers.handle, 9, 64, 1) == 9).all()
            with ThreadPool(2) as own:
                good = good and own.threads == 2
                good = good and (_repeated(repeat, own.handle, 9, 64, 1) == 9).all()
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (_repeated(repeat, workers.handle, 9, 64, 1) == 9).all()


def test_shared_pool():
    first = shared_pool(2)
    assert shared_pool(2) is first and shared_pool(3) is not first
    first.close()
    assert shared_pool(2).handle


def test_one_thread_needs_no_native_code():
    """A model that one thread runs is answered by its own code alone."""
    program = """
import numpy as np, graphc
from graphc import dsl
from graphc.backends.llvm_cpu import pool
@dsl.graph
def ends(x: dsl.f32[64, 4096]):
    return dsl.Exp(x) + 1.0
def native(threads):
    x = np.ones((64, 4096), np.float32)
    assert np.allclose(graphc.compile(ends, threads=threads).run({"x": x})[0], np.e + 1)
    return pool._make_native.cache_info().currsize
print(native(1), native(2))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"0 1\n"), done.stderr


def test_dropped_pools_stop_their_threads():
    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("needs /proc")
    gc.collect()
    before = count()
    workers = ThreadPool(5)
    assert count() == before + 4
    del workers
    gc.collect()
    assert count() == before


def test_process_exits_with_a_live_pool():
    program = (
        "from graphc.backends.llvm_cpu.pool import ThreadPool, shared_pool\n"
        "a = ThreadPool(4); b = shared_pool(3); print(a.threads + b.threads)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"7\n")


def test_limits():
    with ThreadPool(0) as workers:
        assert workers.threads == 1
    with ThreadPool() as workers:
        assert workers.threads == default_threads()


def test_object_for_ahead_of_time_code():
    target = named_target("scalar")
    data = compile_module(pool_ir(target), target)
    assert all(name.encode() in data for name in SYMBOLS)
