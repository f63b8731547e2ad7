"""The sums of digests.py in native code, at the speed of memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from graphc.backends.cache import default_cache
from graphc.backends.digests import CHUNK, chunk_sums, factors
from graphc.backends.llvm_cpu.objects import Library, cached_object, load_object
from graphc.backends.llvm_cpu.target import host_target

FUNCTION = "graphc_digest_sums"
_STEP = 64  # bytes of a vector: eight pairs of words
_LOW, _SHIFT = (f"<{', '.join([f'i64 {n}'] * 8)}>" for n in (0xFFFFFFFF, 32))
_IR = f"""
declare i64 @llvm.vector.reduce.add.v8i64(<8 x i64>)

define void @{FUNCTION}(ptr %data, i64 %chunks, ptr %factors, ptr %out) {{
entry:
  %any = icmp ugt i64 %chunks, 0
  br i1 %any, label %chunk, label %done
chunk:
  %n = phi i64 [ 0, %entry ], [ %n.next, %summed ]
  %start = mul i64 %n, {CHUNK}
  %words = getelementptr i8, ptr %data, i64 %start
  br label %vector
vector:
  %at = phi i64 [ 0, %chunk ], [ %at.next, %vector ]
  %even = phi <8 x i64> [ zeroinitializer, %chunk ], [ %even.next, %vector ]
  %odd = phi <8 x i64> [ zeroinitializer, %chunk ], [ %odd.next, %vector ]
  %x.at = getelementptr i8, ptr %words, i64 %at
  %f.at = getelementptr i8, ptr %factors, i64 %at
  %x = load <8 x i64>, ptr %x.at, align 1
  %f = load <8 x i64>, ptr %f.at, align 8
  %x.low = and <8 x i64> %x, {_LOW}
  %f.low = and <8 x i64> %f, {_LOW}
  %low = mul <8 x i64> %x.low, %f.low
  %even.next = add <8 x i64> %even, %low
  %x.high = lshr <8 x i64> %x, {_SHIFT}
  %f.high = lshr <8 x i64> %f, {_SHIFT}
  %high = mul <8 x i64> %x.high, %f.high
  %odd.next = add <8 x i64> %odd, %high
  %at.next = add i64 %at, {_STEP}
  %more = icmp ult i64 %at.next, {CHUNK}
  br i1 %more, label %vector, label %summed
summed:
  %both = add <8 x i64> %even.next, %odd.next
  %sum = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %both)
  %place = getelementptr i64, ptr %out, i64 %n
  store i64 %sum, ptr %place, align 8
  %n.next = add i64 %n, 1
  %again = icmp ult i64 %n.next, %chunks
  br i1 %again, label %chunk, label %done
done:
  ret void
}}
"""


def native_sums(data: np.ndarray) -> np.ndarray:
    """As digests.chunk_sums."""
    if sys.byteorder != "little":
        return chunk_sums(data)
    whole = data.size // CHUNK
    result = np.empty(-(-data.size // CHUNK), np.uint64)
    if whole:
        own = _factors()  # of two threads that ask first, one has an array that no cache keeps
        _native()(data.ctypes.data, whole, own.ctypes.data, result.ctypes.data)
    if whole < result.size:
        result[whole:] = chunk_sums(data[whole * CHUNK :])
    return result


@lru_cache(maxsize=1)
def _factors() -> np.ndarray:
    return factors().astype(np.uint32)


@lru_cache(maxsize=1)
def _native() -> Callable:
    library: Library = load_object(cached_object(_IR, host_target(), default_cache()), [FUNCTION])
    pointer = ctypes.c_void_p
    return library.function(FUNCTION, None, pointer, ctypes.c_int64, pointer, pointer)
