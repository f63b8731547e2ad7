"""Every scalar operation on every dtype, in compiled C against its numpy meaning."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from graphc.backends.c99 import build
from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean
from graphc.ir.expr import Call, Index, Load
from graphc.ir.kernel import Buffer, For, Kernel, Store
from graphc.ir.program import Program, Slot, Step
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.scalar.ops import TABLE
from graphc.ir.types import TensorType

NUMBERS = [d for d in dtypes.BY_NAME.values() if d.is_number]
FLOATS = [d for d in NUMBERS if d.is_float]
INTEGERS = [d for d in NUMBERS if d.is_integer]
APPROXIMATE = {
    "sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "pow",
}  # fmt: skip
FLOAT_ONLY = APPROXIMATE - {"pow"}
INTEGER_ONLY = {"bnot", "band", "bor", "bxor", "shl", "shr"}


def nasty(dtype: DType) -> np.ndarray:
    """Values at which implementations go wrong."""
    if dtype is boolean:
        return np.array([False, True])
    if dtype.is_integer:
        near = [0, 1, 2, 3, 5, 7, 31, 63, 100, dtype.max, dtype.max - 1, dtype.min, dtype.min + 1]
        near += [-1, -2, -3, -7, -32] if dtype.kind == "int" else []
        inside = [v for v in near if dtype.min <= v <= dtype.max]
        return np.array(list(dict.fromkeys(inside)), object).astype(dtype.np)
    info = ml_dtypes.finfo(dtype.np)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, 0.1, -0.1, 100.0, -7.5]
    values += [float(info.max), float(info.min), float(info.tiny), -float(info.tiny), 1e-3]
    values += [float(info.smallest_subnormal), 2147483648.0, -2147483648.0, 4e9, 1e10, -1e10, 1e19]
    values += [np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype.np)


def operands(types: tuple[DType, ...]) -> list[np.ndarray]:
    """All combinations of nasty values."""
    grids = np.meshgrid(*(np.arange(len(nasty(t))) for t in types), indexing="ij")
    return [np.ascontiguousarray(nasty(t)[g.reshape(-1)]) for t, g in zip(types, grids)]


def cases():
    """(op, operand dtypes, result dtype) for all that C can compute."""
    for op in TABLE.values():
        if op.rule == "logic":
            yield op.name, (boolean,) * op.arity, boolean
        elif op.rule == "select":
            yield from ((op.name, (boolean, d, d), d) for d in (*NUMBERS, boolean))
        elif op.rule in ("compare", "test"):
            yield from ((op.name, (d,) * op.arity, boolean) for d in NUMBERS)
        elif op.rule == "same":
            kinds = FLOATS if op.name in FLOAT_ONLY else NUMBERS
            kinds = INTEGERS if op.name in INTEGER_ONLY else kinds
            yield from ((op.name, (d,) * op.arity, d) for d in kinds)
    for source, target in itertools.permutations((*NUMBERS, boolean), 2):
        yield "cast", (source,), target
    for source in (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.i64, boolean):
        targets = [d for d in FLOATS if d.bits <= 16 and d is not source]
        yield from (("cast_sat", (source,), target) for target in targets)
    for source, target in itertools.permutations(NUMBERS, 2):
        wide = source.bits == target.bits >= 8
        if wide and not (source.is_float and target.is_float):
            yield "bitcast", (source,), target


CASES = list(cases())


def kernel_of(name: str, types: tuple[DType, ...], result: DType) -> Kernel:
    size = len(operands(types)[0])
    i = Index("i", size)
    inputs = tuple(Buffer(f"x{n}", t, (size,), "in") for n, t in enumerate(types))
    output = Buffer("y", result, (size,), "out")
    value = Call(TABLE[name], tuple(Load(b.name, (i,), b.dtype) for b in inputs), result)
    title = f"{name}_{'_'.join(map(str, types))}_to_{result}"
    return Kernel(title, (*inputs, output), (For(i, (Store("y", (i,), value),)),))


@pytest.fixture(scope="module")
def outputs_in_c() -> dict:
    """The results of all cases, from one program."""
    program = Program("ops", [], [])
    numbers: dict = {}
    arrays = []
    for op, types, result in CASES:
        kernel = kernel_of(op, types, result)
        program.kernels[kernel.name] = kernel
        slots = []
        for position, array in enumerate(operands(types)):
            key = (types, position)
            if key not in numbers:
                numbers[key] = len(arrays)
                arrays.append(array)
                type = TensorType(types[position], array.shape)
                program.inputs.append((f"x{len(arrays)}", type))
            slots.append(Slot("input", numbers[key], 0, types[position], array.size))
        slots.append(Slot("output", len(program.outputs), 0, result, array.size))
        program.outputs.append((kernel.name, TensorType(result, array.shape)))
        program.steps.append(Step(kernel.name, tuple(slots)))
    flags = ("-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared",
             "-fPIC")  # fmt: skip
    return dict(zip(CASES, build(program, flags)(arrays)))


@pytest.mark.parametrize("op", TABLE)
def test_operation(op, outputs_in_c):
    tested = [case for case in CASES if case[0] == op]
    assert tested
    for case in tested:
        _, types, result = case
        expected = scalar_ops.apply(TABLE[op], result, *operands(types))
        problem = mismatch(outputs_in_c[case], expected, operands(types), case)
        assert problem is None, problem


def mismatch(found, expected, arguments, case) -> str | None:
    op, types, result = case
    same = equal(found, expected, result, op in APPROXIMATE and result.is_float)
    if op == "round" and result.is_integer and result.bits == 64:
        same |= found == arguments[0]  # numpy rounds by way of double
    if same.all():
        return None
    where = np.flatnonzero(~same)[:5]
    rows = [([a[k].item() for a in arguments], found[k].item(), expected[k].item()) for k in where]
    return f"{op} {types} -> {result}: (arguments, found, expected) {rows}"


def equal(found, expected, dtype: DType, approximate: bool) -> np.ndarray:
    if not dtype.is_float:
        return found == expected
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | np.isnan(a) & np.isnan(b)
    if approximate:
        eps = max(float(ml_dtypes.finfo(dtype.np).eps), 2.0**-50)
        tiny = float(ml_dtypes.finfo(dtype.np).smallest_subnormal)
        with np.errstate(all="ignore"):
            same |= np.abs(a - b) <= 4 * eps * np.abs(b) + tiny
    return same


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.bits <= 16], ids=str)
def test_every_value_of_narrow_floats(dtype):
    """All codes load to their value and store back; floats round as ml_dtypes rounds them."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint32).astype(f"u{dtype.size}").view(dtype.np)
    wide = codes.astype(np.float32)
    edges = np.sort(wide[np.isfinite(wide)]).astype(np.float64)
    middle = ((edges[1:] + edges[:-1]) / 2).astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20000, dtype=np.uint64)
    floats = np.concatenate(
        [wide, middle, np.nextafter(middle, np.float32(np.inf)),
         np.nextafter(middle, np.float32(-np.inf)), bits.astype(np.uint32).view(np.float32)]
    )  # fmt: skip
    doubles = np.concatenate([middle * (1 + 1e-12), middle * (1 - 1e-12)]).astype(np.float64)
    program = Program("narrow", [], [])
    for source, array, target in (
        (dtype, codes, dtypes.f32),
        (dtypes.f32, floats, dtype),
        (dtypes.f64, doubles, dtype),
    ):
        i = Index("i", array.size)
        inner, outer = (Buffer("x", source, array.shape), Buffer("y", target, array.shape, "out"))
        value = Call(TABLE["cast"], (inner[i],), target)
        number = len(program.inputs)
        name = f"convert{number}"
        program.kernels[name] = Kernel(name, (inner, outer), (For(i, (Store("y", (i,), value),)),))
        slots = (Slot("input", number, 0, source, array.size),
                 Slot("output", number, 0, target, array.size))  # fmt: skip
        program.steps.append(Step(name, slots))
        program.inputs.append((f"x{number}", TensorType(source, array.shape)))
        program.outputs.append((f"y{number}", TensorType(target, array.shape)))
    loaded, from_float, from_double = build(program)([codes, floats, doubles])
    assert same_bits(loaded, wide)
    with np.errstate(all="ignore"):
        assert same_bits(from_float, floats.astype(dtype.np))
        assert same_bits(from_double, doubles.astype(dtype.np))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    nan = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    view = f"u{a.dtype.itemsize}"
    return bool(((a.view(view) == b.view(view)) | nan).all())


def test_what_c_lacks_is_refused():
    for op, dtype in (("exp", dtypes.i32), ("add", dtypes.string), ("mul", dtypes.c64)):
        kernel = kernel_of_type(op, dtype)
        program = Program("p", [], [], {kernel.name: kernel})
        with pytest.raises(UnsupportedError):
            build(program)


def kernel_of_type(op: str, dtype: DType) -> Kernel:
    x, y = Buffer("x", dtype, (1,)), Buffer("y", dtype, (1,), "out")
    value = Call(TABLE[op], (x[0],) * TABLE[op].arity, dtype)
    return Kernel("k", (x, y), (Store("y", x[0].index, value),))
