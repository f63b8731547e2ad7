"""Operators of ai.onnx.ml on maps, which are dicts in Python: they run on the host.

Definitions: ONNX's operator documentation; the order of keys and what a cast of text takes follow
ONNX Runtime, whose maps are sorted by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.dtypes import f32, i64, string
from graphc.ir.opdef import Float, Maps, Operand, host
from graphc.ir.ops.traditional_ml import DOMAIN
from graphc.ir.types import MapType, SequenceType, TensorType


def class_labels(
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> tuple:
    """The keys of ZipMap, whichever attribute gives them."""
    if bool(classlabels_int64s) == bool(classlabels_strings):
        raise ModelError("needs either classlabels_int64s or classlabels_strings")
    return tuple(classlabels_int64s or classlabels_strings)


def _zipped(
    x: Operand,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> SequenceType:
    labels = class_labels(classlabels_int64s, classlabels_strings)
    if x.rank not in (1, 2):
        raise ModelError(f"takes [N, C] or [C], found {x.type}")
    if isinstance(x.shape[-1], int) and x.shape[-1] != len(labels):
        raise ModelError(f"{len(labels)} labels for the {x.shape[-1]} columns of {x.type}")
    return SequenceType(MapType(i64 if classlabels_int64s else string, x.dtype))


@host("ZipMap", infer=_zipped, domain=DOMAIN, traits=("presentation",))
def zip_map(
    x: Float, *, classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> list[dict]:  # fmt: skip
    """A map from labels to scores for each row, in the order of labels; of equal ones the last."""
    labels = class_labels(classlabels_int64s, classlabels_strings)
    rows: np.ndarray = np.atleast_2d(x)
    if x.ndim > 2 or rows.shape[1] != len(labels):
        raise ModelError(f"{len(labels)} labels for scores of shape {list(x.shape)}")
    return [dict(sorted(dict(zip(labels, row)).items())) for row in rows.astype(float).tolist()]


def _map_type(x: Any) -> MapType:
    if not isinstance(x, MapType):
        raise ModelError(f"takes a map, found {x if x is None else getattr(x, 'type', x)}")
    return x


def _vocabulary(
    int64_vocabulary: Sequence[int] | None, string_vocabulary: Sequence[str] | None
) -> tuple:
    return tuple(string_vocabulary if int64_vocabulary is None else int64_vocabulary)


def _vectorized(
    x: MapType,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> TensorType:
    if (int64_vocabulary is None) == (string_vocabulary is None):
        raise ModelError("needs either int64_vocabulary or string_vocabulary")
    key = string if int64_vocabulary is None else i64
    if _map_type(x).key is not key:
        raise ModelError(f"the vocabulary holds {key}, the map is {x}")
    return TensorType(x.value, (1, len(_vocabulary(int64_vocabulary, string_vocabulary))))


@host("DictVectorizer", infer=_vectorized, domain=DOMAIN)
def dict_vectorizer(
    x: Maps, *, int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> np.ndarray:  # fmt: skip
    """The values of the keys in the vocabulary: [1, M]; 0, or "", where the map has no such key."""
    dtype = x.type.value
    absent = "" if dtype is string else dtype.np.type(0)
    keys = _vocabulary(int64_vocabulary, string_vocabulary)
    return np.array([[x.get(key, absent) for key in keys]], dtype.np).reshape(1, len(keys))


_CASTS = {"TO_FLOAT": f32, "TO_INT64": i64, "TO_STRING": string}


def _cast_type(cast_to: str) -> dtypes.DType:
    if cast_to not in _CASTS:
        raise ModelError(f"cast_to {cast_to!r} is not one of {', '.join(_CASTS)}")
    return _CASTS[cast_to]


@host("CastMap", domain=DOMAIN)
def cast_map(
    x: Maps, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> np.ndarray:
    """The values of a map in the order of its keys, as floats, integers or text: [1, M].

    DENSE takes them one by one; SPARSE puts those of the keys 0 to max_map - 1 there, and 0 ("0.f"
    as text) where the map has none.
    """
    dtype = _cast_type(cast_to)
    values: list[Any]
    if map_form == "DENSE":
        values = [_cast(item, dtype) for _, item in sorted(x.items())]
    elif map_form != "SPARSE" or max_map <= 0:
        raise ModelError(f"map_form is {map_form!r}, max_map {max_map}: expected DENSE, or SPARSE "
                         "and a positive number")  # fmt: skip
    elif any(key < 0 for key in x):
        raise ModelError(f"the key {min(x)} is negative, which map_form SPARSE has no place for")
    else:
        absent = "0.f" if dtype is string else 0
        values = [_cast(x[n], dtype) if n in x else absent for n in range(max_map)]
    return np.array([values], dtype.np).reshape(1, len(values))


def _cast(value: Any, dtype: dtypes.DType) -> Any:
    """A float or text as the element type asks for."""
    if dtype is string:
        return value if isinstance(value, str) else f"{float(value):f}"
    try:
        return float(value) if dtype is f32 else int(value)
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{value!r} cannot become {dtype}") from error
