"""Conversions between float formats agree with numpy and ml_dtypes, bit for bit."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from graphc.backends.llvm_cpu import jit, objects
from graphc.backends.llvm_cpu.target import named_target


def _convert(source: str, result: str, wide: type, narrow: type, values: np.ndarray) -> np.ndarray:
    """`values` through a loop compiled for a CPU without any conversion instructions."""
    operation = "fptrunc" if np.dtype(wide).itemsize > np.dtype(narrow).itemsize else "fpext"
    text = f"""
define void @convert(ptr %x, ptr %y, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr {source}, ptr %x, i64 %i
  %v = load {source}, ptr %p
  %w = {operation} {source} %v to {result}
  %q = getelementptr {result}, ptr %y, i64 %i
  store {result} %w, ptr %q
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    data = jit.compile_module(text, named_target("scalar"))
    function = objects.load_object(data, ["convert"]).function(
        "convert", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    )
    values = np.ascontiguousarray(values)
    out = np.empty(values.shape, narrow)
    function(values.ctypes.data, out.ctypes.data, values.size)
    return out


def _assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    nan = np.isnan(expected.astype(np.float64))
    assert np.isnan(found[nan].astype(np.float64)).all()
    kind = np.dtype(f"u{found.dtype.itemsize}")
    np.testing.assert_array_equal(found[~nan].view(kind), expected[~nan].view(kind))


def _floats(count: int = 200_000) -> np.ndarray:
    """Floats of all magnitudes, and those at every half and bfloat16, and midway between two."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    small = rng.integers(0x33000000, 0x48000000, count, dtype=np.uint32)  # the range of half
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    tops = np.arange(1 << 16, dtype=np.uint32) << 16
    near = [halves.view(np.uint32) + d for d in (0, 1, 0xFFF, 0x1000, 0x1001)]
    near += [tops + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001)]
    return np.concatenate([raw, small, *(x.astype(np.uint32) for x in near)]).view(np.float32)


def _doubles() -> np.ndarray:
    """Doubles at and next to floats: rounding them to float first would round twice."""
    base = _floats(20_000).astype(np.float64)
    return np.concatenate([base, np.nextafter(base, np.inf), np.nextafter(base, -np.inf)])


@pytest.mark.filterwarnings("ignore")
def test_half():
    _assert_same(
        _convert("float", "half", np.float32, np.float16, _floats()), _floats().astype(np.float16)
    )
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    _assert_same(_convert("half", "float", np.float16, np.float32, every), every.astype(np.float32))


@pytest.mark.filterwarnings("ignore")
def test_bfloat16():
    bf16 = ml_dtypes.bfloat16
    _assert_same(_convert("float", "bfloat", np.float32, bf16, _floats()), _floats().astype(bf16))


@pytest.mark.filterwarnings("ignore")
def test_half_from_double():
    values = _doubles()
    _assert_same(
        _convert("double", "half", np.float64, np.float16, values), values.astype(np.float16)
    )


@pytest.mark.filterwarnings("ignore")
def test_bfloat16_from_double_rounds_once():
    bf16 = ml_dtypes.bfloat16
    midpoint = np.float64(1 + 2.0**-8)  # between two bfloat16 numbers; 2^-40 decides
    values = np.array([midpoint, midpoint + 2.0**-40, midpoint - 2.0**-40, np.inf, -0.0, 1e300])
    found = _convert("double", "bfloat", np.float64, bf16, values).astype(np.float64)
    assert found.tolist() == [1.0, 1 + 2.0**-7, 1.0, np.inf, 0.0, np.inf]
