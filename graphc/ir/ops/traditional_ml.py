"""Feature preparation and linear models of ai.onnx.ml, as graphs of ordinary operators.

Their outputs are float32 whatever the input, as the specification says. Formulas: ONNX's operator
documentation; classification scores follow ONNX Runtime where the documentation is silent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.checks import VALUE
from graphc.ir.dtypes import DType, f32, i64
from graphc.ir.expr import Expr
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Int, Number, Operand, OutIndex, composite, op
from graphc.ir.ops.helpers import plain_index, sliced
from graphc.ir.ops.in_range import require
from graphc.ir.ops.scores import (
    either,
    label_array,
    post_transformed,
    transformed_targets,
    two_columns,
)
from graphc.ir.types import Dim, Shape

DOMAIN = "ai.onnx.ml"


def _as_type(b: Builder, x: Value, dtype: DType) -> Value:
    return x if x.tensor.dtype is dtype else b.Cast(x, to=dtype.onnx)


def _float32(b: Builder, x: Value) -> Value:
    return _as_type(b, x, f32)


def _row_features(x: Value) -> Dim:
    """Features per row: the last dimension."""
    if x.tensor.rank not in (1, 2):
        raise ModelError(f"takes [N, C] or [C], found {x.type}")
    return x.tensor.dims[-1]


# ---------------------------------------------------------------- features


def _extracted(x: Operand, y: Operand) -> Shape:
    count = y.size
    return (*x.shape[:-1], count) if x.rank > 1 else (1, count)


@op("ArrayFeatureExtractor", infer=_extracted, domain=DOMAIN)
def array_feature_extractor(i: OutIndex, x: Any_, y: Int) -> Expr:
    """The columns y of x (of its last dimension)."""
    column = plain_index(y.flat(i[-1]), x.shape[-1])
    return x[i[:-1] + (column,)] if x.rank > 1 else x[column]


@op("Binarizer", domain=DOMAIN)
def binarizer(i: OutIndex, x: Number, *, threshold: float = 0.0) -> Expr:
    """1 above the threshold, else 0."""
    above = x[i] > threshold if x.dtype.is_float else x[i].cast(f32) > threshold
    return above.cast(x.dtype)


@composite("Scaler", domain=DOMAIN)
def scaler(
    b: Builder, x: Number, *, offset: Sequence[float] | None = None,
    scale: Sequence[float] | None = None,
) -> Value:  # fmt: skip
    """(x - offset) * scale, with one value or one per feature."""
    result = _float32(b, x)
    if offset is not None:
        result = b.Sub(result, _per_feature(b, x, offset, "offset"))
    if scale is not None:
        result = b.Mul(result, _per_feature(b, x, scale, "scale"))
    return result


def _per_feature(b: Builder, x: Value, values: Sequence[float], what: str) -> Value:
    features = x.tensor.dims[-1] if x.tensor.rank else 1
    if len(values) not in (1, features):
        raise ModelError(f"{what} has {len(values)} values for {features} features")
    return b.constant(np.asarray(values, np.float32))


@composite("Normalizer", domain=DOMAIN)
def normalizer(b: Builder, x: Number, *, norm: str = "MAX") -> Value:
    """Each row over its largest element, sum of absolute values, or length; rows of norm 0 stay."""
    _row_features(x)
    values = _float32(b, x)
    reduce = {"MAX": b.ReduceMax, "L1": b.ReduceL1, "L2": b.ReduceL2}.get(norm)
    if reduce is None:
        raise ModelError(f"norm must be MAX, L1 or L2, found {norm!r}")
    divisor = reduce(values, b.constant([-1], i64), keepdims=1)
    vanishes = b.Equal(divisor, b.constant(0, f32))
    return b.Div(values, b.Where(vanishes, b.constant(1, f32), divisor))


@composite("Imputer", domain=DOMAIN)
def imputer(
    b: Builder, x: Number, *, imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None, replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:  # fmt: skip
    """x with one value (or NaN) replaced, by one value or by one per feature."""
    dtype = x.tensor.dtype
    values = imputed_value_floats if dtype.is_float else imputed_value_int64s
    replaced = replaced_value_float if dtype.is_float else replaced_value_int64
    features = x.tensor.dims[-1] if x.tensor.rank else 1
    if not values or len(values) not in (1, features):
        raise ModelError(f"{len(values or ())} imputed values do not fit {features} features")
    missing = b.IsNaN(x) if replaced != replaced else b.Equal(x, b.constant(replaced, dtype))
    fill = np.asarray(values if len(values) > 1 else values[0], dtype.np)
    return b.Where(missing, b.constant(fill), x)


@composite("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(
    b: Builder, x: Any_, *, cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None, zeros: int = 1,
) -> Value:  # fmt: skip
    """1 at the category that the element equals (the last of equal ones), 0 elsewhere. Unknown
    ones give only zeros; without `zeros` they fail the run."""
    dtype = x.tensor.dtype
    if dtype.is_number:
        wanted, items = np.asarray(cats_int64s or (), np.int64), _as_type(b, x, i64)
    elif dtype.kind == "string":
        wanted, items = np.asarray(cats_strings or (), object), x
    else:
        raise ModelError(f"takes numbers or strings, found {x.type}")
    equal = b.Equal(b.Unsqueeze(items, np.array([-1])), b.constant(wanted))
    last = {category: number for number, category in enumerate(wanted.tolist())}
    if len(last) < len(wanted):
        counts = np.isin(np.arange(len(wanted)), list(last.values()))
        equal = b.And(equal, b.constant(counts))
    result = b.Cast(equal, to=f32.onnx)
    if not zeros:
        _reject_unknown(b, x, result, len(last))
    return result


def _reject_unknown(b: Builder, x: Value, hot: Value, count: int) -> None:
    """Has the run fail if an element of x has no 1 in `hot`; says which, counted from 1."""
    known = b.Greater(b.ReduceMax(hot, b.constant([-1], i64), keepdims=0), b.constant(0, f32))
    order = b.constant(np.arange(1, x.tensor.size + 1).reshape(x.tensor.static_shape), i64)
    place = b.Where(known, b.constant(0, i64), order)
    require(
        b, place, 0, 0, f"element {VALUE} of x is not one of the {count} categories (zeros is 0)"
    )


@composite("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(
    b: Builder, *parts: Number, inputdimensions: Sequence[int] | None = None
) -> Value:
    """The features of all operands in one row, as float32.

    `inputdimensions` says how many there are of each: of an operand with more the first ones are
    taken, one with less is filled up with zeros.
    """
    if inputdimensions and len(inputdimensions) != len(parts):
        raise ModelError(f"{len(inputdimensions)} inputdimensions for {len(parts)} operands")
    if any(size < 0 for size in inputdimensions or ()):
        raise ModelError(f"inputdimensions {list(inputdimensions)} are not all positive")
    rows = [_flat_rows(b, part) for part in parts]
    sizes = inputdimensions or [row.tensor.static_shape[1] for row in rows]
    return b.Concat(*(_of_width(b, row, size) for row, size in zip(rows, sizes)), axis=1)


def _flat_rows(b: Builder, part: Value) -> Value:
    """An operand as rows of float32."""
    wide = _float32(b, part)
    if part.tensor.rank == 1:
        return b.Unsqueeze(wide, b.constant([0], i64))
    return wide if part.tensor.rank == 2 else b.Flatten(wide, axis=1)


def _of_width(b: Builder, rows: Value, size: int) -> Value:
    """Rows cut to a number of columns, or filled up with zeros."""
    count = rows.tensor.dims[1]
    if count > size:
        return sliced(b, rows, 0, size, axis=1)
    return rows if count == size else b.Pad(rows, np.array([0, 0, 0, size - count]))


# ---------------------------------------------------------------- linear models


def rows_of(b: Builder, x: Value) -> tuple[Value, int]:
    """x as rows of float32, [N, F], and the number F."""
    features = int(_row_features(x))
    x = _float32(b, x)
    return (x if x.tensor.rank == 2 else b.Unsqueeze(x, b.constant([0], i64))), features


def _scores(
    b: Builder, x: Value, coefficients: Sequence[float], intercepts: Sequence[float] | None,
    count: int,
) -> Value:  # fmt: skip
    """x times the transposed coefficients, plus the intercepts: [N, count]."""
    rows, features = rows_of(b, x)
    if len(coefficients) != count * features:
        raise ModelError(f"{len(coefficients)} coefficients for {count} x {features}")
    weights = np.asarray(coefficients, np.float32).reshape(count, features)
    result = b.MatMul(rows, b.constant(np.ascontiguousarray(weights.T)))
    if intercepts:
        result = b.Add(result, b.constant(np.asarray(intercepts, np.float32)))
    return result


@composite("LinearRegressor", domain=DOMAIN)
def linear_regressor(
    b: Builder, x: Number, *, coefficients: Sequence[float] | None = None,
    intercepts: Sequence[float] | None = None, post_transform: str = "NONE", targets: int = 1,
) -> Value:  # fmt: skip
    """One linear function of the features per target."""
    scores = _scores(b, x, coefficients or (), intercepts, targets)
    return transformed_targets(b, scores, post_transform)


@composite("LinearClassifier", outputs=2, domain=DOMAIN)
def linear_classifier(
    b: Builder, x: Number, *, coefficients: Sequence[float],
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None, intercepts: Sequence[float] | None = None,
    multi_class: int = 0, post_transform: str = "NONE",
) -> tuple[Value, ...]:  # fmt: skip
    """The label of the best score of each row, and the scores.

    A single row of coefficients for two labels gives a score s for the second one, chosen if s > 0;
    the scores are then 1 - s and s, with LOGISTIC those of the logistic function of s.
    """
    labels = label_array(classlabels_ints, classlabels_strings)
    count = len(coefficients) // max(1, int(_row_features(x)))
    scores = _scores(b, x, coefficients, intercepts, count)
    if count == 1 and len(labels) == 2:
        return _binary(b, scores, labels, post_transform)
    best = b.ArgMax(scores, axis=1, keepdims=0)
    return b.Gather(b.constant(labels), best), post_transformed(b, scores, post_transform)


def _binary(
    b: Builder, scores: Value, labels: np.ndarray, post_transform: str
) -> tuple[Value, ...]:
    label = either(b, labels, b.Greater(scores, b.constant(0, f32)))
    return label, two_columns(b, scores, post_transform, positive=True)
