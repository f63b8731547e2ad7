"""Random graphs, always the same for one seed: layers of all kinds on small odd shapes.

A graph is grown by applying random layers to random values made so far. Every layer accepts any
float32 tensor; it reshapes its operand if it needs another rank. Results are those values that no
layer used, so that some regions have several outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Value

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33)  # around the widths of vectors
UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Erf", "Softplus", "Identity",
         "Sin", "HardSwish", "Gelu", "Elu", "Softsign", "Mish", "LeakyRelu")  # fmt: skip
STEPS = ("Floor", "Ceil", "Round", "Sign")  # of exact values only: no rounding moves a step
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp",
              "ReduceSumSquare", "ReduceL1")  # fmt: skip

Layer = Callable[["Grower", Value], Value]
LAYERS: list[tuple[int, Layer]] = []


def layer(weight: int = 1):
    """Registers a layer, chosen with a probability in proportion to its weight."""

    def decorate(function: Layer) -> Layer:
        LAYERS.append((weight, function))
        return function

    return decorate


class Grower:
    """Grows one graph. `b` builds it; `rng` makes every choice."""

    def __init__(self, builder: Builder, rng: np.random.Generator, largest: int):
        self.b, self.rng, self.largest = builder, rng, largest
        self.values: list[Value] = []

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def floats(self, *shape: int) -> np.ndarray:
        return (self.rng.standard_normal(shape) / 2).astype(np.float32)

    def weights(self, *shape: int):
        """A constant, or now and then a value of that shape made at run time."""
        constant = self.floats(*shape)
        if self.chance(0.75):
            return constant
        return self.b.Mul(
            self.b.constant(constant), self.b.Cos(self.b.ReduceMean(self.values[0], keepdims=0))
        )

    def with_rank(self, x: Value, rank: int) -> Value:
        dims = list(x.tensor.dims)
        while len(dims) > rank:
            dims[1:3] = [dims[1] * dims[2]] if len(dims) > 2 else [dims[0] * dims[1]]
            if rank == 1 and len(dims) == 2:
                dims = [dims[0] * dims[1]]
        dims = [1] * (rank - len(dims)) + dims
        if tuple(dims) == x.tensor.dims:
            return x
        return self.b.Reshape(x, np.array(dims, np.int64))

    def exact(self) -> Value:
        """A value that has no rounding errors: an input."""
        return self.pick([v for v in self.values if v.producer is None])

    def like(self, x: Value) -> list[Value]:
        return [v for v in self.values if v.tensor.dims == x.tensor.dims]

    def grow(self, layers: int) -> list[Value]:
        weights = np.array([w for w, _ in LAYERS], float)
        for _ in range(layers):
            recent = self.values[-4:]
            function = LAYERS[int(self.rng.choice(len(LAYERS), p=weights / weights.sum()))][1]
            made = function(self, self.pick(recent))
            for value in made if isinstance(made, tuple) else (made,):
                if 0 < value.tensor.size <= self.largest:
                    self.values.append(value)
        results = [v for v in self.values if not v.uses and v.producer is not None]
        if self.chance(0.3):
            results.append(self.pick(self.values))
        return results or [self.b.Identity(self.values[-1])]


def random_graph(seed: int, layers: int = 7, largest: int = 6000):
    """(function for `build`, inputs by name); no value has more than `largest` elements."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for n in range(int(rng.integers(1, 4))):
        shape: list[int] = []
        for _ in range(int(rng.integers(1, 5))):
            left = largest // 2 // max(1, math.prod(shape))
            shape.append(int(rng.choice([e for e in EXTENTS if e <= left] or [1])))
        if largest > 6000:
            grown = int(rng.integers(len(shape)))
            shape[grown] = max(1, min(largest // 2 // math.prod(shape), 8)) * shape[grown]
        inputs[f"x{n}"] = rng.standard_normal(shape).astype(np.float32)

    def function(builder: Builder, *values: Value):
        grower = Grower(builder, rng, largest)
        grower.values = list(values)
        return grower.grow(layers)

    return function, inputs


# ---------------------------------------------------------------- elementwise


@layer(4)
def unary(g: Grower, x: Value):
    if g.chance(0.2):
        return g.b.op(g.pick(STEPS), g.exact())
    return g.b.op(
        g.pick(UNARY), g.b.Clip(x, np.float32(-4), np.float32(4)) if g.chance(0.5) else g.b.Tanh(x)
    )


@layer(5)
def binary(g: Grower, x: Value):
    kind = g.pick(("like", "like", "scalar", "row", "column", "broadcast"))
    dims = x.tensor.dims
    if kind == "like":
        other = g.pick(g.like(x))
    elif kind == "scalar":
        other = g.b.constant(g.floats())
    elif kind == "row":
        other = g.weights(*dims[-1:])
    elif kind == "column":
        other = g.weights(*dims[:-1], 1) if dims else g.weights(1)
    else:
        other = g.weights(*(d if g.chance(0.5) else 1 for d in dims))
    pair = (x, other) if g.chance(0.7) else (other, x)
    return g.b.op(g.pick(BINARY), *pair)


@layer(2)
def where(g: Grower, x: Value):
    other = g.pick(g.like(x))
    if g.chance(0.5):
        return g.b.Where(g.b.Greater(x, other), x, other)
    x = g.exact()
    return g.b.Where(g.b.Less(x, g.b.constant(g.floats())), x, g.b.Exp(g.b.Neg(g.b.Abs(x))))


@layer(1)
def through_integers(g: Grower, x: Value):
    whole = g.b.Cast(g.b.Mul(g.exact(), g.b.constant(np.float32(9))), to=g.pick((6, 7, 3, 5)))
    return g.b.Cast(g.b.Add(whole, whole), to=1)


@layer(1)
def through_double(g: Grower, x: Value):
    return g.b.Cast(g.b.Exp(g.b.Cast(g.b.Tanh(x), to=11)), to=1)


# ---------------------------------------------------------------- movement


@layer(3)
def transpose(g: Grower, x: Value):
    return g.b.Transpose(x, perm=[int(n) for n in g.rng.permutation(x.tensor.rank)])


@layer(2)
def reshape(g: Grower, x: Value):
    dims = list(x.tensor.dims)
    if len(dims) > 1 and g.chance(0.5):
        at = int(g.rng.integers(len(dims) - 1))
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    else:
        at = int(g.rng.integers(max(len(dims), 1)))
        for factor in (2, 3, 5, 1):
            if dims and dims[at] % factor == 0:
                dims[at : at + 1] = [factor, dims[at] // factor]
                break
    return g.b.Reshape(
        x, np.array(dims[:5] if np.prod(dims[:5]) == x.tensor.size else [-1], np.int64)
    )


@layer(2)
def slice_(g: Grower, x: Value):
    if not x.tensor.rank:
        return g.b.Neg(x)
    axis = int(g.rng.integers(x.tensor.rank))
    extent = x.tensor.dims[axis]
    low = int(g.rng.integers(extent))
    high = int(g.rng.integers(low + 1, extent + 1))
    step = int(g.rng.integers(1, 3))
    if g.chance(0.25):
        low, high, step = -1, -extent - 1, -step
    as_array = [np.array([v], np.int64) for v in (low, high, axis, step)]
    return g.b.Slice(x, *as_array)


@layer(2)
def concat(g: Grower, x: Value):
    if not x.tensor.rank:
        return g.b.Neg(x)
    axis = int(g.rng.integers(x.tensor.rank))
    dims = x.tensor.dims
    same_rank = (v for v in g.values if v.tensor.rank == len(dims))
    fits = [
        v
        for v in same_rank
        if all(d == axis or a == b for d, (a, b) in enumerate(zip(v.tensor.dims, dims)))
    ]
    parts = [x, *(g.pick(fits) for _ in range(int(g.rng.integers(1, 3))))]
    return g.b.Concat(*parts, axis=axis)


@layer(2)
def pad(g: Grower, x: Value):
    rank = x.tensor.rank
    mode = g.pick(("constant", "constant", "reflect", "edge", "wrap"))
    room = [min(2, d - 1) if mode in ("reflect", "wrap") else 2 for d in x.tensor.dims]
    pads = [
        int(g.rng.integers(0, room[d % rank] + 1)) if g.chance(0.5) else 0 for d in range(2 * rank)
    ]
    if mode == "constant" and g.chance(0.2):
        pads = [
            -1 if p == 0 and x.tensor.dims[d % rank] > 3 and g.chance(0.3) else p
            for d, p in enumerate(pads)
        ]
    return g.b.Pad(
        x, np.array(pads, np.int64), np.float32(0.5) if mode == "constant" else None, mode=mode
    )


@layer(1)
def split(g: Grower, x: Value):
    axes = [d for d, extent in enumerate(x.tensor.dims) if extent > 1]
    if not axes:
        return g.b.Neg(x)
    axis = g.pick(axes)
    first = int(g.rng.integers(1, x.tensor.dims[axis]))
    sizes = np.array([first, x.tensor.dims[axis] - first], np.int64)
    return g.b.op("Split", x, sizes, outputs=2, axis=axis)


@layer(1)
def gather(g: Grower, x: Value):
    if not x.tensor.rank:
        return g.b.Neg(x)
    axis = int(g.rng.integers(x.tensor.rank))
    extent = x.tensor.dims[axis]
    index = g.rng.integers(
        -extent, extent, [int(n) for n in g.rng.integers(1, 5, int(g.rng.integers(0, 3)))]
    )
    return g.b.Gather(x, np.asarray(index, np.int64), axis=axis)


@layer(1)
def expand_tile(g: Grower, x: Value):
    if g.chance(0.5):
        return g.b.Tile(x, np.array([int(g.rng.integers(1, 3)) for _ in x.tensor.dims], np.int64))
    shape = [int(g.rng.integers(1, 4)) if d == 1 else d for d in x.tensor.dims]
    return g.b.Expand(x, np.array([2, *shape] if g.chance(0.3) else shape, np.int64))


@layer(1)
def depth_space(g: Grower, x: Value):
    x = g.with_rank(x, 4)
    _, c, h, w = x.tensor.dims
    if c % 4 == 0:
        return g.b.DepthToSpace(x, blocksize=2, mode=g.pick(("DCR", "CRD")))
    return g.b.SpaceToDepth(x, blocksize=2) if h % 2 == 0 and w % 2 == 0 else g.b.Neg(x)


# ---------------------------------------------------------------- reductions


@layer(3)
def reduce(g: Grower, x: Value):
    rank = x.tensor.rank
    if not rank:
        return g.b.Neg(x)
    axes = sorted({int(n) for n in g.rng.integers(0, rank, int(g.rng.integers(1, rank + 1)))})
    made = g.b.op(
        g.pick(REDUCTIONS), g.b.Tanh(x), np.array(axes, np.int64), keepdims=int(g.chance(0.7))
    )
    if made.tensor.rank == rank and g.chance(0.7):
        return g.b.op(g.pick(BINARY), x, made)
    return made


@layer(3)
def softmax(g: Grower, x: Value):
    x = g.with_rank(x, max(1, x.tensor.rank))
    kind = g.pick(("Softmax", "Softmax", "LogSoftmax"))
    return g.b.op(
        kind, x, axis=int(g.rng.integers(-x.tensor.rank, x.tensor.rank)) if g.chance(0.4) else -1
    )


@layer(3)
def normalise(g: Grower, x: Value):
    if g.chance(0.5):
        x = g.with_rank(x, max(1, x.tensor.rank))
        axis = int(g.rng.integers(-x.tensor.rank, 0)) if g.chance(0.4) else -1
        shape = x.tensor.dims[axis:]
        name = g.pick(("LayerNormalization", "RMSNormalization"))
        extra = (g.weights(*shape),) if name[0] == "L" and g.chance(0.7) else ()
        return g.b.op(name, x, g.weights(*shape), *extra, axis=axis, epsilon=1e-3)
    x = g.with_rank(x, 4)
    c = x.tensor.dims[1]
    if g.chance(0.4):
        return g.b.InstanceNormalization(x, g.weights(c), g.weights(c), epsilon=1e-3)
    if g.chance(0.5):
        groups = g.pick([n for n in range(1, c + 1) if c % n == 0])
        return g.b.GroupNormalization(
            x, g.weights(c), g.weights(c), num_groups=groups, epsilon=1e-3
        )
    var = np.abs(g.floats(c)) + np.float32(0.5)
    return g.b.BatchNormalization(x, g.weights(c), g.weights(c), g.weights(c), var)


@layer(1)
def arg_reduce(g: Grower, x: Value):
    x = g.exact()
    axis = int(g.rng.integers(x.tensor.rank))
    if g.chance(0.3):
        return g.b.Hardmax(x, axis=axis)
    return g.b.Cast(
        g.b.op(g.pick(("ArgMax", "ArgMin")), x, axis=axis, keepdims=int(g.chance(0.5))), to=1
    )


@layer(1)
def cumsum(g: Grower, x: Value):
    x = g.with_rank(x, max(1, x.tensor.rank))
    axis = np.int64(g.rng.integers(x.tensor.rank))
    return g.b.CumSum(g.b.Tanh(x), axis, exclusive=int(g.chance(0.3)), reverse=int(g.chance(0.3)))


# ---------------------------------------------------------------- contractions and windows


@layer(4)
def matmul(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, max(1, x.tensor.rank)))
    columns = g.pick(EXTENTS)
    k = x.tensor.dims[-1]
    lead = x.tensor.dims[:-2] if g.chance(0.4) else ()
    lead = tuple(d if g.chance(0.5) else 1 for d in lead)
    if g.chance(0.15) and x.tensor.rank > 1:
        return g.b.MatMul(g.weights(columns, x.tensor.dims[-2]), x)
    if g.chance(0.1):
        return g.b.MatMul(x, g.weights(k))
    weights = g.weights(*lead, k, columns)
    if g.chance(0.3):
        order = [*range(len(lead)), len(lead) + 1, len(lead)]
        weights = g.b.Transpose(g.b._operand(g.weights(*lead, columns, k), None), perm=order)
    return g.b.MatMul(x, weights)


@layer(1)
def gemm(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, 2))
    m, k = x.tensor.dims if g.chance(0.5) else x.tensor.dims[::-1]
    ta, tb = int((m, k) != x.tensor.dims), int(g.chance(0.5))
    n = g.pick(EXTENTS)
    w = g.weights(*((n, k) if tb else (k, n)))
    c = g.weights(*g.pick(((n,), (1, n), (m, 1), (m, n), (1,))))
    return g.b.Gemm(x, w, c, transA=ta, transB=tb, alpha=0.5, beta=2.0)


@layer(1)
def self_attention(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, 3))
    _, s, d = x.tensor.dims
    if s > 17 or d > 33:
        return g.b.Neg(x)
    q, k, v = (g.b.MatMul(x, g.weights(d, 8)) for _ in range(3))
    if g.chance(0.5):

        def heads(t):
            return g.b.Transpose(
                g.b.Reshape(t, np.array([0, 0, 2, 4], np.int64)), perm=[0, 2, 1, 3]
            )

        q, k, v = heads(q), heads(k), heads(v)
    order = [*range(q.tensor.rank - 2), q.tensor.rank - 1, q.tensor.rank - 2]
    scores = g.b.Mul(g.b.MatMul(q, g.b.Transpose(k, perm=order)), g.b.constant(np.float32(0.3)))
    out = g.b.MatMul(g.b.Softmax(scores, axis=-1), v)
    if out.tensor.rank == 4:
        out = g.b.Reshape(g.b.Transpose(out, perm=[0, 2, 1, 3]), np.array([0, 0, 8], np.int64))
    return out


def window_attributes(g: Grower, dims, kernel):
    """Random strides, dilations and pads for which the output is not empty, or None."""
    strides = [int(g.rng.integers(1, 4)) for _ in kernel]
    dilations = [int(g.rng.integers(1, 3)) for _ in kernel]
    reach = [(k - 1) * d for k, d in zip(kernel, dilations)]
    pads = [int(g.rng.integers(0, k)) for k in (*kernel, *kernel)]
    rank = len(kernel)
    if any(e + pads[n] + pads[n + rank] <= reach[n] for n, e in enumerate(dims)):
        return None
    return {"strides": strides, "dilations": dilations, "pads": pads}


@layer(4)
def conv(g: Grower, x: Value):
    rank = g.pick((3, 4, 4, 4, 5))
    x = g.b.Tanh(g.with_rank(x, rank))
    c = x.tensor.dims[1]
    group = g.pick([n for n in range(1, c + 1) if c % n == 0] if g.chance(0.5) else [1])
    kernel = [g.pick((1, 2, 3, 3, 5) if rank < 5 else (1, 2)) for _ in range(rank - 2)]
    out = group * g.pick((1, 2, 3) if group > 1 else EXTENTS)
    attributes = window_attributes(g, x.tensor.dims[2:], kernel)
    if attributes is None or out * c // group * math.prod(kernel) > g.largest:
        return g.b.Neg(x)
    bias = (g.weights(out),) if g.chance(0.5) else ()
    return g.b.Conv(x, g.weights(out, c // group, *kernel), *bias, group=group, **attributes)


@layer(1)
def conv_transpose(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, 4))
    c = x.tensor.dims[1]
    if c > 8:
        return g.b.Neg(x)
    group = g.pick([n for n in range(1, c + 1) if c % n == 0])
    kernel, strides = [g.pick((1, 2, 3)) for _ in range(2)], [g.pick((1, 2)) for _ in range(2)]
    return g.b.ConvTranspose(
        x, g.weights(c, g.pick((1, 2, 5)), *kernel), group=group, strides=strides
    )


@layer(2)
def pool(g: Grower, x: Value):
    x = g.with_rank(x, 4)
    kernel = [g.pick((1, 2, 3)) for _ in range(2)]
    attributes = window_attributes(g, x.tensor.dims[2:], kernel)
    if attributes is None:
        return g.b.op(g.pick(("GlobalAveragePool", "GlobalMaxPool")), x)
    ceil = int(g.chance(0.3))
    if g.chance(0.5):
        return g.b.MaxPool(x, kernel_shape=kernel, ceil_mode=ceil, **attributes)
    return g.b.AveragePool(
        x, kernel_shape=kernel, ceil_mode=ceil, count_include_pad=int(g.chance(0.5)), **attributes
    )


@layer(1)
def resize(g: Grower, x: Value):
    x = g.with_rank(x, 4)
    scales = np.array([1, 1, g.pick((0.5, 1.5, 2, 3)), g.pick((0.6, 1, 2, 2.5))], np.float32)
    if any(int(d * s) < 1 for d, s in zip(x.tensor.dims, scales)):
        return g.b.Neg(x)
    mode = g.pick(("nearest", "linear", "cubic"))
    return g.b.Resize(
        x,
        None,
        scales,
        mode=mode,
        coordinate_transformation_mode=g.pick(("half_pixel", "asymmetric")),
    )


@layer(1)
def quantise(g: Grower, x: Value):
    scale, zero = np.float32(0.05), np.int8(3)
    return g.b.DequantizeLinear(g.b.QuantizeLinear(g.exact(), scale, zero), scale, zero)


@layer(1)
def einsum(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, 3))
    a, b, c = x.tensor.dims
    text, shape = g.pick(
        (
            ("abc,cd->abd", (c, 6)),
            ("abc,abd->acd", (a, b, 5)),
            ("abc,dbc->ad", (7, b, c)),
            ("abc,ad->dcb", (a, 3)),
        )
    )
    return g.b.Einsum(x, g.weights(*shape), equation=text)


@layer(1)
def half_precision(g: Grower, x: Value):
    """Values that are exact in half precision, so that roundings are the same everywhere."""
    x = g.b.Cast(g.b.Round(g.exact()), to=10)
    return g.b.Cast(g.b.op(g.pick(("Add", "Mul", "Max")), x, x), to=1)


@layer(1)
def integer_products(g: Grower, x: Value):
    x = g.b.Cast(
        g.b.Round(g.b.Mul(g.with_rank(g.exact(), 2), g.b.constant(np.float32(3)))),
        to=g.pick((3, 6, 7)),
    )
    k = x.tensor.dims[1]
    if x.tensor.dtype.bits == 8:
        w = g.rng.integers(-9, 9, (k, g.pick(EXTENTS))).astype(np.int8)
        return g.b.Cast(g.b.MatMulInteger(x, w), to=1)
    w = g.rng.integers(-9, 9, (k, g.pick(EXTENTS))).astype(x.tensor.dtype.np)
    return g.b.Cast(g.b.MatMul(x, w), to=1)


@layer(1)
def double_products(g: Grower, x: Value):
    x = g.b.Cast(g.b.Tanh(g.with_rank(x, 2)), to=11)
    w = g.floats(x.tensor.dims[1], g.pick(EXTENTS)).astype(np.float64)
    return g.b.Cast(g.b.MatMul(x, w), to=1)


@layer(1)
def one_of_the_rest(g: Grower, x: Value):
    kind = g.pick(
        ("topk", "trilu", "onehot", "scatter", "lrn", "lppool", "gathernd", "mod", "prelu")
    )
    rank = x.tensor.rank
    if kind == "topk" and rank:
        values, _ = g.b.op("TopK", g.exact(), np.array([1], np.int64), outputs=2, axis=-1)
        return values
    if kind == "trilu" and rank >= 2:
        return g.b.Trilu(x, np.int64(g.rng.integers(-2, 3)), upper=int(g.chance(0.5)))
    if kind == "onehot":
        index = g.b.Cast(g.b.Clip(g.exact(), np.float32(-3), np.float32(3)), to=7)
        return g.b.OneHot(index, np.int64(4), np.array([0.25, 1], np.float32))
    if kind == "scatter" and rank:
        index = g.rng.permutation(x.tensor.dims[0])[:2].reshape(-1, 1)
        return g.b.ScatterND(x, index, g.floats(len(index), *x.tensor.dims[1:]))
    if kind == "lrn":
        return g.b.LRN(g.with_rank(x, 4), size=3)
    if kind == "gathernd" and rank >= 2:
        index = np.stack([g.rng.integers(0, d, 3) for d in x.tensor.dims[:2]], 1)
        return g.b.GatherND(x, index)
    if kind == "mod":
        return g.b.Mod(g.exact(), np.float32(0.75), fmod=1)
    return g.b.PRelu(x, g.weights(*x.tensor.dims[-1:]))


@layer(1)
def recurrent(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, 3))
    steps, _, size = x.tensor.dims
    if steps > 8 or size > 33:
        return g.b.Neg(x)
    hidden, kind = g.pick((1, 3, 8)), g.pick(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    w, r = g.floats(1, gates * hidden, size), g.floats(1, gates * hidden, hidden)
    return g.b.op(kind, x, w, r, g.floats(1, 2 * gates * hidden), outputs=2, hidden_size=hidden)[0]


@layer(1)
def attention(g: Grower, x: Value):
    x = g.b.Tanh(g.with_rank(x, 3))
    _, s, d = x.tensor.dims
    if s > 17 or d > 33:
        return g.b.Neg(x)
    q, k, v = (g.b.MatMul(x, g.weights(d, 12)) for _ in range(3))
    return g.b.Attention(q, k, v, q_num_heads=2, kv_num_heads=2, is_causal=int(g.chance(0.5)))
