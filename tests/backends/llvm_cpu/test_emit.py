"""LLVM IR of kernels, run and compared with what numpy or the kernel interpreter say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from graphc.backends.llvm_cpu.codegen import compile_program, llvm_text
from graphc.backends.llvm_cpu.jit import assembly
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import cross_target
from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean, f32, f64, i32, i64
from graphc.ir.expr import Const, Expr, Index, Load, call, cast, reduce, select, substitute
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.program import program_of
from graphc.ir.scalar import ops as scalar_ops

COUNT = 64
LANES = {"scalar": 1, "vector": 16}
FLOATS = [f32, f64, dtypes.f16, dtypes.bf16]
INTEGERS = [
    dtypes.of(n) for n in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "i4", "u4")
]


def run_native(kernel: Kernel, *inputs: np.ndarray) -> list[np.ndarray]:
    return NativeModel(compile_program(program_of(kernel)), 1)(list(inputs))


def check(kernel: Kernel, *inputs: np.ndarray) -> list[np.ndarray]:
    """Runs natively, and compares with the kernel interpreter bit for bit."""
    found = run_native(kernel, *inputs)
    arrays = dict(zip([b.name for b in kernel.params if b.access == "in"], inputs))
    for buffer, array in zip([b for b in kernel.params if b.access != "in"], found):
        arrays[buffer.name] = np.zeros_like(array)
    run_kernel(kernel, arrays)
    for buffer, array in zip([b for b in kernel.params if b.access != "in"], found):
        np.testing.assert_array_equal(comparable(array), comparable(arrays[buffer.name]))
    return found


def comparable(array: np.ndarray) -> np.ndarray:
    """Numbers in a type that numpy compares with NaN equal to itself."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def elementwise(exprs: list[Expr], loads: dict[str, DType], lanes: int) -> Kernel:
    """out_n[i] = exprs[n](i) for i below COUNT, in vectors of `lanes` and a tail."""
    ins = [Buffer(n, d, (COUNT,), "in") for n, d in loads.items()]
    outs = [Buffer(f"out{n}", e.dtype, (COUNT,), "out") for n, e in enumerate(exprs)]
    k = KernelBuilder(tuple(outs))
    index = Index("i", COUNT)

    def at(position: Expr) -> None:
        for buffer, expr in zip(outs, exprs):
            k.store(buffer, position, substitute(expr, {index: position}))

    if lanes == 1:
        with k.loop(COUNT) as i:
            at(i)
    else:
        whole = (COUNT - 4) // lanes if lanes < 4 else COUNT // lanes - 1
        with k.loop(whole) as x, k.loop(lanes, "vector", width=lanes) as v:
            at(x * lanes + v)
        tail = COUNT - whole * lanes - 3
        with k.loop(tail, "vector", width=tail) as v:
            at(v + whole * lanes)
        with k.loop(3) as i:
            at(i + (COUNT - 3))
    return Kernel("kernel", (*ins, *outs), k.body())


def contents(dtype: DType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype is boolean:
        return rng.random(COUNT) < 0.5
    if dtype.is_integer:
        special = [0, 1, dtype.max, dtype.min, dtype.max - 1, 2, 3, 7]
        drawn = rng.integers(max(dtype.min, -50), min(dtype.max, 50), COUNT, endpoint=True)
        values = [special[n] if n < len(special) else int(v) for n, v in enumerate(drawn)]
        wide = np.array(values, np.uint64 if dtype.kind == "uint" else np.int64)
        return rng.permutation(wide).astype(dtype.np)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -2.5])
    values = np.concatenate([special, rng.standard_normal(COUNT - len(special)) * 5])
    return rng.permutation(values).astype(dtype.np)


# ---------------------------------------------------------------- scalar operations

EXACT = ("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "sqrt", "isnan", "isinf")
CLOSE = ("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf",
         "asinh", "acosh", "atanh")  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", "mod",
          "floordiv", "rem")  # fmt: skip
OF_ONE_TYPE = {i32: ("mul_high",), i64: ("shr_to_even", "shr_to_odd")}


@pytest.mark.parametrize("lanes", list(LANES))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_operations(dtype, lanes):
    index = Index("i", COUNT)
    x, y = Load("x", (index,), dtype), Load("y", (index,), dtype)
    names = [*EXACT, *CLOSE, *BINARY]
    exprs = [call(n, x, y) if n in BINARY else call(n, x) for n in names]
    exprs.append(call("fma", x, y, x))
    exprs.append(call("pow", call("abs", x), y))
    kernel = elementwise(exprs, {"x": dtype, "y": dtype}, LANES[lanes])
    a, b = contents(dtype, 1), contents(dtype, 2)
    found = run_native(kernel, a, b)
    for name, expr, array in zip([*names, "fma", "pow"], exprs, found):
        arguments = (np.abs(a), b) if name == "pow" else (a, b, a)[: expr.op.arity]
        wanted = scalar_ops.apply(scalar_ops.TABLE[name], expr.dtype, *arguments)
        rtol = {f32: 3e-6, f64: 1e-12}.get(dtype, 1e-2) if name in (*CLOSE, "fma", "pow") else 0
        np.testing.assert_allclose(
            array.astype(np.float64), wanted.astype(np.float64), rtol=rtol,
            atol=rtol and 1e-6, err_msg=name,
        )  # fmt: skip


@pytest.mark.parametrize("lanes, registers", [
    (1, "x"), (3, "x"), (8, "y"), (16, "z"), (20, "zz"), (24, "zz"),
])  # fmt: skip
def test_powers_of_two_are_scaled_by_an_instruction(lanes, registers):
    x = Load("x", (Index("i", COUNT),), f32)
    kernel = elementwise([call("exp", x)], {"x": f32}, lanes)
    target, older = (cross_target("x86_64-linux-gnu", f"x86-64-v{n}") for n in (4, 3))
    code = assembly(llvm_text(program_of(kernel), target), target)
    found = re.findall(r"vscalef[ps]s\s.*%([xyz])mm", code)
    assert "".join(found).startswith(registers)
    assert "vpslld" not in code and not re.search("call.*exp", code)
    assert "scalef" not in llvm_text(program_of(kernel), older)


@pytest.mark.parametrize("lanes", [1, 2, 8, 16, 32])
def test_wide_products_of_even_and_odd_lanes(lanes):
    kinds = {"x": i32, "y": dtypes.u8, "z": dtypes.u32, "w": dtypes.i8}
    index = Index("i", COUNT)
    x, y, z, w = (cast(Load(name, (index,), dtype), i64) for name, dtype in kinds.items())
    sums = [x * 1518500249 + (1 << 31) >> 32, (x * y - w) * 3 + cast(index, i64) >> 5, z * y + x]
    sums += [x * (cast(Load("x", (Const(3, i64),), i32), i64) * 5) << 3 ^ y, (x * x + y) & (x >> 1)]
    exprs = [cast(s, dtype) for s in sums for dtype in (i32, dtypes.u32, dtypes.i16, dtypes.u8)]
    kernel = elementwise(exprs, kinds, lanes)
    check(kernel, *(contents(dtype, n) for n, dtype in enumerate(kinds.values())))
    if lanes == 16:
        target = cross_target("x86_64-linux-gnu", "x86-64-v4")
        text = llvm_text(program_of(elementwise(exprs[:1], kinds, lanes)), target)
        assert "<8 x i64>" in text and "to <16 x i64>" not in text
        assert "vpmuldq" in assembly(text, target)


@pytest.mark.parametrize("lanes", list(LANES))
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_operations(dtype, lanes):
    index = Index("i", COUNT)
    x, y = Load("x", (index,), dtype), Load("y", (index,), dtype)
    names = ["bnot", "abs", "sign", "neg", *BINARY, "band", "bor", "bxor", "shl", "shr"]
    names += ["shr_rounded", *OF_ONE_TYPE.get(dtype, ())]
    exprs = [call(n, x, y) if scalar_ops.TABLE[n].arity == 2 else call(n, x) for n in names]
    fixed = [call(n, x, 3) for n in ("div", "floordiv", "mod", "rem", "pow")]
    check(elementwise([*exprs, *fixed], {"x": dtype, "y": dtype}, LANES[lanes]),
          contents(dtype, 3), contents(dtype, 4))  # fmt: skip


@pytest.mark.parametrize("lanes", list(LANES))
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, boolean, dtypes.f8e4m3fn, dtypes.f4e2m1],
                         ids=str)  # fmt: skip
def test_casts(source, lanes):
    x = Load("x", (Index("i", COUNT),), source)
    targets = [*FLOATS, *INTEGERS, boolean, dtypes.f8e4m3fn, dtypes.f8e5m2, dtypes.f4e2m1]
    targets = [t for t in targets if t is not source]
    exprs = [cast(x, t) for t in targets]
    exprs += [
        cast(x, t, saturate=True) for t in (dtypes.f8e4m3fn, dtypes.f8e5m2) if t is not source
    ]
    check(elementwise(exprs, {"x": source}, LANES[lanes]), contents(source, 5))


@pytest.mark.parametrize("lanes", list(LANES))
def test_booleans(lanes):
    index = Index("i", COUNT)
    a, b = Load("a", (index,), boolean), Load("b", (index,), boolean)
    x = Load("x", (index,), f32)
    exprs = [a & b, a | b, a ^ b, ~a, select(a, x, 0.0), select(x > 0.0, a, b)]
    arrays = contents(boolean, 6), contents(boolean, 7), contents(f32, 8)
    check(elementwise(exprs, {"a": boolean, "b": boolean, "x": f32}, LANES[lanes]), *arrays)


# ---------------------------------------------------------------- memory

FAR = 1 << 40  # an address that is not mapped


def window(i: Expr, shift: int, dtype: DType = f32) -> Expr:
    """x[i + shift] inside, 0 outside."""
    at = i + shift
    inside = (at >= 0) & (at < COUNT)
    return select(inside, Load("x", (at,), dtype), Const(0, dtype))


@pytest.mark.parametrize("lanes", list(LANES))
@pytest.mark.parametrize("dtype", [f32, f64, dtypes.i8, boolean], ids=str)
def test_loads_under_conditions(dtype, lanes):
    index = Index("i", COUNT)
    parts = [window(index, s, dtype) for s in (-3, 0, 5)]
    far = select(index < 10, Load("x", (index,), dtype), Load("x", (index * 3 - 30,), dtype))
    near = select(index < 5, far, parts[0])
    never = select(index >= 0, parts[1], Load("x", (index + FAR,), dtype))
    check(elementwise([*parts, near, never], {"x": dtype}, LANES[lanes]), contents(dtype, 9))


@pytest.mark.parametrize("lanes", list(LANES))
def test_gathers(lanes):
    index = Index("i", COUNT)
    where = Load("n", (index,), i32)
    gathered = Load("x", (cast(where, i64),), f32)
    guarded = select(where < 40, gathered, Load("x", (index + FAR,), f32))
    exprs = [gathered, Load("x", (63 - index,), f32), Load("x", (index // 2,), f32),
             select(where >= 0, gathered, 1.0), select(where < 64, guarded, 0.0)]  # fmt: skip
    n = np.random.default_rng(3).integers(0, 40, COUNT).astype(np.int32)
    check(elementwise(exprs, {"x": f32, "n": i32}, LANES[lanes]), contents(f32, 1), n)


def spread(step: int, start: int = 0) -> Expr:
    """A position that is `step` further in the next lane, in vectors of 8."""
    return (Index("i", COUNT) % 8) * step + start


PLACES = {
    "every second": spread(2, 1), "every fourth": spread(4), "backwards": spread(-1, 63),
    "every third, backwards": spread(-3, 40), "twice": spread(1) // 2 + 9,
    "from three parts": spread(1) % 3 * 20 + spread(1) // 3, "all over": spread(1) * spread(1),
    "the last": spread(7, 14),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, f64, dtypes.i8, dtypes.bf16, boolean], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_elements_at_known_distances_are_picked_from_vectors(place, dtype):
    x, out = Buffer("x", dtype, (COUNT,), "in"), Buffer("out", dtype, (COUNT,), "out")
    for lanes in (8, 5, 3):
        k = KernelBuilder((out,))
        with k.loop(COUNT, "serial") as i:
            k.store(out, i, 0)
        with k.loop(COUNT // lanes) as a, k.loop(lanes, "vector", width=lanes) as v:
            k.store(out, a * lanes + v, x[substitute(PLACES[place], {Index("i", COUNT): v})])
        kernel = Kernel("kernel", (x, out), k.body())
        check(kernel, contents(dtype, 2))
        gathers = "masked.gather" in llvm_text(program_of(kernel))
        assert lanes < 8 or gathers == (place == "all over")


@pytest.mark.parametrize("dtype", [f32, boolean], ids=str)
def test_lanes_may_all_read_one_element(dtype):
    x, out = Buffer("x", dtype, (COUNT,), "in"), Buffer("out", dtype, (COUNT,), "out")
    k = KernelBuilder((out,))
    with k.loop(COUNT // 8) as a, k.loop(8, "vector", width=8) as v:
        k.store(out, a * 8 + v, x[(a * 8 + v) // 16])
    kernel = Kernel("kernel", (x, out), k.body())
    check(kernel, contents(dtype, 2))
    assert "masked.gather" not in llvm_text(program_of(kernel))


def test_lanes_that_depend_on_data_are_at_no_known_distances():
    x, n = Buffer("x", f32, (COUNT,), "in"), Buffer("n", i64, (COUNT,), "in")
    out = Buffer("out", f32, (COUNT,), "out")
    k = KernelBuilder((out,))
    with k.loop(COUNT // 16) as a, k.loop(16, "vector", width=16) as v:
        moved = k.let(n[a * 16 + v] % 2)
        k.store(out, a * 16 + v, x[moved + v * 2])
    check(Kernel("kernel", (x, n, out), k.body()), contents(f32, 2), contents(i64, 4))


@pytest.mark.parametrize("lanes", list(LANES))
def test_zeros_are_told_apart_by_constants_alone(lanes):
    """A Relu has no negative zeros; otherwise that took x86 as long as the rest of a maximum."""
    i = Index("i", COUNT)
    a, b = Load("a", (i,), f32), Load("b", (i,), f32)
    exprs = [call(name, x, y) for name in ("min", "max") for x, y in ((a, b), (b, a), (a, 0.0))]
    kernel = elementwise(exprs, {"a": f32, "b": f32}, LANES[lanes])
    found = check(kernel, contents(f32, 3), contents(f32, 4))
    lines = [x for x in llvm_text(program_of(kernel)).splitlines() if "llvm.maximum" in x]
    calls = [x for x in lines if "call" in x]
    assert {"nsz" in x for x in calls} == {True, False}
    assert not np.signbit(found[5]).any()


@pytest.mark.parametrize(
    "lanes, step, narrow", [(16, 7, True), (16, 1 << 28, False), (1, 7, False)]
)
def test_positions_are_divided_in_words_where_they_fit(lanes, step, narrow):
    quotient, rest = (Buffer(n, i64, (48,), "out") for n in ("quotient", "rest"))
    k = KernelBuilder()
    with k.loop(48 // lanes) as i, k.loop(lanes, "vector") as v:
        place = (i * lanes + v) * step + 23
        k.store(quotient, i * lanes + v, place // 75)
        k.store(rest, i * lanes + v, place % 75)
    kernel = Kernel("k", (quotient, rest), k.body())
    check(kernel)
    assert ("udiv <16 x i32>" in llvm_text(program_of(kernel))) == narrow


def test_scatter():
    x, out = Buffer("x", f32, (COUNT,), "in"), Buffer("out", f32, (2 * COUNT,), "out")
    k = KernelBuilder((out,))
    with k.loop(COUNT // 16) as a, k.loop(16, "vector", width=16) as v:
        k.store(out, (a * 16 + v) * 2, x[a * 16 + v])
        k.store(out, (a * 16 + v) * 2 + 1, 7.0)
    check(Kernel("kernel", (x, out), k.body()), contents(f32, 2))


def test_nested_selects_stay_small():
    x: Expr = Load("x", (Index("i", COUNT) + FAR,), f32)
    for n in range(40):  # each level uses the one below twice
        x = select(x > float(n), x + 1.0, x * 2.0)
    guarded = select(Index("i", COUNT) < 0, x, 3.0)
    kernel = elementwise([guarded], {"x": f32}, 1)
    assert llvm_text(program_of(kernel)).count("load float") < 5
    np.testing.assert_array_equal(run_native(kernel, contents(f32, 1))[0], 3.0)


# ---------------------------------------------------------------- statements


def test_statements():
    x, n = Buffer("x", i64, (COUNT,), "in"), Buffer("n", i64, (1,), "in")
    out = Buffer("out", i64, (COUNT,), "out")
    k = KernelBuilder((out,))
    total = k.var(i64, 0)
    with k.loop(COUNT) as i:
        k.store(out, i, 0)
    with k.loop(n[0]) as i:  # an extent from data
        with k.when(x[i] > 0):
            k.store(total, (), total[()] + x[i])
        with k.otherwise():
            k.store(total, (), total[()] - 1)
        value = k.let(total[()])
        k.store(out, i, value)
    with k.repeat(total[()] > 100):
        k.store(total, (), total[()] // 2)
    k.store(out, COUNT - 1, total[()])
    kernel = Kernel("kernel", (x, n, out), k.body())
    for count in (0, 1, 40):
        check(kernel, contents(i64, 4) % 1000, np.array([count]))


def test_private_arrays_of_lanes():
    x, out = Buffer("x", f32, (COUNT,), "in"), Buffer("out", f32, (COUNT,), "out")
    k = KernelBuilder((out,))
    with k.loop(COUNT // 16, "parallel") as a, k.loop(16, "vector", width=16) as v:
        held = k.alloc(f32, (4,), "stack")
        with k.loop(4, "unroll") as j:
            k.store(held, j, x[a * 16 + v] * cast(j, f32))
        total = k.var(f32, 0.0)
        with k.loop(4) as j:
            k.store(total, (), total[()] + held[j])
        k.store(out, a * 16 + v, total[()])
    check(Kernel("kernel", (x, out), k.body()), np.arange(COUNT, dtype=np.float32))


def test_loops_whose_extent_depends_on_another():
    out = Buffer("out", i64, (COUNT,), "out")
    for kind in ("serial", "unroll"):
        k = KernelBuilder((out,))
        with k.loop(COUNT) as i:
            k.store(out, i, 0)
        with k.loop(8, kind) as i, k.loop(i + 1) as j:
            k.store(out, i * 8 + j, i * 100 + j)
        check(Kernel("kernel", (out,), k.body()))


def test_text_is_deterministic():
    x = Load("x", (Index("i", COUNT),), f32)
    exprs = [call("exp", x), window(Index("i", COUNT), 2)]
    texts = {llvm_text(program_of(elementwise(exprs, {"x": f32}, 16))) for _ in range(3)}
    assert len(texts) == 1
    assert reduce("sum", x, ()) is x


def test_phases_take_the_buffers_that_they_use():
    k = KernelBuilder()
    inputs = [Buffer(f"x{n}", f32, (8,)) for n in range(3)]
    y = Buffer("y", f32, (24,), "out")
    for n, x in enumerate(inputs):
        with k.loop(8, "parallel") as i:
            k.store(y, i + 8 * n, x[i])
    kernel = Kernel("join", (*inputs, y), k.body())
    heads = [line for line in llvm_text(program_of(kernel)).splitlines() if ".body(ptr" in line]
    heads = [line for line in heads if line.startswith("define")]
    for number, head in enumerate(heads):
        assert head.count("ptr") == 2 and f"%b.{number}," in head and "%b.3," in head
    assert len(heads) == 3
    check(kernel, *(np.arange(8, dtype=np.float32) + n for n in range(3)))
