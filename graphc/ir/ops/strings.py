"""Operators on strings and other host values without a fixed layout. Strings are Python `str` in
object arrays."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.opdef import Any_, Operand, String, host
from graphc.ir.regular import Pattern
from graphc.ir.types import TensorType, broadcast

MAX_PARTS = 1 << 27  # strings that splitting gives, with those that pad rows: 1 GiB of references


def text(x: np.ndarray) -> np.ndarray:
    """An array of `str` objects (UTF-8 bytes are decoded)."""
    array = np.asarray(x)
    if array.dtype.kind == "O":
        if not any(isinstance(s, bytes) for s in array.reshape(-1)):
            return array
    return each_of(lambda s: s.decode() if isinstance(s, bytes) else str(s), array, object)


def each_of(function: Callable, array: np.ndarray, dtype: Any) -> np.ndarray:
    """`function` of every element."""
    out = np.empty(array.shape, dtype)
    flat = out.reshape(-1)
    for n, item in enumerate(array.reshape(-1)):
        flat[n] = function(item)
    return flat.reshape(array.shape)


def _broadcast_strings(a: Operand, b: Operand) -> TensorType:
    return TensorType(dtypes.string, broadcast(a.shape, b.shape))


@host("StringConcat", infer=_broadcast_strings)
def string_concat(a: String, b: String) -> np.ndarray:
    """a followed by b, elementwise with broadcasting."""
    return np.asarray(np.add(text(a), text(b)), object)


@host("StringSplit", outputs=2)
def string_split(
    x: String, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[np.ndarray, ...]:
    """The parts of each string in a new last dimension, padded with "", and their number.

    An empty delimiter splits at runs of white space.
    """
    source = text(x)
    limit = -1 if maxsplit is None else maxsplit
    parts = [s.split(delimiter or None, limit) for s in source.reshape(-1)]
    rows = padded(parts, "")
    counts = np.array([len(p) for p in parts], np.int64)
    return rows.reshape(*source.shape, rows.shape[1]), counts.reshape(source.shape)


def padded(parts: list[list[str]], filling: str) -> np.ndarray:
    """The parts of strings as rows of one length."""
    width = max(map(len, parts), default=0)
    if len(parts) * width > MAX_PARTS:
        raise ModelError(
            f"{len(parts)} strings of up to {width} parts are more than {MAX_PARTS} parts"
        )
    rows = np.full((len(parts), width), filling, object)
    for row, items in enumerate(parts):
        rows[row, : len(items)] = items
    return rows


@host("StringNormalizer")
def string_normalizer(
    x: String,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] = (),
) -> np.ndarray:
    """Strings of a [C] or [1, C] tensor without stop words, in one case; one "" if none is left.

    Case is changed by Unicode's rules whatever the locale.
    """
    source = text(x)
    if source.ndim not in (1, 2) or (source.ndim == 2 and source.shape[0] != 1):
        raise ModelError(f"the input has shape {list(source.shape)}, expected [C] or [1, C]")
    change = _CASES.get(case_change_action)
    if change is None:
        raise ModelError(f"case_change_action {case_change_action!r} is not one of {list(_CASES)}")
    fold = str if is_case_sensitive else str.lower
    stops = {fold(word) for word in stopwords or ()}
    kept = [change(_plain(s)) for s in source.reshape(-1) if fold(s) not in stops]
    kept = kept or [""]
    return np.array(kept, object).reshape((*source.shape[:-1], len(kept)))


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def _plain(s: str) -> str:
    """Without accents: combining marks are dropped from the compatibility decomposition."""
    if s.isascii():
        return s
    return "".join(c for c in unicodedata.normalize("NFKD", s) if not unicodedata.combining(c))


@host("RegexFullMatch", infer=lambda x: TensorType(dtypes.boolean, x.shape))
def regex_full_match(x: String, *, pattern: str) -> np.ndarray:
    """Whether each whole string matches the pattern, which has RE2's syntax (ir/regular.py)."""
    return each_of(pattern_of(pattern).fullmatch, text(x), np.bool_)


pattern_of = lru_cache(maxsize=16)(Pattern)


# ---------------------------------------------------------------- ai.onnx.ml

_KINDS = ("int64s", "floats", "strings", "tensor")
_VALUES = {"int64s": np.int64, "floats": np.float32, "strings": object}


@host("LabelEncoder", domain="ai.onnx.ml")
def label_encoder(
    x: Any_,
    *,
    keys_int64s: Sequence[int] | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: np.ndarray | None = None,
    values_int64s: Sequence[int] | None = None,
    values_floats: Sequence[float] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: np.ndarray | None = None,
    default_int64: int = -1,
    default_float: float = -0.0,
    default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None,
) -> np.ndarray:
    """Each element's value in a table of keys and values, or the default."""
    keys = _only("keys", (keys_int64s, keys_floats, keys_strings, keys_tensor))
    given = (values_int64s, values_floats, values_strings, values_tensor)
    values = _only("values", given)
    if len(keys) != len(values):
        raise ModelError(f"{len(keys)} keys, but {len(values)} values")
    kind = _KINDS[next(n for n, v in enumerate(given) if v is not None)]
    defaults = {"int64s": default_int64, "floats": default_float, "strings": default_string}
    dtype = values_tensor.dtype if kind == "tensor" else np.dtype(_VALUES[kind])
    if kind != "tensor":
        default = defaults[kind]
    elif default_tensor is not None:
        default = np.asarray(default_tensor).reshape(-1)[0]
    else:
        default = "_Unused" if dtype.kind == "O" else -1 if dtype.kind in "iu" else -0.0
    table = {_key(k): v for k, v in zip(keys, values)}
    source = text(x) if dtypes.of(np.asarray(x).dtype) is dtypes.string else np.asarray(x)
    return each_of(lambda item: table.get(_key(item), default), source, dtype)


def _only(what: str, choices: tuple) -> list:
    """The one attribute that is given."""
    defaults = [c for c in choices if c is not None]
    if len(defaults) != 1:
        raise ModelError(f"needs exactly one {what}_* attribute, found {len(defaults)}")
    return list(np.asarray(defaults[0]).reshape(-1).tolist())


def _key(value: float | str) -> float | str:
    """A dictionary key: NaN is equal to NaN, and a float to its float32 neighbour."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return "nan" if value != value else float(np.float32(value))
    return value


@host("CategoryMapper", domain="ai.onnx.ml")
def category_mapper(
    x: Any_, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (),
    default_int64: int = -1, default_string: str = "_Unused",
) -> np.ndarray:  # fmt: skip
    """Strings to their integers, or integers to their strings."""
    if len(cats_int64s) != len(cats_strings):
        raise ModelError(f"{len(cats_int64s)} integers, but {len(cats_strings)} strings")
    source: np.ndarray = np.asarray(x)
    if dtypes.of(source.dtype) is dtypes.string:
        to_number = dict(zip(cats_strings, cats_int64s))
        return each_of(lambda s: to_number.get(s, default_int64), text(source), np.int64)
    to_name = dict(zip(cats_int64s, cats_strings))
    return each_of(lambda n: to_name.get(int(n), default_string), source, object)
