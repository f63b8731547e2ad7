"""Operations of PTX that each lane does by itself, against numpy, on awkward numbers."""

import numpy as np
import pytest
from ptx_texts import each_lane, needs_c, ptx_of, run_test

pytestmark = needs_c
WHOLE = {
    np.dtype(t): np.array([0, 1, 2, 7, 100, np.iinfo(t).max, np.iinfo(t).min, np.iinfo(t).max - 3]
                          + ([-1, -2, -100] if t[0] == "i" else [3, 5, 9]) , t)
    for t in ("int16", "uint16", "int32", "uint32", "int64", "uint64")
}  # fmt: skip
FLOATS = np.array(
    [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3.7, 1e-40, 6e4, 7e4, 1e10, -1e10, 3e38, np.inf, -np.inf,
     np.nan, 2049, 1 + 2**-11, 1 + 3 * 2**-11, 2**-15, 2**-25, 1.00390625, 5e-8]
)  # fmt: skip
NAMES = {np.dtype(t): n for t, n in (
    ("int16", "s16"), ("uint16", "u16"), ("int32", "s32"), ("uint32", "u32"), ("int64", "s64"),
    ("uint64", "u64"), ("float32", "f32"), ("float64", "f64"), ("float16", "f16"),
)}  # fmt: skip


def pairs(values):
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"])
def test_integers(name, dtype):
    a, b = pairs(WHOLE[dtype])
    if name in ("div", "rem"):
        a, b = a[b != 0], b[b != 0]
    x, y = a.astype(object), b.astype(object)
    bits = 8 * dtype.itemsize
    quotient = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in zip(x, y) if q]
    wanted = {
        "add": x + y, "sub": x - y, "mul.lo": x * y,
        "mul.hi": [p * q >> bits for p, q in zip(x, y)],
        "min": np.minimum(a, b).astype(object), "max": np.maximum(a, b).astype(object),
        "div": quotient if name in ("div", "rem") else None,
        "rem": [p - q * n for p, q, n in zip(x, y, quotient)] if name in ("div", "rem") else None,
    }[name]  # fmt: skip
    wanted = [int(v) & (1 << bits) - 1 for v in wanted]
    found = each_lane(f"{name}.{NAMES[dtype]}", a, b)
    assert [int(v) & (1 << bits) - 1 for v in found] == wanted


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_pairs_of_integers(dtype):
    a, b = (np.stack([x, x[::-1]], 1).copy() for x in pairs(WHOLE[np.dtype(dtype)]))
    for name, wanted in (("add", a + b), ("min", np.minimum(a, b)), ("max", np.maximum(a, b))):
        given = (x.view(np.uint32).ravel() for x in (a, b))
        found = each_lane(f"{name}.{NAMES[np.dtype(dtype)]}x2", *given)
        np.testing.assert_array_equal(found.view(dtype).reshape(a.shape), wanted)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_shifts_beyond_the_width(dtype):
    values, by = pairs(np.arange(9, dtype=np.uint32) * 9)
    values = np.full(len(by), WHOLE[np.dtype(dtype)][6], dtype) + values.astype(dtype)
    bits = 8 * values.itemsize
    right = [int(v) >> int(n) for v, n in zip(values, by)]
    name = NAMES[np.dtype(dtype)]
    found = each_lane(f"shr.{name}", values, by)
    np.testing.assert_array_equal(found, np.array(right, object).astype(dtype))
    left = [int(v) << int(n) & (1 << bits) - 1 for v, n in zip(values, by)]
    found = each_lane(f"shl.b{bits}", values.view(f"uint{bits}"), by)
    np.testing.assert_array_equal(found, np.array(left, object).astype(f"uint{bits}"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div.rn", "min", "max"])
def test_floats(name, dtype):
    a, b = pairs(FLOATS.astype(dtype))
    with np.errstate(all="ignore"):
        wanted = {"add": a + b, "sub": a - b, "mul": a * b, "div.rn": a / b, "min": np.fmin(a, b),
                  "max": np.fmax(a, b)}[name]  # fmt: skip
    np.testing.assert_array_equal(each_lane(f"{name}.{NAMES[np.dtype(dtype)]}", a, b), wanted)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne", "ltu", "geu", "neu", "nan"])
def test_comparisons_of_floats(name):
    a, b = pairs(FLOATS.astype(np.float32))
    plain = {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b,
             "ne": a != b, "nan": np.zeros(len(a), bool)}[name.removesuffix("u") if name != "ne"
                                                           else "ne"]  # fmt: skip
    nan = np.isnan(a) | np.isnan(b)
    wanted = plain | nan if name.endswith("u") or name == "nan" else plain & ~nan
    found = each_lane(f"setp.{name}.f32", a, b, result="uint32")
    np.testing.assert_array_equal(found, wanted)


def test_max_that_keeps_nans():
    a, b = pairs(FLOATS.astype(np.float32))
    np.testing.assert_array_equal(each_lane("max.NaN.f32", a, b), np.maximum(a, b))


@pytest.mark.parametrize("target", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_as_integers_are_rounded_and_clipped(target, mode):
    values = np.concatenate([FLOATS, -FLOATS]).astype(np.float32)
    finite = np.nan_to_num(values.astype(np.float64), nan=0, posinf=1e30, neginf=-1e30)
    way = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](finite)
    low, high = np.iinfo(target).min, np.iinfo(target).max
    wanted = [min(max(int(v), low), high) for v in way]
    found = each_lane(f"cvt.{mode}.{NAMES[np.dtype(target)]}.f32", values, result=target)
    number = ~np.isnan(values)
    assert [int(v) for v in found[number]] == [w for w, n in zip(wanted, number) if n]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_halves_are_rounded(mode):
    values = np.concatenate([FLOATS, -FLOATS, np.linspace(-3, 3, 60)]).astype(np.float32)
    found = each_lane(f"cvt.{mode}.f16.f32", values, result="float16").astype(np.float64)
    exact = values.astype(np.float64)
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float16)
        below = np.where(nearest > exact, np.nextafter(nearest, np.float16(-np.inf)), nearest)
        above = np.where(nearest < exact, np.nextafter(nearest, np.float16(np.inf)), nearest)
    zero = np.where(exact > 0, below, above)
    wanted = {"rn": nearest, "rz": zero, "rm": below, "rp": above}[mode].astype(np.float64)
    np.testing.assert_array_equal(found, wanted)
    back = each_lane("cvt.f32.f16", nearest, result="float32")
    np.testing.assert_array_equal(back, nearest.astype(np.float32))


def test_bfloats_are_rounded_to_even():
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-8)], np.float32)
    found = each_lane("cvt.rn.bf16.f32", values, result="uint16")
    np.testing.assert_array_equal(found, [0x3F80, 0x3F82, 0x3F81, 0xBF80])


def test_bits():
    a = np.array([0x12345678, 0xFFFFFFFF, 0, 0x80000001], np.uint32)
    np.testing.assert_array_equal(each_lane("popc.b32", a), [13, 32, 0, 2])
    np.testing.assert_array_equal(each_lane("clz.b32", a), [3, 0, 32, 0])
    np.testing.assert_array_equal(each_lane("brev.b32", a), [0x1E6A2C48, 0xFFFFFFFF, 0, 0x80000001])
    place, length = np.full(4, 4, np.uint32), np.full(4, 8, np.uint32)
    np.testing.assert_array_equal(each_lane("bfe.u32", a, place, length), [0x67, 0xFF, 0, 0])
    found = each_lane("bfe.s32", a.view(np.int32), place, length)
    np.testing.assert_array_equal(found, [0x67, -1, 0, 0])
    choice = np.full(4, 0x0123, np.uint32)
    wanted = [0x78563412, 0xFFFFFFFF, 0, 0x01000080]
    np.testing.assert_array_equal(each_lane("prmt.b32", a, a, choice), wanted)
    wanted = np.array([int(v) << 5 & 0xFFFFFFFF | int(v) >> 27 for v in a], np.uint32)
    found = each_lane("shf.l.wrap.b32", a, a, np.full(4, 5, np.uint32))
    np.testing.assert_array_equal(found, wanted)


def test_approximations_flush_what_is_too_small():
    values = np.array([-150, -126, -1, 0, 0.5, 10, 200], np.float32)
    found = each_lane("ex2.approx.ftz.f32", values)
    np.testing.assert_allclose(found, [0, 2**-126, 0.5, 1, 2**0.5, 1024, np.inf], rtol=1e-6)


@pytest.mark.parametrize("opcode, wanted", [
    ("abs.ftz.f32", [0, 0, 2, 0]), ("neg.ftz.f32", [0, 0, -2, 0]),
    ("min.ftz.f32", [-1, 0, -1, 0]), ("max.ftz.f32", [0, 1, 2, 0]),
    ("setp.lt.ftz.f32", [0, 1, 0, 0]), ("setp.eq.ftz.f32", [0, 0, 0, 1]),
])  # fmt: skip
def test_subnormal_numbers_are_flushed(opcode, wanted):
    a = np.float32([1e-40, 1e-40, 2, -1e-40])
    b = np.float32([-1, 1, -1, 2e-40])
    operands = (a,) if opcode[:3] in ("abs", "neg") else (a, b)
    result = "uint32" if opcode.startswith("setp") else "float32"
    assert (each_lane(opcode, *operands, result=result) == np.asarray(wanted, result)).all()


def test_places_of_the_source_hide_no_instruction():
    """What compilers write with line numbers: no semicolon ends such a line."""
    numbers = np.arange(32, dtype=np.uint32)
    body = """  .loc 1 7 13  // kernel.py:7:13
  add.u32 %r1, %r0, 5;
  .loc 2 9 1, function_name $L__info_string0, inlined_at 1 7 13
  mad.wide.u32 %d20, %r0, 4, %q0;
  st.global.u32 [%d20], %r1;
"""
    assert (run_test(ptx_of(body, 1), [], numbers) == numbers + 5).all()
