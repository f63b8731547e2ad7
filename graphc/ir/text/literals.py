"""Literals as text: names, strings, scalars and arrays, exact both ways.

A float is printed with the fewest digits that give the same value in its own dtype, so that text
is short and still parses to the same bits; NaNs keep their payload in arrays. Arrays that are too
large to read are named by a digest of dtype, shape and contents; `digest` computes it once per
array and forgets it when the array dies. Constants are never changed in place, so it stays true.
"""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from typing import Any

import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType

INLINE_ELEMENTS = 32  # larger arrays print as a digest or a splat,
INLINE_WIDTH = 100  # and so do those whose text is longer

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_./]+(?:::[A-Za-z0-9_./]+)*\Z")
_RESERVED = frozenset(("true", "false"))


def quote(text: str) -> str:
    """A string literal; non-ASCII characters are kept, lone surrogates escaped."""
    plain = json.dumps(text, ensure_ascii=False)
    try:
        plain.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return plain


def name_text(name: str) -> str:
    """A name in an expression, quoted unless it is an identifier."""
    return name if _IDENTIFIER.match(name) and name not in _RESERVED else quote(name)


def sigil_text(sigil: str, name: str) -> str:
    """`%name` or `@name`, quoted where the name holds unusual characters."""
    return sigil + (name if _VALUE_NAME.match(name) else quote(name))


# ---------------------------------------------------------------- scalars


def float_text(value: float, dtype: DType) -> str:
    """The shortest decimal that rounds to `value` in `dtype`; `nan`, `inf` and `-inf`."""
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if dtype is dtypes.f32:
        text = str(np.float32(value))
    elif dtype.bits > 32:
        text = repr(float(value))
    else:
        text = _shortest(value, dtype)
    return text if "." in text or "e" in text else text + ".0"


def _shortest(value: float, dtype: DType) -> str:
    for digits in range(1, 18):
        text = f"{value:.{digits}g}"
        with np.errstate(over="ignore"):
            rounded = np.float32(text).astype(dtype.np)
        if float(rounded) == value:
            return text
    return repr(float(value))


def element_text(value: Any, dtype: DType) -> str:
    """One element of an array of `dtype`."""
    if dtype is dtypes.string:
        return quote(value) if isinstance(value, str) else "b" + quote(value.decode("latin-1"))
    if dtype is dtypes.boolean:
        return "true" if value else "false"
    if dtype.kind == "complex":
        part = dtypes.f32 if dtype.bits == 64 else dtypes.f64
        return f"({float_text(value.real.item(), part)}, {float_text(value.imag.item(), part)})"
    if dtype.is_float:
        return _nan_text(value, dtype) if value != value else float_text(float(value), dtype)
    return str(int(value))


def _nan_text(value: np.generic, dtype: DType) -> str:
    bits = np.asarray(value, dtype.np).reshape(1).view(f"u{dtype.size}").item()
    usual = np.asarray(np.nan, dtype.np).reshape(1).view(f"u{dtype.size}").item()
    return "nan" if bits == usual else f"nan({bits:#x})"


def nan_of_bits(bits: int, dtype: DType) -> np.generic:
    """The NaN of `dtype` with exactly these bits."""
    return np.asarray(bits, f"u{dtype.size}").reshape(1).view(dtype.np)[0]


# ---------------------------------------------------------------- arrays


def array_text(array: np.ndarray, dtype: DType) -> str:
    """Nested brackets, row-major: `[[1, 2], [3, 4]]`; a bare element for rank 0."""
    if array.ndim == 0:
        return element_text(array[()], dtype)
    text = element_text if array.ndim == 1 else array_text
    return "[" + ", ".join(text(part, dtype) for part in array) + "]"


def splat_text(array: np.ndarray, dtype: DType) -> str | None:
    """The element that fills the whole array, or None if elements differ (in bits)."""
    if array.size == 0 or dtype is dtypes.string:
        return None
    first = array.reshape(-1)[:1] if array.flags.c_contiguous else array.flat[:1]
    pattern = first.tobytes()
    if array.flat[array.size // 2].tobytes() != pattern or array.flat[-1].tobytes() != pattern:
        return None
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(array.size, dtype.size)
    same = bool((raw == np.frombuffer(pattern, np.uint8)).all())
    return element_text(first[0], dtype) if same else None


_digests: dict[int, tuple[weakref.ref, str]] = {}


def digest(array: np.ndarray) -> str:
    """`sha256:` and 16 hex digits over dtype, shape and contents."""
    known = _digests.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    text = "sha256:" + _hash(array)
    key = id(array)
    _digests[key] = (weakref.ref(array, lambda _: _digests.pop(key, None)), text)
    return text


def _hash(array: np.ndarray) -> str:
    state = hashlib.sha256(f"{dtypes.of(array.dtype)}{list(array.shape)}".encode())
    if array.dtype.kind in "OUS":
        items = [element_text(x, dtypes.string) for x in array.reshape(-1).tolist()]
        state.update("\n".join(items).encode("utf-8", "surrogatepass"))
    else:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()[:16]


def loc_text(loc: tuple[str, ...]) -> str:
    """The nodes that something came from, after two spaces; nothing if there are none."""
    return f"  loc({', '.join(map(quote, loc))})" if loc else ""
