"""Support vector machines of ai.onnx.ml: a kernel matrix, then contractions.

K[n, v] = kernel(x[n], vector[v]). The decisions between the classes of all pairs are one product of
K with a matrix made of the coefficients; votes are another. Without support vectors the model is
linear. All is computed in float32 but the sums over support vectors. Definitions: ONNX's operator
documentation and libsvm (Chang and Lin); where both are silent, ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import f32, f64, i64
from graphc.ir.expr import Expr, absolute, maximum
from graphc.ir.graph import Value
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.kernel import Buffer
from graphc.ir.opdef import REQUIRED, Float, Number, composite, imperative
from graphc.ir.ops.helpers import check_table, sliced
from graphc.ir.ops.scores import chosen, either, label_array, transformed_targets, two_columns
from graphc.ir.ops.traditional_ml import DOMAIN, rows_of

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
LEAST = 1e-7  # of the probability of one class of a pair
ROUNDS = 100  # of the iteration that couples probabilities
SVM = {
    "coefficients": REQUIRED, "kernel_params": None, "kernel_type": "LINEAR",
    "post_transform": "NONE", "rho": None, "support_vectors": None,
}  # fmt: skip


# ---------------------------------------------------------------- the kernel matrix


def _row(values: Sequence[float]) -> np.ndarray:
    return np.asarray(values or (), np.float32)


def _matrix(values: Sequence[float], rows: int, columns: int, what: str) -> np.ndarray:
    """Values as rows of columns; ModelError if there are not as many."""
    array = _row(values)
    if array.size != rows * columns:
        raise ModelError(f"{what} has {array.size} values, expected {rows} x {columns}")
    return array.reshape(rows, columns)


def _similarities(
    b: Builder, x: Value, vectors: np.ndarray, kernel_type: str, kernel_params: Sequence[float]
) -> Value:
    """The kernel of every row of x [N, F] and every vector [V, F]: [N, V]."""
    if kernel_type not in KERNELS:
        raise ModelError(f"kernel_type must be one of {', '.join(KERNELS)}, found {kernel_type!r}")
    if kernel_params and len(kernel_params) != 3:
        raise ModelError(f"kernel_params are gamma, coef0 and degree, found {kernel_params}")
    gamma, coef0, degree = kernel_params or (0.0, 0.0, 0.0)
    if kernel_type == "RBF":
        apart = b.Sub(b.Unsqueeze(x, b.constant([1], i64)), b.constant(vectors[None]))
        square = b.ReduceSumSquare(apart, b.constant([2], i64), keepdims=0)
        return b.Exp(b.Mul(square, b.constant(-gamma, f32)))
    products = b.MatMul(x, b.constant(np.ascontiguousarray(vectors.T)))
    if kernel_type == "LINEAR":
        return products
    affine = b.Add(b.Mul(products, b.constant(gamma, f32)), b.constant(coef0, f32))
    return b.Tanh(affine) if kernel_type == "SIGMOID" else _power(b, affine, degree)


def _power(b: Builder, x: Value, degree: float) -> Value:
    """x to a power; small whole ones as products."""
    if degree in (2, 3):
        square = b.Mul(x, x)
        return square if degree == 2 else b.Mul(square, x)
    return b.Pow(x, b.constant(degree, f32))


# ---------------------------------------------------------------- regression


@composite("SVMRegressor", domain=DOMAIN)
def svm_regressor(
    b: Builder, x: Number, *, n_supports: int = 0, one_class: int = 0, **svm: SVM
) -> Value:
    """sum_v coefficient[v] * kernel(x, vector[v]) + rho: [N, 1]; with one_class 1 where that is
    positive, else -1. post_transform is not applied, as in ONNX Runtime."""
    x, features = rows_of(b, x)
    coefficients = _row(svm["coefficients"])
    if n_supports > 0:
        vectors = _matrix(svm["support_vectors"], n_supports, features, "support_vectors")
        x = _similarities(b, x, vectors, svm["kernel_type"], svm["kernel_params"])
    weights = _matrix(coefficients.tolist(), x.tensor.dims[1], 1, "coefficients")
    result = b.Add(b.MatMul(x, b.constant(weights)), b.constant(_rho(svm, 1)[:1]))
    if one_class:
        inside = b.Greater(result, b.constant(0, f32))
        result = b.Where(inside, b.constant(1, f32), b.constant(-1, f32))
    return result


def _rho(svm: dict, count: int) -> np.ndarray:
    rho = _row(svm["rho"])
    if rho.size < count:
        raise ModelError(f"rho has {rho.size} values, expected {count}")
    return rho


# ---------------------------------------------------------------- classification


@composite("SVMClassifier", outputs=2, domain=DOMAIN)
def svm_classifier(
    b: Builder, x: Number, *, classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None, prob_a: Sequence[float] | None = None,
    prob_b: Sequence[float] | None = None, vectors_per_class: Sequence[int] | None = None,
    **svm: SVM,
) -> tuple[Value, ...]:  # fmt: skip
    """The label of each row, and scores.

    With support vectors, every pair of classes decides for one of the two by the sign of its
    decision; the class with most votes is the label. Scores are the decisions, or with prob_a and
    prob_b the probabilities of the classes. Without, scores are linear functions of the row, and
    the label that of the largest.
    """
    labels = label_array(classlabels_ints, classlabels_strings)
    x, features = rows_of(b, x)
    if not vectors_per_class or not sum(vectors_per_class):
        return _linear(b, x, features, labels, svm, bool(prob_a))
    pairs = list(combinations(range(len(labels)), 2))
    decisions = _decisions(b, x, features, vectors_per_class, pairs, svm)
    number = b.ArgMax(_votes(b, decisions, len(labels), pairs), axis=1, keepdims=0)
    label = chosen(b, labels, number)
    if prob_a or prob_b:
        scores = _probabilities(b, decisions, prob_a, prob_b, pairs)
    elif len(labels) == 2:
        raw = svm["post_transform"] == "NONE"
        return label, two_columns(b, decisions, svm["post_transform"], positive=not raw)
    else:
        scores = decisions
    return label, transformed_targets(b, scores, svm["post_transform"])


def _linear(
    b: Builder, x: Value, features: int, labels: np.ndarray, svm: dict, probable: bool
) -> tuple[Value, ...]:
    """liblinear's model: a row of coefficients per class, and one intercept for all."""
    weights = _matrix(svm["coefficients"], len(labels), features, "coefficients")
    intercept = b.constant(_rho(svm, 1)[:1])
    scores = b.Add(b.MatMul(x, b.constant(np.ascontiguousarray(weights.T))), intercept)
    label = chosen(b, labels, b.ArgMax(scores, axis=1, keepdims=0))
    if len(labels) == 2 and not probable:
        largest = b.ReduceMax(scores, b.constant([1], i64), keepdims=0)
        positive = bool((weights >= 0).all())
        second = (b.GreaterOrEqual if positive else b.Greater)(
            largest, b.constant(0.5 if positive else 0, f32)
        )
        label = b.Where(second, either(b, labels, second), label)
    return label, transformed_targets(b, scores, svm["post_transform"])


def _decisions(
    b: Builder, x: Value, features: int, per_class: Sequence[int], pairs: list, svm: dict
) -> Value:
    """The decision between the classes of each pair: [N, P], positive for the first.

    `coefficients` has a row less than there are classes: of a vector of class i, those of pairs
    with the class j are in row j - 1 if i < j, else in row j. The terms cancel where classes lie
    close together: they are added up in float64.
    """
    count, classes = sum(per_class), len(per_class)
    if classes < 2 or len(pairs) != classes * (classes - 1) // 2:
        raise ModelError(f"vectors_per_class has {classes} values; there must be one per label, "
                         "and two labels at least")  # fmt: skip
    vectors = _matrix(svm["support_vectors"], count, features, "support_vectors")
    rows = _matrix(svm["coefficients"], classes - 1, count, "coefficients")
    check_table(count, len(pairs))
    ends = np.cumsum(per_class)
    own = [slice(end - size, end) for end, size in zip(ends, per_class)]
    weights = np.zeros((count, len(pairs)))
    for column, (i, j) in enumerate(pairs):
        weights[own[i], column] = rows[j - 1, own[i]]
        weights[own[j], column] = rows[i, own[j]]
    kernel = _similarities(b, x, vectors, svm["kernel_type"], svm["kernel_params"])
    rho = b.constant(_rho(svm, len(pairs))[: len(pairs)].astype(np.float64))
    wide = b.MatMul(b.Cast(kernel, to=f64.onnx), b.constant(weights))
    return b.Cast(b.Add(wide, rho), to=f32.onnx)


def _votes(b: Builder, decisions: Value, classes: int, pairs: list) -> Value:
    """How many pairs decide for each class: [N, C]."""
    check_table(len(pairs), classes)
    first, second = (np.zeros((len(pairs), classes), np.float32) for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1
    won = b.Cast(b.Greater(decisions, b.constant(0, f32)), to=f32.onnx)
    return b.Add(b.MatMul(won, b.constant(first - second)), b.constant(second.sum(0)))


def _probabilities(
    b: Builder, decisions: Value, prob_a: Sequence[float], prob_b: Sequence[float], pairs: list
) -> Value:
    """Platt's probabilities of the classes of each pair, coupled to one per class: [N, C]."""
    a, c = _row(prob_a), _row(prob_b)
    if min(a.size, c.size) < len(pairs):
        raise ModelError(f"prob_a and prob_b have {a.size} and {c.size} values for {len(pairs)} "
                         "pairs of classes")  # fmt: skip
    exponent = b.Add(b.Mul(decisions, b.constant(a[: len(pairs)])), b.constant(c[: len(pairs)]))
    won = b.Sigmoid(b.Neg(exponent))
    low, high = b.constant(LEAST, f32), b.constant(np.float32(1) - np.float32(LEAST), f32)
    q = _coupling(b, b.Clip(won, low, high), pairs)
    return b.op("CoupledProbabilities", q, domain="graphc", outputs=2)[0]


def _coupling(b: Builder, won: Value, pairs: list) -> Value:
    """Q [N, C, C] of what each class of a pair wins: Q_ii = sum_j r_ji^2, Q_ij = -r_ji r_ij."""
    classes = pairs[-1][1] + 1
    check_table(classes, classes)
    place = np.full((classes, classes), 2 * len(pairs))  # of zeros
    for n, (i, j) in enumerate(pairs):
        place[i, j], place[j, i] = n, len(pairs) + n
    zeros = b.Mul(sliced(b, won, 0, 1, axis=1), 0.0)
    both = b.Concat(won, b.Sub(b.constant(1, f32), won), zeros, axis=1)
    rates, turned = (b.Gather(both, b.constant(t), axis=1) for t in (place, place.T))
    squares = b.ReduceSumSquare(turned, b.constant([2], i64), keepdims=1)
    diagonal = b.constant(np.eye(classes, dtype=bool))
    return b.Where(diagonal, squares, b.Neg(b.Mul(rates, turned)))


@imperative(
    "CoupledProbabilities", infer=lambda q: [q.type.with_shape(q.shape[:2])] * 2, outputs=2,
    domain="graphc",
)  # fmt: skip
def coupled_probabilities(k: Collectives, q: Float) -> None:
    """Probabilities p [N, C] that make p Q p small; the second output is Q p.

    Q is that of Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise
    coupling" (2004), method 2, with libsvm's stopping rule: the result is where the iteration
    stops, not the minimum.
    """
    p, qp = k.outputs
    count = p.shape[1]
    with k.loop(p.shape[0], kind="parallel") as row:
        with k.loop(count) as i:
            k.store(p, (row, i), 1.0 / count)
        left = k.var(i64, ROUNDS)
        with k.repeat(left[()] > 0):
            total = _products(k, q, p, qp, row)
            error = k.var(p.dtype, 0.0)
            with k.loop(count) as i:
                k.store(error, (), maximum(error[()], absolute(qp[row, i] - total[()])))
            k.store(left, (), left[()] - 1)
            with k.when(error[()] < 0.005 / count):
                k.store(left, (), -1)
            with k.when(left[()] >= 0):
                _improve(k, q, p, qp, row, total)


def _products(k: Collectives, q: Buffer, p: Buffer, qp: Buffer, row: Expr) -> Buffer:
    """Stores Q p; gives p Q p."""
    total = k.var(p.dtype, 0.0)
    with k.loop(p.shape[1]) as i:
        value = k.var(p.dtype, 0.0)
        with k.loop(p.shape[1]) as j:
            k.store(value, (), value[()] + q[row, i, j] * p[row, j])
        k.store(qp, (row, i), value[()])
        k.store(total, (), total[()] + p[row, i] * value[()])
    return total


def _improve(k: Collectives, q: Buffer, p: Buffer, qp: Buffer, row: Expr, total: Buffer) -> None:
    """Moves p class by class to where the derivative is 0, and scales its sum to 1 again."""
    with k.loop(p.shape[1]) as i:
        steep, slope = k.let(q[row, i, i]), k.let(qp[row, i])
        step = k.let((total[()] - slope) / steep)
        scale = k.let(step + 1.0)
        k.store(p, (row, i), p[row, i] + step)
        grown = total[()] + step * (step * steep + slope * 2.0)
        k.store(total, (), grown / scale / scale)
        with k.loop(p.shape[1]) as j:
            k.store(qp, (row, j), (qp[row, j] + step * q[row, i, j]) / scale)
            k.store(p, (row, j), p[row, j] / scale)
