"""Every scalar operation on every dtype, in compiled C against its numpy meaning."""

import numpy as np
import pytest
from scalar_cases import FLOATS, Table, cases, mismatch, operands

from graphc.backends.c99 import build
from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.expr import Call, Index
from graphc.ir.kernel import Buffer, For, Kernel, Store
from graphc.ir.program import Program, Slot, Step
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.scalar.ops import TABLE
from graphc.ir.types import TensorType

CASES = list(cases())
FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def outputs_in_c() -> dict:
    """The results of all cases, from one program."""
    table = Table(CASES)
    return table.results(build(table.program, FLAGS)(table.feeds))


@pytest.mark.parametrize("op", TABLE)
def test_operation(op, outputs_in_c):
    tested = [case for case in CASES if case[0] == op]
    assert tested
    for case in tested:
        _, types, result = case
        expected = scalar_ops.apply(TABLE[op], result, *operands(types))
        problem = mismatch(outputs_in_c[case], expected, operands(types), case)
        assert problem is None, problem


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
