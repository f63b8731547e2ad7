"""Running compiled programs: inputs however they lie in memory, threads, and phases."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

import graphc
from graphc.backends.llvm_cpu import memory
from graphc.backends.llvm_cpu.constants import shared
from graphc.backends.llvm_cpu.emit_kernel import operations
from graphc.backends.llvm_cpu.emit_program import MIN_RANGES, PARALLEL_WORK, RANGE_WORK, _grain
from graphc.backends.llvm_cpu.memory import LARGE
from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.types import TensorType


def mlp(rows: int = 5, depth: int = 48, layers: int = 2) -> Graph:
    """Products with constants and an activation, `layers` times."""
    graph = new_graph("mlp", x=TensorType(dtypes.f32, (rows, depth)))
    b, value = Builder(graph), graph.params[0]
    rng = np.random.default_rng(0)
    for _ in range(layers):
        weights = rng.standard_normal((depth, depth)).astype(np.float32) / depth**0.5
        value = b.Tanh(b.MatMul(value, b.constant(weights)))
    graph.set_results([value, b.Neg(value)])
    graph.output_names = ["y", "z"]
    return graph


def sample(rows: int = 5, depth: int = 48, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, depth)).astype(np.float32)


def unaligned(x: np.ndarray) -> np.ndarray:
    raw = np.empty(x.nbytes + 1, np.uint8)
    view = np.frombuffer(raw.data, x.dtype, x.size, offset=1).reshape(x.shape)
    view[...] = x
    return view


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "transposed": lambda x: np.asfortranarray(x),
    "reversed": lambda x: x[::-1].copy()[::-1],
    "strided": lambda x: np.repeat(x, 3, axis=1)[:, ::3],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": unaligned,
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "subclass": lambda x: x.view(np.matrix),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_however_they_lie_in_memory(layout):
    model = graphc.compile(mlp(), threads=1)
    x = LAYOUTS[layout](sample())
    wanted = model.run([np.array(x, np.float32, order="C")])
    for found, expected in zip(model.run([x]), wanted):
        np.testing.assert_array_equal(found, expected)


def test_outputs_are_fresh():
    model = graphc.compile(mlp(), threads=1)
    first = model.run([sample(seed=1)])
    kept = [y.copy() for y in first]
    model.run([sample(seed=2)])
    for y, k in zip(first, kept):
        np.testing.assert_array_equal(y, k)
        assert y.flags.owndata and y.flags.writeable


def test_large_outputs_take_the_place_of_those_that_are_gone():
    graph = new_graph("main", x=TensorType(dtypes.f32, (LARGE // 4,)))
    b = Builder(graph)
    graph.set_results([b.Add(graph.params[0], graph.params[0]), b.ReduceSum(graph.params[0])])
    graph.output_names = ["twice", "sum"]
    model, x = graphc.compile(graph, threads=1), np.ones(LARGE // 4, np.float32)
    first, part = model.run([x])[0], model.run([x])[0][5:7]
    second = model.run([x * 2])[0]
    assert not np.shares_memory(first, second) and not np.shares_memory(part.base, second)
    assert first[0] == 2 and part.tolist() == [2, 2] and second[-1] == 4
    place = second.ctypes.data
    del second
    assert model.run([x])[0].ctypes.data == place


def test_shapes_of_one_model_have_one_arena():
    """As large as the largest of them needs; each call at a time has one."""
    graph = graphc.parse("""
        graph @main(%x: f32[N, 300]) -> f32[N, N] where N: 1.. {
          %t = Transpose(%x) {perm = [1, 0]} : f32[300, N]
          %y = MatMul(%x, %t) : f32[N, N]
          %p = Softmax(%y) : f32[N, N]
          %z = MatMul(%p, %y) : f32[N, N]
          return %z
        }
    """)
    model = graphc.compile(graph, threads=1)
    wanted = {}
    for n in (300, 400, 350, 300, 400):
        x = np.random.default_rng(n).standard_normal((n, 300), np.float32)
        (found,) = model.run([x])
        np.testing.assert_array_equal(found, wanted.setdefault(n, found))
    images = [info.run for info in model.executables()]
    (scratch,) = {executable._scratch for executable in images}
    (piece,) = scratch.pieces
    sizes = [executable.image.arena_bytes for executable in images]
    assert min(sizes) >= memory.SHARED_ARENA and piece.arena.nbytes == max(sizes)


def test_no_elements_and_no_dims():
    graph = new_graph("main", x=TensorType(dtypes.f32, (0, 3)), y=TensorType(dtypes.f32, ()))
    b = Builder(graph)
    graph.set_results([b.Add(*graph.params), b.Exp(graph.params[1])])
    graph.output_names = ["a", "b"]
    a, e = graphc.compile(graph).run([np.empty((0, 3), np.float32), np.float32(0)])
    assert a.shape == (0, 3) and e.shape == () and e == 1


def test_wrong_inputs():
    model = graphc.compile(mlp(), threads=1)
    with pytest.raises(ModelError, match="float64"):
        model.run([sample().astype(np.float64)])
    with pytest.raises(ModelError, match="shape|dim"):
        model.run([sample(6)])


def test_threads_give_equal_results():
    x = sample(200, 256)
    one, *others = (graphc.compile(mlp(200, 256), threads=n).run([x]) for n in (1, 2, 3))
    for other in others:
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_model_from_several_python_threads(threads):
    model = graphc.compile(mlp(40, 128), threads=threads)
    inputs = [sample(40, 128, seed) for seed in range(4)]
    wanted = [model.run([x]) for x in inputs]
    failures: list[int] = []

    def work(number: int) -> None:
        for _ in range(60):
            if any((a != b).any() for a, b in zip(model.run([inputs[number]]), wanted[number])):
                failures.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    (executable,) = [info.run for info in model.executables()]
    assert len(executable._frames) <= 4  # as many as there were calls at a time


def test_other_threads_run_meanwhile():
    """A native call of many milliseconds does not hold the interpreter's lock."""
    model = graphc.compile(mlp(2000, 512, 4), threads=1)
    x = sample(2000, 512)
    model.run([x])
    ticks: list[float] = []
    running = threading.Event()

    def tick() -> None:
        while not running.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    other = threading.Thread(target=tick)
    other.start()
    try:
        (executable,) = [info.run for info in model.executables()]
        start = time.perf_counter()
        executable([x])
        end = time.perf_counter()
    finally:
        running.set()
        other.join()
        sys.setswitchinterval(interval)
    assert sum(start < t < end for t in ticks) >= 3


def test_constants_and_arenas_are_aligned():
    image = graphc.compile(mlp(), threads=1).executables()[0].run.image
    assert image.constants
    for array in (*image.constants, memory.empty_aligned(100), memory.empty_aligned(0)):
        assert array.ctypes.data % memory.ALIGNMENT == 0
    odd = np.arange(40, dtype=np.float32)[3:].reshape(1, 37)
    copy = memory.aligned(odd)
    assert copy.shape == odd.shape and copy.ctypes.data % memory.ALIGNMENT == 0
    np.testing.assert_array_equal(copy, odd)
    assert memory.aligned(copy) is copy


def test_addresses_are_those_numpy_tells():
    for array in (np.arange(9)[4:], np.array(3.0), np.empty((3, 0))):
        assert memory.address(array) == array.ctypes.data
        assert memory._address_by_interface(array) == array.ctypes.data


def test_numpy_scalars_are_arrays_too():
    graph = new_graph("main", x=TensorType(dtypes.f32, ()))
    graph.set_results([Builder(graph).Neg(graph.params[0])])
    graph.output_names = ["y"]
    (executable,) = [info.run for info in graphc.compile(graph).executables()]
    assert executable([np.float32(2)])[0] == -2


# ---------------------------------------------------------------- what is split over threads


def test_work_of_a_body():
    k, x = KernelBuilder(), Buffer("x", dtypes.f32, (1024,), "inout")
    with k.loop(8) as i, k.loop(16, "vector", width=16) as v:
        k.store(x, i * 16 + v, x[i * 16 + v] * 2.0)
    assert 8 * 2 <= operations(k.body()) <= 8 * 8


@pytest.mark.parametrize("extent", [2, 7, 100, 10_000, 1_000_000])
@pytest.mark.parametrize("work", [10, PARALLEL_WORK, 10**6, 10**9])
def test_grain(extent, work):
    grain = _grain(extent, work, parallel=True)
    if work < PARALLEL_WORK:
        assert grain == extent
        return
    assert 1 <= grain < extent
    assert grain * work / extent >= RANGE_WORK or -(-extent // grain) <= 2 * MIN_RANGES
    assert _grain(extent, work, parallel=False) == extent


def test_specialisations_share_equal_constants(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))  # constants of the cache are mapped
    first, second = (graphc.compile(mlp(rows, 256), threads=1) for rows in (5, 6))
    first.prepare()
    second.prepare()
    parts = [model.executables()[0].run.image.constants for model in (first, second)]
    large = [[c for c in constants if c.nbytes >= 1 << 16] for constants in parts]
    assert large[0] and len(large[0]) == len(large[1])
    assert all(a is b for a, b in zip(*large))


def test_constants_that_differ_in_one_element_are_not_shared():
    a = np.zeros(1 << 16, np.float32)
    b = a.copy()
    b[12345] = np.nan
    assert shared(a) is a
    assert shared(b) is b
    assert shared(a.copy()) is a
    assert shared(a.view(np.int32)) is not a


def test_offsets_read_under_a_mask_of_lanes():
    """The offset is the same in all lanes, but is read only where the padding has data."""
    graph = new_graph(
        "pad", x=TensorType(dtypes.f32, (3, 9, 1, 3)), at=TensorType(dtypes.i32, (1, 5, 1, 1))
    )
    b = Builder(graph)
    picked = b.GatherElements(*graph.params, axis=0)
    graph.set_results([b.CenterCropPad(picked, np.array([4, 7, 1, 4]), axes=(0, 1, 2, 3))])
    graph.output_names = ["y"]
    x = np.arange(81, dtype=np.float32).reshape(3, 9, 1, 3)
    at = np.array([2, -3, 1, -1, 0], np.int32).reshape(1, 5, 1, 1)
    (expected,) = graphc.interpret(graph, [x, at])
    (found,) = graphc.compile(graph, threads=1).run([x, at])
    np.testing.assert_array_equal(found, expected)
