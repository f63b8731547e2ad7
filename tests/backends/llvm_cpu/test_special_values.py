"""NaN, infinities, subnormals, empty tensors and those of one element: the CPU gives what the
interpreter gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphc
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType

NAN, INF = np.nan, np.inf
SPECIAL = np.array(
    [NAN, INF, -INF, 0.0, -0.0, 1, -1, 0.5, -0.5, 2.5, -2.5, 1.5, 88.8, -88.8, 104, -104, 1e38,
     -1e38, 1e-40, -1e-40, 1e-45, 16777217, 3.4e38, 0.9999999, 1.0000001, 1e10, 7, -7, np.pi],
    np.float32,
)  # fmt: skip
UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish "
    "IsInf IsNaN LeakyRelu Log Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus "
    "Softsign Sqrt Tan Tanh ThresholdedRelu Celu Mish Gelu"
)
BINARY = "Add Sub Mul Div Pow Max Min PRelu Equal Less Greater LessOrEqual GreaterOrEqual"
REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare"
)
ROWS = np.array(
    [[1, NAN, 3, 4], [INF, 2, 1, -1], [-INF] * 4, [1e38] * 4, [INF, -INF, 0, 0], [NAN] * 4],
    np.float32,
)
IMAGE = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
IMAGE[0, 0, 1, 1], IMAGE[0, 0, 4, 4], IMAGE[0, 1, 0, 0], IMAGE[0, 1, 3] = NAN, INF, -INF, -INF
SHAPES = [(0, 3), (3, 0), (1,), (1, 1), ()]


def check(build: Callable, *inputs: np.ndarray) -> None:
    """Compares all results of a graph; `build(b, *values)` gives them."""
    graph = Graph("special")
    values = [graph.add_param(TensorType(dtypes.of(x.dtype), x.shape), f"x{n}")
              for n, x in enumerate(inputs)]  # fmt: skip
    results = build(Builder(graph), *values)
    graph.set_results(results)
    graph.output_names = [f"y{n}" for n in range(len(results))]
    with np.errstate(all="ignore"):
        expected = interpret(graph, list(inputs))
    found = graphc.compile(graph, threads=1).run(list(inputs))
    for value, x, y in zip(results, found, expected):
        assert x.dtype == y.dtype, value.producer
        tolerance = (1e-4, 1e-6) if x.dtype.kind == "f" else (0, 0)
        np.testing.assert_allclose(x, y, *tolerance, err_msg=str(value.producer))


@pytest.mark.parametrize("source", [dtypes.f16, dtypes.f32, dtypes.f64], ids=str)
def test_conversions_to_integers(source):
    """What is out of range becomes the nearest integer, NaN 0, in vectors as alone."""
    integers = [t for t in dtypes.BY_NAME.values() if t.is_integer and t.bits >= 8]
    with np.errstate(over="ignore"):
        x = np.concatenate([SPECIAL, 2.0 ** np.arange(6, 65), -(2.0 ** np.arange(6, 65))])
        x = x.astype(source.np)
    for part in (x, x[:1], x[3:4]):
        check(lambda b, x: [b.Cast(x, to=t.onnx) for t in integers], part)


def test_unary_operators():
    check(lambda b, x: [b.op(name, x) for name in UNARY.split()], SPECIAL)


def test_binary_operators():
    grid = np.meshgrid(SPECIAL, SPECIAL)
    check(lambda b, x, y: [b.op(name, x, y) for name in BINARY.split()], *grid)


@pytest.mark.parametrize("rows", [ROWS, ROWS[:, :1], ROWS[:0], ROWS[:, :0]], ids=lambda r: r.shape)
def test_reductions(rows):
    names = [n for n in REDUCTIONS.split() if rows.shape[1] or n not in ("ReduceMax", "ReduceMin")]
    check(lambda b, x: [b.op(name, x, np.array([1])) for name in names], rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_shapes(shape):
    x = np.full(shape, 2.5, np.float32)

    def build(b, x):
        found = [b.op(name, x) for name in UNARY.split()]
        found += [b.op(name, x, x) for name in BINARY.split()]
        if shape:
            found += [b.op(n, x, axis=-1) for n in ("Softmax", "LogSoftmax", "Hardmax")]
        return found

    check(build, x)


def test_rows_with_nan_and_infinity():
    def build(b, x):
        found = [b.op(n, x, axis=-1) for n in ("Softmax", "LogSoftmax", "Hardmax")]
        for name in ("ArgMax", "ArgMin"):
            found += [b.op(name, x, axis=1, select_last_index=last) for last in (0, 1)]
        for largest in (0, 1):
            found += b.op("TopK", x, np.array([3]), largest=largest, outputs=2)
        found.append(b.op("CumSum", x, np.array(1)))
        found.append(b.op("LpNormalization", x))
        return [*found, b.op("LayerNormalization", x, b.constant(np.ones(4, np.float32)))]

    check(build, ROWS)


def test_windows_with_nan_and_infinity():
    def build(b, x):
        padded = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
        found = [b.op(n, x, **padded) for n in ("AveragePool", "LpPool")]
        found += b.op("MaxPool", x, kernel_shape=(2, 2), outputs=2)
        weights = np.random.default_rng(1).standard_normal((3, 2, 3, 3)).astype(np.float32)
        weights[0, 0, 0, 0], weights[1] = 0, 0
        found.append(b.op("Conv", x, b.constant(weights), pads=(1, 1, 1, 1)))
        scales = b.constant(np.array([1, 1, 2, 1.5], np.float32))
        return [*found, *(b.op("Resize", x, None, scales, mode=m) for m in ("nearest", "linear"))]

    check(build, IMAGE)


def test_the_position_of_nan_is_one_of_its_window():
    def build(b, x):
        return b.op("MaxPool", x, kernel_shape=(2, 2), outputs=2)

    check(build, IMAGE)
    graph = graphc.parse("""
graph @g(%x: f32[1,1,2,2]) -> (f32[1,1,1,1], i64[1,1,1,1]) {
  %y, %p = MaxPool(%x) {kernel_shape=[2, 2]} : f32[1,1,1,1], i64[1,1,1,1]
  return %y, %p
}
""")
    image = np.array([1, 2, NAN, 0], np.float32).reshape(1, 1, 2, 2)
    assert interpret(graph, [image])[1].item() == 2


PRODUCTS = [(5, 7, 9), (0, 7, 9), (5, 0, 9), (5, 7, 0), (1, 7, 1), (1, 1, 1)]


@pytest.mark.parametrize("m,k,n", PRODUCTS)
def test_products(m, k, n):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    if a.size and b.size:
        a[0, 0], a[-1, -1], b[0] = NAN, INF, 0
    check(lambda bd, x, y: [bd.MatMul(x, y), bd.op("Gemm", x, y, alpha=0.5)], a, b)


def test_negative_and_absent_indices():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    def build(b, x, many, none):
        return [
            b.Gather(x, many, axis=1), b.Gather(x, none, axis=0), b.Gather(x, many, axis=2),
            b.op("Slice", x, np.array([-1]), np.array([-100]), np.array([2]), np.array([-1])),
            b.op("Slice", x, np.array([5]), np.array([9]), np.array([1])),
        ]  # fmt: skip

    check(build, x, np.array([-1, 0, -2]), np.zeros(0, np.int64))
