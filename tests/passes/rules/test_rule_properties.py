"""Rules on random graphs: results stay the same, bit for bit where no rounding changes."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.errors import ModelError
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.passes import run_pipeline
from graphc.passes.manager.hooks import difference

pytestmark = pytest.mark.suite("all")

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5], np.float32)


def started(*shape: int):
    graph = new_graph(x=TensorType(f32, shape))
    graph.phase, graph.output_names = "typed", ["y"]
    return graph, Builder(graph), graph.params[0]


def check(graph, inputs, pipeline: str, tolerance: float):
    before = interpret(clone_graph(graph), inputs)
    run_pipeline(graph, pipeline)
    after = interpret(graph, inputs)
    if tolerance:
        assert difference(after, before, tolerance) is None
        return
    for a, b in zip(after, before):
        assert a.shape == b.shape
        nan = np.isnan(a) & np.isnan(b)
        same = (a == b) & (np.signbit(a) == np.signbit(b))
        assert (nan | same).all()


def first_valid(make, rng):
    """The first graph made that has a type."""
    while True:
        try:
            return make(rng)
        except ModelError:
            continue


def random_transposed_conv(rng):
    rank = int(rng.integers(1, 3))
    group = int(rng.integers(1, 3))
    channels, outputs = group * int(rng.integers(1, 3)), int(rng.integers(1, 3))
    kernel = rng.integers(1, 6, rank)
    strides = rng.integers(1, 4, rank)
    dilations = rng.integers(1, 3, rank) if rng.random() < 0.3 else np.ones(rank, int)
    pads = rng.integers(0, 3, 2 * rank)
    extra = np.minimum(rng.integers(0, 3, rank), strides - 1)
    extents = rng.integers(1, 6, rank)
    graph, b, x = started(int(rng.integers(1, 3)), channels, *map(int, extents))
    weights = rng.standard_normal((channels, outputs, *kernel)).astype(np.float32)
    bias = rng.standard_normal(outputs * group).astype(np.float32) if rng.random() < 0.5 else None

    def ints(values):
        return tuple(map(int, values))

    graph.set_results([
        b.ConvTranspose(
            x, weights, bias, group=group, strides=ints(strides), dilations=ints(dilations),
            pads=ints(pads), output_padding=ints(extra),
        )
    ])  # fmt: skip
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_transposed_convolutions(seed):
    rng = np.random.default_rng(seed)
    graph = first_valid(random_transposed_conv, rng)  # padding ate everything in others
    x = rng.standard_normal(graph.params[0].type.shape).astype(np.float32)
    check(graph, [x], "rewrite{group=lowering}, fold, dce", 1e-5)


def random_movement(rng, b: Builder, x):
    """One op that moves elements, at random."""
    shape, rank = x.tensor.static_shape, x.tensor.rank
    kind = rng.choice(["transpose", "reshape", "slice", "pad", "concat", "gather", "relu", "add"])
    axis = int(rng.integers(rank))
    if kind == "transpose":
        return b.Transpose(x, perm=tuple(map(int, rng.permutation(rank))))
    if kind == "reshape":
        flat = [d for d in shape for d in ([2, d // 2] if d % 2 == 0 and d else [d])]
        keep = flat if len(flat) <= 5 else [int(np.prod(shape))]
        return b.Reshape(x, np.array(rng.permutation(keep)))
    if kind == "slice":
        step = int(rng.choice([1, 1, -1, 2]))
        ends = [int(rng.integers(0, shape[axis])), shape[axis]]
        start, end = ends if step > 0 else (shape[axis], -shape[axis] - 1)
        return b.Slice(x, *(np.array([n]) for n in (start, end, axis, step)))
    if kind == "pad":
        return b.Pad(x, np.array(rng.integers(0, 2, 2 * rank)))
    if kind == "concat":
        return b.Concat(*[x] * int(rng.integers(1, 3)), axis=axis)
    if kind == "gather":
        first = int(rng.integers(shape[axis]))
        return b.Gather(x, np.arange(first, shape[axis]), axis=axis)
    if kind == "relu":
        return b.Relu(x)
    shapes = [d if rng.random() < 0.5 else 1 for d in shape]
    return b.Add(x, rng.integers(-2, 3, shapes).astype(np.float32))


@pytest.mark.parametrize("seed", range(60))
def test_movements(seed):
    rng = np.random.default_rng(1000 + seed)
    graph, b, x = started(2, 3, 4)
    value = x
    for _ in range(8):
        value = random_movement(rng, b, value)
        if value.tensor.size > 5000:
            break
    graph.set_results([value])
    array = rng.choice(SPECIAL, x.tensor.static_shape)
    check(graph, [array], "canonicalise, cse, dce", 0)


def random_arithmetic(rng, b: Builder, values: list):
    """One elementwise op on earlier values and constants, at random."""
    x = values[int(rng.integers(len(values)))]
    kinds = ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "Where", "Clip", "Pow")
    kind = str(rng.choice(kinds))
    constant = np.float32(rng.choice([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 4.0]))
    if kind in ("Add", "Sub", "Mul", "Div"):
        pair = [x, b.constant(constant)]
        return b.op(kind, *(pair if kind in ("Sub", "Div") or rng.random() < 0.5 else pair[::-1]))
    if kind == "Where":
        return b.Where(np.full(x.tensor.static_shape, rng.random() < 0.5), x, values[0])
    if kind == "Clip":
        return b.Clip(x, np.float32(-1), np.float32(rng.choice([0.5, 2])))
    if kind == "Pow":
        return b.Pow(x, np.float32(rng.choice([1, 2])))
    return b.op(kind, x)


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_on_special_values(seed):
    """Constants are powers of two, so that every rewrite must be exact."""
    rng = np.random.default_rng(2000 + seed)
    graph, b, x = started(8)
    values = [x]
    for _ in range(8):
        values.append(random_arithmetic(rng, b, values))
    graph.set_results(values[-2:])
    check(graph, [SPECIAL], "canonicalise, cse, dce", 0)


def random_padded_conv(rng):
    """A convolution with more padding than its taps need, or taps that are far apart."""
    rank = int(rng.integers(1, 4))
    extents, kernel = (tuple(map(int, rng.integers(1, 6, rank))) for _ in range(2))
    graph, b, x = started(1, 2, *extents)
    weights = rng.standard_normal((3, 2, *kernel)).astype(np.float32)
    graph.set_results([
        b.Conv(
            x, weights, strides=tuple(map(int, rng.integers(1, 3, rank))),
            dilations=tuple(map(int, rng.integers(1, 7, rank))),
            pads=tuple(map(int, rng.integers(0, 9, 2 * rank))),
        )
    ])  # fmt: skip
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_taps_in_padding(seed):
    rng = np.random.default_rng(seed)
    graph = first_valid(random_padded_conv, rng)  # the window does not fit in others
    x = rng.standard_normal(graph.params[0].type.shape).astype(np.float32)
    check(graph, [x], "taps-in-padding, fold, dce", 1e-5)
