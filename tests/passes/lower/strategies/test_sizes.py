"""Loops over sizes known at run time: one program against the interpreter at many sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from differential import MACHINES, assert_same, floats, interpret_program
from programs import check_program

from graphc.backends.llvm_cpu.codegen import compile_program
from graphc.backends.llvm_cpu.emit_program import INVOKE
from graphc.backends.llvm_cpu.machine import host_machine
from graphc.backends.llvm_cpu.objects import load_object
from graphc.backends.llvm_cpu.pool import pool_symbols, shared_pool
from graphc.backends.llvm_cpu.strategies import conventions, strategies
from graphc.ir import dtypes
from graphc.ir.alignment import empty_aligned
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Sym
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.kernel import Alloc, walk_stmts
from graphc.ir.program import Program, at_sizes
from graphc.ir.sizes import sizes_of
from graphc.ir.types import TensorType, at
from graphc.passes.lower.program import lower
from graphc.passes.lower.strategies.tile_emitter import row_tiles

B, S, N = Sym("B", 1, 8), Sym("S", 1, 130), Sym("N", 1, 5000)
LENGTHS = (1, 13, 15, 16, 17, 33, 64, 65, 129, 130)
SMALL = 700  # elements of an input, up to which kernels are interpreted as well


class Native:
    """The machine code of a program, which is given the sizes with every call."""

    def __init__(self, program: Program, threads: int = 1):
        self.program, self.image = program, compile_program(program)
        library = load_object(self.image.code, [INVOKE], pool_symbols(threads))
        self.library, self.pool = library, shared_pool(threads)
        self.invoke = library.function(INVOKE, None, ctypes.c_void_p)
        self.arena = empty_aligned(program.arena_bytes)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        program = self.program
        values = sizes_of(program.sizes, program.inputs, [x.shape for x in inputs])
        known = {s: Const(v) for s, v in zip(program.sizes, values)}
        outputs = [np.zeros([at(d, known) for d in t.dims], t.dtype.np) for _, t in program.outputs]
        groups = [_pointers(arrays) for arrays in (inputs, outputs, self.image.constants)]
        given, made, constants = map(ctypes.addressof, groups)
        sizes = np.array(values, np.int64)
        arena, numbers = self.arena.ctypes.data, sizes.ctypes.data
        cells = (ctypes.c_void_p * 6)(given, made, arena, constants, self.pool.handle, numbers)
        self.invoke(ctypes.addressof(cells))
        return outputs


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))


def opened(function: Callable, types: Mapping[str, TensorType]) -> Graph:
    """A typed graph whose dimensions may be symbols."""
    graph = new_graph("main", **types)
    results = function(Builder(graph), *graph.params)
    graph.set_results(list(results) if isinstance(results, tuple) else [results])
    graph.output_names = [f"y{n}" for n in range(len(graph.results))]
    graph.symbols = {d.name: d for t in types.values() for d in t.dims if isinstance(d, Sym)}
    graph.phase = "typed"
    return graph


def check(
    function: Callable, shapes: Mapping[str, tuple], sizes: Sequence[Mapping[str, int]],
    vector_bytes: int = 64, threads: int = 1, tolerance: float = 2e-5,
) -> Program:  # fmt: skip
    """Asserts that one program gives at all sizes what the graph of these shapes gives."""
    types = {n: TensorType(dtypes.f32, shape) for n, shape in shapes.items()}
    own = {"vector_bytes": vector_bytes, "registers": MACHINES[vector_bytes]}
    machine = replace(host_machine(), **own)
    program = lower(opened(function, types), strategies(machine), wanted=conventions(machine))
    check_program(program)
    model, rng = Native(program, threads), np.random.default_rng(0)
    for case in sizes:
        known = {s: Const(case[s.name]) for s in program.sizes}
        inputs = [floats(rng, *(at(d, known) for d in t.dims)) for _, t in program.inputs]
        own = {n: TensorType(dtypes.f32, x.shape) for n, x in zip(shapes, inputs)}
        expected = interpret(opened(function, own), inputs)
        assert_same(model(inputs), expected, tolerance, f"native {vector_bytes} at {case}")
        if max(x.size for x in inputs) <= SMALL:
            static = at_sizes(program, [case[s.name] for s in program.sizes])
            assert_same(interpret_program(static, inputs), expected, tolerance, f"kernels {case}")
    return program


def lengths(*batches: int) -> list[dict[str, int]]:
    return [{"B": b, "S": s} for b, s in zip(batches * len(LENGTHS), LENGTHS)]


def _sum_and_mean(b, x):
    along = np.array([1])
    return b.ReduceSum(x, along, keepdims=1), b.ReduceMean(b.Mul(x, x), along, keepdims=0)


def _window(b, x, w):
    return b.Conv(x, w, pads=[1, 1, 1, 1])


def _pool(b, x):
    return b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


CASES = {
    "pointwise": (lambda b, x: b.Relu(b.Add(x, np.float32(1))), {"x": (B, S, 24)}),
    "pointwise along a size": (lambda b, x: b.Exp(x), {"x": (B, S)}),
    "broadcast": (lambda b, x, y: b.Add(x, y), {"x": (B, S, 5), "y": (1, S, 1)}),
    "transpose of rows": (lambda b, x: b.Transpose(x, perm=[0, 2, 1]), {"x": (B, S, 37)}),
    "transpose": (lambda b, x: b.Transpose(x, perm=[1, 0]), {"x": (B, S)}),
    "concat": (lambda b, x, y: b.Concat(x, y, axis=0), {"x": (B, S), "y": (3, S)}),
    "sums across rows": (_sum_and_mean, {"x": (B, S, 37)}),
    "sums along rows": (_sum_and_mean, {"x": (B, S)}),
    "largest of all": (
        lambda b, x: b.ReduceMax(x, np.array([0, 1]), keepdims=1), {"x": (B, S)},
    ),
    "rows times weights": (lambda b, x, w: b.MatMul(x, w), {"x": (B, S, 32), "w": (32, 70)}),
    "scores": (lambda b, x, y: b.MatMul(x, y), {"x": (B, S, 8), "y": (B, 8, S)}),
    "weights times values": (lambda b, x, y: b.MatMul(x, y), {"x": (B, S, S), "y": (B, S, 20)}),
    "no columns": (lambda b, x, y: b.MatMul(x, y), {"x": (B, 3, S), "y": (B, S, 0)}),
    "short rows": (lambda b, x: b.Mul(x, x), {"x": (B, S, 3)}),
}  # fmt: skip


def _long_product(b, x):
    """Rows of 521 times a constant, with an epilogue."""
    weights = np.random.default_rng(7).standard_normal((521, 40)).astype(np.float32) / 16
    return b.Relu(b.Add(b.MatMul(x, b.constant(weights)), np.float32(0.5)))


def _joined_heads(b, x):
    """Rows whose elements lie apart in four heads, times a constant."""
    weights = np.random.default_rng(7).standard_normal((520, 17)).astype(np.float32) / 16
    rows = b.Reshape(b.Transpose(x, perm=[0, 2, 1, 3]), np.array([0, 0, 520]))
    return b.MatMul(rows, b.constant(weights))


LONG = {
    "a part of the depth left": (_long_product, {"x": (B, S, 521)}),
    "several indices of the depth": (_joined_heads, {"x": (B, 4, S, 130)}),
}


@pytest.mark.parametrize("name", LONG)
def test_long_products_of_open_rows_are_summed_in_parts(name):
    function, shapes = LONG[name]
    sizes = [{"B": b, "S": s} for b, s in ((1, 1), (1, 5), (2, 3), (1, 7), (3, 101), (2, 130))]
    program = check(function, shapes, sizes, vector_bytes=32)
    (kernel,) = [k for k in program.kernels.values() if k.name.startswith("contract")]
    allocated = [s for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]
    sums = [s.buffer.size for s in allocated if s.scope == "stack"]
    assert sums and min(sums) > 6 * 16, "the sums of many tiles are added up on the stack"


@pytest.mark.parametrize("vector_bytes", [64, 32, 0])
@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_sizes(name, vector_bytes):
    function, shapes = CASES[name]
    check(function, shapes, lengths(1, 2, 8), vector_bytes)


@pytest.mark.parametrize("name", ["rows times weights", "scores", "weights times values"])
def test_products_of_any_size_are_taken_in_register_tiles(name):
    function, shapes = CASES[name]
    program = check(function, shapes, lengths(1)[:1])
    assert any(name.startswith("contract") for name in program.kernels)


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("low", [0, 20])
@pytest.mark.parametrize("largest", [14, 6, 1])
@pytest.mark.parametrize("factor", [1, 12])
def test_tiles_cover_all_rows(factor, largest, low, lone):
    """Every row is in a tile, and a tile has no rows that are not there."""
    tall = Sym("M", low, 100)
    rows = tall * factor
    tiles = row_tiles(rows, largest, lone=lone)
    for value in range(low, 101):
        known, covered = {tall: Const(value)}, []
        for tile in tiles:
            for number in range(at(tile.count, known)):
                start = tile.start(Const(number, i64))
                there = tile.there(start) or [start + t for t in range(tile.size)]
                covered += [at(row, known) for row in there]
        assert sorted({*covered}) == list(range(at(rows, known)))
        assert len(covered) < at(rows, known) + largest
        assert not lone or at(rows, known) != 1 or covered == [0]


def test_open_sizes_do_not_multiply_code():
    """A tile is written once, for all rows, panels and blocks of the depth; so is a lone row."""
    shapes = {"x": (S, N), "y": (N, S)}
    sizes = [{"S": s, "N": n} for s, n in ((1, 1), (31, 256), (33, 257), (130, 1100))]
    program = check(lambda b, x, y: b.MatMul(x, y), shapes, sizes)
    (kernel,) = (k for name, k in program.kernels.items() if name.startswith("contract"))
    inside = [s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.scope == "reg"]
    assert [s.buffer.size // 32 for s in inside] == [14, 1]


@pytest.mark.parametrize("vector_bytes", [64, 0])
@pytest.mark.parametrize("function, shapes", [
    (_window, {"x": (B, 3, S, S), "w": (4, 3, 3, 3)}),
    (_window, {"x": (B, 3, S, 17), "w": (4, 3, 3, 3)}),
    (_pool, {"x": (B, 3, S, S)}),
], ids=["conv", "conv of rows", "pool"])  # fmt: skip
def test_windows_over_images_of_any_size(function, shapes, vector_bytes):
    sizes = [{"B": b, "S": s} for b, s in ((1, 1), (2, 2), (1, 3), (2, 16), (1, 17), (1, 33))]
    check(function, shapes, sizes, vector_bytes)


@pytest.mark.parametrize("vector_bytes", [64, 0])
def test_a_long_dimension_is_shared_by_threads(vector_bytes):
    sizes = [{"N": n} for n in (1, 15, 16, 2047, 2048, 2049, 4096, 4999, 5000)]
    program = check(lambda b, x: b.Mul(x, x), {"x": (N,)}, sizes, vector_bytes, threads=2)
    (kernel,) = program.kernels.values()
    assert any(getattr(stmt, "kind", "") == "parallel" for stmt in kernel.body)


@pytest.mark.parametrize("vector_bytes", [64, 0])
def test_long_sums_are_blocked(vector_bytes):
    sizes = [{"N": n} for n in (1, 16, 511, 513, 2049, 5000)]
    check(
        lambda b, x: b.ReduceSum(x, np.array([1]), keepdims=1), {"x": (3, N)}, sizes, vector_bytes
    )
