"""Local arrays kept as SSA names: loops carry them, and what cannot be kept stays in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphc.backends.llvm_cpu.codegen import compile_program, llvm_text
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.ir.dtypes import f32, i32, i64
from graphc.ir.expr import Const, Load, cast, select
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.program import program_of

X = Buffer("x", f32, (16,), "in")
N = Buffer("n", i64, (1,), "in")
OUT = Buffer("out", f32, (8,), "out")
TRIPS = Load("n", (Const(0, i64),), i64)


def made(build: Callable[[KernelBuilder], None]) -> Kernel:
    k = KernelBuilder((OUT,))
    build(k)
    return Kernel("kernel", (X, N, OUT), k.body())


def sums_over_loops(k: KernelBuilder) -> None:
    """Vectors and scalars that two nested loops carry, the inner one perhaps without a trip."""
    total, last = k.alloc(f32, (8,), "reg"), k.var(f32, 0)
    with k.loop(8, "vector", width=8) as v:
        k.store(total, v, 0)
    with k.loop(3), k.loop(TRIPS) as at:
        with k.loop(8, "vector", width=8) as v:
            k.store(total, v, total[v] + X[at + v])
        k.store(last, (), X[at])
    with k.loop(8, "vector", width=8) as v:
        k.store(OUT, v, total[v] + Load(last.name, (), f32))


def unrolled_in_lanes(k: KernelBuilder) -> None:
    """An array of each lane's own, whose elements an unrolled loop changes."""
    with k.loop(8, "vector", width=8) as v:
        own = k.alloc(f32, (2,), "reg")
        k.store(own, 0, X[v])
        k.store(own, 1, X[v + 8])
        with k.loop(2, "unroll") as at:
            k.store(own, at, own[at] * own[at] + own[0])
        k.store(OUT, v, own[0] - own[1])


def wide_products(k: KernelBuilder) -> None:
    """Products of 64 bits, narrowed, of an array that changes between them."""
    own, result = k.alloc(i32, (8,), "reg"), k.alloc(f32, (8,), "reg")
    with k.loop(8, "vector", width=8) as v:
        k.store(own, v, cast(X[v] * 1e9, i32))
        narrowed = cast(cast(own[v], i64) * 1518500249 >> 32, i32)
        k.store(result, v, cast(narrowed, f32))
        k.store(own, v, cast(X[v + 8] * 1e9, i32))
        k.store(OUT, v, result[v] - cast(narrowed, f32))


def overlapping(k: KernelBuilder) -> None:
    """Halves of a vector that was stored whole."""
    both = k.alloc(f32, (8,), "reg")
    with k.loop(8, "vector", width=8) as v:
        k.store(both, v, X[v])
    with k.loop(4, "vector", width=4) as v:
        k.store(both, v, both[v] + both[v + 4])
    with k.loop(8, "vector", width=8) as v:
        k.store(OUT, v, both[v])


def beside_another(k: KernelBuilder) -> None:
    """Halves again, in a loop that carries a scalar, which changes before they are met."""
    total = k.var(f32, 0)
    with k.loop(3) as trip:
        both = k.alloc(f32, (8,), "reg")
        with k.loop(8, "vector", width=8) as v:
            k.store(both, v, X[v] + Load(total.name, (), f32))
        k.store(total, (), Load(total.name, (), f32) + X[trip])
        with k.loop(4, "vector", width=4) as v:
            k.store(both, v, both[v] * both[v + 4])
        k.store(total, (), Load(total.name, (), f32) + both[1])
    with k.loop(8, "vector", width=8) as v:
        k.store(OUT, v, Load(total.name, (), f32))


def in_a_branch(k: KernelBuilder) -> None:
    """A scalar that is changed where a condition holds, and by a loop that tests it."""
    value = k.var(f32, 1)
    with k.loop(TRIPS) as at, k.when(X[at] > Load(value.name, (), f32)):
        k.store(value, (), X[at])
    with k.loop(8) as at:
        k.store(OUT, at, select(X[at] > 0, Load(value.name, (), f32), at.cast(f32)))


CASES = {
    sums_over_loops: False, unrolled_in_lanes: False, wide_products: False, overlapping: True,
    beside_another: True, in_a_branch: True,
}  # fmt: skip


@pytest.mark.parametrize("trips", [0, 1, 5])
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_registers_give_what_memory_gives(build: Callable, trips: int) -> None:
    x = np.random.default_rng(3).standard_normal(16).astype(np.float32)
    kernel, count = made(build), np.array([trips])
    (native,) = NativeModel(compile_program(program_of(kernel)), 1)([x, count])
    arrays = {"x": x, "n": count, "out": np.zeros(8, np.float32)}
    run_kernel(kernel, arrays)
    np.testing.assert_array_equal(native, arrays["out"])


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_arrays_stay_in_memory_where_names_cannot_hold_them(build: Callable) -> None:
    assert ("%m0 = alloca" in llvm_text(program_of(made(build)))) == CASES[build]


def test_an_address_and_a_load_are_printed_once_until_memory_changes() -> None:
    k = KernelBuilder((OUT,))
    total = k.alloc(f32, (2,), "reg")
    k.store(total, 0, X[TRIPS])
    k.store(total, 1, X[TRIPS] * 2)
    k.store(OUT, 0, total[0])
    k.store(OUT, 1, total[1] + X[TRIPS])
    text = llvm_text(program_of(Kernel("kernel", (X, N, OUT), k.body())))
    assert text.count("load float") == 2
    assert text.count("getelementptr inbounds float, ptr %b.0") == 1 + 1  # the index is read again
