"""Encoding and decoding of narrow types against ml_dtypes, on every code and many values."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.expr import Index, Load, bitcast, call, cast
from graphc.ir.interp import evaluate
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.scalar.arithmetic import expand_arithmetic
from graphc.ir.scalar.narrow import FORMATS, SUB_BYTE, Narrow, decode, encode, storage_of

FLOATS = [*FORMATS, dtypes.f8e8m0]
NAMES = [d.name for d in FLOATS]


def run(expr, **arrays):
    (size,) = {len(a) for a in arrays.values()}
    return evaluate(expr, (size,), arrays)


def element(name: str, array: np.ndarray):
    return Load(name, (Index("i0", len(array)),), dtypes.of(array.dtype))


def floats(kind=np.float32) -> np.ndarray:
    """Random bits, and everything near the codes of all formats."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 30_000, np.uint64).astype(np.uint32).view(np.float32)
    scaled = (rng.standard_normal(10_000) * 2.0 ** rng.integers(-30, 20, 10_000)).astype(np.float32)
    near = []
    for dtype in FLOATS:
        if dtype.bits > 8:
            continue
        codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.np).astype(np.float32)
        finite = np.sort(codes[np.isfinite(codes)])
        near += [codes, (finite[1:] + finite[:-1]) / 2]
    exact = np.concatenate([bits, scaled, *near])
    with np.errstate(all="ignore"):
        around = [exact, *(np.nextafter(exact, np.float32(s * np.inf)) for s in (1, -1))]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    with np.errstate(all="ignore"):
        return np.concatenate([*around, special]).astype(kind)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    kind = np.dtype(f"u{wanted.itemsize}")
    np.testing.assert_array_equal(found.view(kind)[~nan], wanted.view(kind)[~nan])


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", FLOATS, ids=NAMES)
def test_decoding_every_code(dtype):
    storage = storage_of(dtype).np
    codes = np.arange(1 << dtype.bits, dtype=np.uint32).astype(storage)
    wanted = codes.view(dtype.np).astype(np.float32)
    same(run(decode(element("x", codes), dtype), x=codes), wanted)


@pytest.mark.suite("all")
@pytest.mark.parametrize("saturate", [False, True], ids=["cast", "cast_sat"])
@pytest.mark.parametrize("dtype", FLOATS, ids=NAMES)
def test_encoding(dtype, saturate):
    x = floats()
    wanted = scalar_ops.apply(scalar_ops.TABLE["cast_sat" if saturate else "cast"], dtype, x)
    found = run(encode(element("x", x), dtype, saturate), x=x)
    same(found.view(dtype.np), wanted)


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", FLOATS, ids=NAMES)
def test_from_float64(dtype):
    x = np.concatenate([floats(np.float64) * (1 + sign * 2.0**-40) for sign in (1, -1)])
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype.np)
    code = Narrow(FLOATS).lower(cast(element("x", x), dtype))
    same(run(code, x=x).view(dtype.np), wanted)


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", sorted(SUB_BYTE, key=str), ids=str)
def test_small_integers(dtype):
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    values = codes.view(dtype.np)
    narrow = Narrow()
    x = Load("x", (Index("i0", len(codes)),), dtype)
    raw = codes.view(storage_of(dtype).np)
    for expr in (x + x, -x, cast(cast(x, f32) * 1.5, dtype), x * x, x - 3):
        wanted = evaluate(expr, (len(codes),), {"x": values})
        lowered = narrow.stored(narrow.lower(expr), dtype)
        found = evaluate(lowered, (len(codes),), {"x": raw}).view(dtype.np)
        np.testing.assert_array_equal(found.astype(np.int32), wanted.astype(np.int32))


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.bits <= 8], ids=str)
def test_arithmetic_rounds_every_operation(dtype):
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    x = Load("x", (Index("i0", len(codes)),), dtype)
    half = cast(x, f32)
    bits = bitcast(x, dtypes.u8) if dtype.bits == 8 else x
    for expr in (call("add", x, x), cast(half * 0.3, dtype), bits):
        wanted = evaluate(expr, (len(codes),), {"x": codes.view(dtype.np)})
        found = evaluate(Narrow().lower(expr), (len(codes),), {"x": codes})
        same(found.view(wanted.dtype) if found.dtype != wanted.dtype else found, wanted)


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", ["mod", "floordiv"])
def test_modulo_of_floats(name, kind):
    special = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, 7.0, -7.0, 1e30, np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        pairs = np.array([(a, b) for a in special for b in special]).astype(kind)
    rng = np.random.default_rng(2)
    random = (rng.standard_normal((500, 2)) * 10).astype(kind)
    a, b = (np.ascontiguousarray(x) for x in np.concatenate([pairs, random]).T)
    expr = call(name, element("a", a), element("b", b))
    wanted = run(expr, a=a, b=b)
    found = run(expand_arithmetic(expr), a=a, b=b)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan], wanted[~nan])
    np.testing.assert_array_equal(np.signbit(found[~nan]), np.signbit(wanted[~nan]))


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_powers_of_integers(kind):
    info = np.iinfo(kind)
    base = [0, 1, 2, 3, 7, 100, info.max, info.min, *([-1, -2, -3] if info.min else [])]
    exponent = [0, 1, 2, 3, 5, 31, 63, 100, *([-1, -2, -63] if info.min else [])]
    a, b = (np.array(x, kind) for x in zip(*[(a, b) for a in base for b in exponent]))
    expr = call("pow", element("a", a), element("b", b))
    np.testing.assert_array_equal(run(expand_arithmetic(expr), a=a, b=b), run(expr, a=a, b=b))
    for n in exponent:
        fixed = call("pow", element("a", a), n)
        np.testing.assert_array_equal(run(expand_arithmetic(fixed), a=a), run(fixed, a=a))
