"""The kernel interpreter: statements, checks, and scalars that agree with the scalar table."""

import numpy as np
import pytest

from graphc.errors import InternalError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Call, Const, Ref, cast, select
from graphc.ir.kernel import Barrier, Buffer, Intrin, Kernel, KernelBuilder
from graphc.ir.kernel_interp import python_source, run_kernel
from graphc.ir.scalar import ops as scalar_ops


def _run(build, *arrays, out_shape=(4,), out_dtype=f32):
    """Runs a kernel whose inputs are a, b, ... and whose output is y; returns y."""
    inputs = [Buffer(name, dtypes.of(a.dtype), a.shape, "in") for name, a in zip("abc", arrays)]
    y = Buffer("y", out_dtype, out_shape, "out")
    k = KernelBuilder()
    build(k, y, *inputs)
    kernel = Kernel("test", (*inputs, y), k.body())
    out = np.zeros(out_shape, out_dtype.np)
    run_kernel(kernel, {**{b.name: a for b, a in zip(inputs, arrays)}, "y": out})
    return out


A = np.array([3, 1, 2, 0.5], np.float32)


def test_loops_lets_and_mutable_scalars():
    def build(k, y, a, b):
        with k.loops(3, 2, kind="parallel") as (i, j):
            total = k.var(f32, 0.0)
            with k.loop(4, "vector", width=8) as n:
                product = k.let(a[i, n] * b[n, j])
                k.store(total, (), total[()] + product)
            k.store(y, (i, j), total[()])

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
    np.testing.assert_allclose(_run(build, a, b, out_shape=(3, 2)), a @ b, rtol=1e-6)


def test_while_and_branches():
    def build(k, y, a):
        n = k.var(i64, 0)
        with k.repeat(n[()] < 4):
            with k.when(a[n[()]] > 1):
                k.store(y, n[()], 1.0)
            with k.otherwise():
                k.store(y, n[()], -1.0)
            k.store(n, (), n[()] + 1)

    np.testing.assert_array_equal(_run(build, A), [1, -1, 1, -1])


def test_select_does_not_evaluate_the_other_side():
    def build(k, y, a):
        with k.loop(4) as i:
            shifted = i - 1
            k.store(y, i, select(shifted >= 0, a[shifted] + a[shifted], 7.0))

    np.testing.assert_array_equal(_run(build, A), [7, 6, 2, 4])


def test_accesses_are_checked():
    def load(k, y, a):
        with k.loop(4) as i:
            k.store(y, i, a[i + 1])

    def store(k, y, a):
        with k.loop(4) as i:
            k.store(y, i - 2, a[i])

    with pytest.raises(InternalError, match=r"kernel test: a\[4\] is outside its shape \[4\]"):
        _run(load, A)
    with pytest.raises(InternalError, match=r"kernel test: y\[-2\] is outside its shape \[4\]"):
        _run(store, A)


def test_broken_kernels_are_named():
    def into_input(k, y, a):
        k.store(a, 0, 1.0)

    def unbound(k, y, a):
        k.store(y, 0, Ref("nothing", f32))

    def intrinsic(k, y, a):
        k.emit(Intrin("mma", (a[0],)))

    with pytest.raises(InternalError, match="stores into its input a"):
        _run(into_input, A)
    with pytest.raises(InternalError, match="outside its scope"):
        _run(unbound, A)
    with pytest.raises(UnsupportedError, match="mma"):
        _run(intrinsic, A)
    with pytest.raises(InternalError, match=r"buffer y is f32\[4\], found float32\[3\]"):
        run_kernel(Kernel("k", (Buffer("y", f32, (4,), "out"),), ()), {"y": A[:3]})


def test_local_arrays_start_poisoned():
    def build(k, y, a):
        local = k.alloc(f32, (4,))
        k.store(local, 1, 2.0)
        with k.loop(4) as i:
            k.store(y, i, local[i])

    np.testing.assert_array_equal(_run(build, A), [np.nan, 2, np.nan, np.nan])


def test_one_array_for_two_parameters_is_one_storage():
    a, y = Buffer("a", f32, (4,), "in"), Buffer("y", f32, (4,), "out")
    k = KernelBuilder()
    with k.loop(3) as i:
        k.store(y, i + 1, a[i])
    array = A.copy()
    run_kernel(Kernel("shift", (a, y), k.body()), {"a": array, "y": array})
    np.testing.assert_array_equal(array, [3, 3, 3, 3])


def test_threads_meet_at_barriers():
    def build(k, y, a):
        with k.loop(2, "block") as block:
            shared = k.alloc(f32, (2,), "shared")
            with k.loop(2, "thread") as t:
                k.store(shared, t, a[block * 2 + t])
                k.emit(Barrier())
                k.store(y, block * 2 + t, shared[1 - t])

    np.testing.assert_array_equal(_run(build, A), [1, 3, 0.5, 2])


def test_shared_subexpressions_are_computed_once():
    def build(k, y, a):
        twice = a[0]
        for _ in range(40):  # 2^40 operations if each use were evaluated
            twice = twice + twice
        k.store(y, 0, twice)

    assert _run(build, A)[0] == 3 * 2.0**40


def test_source_is_readable():
    k = KernelBuilder()
    y = Buffer("y", f32, (4,), "out")
    with k.loop(4) as i:
        k.store(y, i, Const(1.5, f32))
    assert python_source(Kernel("fill", (y,), k.body())) == (
        "def kernel(b_y):\n    for x_i1 in range(4):\n        b_y[x_i1] = 1.5\n"
    )


# ---------------------------------------------------------------- scalars against the table

_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-3, 7e4, -3e38, np.inf, -np.inf, np.nan, 1.1]
_DTYPES = [dtypes.BY_NAME[n] for n in (
    "f32", "f64", "f16", "bf16", "f8e4m3fn", "i8", "u8", "i16", "i32", "u32", "i64", "u64", "i4",
    "bool",
)]  # fmt: skip


def _samples(dtype, rng, count):
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return rng.choice(np.array(_FLOATS), count).astype(dtype.np)
    if dtype is dtypes.boolean:
        return rng.integers(0, 2, count).astype(np.bool_)
    edges = [dtype.min, dtype.max, 0, 1, dtype.max - 1, dtype.min + 1, 3, 5]
    if dtype.kind == "int":
        edges += [-1, -3, -2]
    values = [edges[n] for n in rng.integers(0, len(edges), count)]
    wide = np.array(values, np.uint64 if dtype.kind == "uint" else np.int64)
    return wide.astype(dtype.np)


def _check(op, result, operands, rng):
    arrays = [_samples(d, rng, 60) for d in operands]

    def build(k, y, *inputs):
        with k.loop(60) as i:
            k.store(y, i, Call(op, tuple(b[i] for b in inputs), result))

    found = _run(build, *arrays, out_shape=(60,), out_dtype=result)
    with np.errstate(all="ignore"):
        expected = scalar_ops.apply(op, result, *arrays)
    kind = np.float64 if result.is_float else np.int64 if result.bits < 64 else result.np
    np.testing.assert_array_equal(found.astype(kind), expected.astype(kind), err_msg=op.name)


_BITWISE = {"band", "bor", "bxor", "shl", "shr", "shr_rounded", "bnot"}
_ON_INTEGERS = {
    "neg", "abs", "sign", "add", "sub", "mul", "div", "floordiv", "mod", "rem", "min", "max",
    "clamp",
    *_BITWISE,
}  # fmt: skip


def _applies(op, dtype) -> bool:
    """Whether the table fixes what `op` means on `dtype` to the last bit."""
    if op.rule in ("cast", "compare"):
        return op.name != "bitcast"
    if op.rule == "logic" or dtype is dtypes.boolean:
        return op.rule == "logic" and dtype is dtypes.boolean
    if op.rule in scalar_ops.ONLY:
        return dtype is scalar_ops.ONLY[op.rule]
    if op.rule == "select" or op.name in ("pow", "fma"):
        return False
    return op.name in _ON_INTEGERS if dtype.is_integer else op.name not in _BITWISE


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_scalars_agree_with_the_table(dtype):
    rng = np.random.default_rng(1)
    for op in scalar_ops.TABLE.values():
        if not _applies(op, dtype):
            continue
        same = dtype if op.rule in ("same", *scalar_ops.ONLY) else dtypes.boolean
        for result in _DTYPES if op.rule == "cast" else [same]:
            _check(op, result, [dtype] * op.arity, rng)


def test_index_arithmetic_wraps_only_where_it_can_overflow():
    def build(k, y, a):
        k.store(y, 0, cast(a[0] * a[0], f32))
        k.store(y, 1, cast(a[1] + 1, f32))

    found = _run(build, np.array([1 << 40, (1 << 63) - 1]), out_shape=(2,))
    np.testing.assert_array_equal(found, np.float32([0, -(2.0**63)]))
