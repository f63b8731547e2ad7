"""Ranges hold for what the interpreter computes, special values included."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f16, f32
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.passes.analysis.ranges import range_of

SPECIAL = [0.0, -0.0, 1, -1, 0.3, -0.7, 6, -6, 1e-40, -1e-40, 3e38, -3e38, 7e4, 90, -110]
SPECIAL += [math.inf, -math.inf, math.nan]
UNARY = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Abs", "Neg", "Erf", "Elu", "HardSwish",
    "HardSigmoid", "Round", "Floor", "Ceil", "ThresholdedRelu", "Softsign", "Sign", "Sin", "Cos",
    "Reciprocal", "Log", "Softplus", "Mish", "Shrink", "Celu", "Atan", "Cosh",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "PRelu")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")


def grown(rng: np.random.Generator, b: Builder, x):
    """A value computed of x by a few operators."""
    values = [x, b.constant(np.float32(rng.choice([0.0, -0.0, 2.0, -3.5, 0.5]))), b.Abs(x)]
    if x.tensor.dtype is f16:
        values[1] = b.Cast(values[1], to=f16.onnx)
    for _ in range(rng.integers(1, 6)):
        pick = lambda: values[rng.integers(len(values))]  # noqa: E731
        kind = rng.integers(10)
        if kind < 5:
            values.append(b.op(str(rng.choice(UNARY)), pick()))
        elif kind < 8:
            one = pick()
            other = one if rng.integers(3) == 0 else pick()
            name = str(rng.choice(BINARY))
            if name == "PRelu" and one.tensor.rank < other.tensor.rank:
                one, other = other, one
            values.append(b.op(name, one, other))
        elif kind == 8 and pick().tensor.rank:
            values.append(b.op(str(rng.choice(REDUCTIONS)), x, np.array([0])))
        else:
            values.append(b.Softmax(x))
    return values[-1]


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(400))
def test_values_lie_in_their_range(seed):
    rng = np.random.default_rng(seed)
    dtype = f16 if seed % 4 == 0 else f32
    graph = new_graph("g", x=TensorType(dtype, (len(SPECIAL),)))
    y = grown(rng, Builder(graph), graph.params[0])
    graph.set_results([y])
    with np.errstate(all="ignore"):
        (found,) = interpret(graph, [rng.permutation(np.array(SPECIAL)).astype(dtype.np)])
    limits = range_of(y)
    for number in found.astype(np.float64).reshape(-1):
        if not math.isnan(number):
            assert limits.low <= number <= limits.high, (limits, number, graph)
            assert not (limits.is_nonnegative and math.copysign(1, number) < 0), (number, graph)
