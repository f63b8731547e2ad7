"""Templates of operators for random graphs, with weights. See generator.py for the rules."""

from __future__ import annotations

import numpy as np
from generator import INTEGERS, Decline, Generator, Template

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean, f32, i64
from graphc.ir.graph import Value

_TABLE: list[tuple[float, bool, Template]] = []


def template(weight: float = 1.0, special: bool = False):
    """Registers a template; `special`: fit for NaN, infinities and numbers near overflow."""

    def declare(function: Template) -> Template:
        _TABLE.append((weight, special, function))
        return function

    return declare


def choose(g: Generator) -> Template:
    """A random template, by weight."""
    fitting = [(w, t) for w, special, t in _TABLE if special or not g.special]
    weights = np.array([w for w, _ in fitting])
    return fitting[int(g.rng.choice(len(fitting), p=weights / weights.sum()))][1]


def is_float(d: DType) -> bool:
    return d.is_float


def is_int(d: DType) -> bool:
    return d.is_integer


def is_number(d: DType) -> bool:
    return d.is_number


def anything(d: DType) -> bool:
    return True


def is_f32(d: DType) -> bool:
    return d is f32


def is_wide(d: DType) -> bool:
    return d in (f32, dtypes.f64)


# ---------------------------------------------------------------- elementwise

KEEPING = ("Abs", "Neg", "Relu", "Identity")
SMOOTH = (
    "Sigmoid", "Tanh", "Exp", "Erf", "Softplus", "Softsign", "Sin", "Cos", "Atan", "Asinh",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Celu", "Selu", "Gelu", "Mish", "Swish", "Sinh",
)  # fmt: skip
JUMPING = ("Floor", "Ceil", "Round", "Sign", "IsNaN", "IsInf", "Shrink", "ThresholdedRelu")


@template(3, special=True)
def unary_keeping(g: Generator) -> None:
    g.emit(g.choice(KEEPING), g.pick(is_float), keeps=True)


@template(4, special=True)
def unary_smooth(g: Generator) -> None:
    name, attrs = g.choice(SMOOTH), {}
    if name == "Gelu" and g.chance(0.5):
        attrs["approximate"] = "tanh"
    if name in ("LeakyRelu", "Elu", "Celu") and g.chance(0.5):
        attrs["alpha"] = 0.5
    g.emit(name, g.pick(is_float), **attrs)


@template(1, special=True)
def unary_jumping(g: Generator) -> None:
    x = g.pick(is_float, exact=True)
    g.emit(g.choice(JUMPING), x, keeps=True)


@template(1)
def unary_with_domain(g: Generator) -> None:
    x = g.pick(is_float)
    name = g.choice(("Sqrt", "Log", "Reciprocal", "Acosh", "Asin", "Acos", "Atanh", "Tan"))
    if name in ("Asin", "Acos", "Atanh", "Tan"):
        x = g.emit("Clip", x, -0.75, 0.75)
    else:
        x = g.emit("Add", g.emit("Abs", x), 1.0 if name == "Acosh" else 0.5)
    g.emit(name, x)


def partner(g: Generator, x: Value) -> Value:
    """An operand that broadcasts with x, of its dtype."""
    shape = list(x.tensor.dims)
    mode = g.integer(0, 4)
    if mode == 0:
        shape = []
    elif mode == 1 and shape:
        shape = shape[g.integer(0, len(shape) - 1) :]
    elif mode == 2:
        shape = [1 if g.chance(0.5) else d for d in shape]
    return g.operand(x.tensor.dtype, shape)


def shuffled(g: Generator, *values: Value) -> list[Value]:
    order = g.rng.permutation(len(values))
    return [values[n] for n in order]


@template(6, special=True)
def binary(g: Generator) -> None:
    x = g.pick(is_number)
    name = g.choice(("Add", "Sub", "Mul", "Max", "Min"))
    keeps = name in ("Max", "Min") or x.tensor.dtype.is_integer
    g.emit(name, *shuffled(g, x, partner(g, x)), keeps=keeps)


@template(1)
def division(g: Generator) -> None:
    x = g.pick(is_float)
    y = g.emit("Add", g.emit("Abs", partner(g, x)), 0.5)
    g.emit("Div", x, y)


@template(1)
def variadic(g: Generator) -> None:
    x = g.pick(is_float)
    more = [partner(g, x) for _ in range(g.integer(0, 3))]
    g.emit(g.choice(("Sum", "Mean", "Max", "Min")), *shuffled(g, x, *more))


@template(1, special=True)
def where(g: Generator) -> None:
    x = g.pick(anything)
    y = partner(g, x)
    shape = x.tensor.dims if g.chance(0.7) else tuple(1 for _ in x.tensor.dims)
    conditions = [v for v in g.pool if v.tensor.dtype is boolean and v.tensor.dims == shape]
    condition = g.choice(conditions) if conditions else g.operand(boolean, shape)
    g.emit("Where", condition, *shuffled(g, x, y), keeps=True)


@template(1, special=True)
def compare(g: Generator) -> None:
    x = g.pick(is_number, exact=True)
    y = partner(g, x)
    if y not in g.exact:
        raise Decline
    name = g.choice(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    g.emit(name, x, y, keeps=True)


@template(1, special=True)
def clip(g: Generator) -> None:
    x = g.pick(is_number)
    low, high = sorted((g.integer(0, 5), g.integer(0, 30)))
    kind = x.tensor.dtype
    bounds = [None if g.chance(0.2) else g.b.constant(v, kind) for v in (low, high)]
    g.emit("Clip", x, *bounds, keeps=True)


@template(1)
def power(g: Generator) -> None:
    x = g.pick(is_float)
    if g.chance(0.5):
        g.emit("Pow", x, g.b.constant(g.choice((2.0, 3.0, 1.0, 0.0)), x.tensor.dtype))
    else:
        base = g.emit("Add", g.emit("Abs", x), 0.5)
        g.emit("Pow", base, g.b.constant(g.choice((0.5, -0.5, -1.0, 1.7)), x.tensor.dtype))


@template(0.5)
def prelu(g: Generator) -> None:
    x = g.pick(is_float, (1, 9))
    shape = [d if g.chance(0.5) else 1 for d in x.tensor.dims]
    g.emit("PRelu", x, g.constant(x.tensor.dtype, shape))


@template(2)
def integer_binary(g: Generator) -> None:
    x = g.pick(is_int)
    kind = x.tensor.dtype
    name = g.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Mod", "BitShift", "Pow"))
    if name in ("Div", "Mod", "BitShift", "Pow"):
        shape = partner(g, x).tensor.dims
        signed = name in ("Div", "Mod") and kind.kind == "int" and g.chance(0.5)
        limit = 6 if name in ("BitShift", "Pow") else 9
        by = g.rng.integers(0 if limit == 6 else 1, limit, shape) * (-1 if signed else 1)
        y = g.b.constant(by.astype(kind.np))
        g.exact.add(y)
        if name == "BitShift" and kind.kind != "uint":
            raise Decline
        attrs = {"direction": g.choice(("LEFT", "RIGHT"))} if name == "BitShift" else {}
        attrs |= {"fmod": 1} if name == "Mod" and g.chance(0.3) else {}
        g.for_onnxruntime &= name != "Pow"  # it goes through double, and saturates
        g.emit(name, x, y, keeps=True, **attrs)
    else:
        g.emit(name, x, partner(g, x), keeps=True)


@template(0.7)
def integer_unary(g: Generator) -> None:
    x = g.pick(is_int)
    signed = ("Abs", "Neg", "Sign") if x.tensor.dtype.kind == "int" else ()
    g.emit(g.choice(("BitwiseNot", *signed)), x, keeps=True)


@template(0.7)
def boolean_op(g: Generator) -> None:
    x = g.pick(lambda d: d is boolean)
    if g.chance(0.3):
        g.emit("Not", x, keeps=True)
    else:
        g.emit(g.choice(("And", "Or", "Xor")), x, partner(g, x), keeps=True)


@template(0.5)
def float_mod(g: Generator) -> None:
    x = g.pick(is_float, exact=True)
    y = g.b.constant(g.choice((0.75, -1.5, 3.0)), x.tensor.dtype)
    g.emit("Mod", x, y, fmod=1)


@template(2)
def cast(g: Generator) -> None:
    x = g.pick(anything, exact=g.chance(0.5))
    source = x.tensor.dtype
    to = g.choice((f32, f32, dtypes.f64, dtypes.f16, boolean, *INTEGERS))
    if source.is_float and not to.is_float:
        if x not in g.exact:
            raise Decline
        if to.kind == "uint" or to.is_integer and to.bits < 32:
            x = g.emit("Clip", x, 0.0, 100.0, keeps=True)
    exact = not source.is_float or not to.is_float or to.bits >= source.bits
    g.emit("Cast", x, to=to.onnx, keeps=exact)


@template(0.4)
def narrow_cast(g: Generator) -> None:
    x = g.pick(is_f32, exact=True)
    to = g.choice(("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "bf16", "i4", "u4", "f4e2m1"))
    kind = dtypes.of(to)
    if kind.is_integer:
        x = g.emit("Clip", x, float(kind.min), float(kind.max), keeps=True)
    y = g.b.op("Cast", x, to=kind.onnx)
    if g.chance(0.3) and kind is dtypes.bf16:
        y = g.b.op(g.choice(("Tanh", "Neg", "Abs")), y)
    g.for_onnxruntime = False
    z = g.emit("Cast", y, to=f32.onnx)
    g.exact.add(z)


# ---------------------------------------------------------------- movement


@template(2, special=True)
def transpose(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    perm = [int(n) for n in g.rng.permutation(x.tensor.rank)]
    g.emit("Transpose", x, perm=perm, keeps=True)


@template(2, special=True)
def reshape(g: Generator) -> None:
    x = g.pick(anything)
    size, dims = x.tensor.size, []
    for _ in range(g.integer(0, 4)):
        divisors = [d for d in range(1, min(size, 200) + 1) if size and size % d == 0]
        dims.append(g.choice(divisors) if divisors else 1)
        size //= dims[-1] or 1
    dims.append(size)
    g.rng.shuffle(dims)
    if x.tensor.size and g.chance(0.4):
        dims[g.integer(0, len(dims) - 1)] = -1
    g.emit("Reshape", x, np.array(dims, np.int64), keeps=True, allowzero=0 if x.tensor.size else 1)


@template(0.7, special=True)
def squeeze(g: Generator) -> None:
    x = g.pick(anything)
    units = [n for n, d in enumerate(x.tensor.dims) if d == 1]
    if units and g.chance(0.6):
        g.emit("Squeeze", x, np.array(units[: g.integer(1, len(units))], np.int64), keeps=True)
    elif x.tensor.rank < 5:
        axis = g.integer(-x.tensor.rank - 1, x.tensor.rank)
        g.emit("Unsqueeze", x, np.array([axis], np.int64), keeps=True)


@template(0.5, special=True)
def flatten(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    g.emit("Flatten", x, axis=g.integer(-x.tensor.rank, x.tensor.rank), keeps=True)


@template(2, special=True)
def slice_(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    count = g.integer(1, x.tensor.rank)
    axes = [int(n) for n in g.rng.permutation(x.tensor.rank)[:count]]
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.tensor.dims[axis]
        a, b = g.integer(-extent - 2, extent + 2), g.integer(-extent - 2, extent + 2)
        step = g.choice((1, 1, 1, 2, 3, -1, -2))
        if not g.chance(0.1) and (a < 0) == (b < 0) and (a > b) == (step > 0):
            a, b = b, a
        starts.append(a)
        ends.append(b)
        steps.append(step)
    operands = [np.array(v, np.int64) for v in (starts, ends, axes, steps)]
    g.emit("Slice", x, *operands, keeps=True)


@template(1.5, special=True)
def pad(g: Generator) -> None:
    x = g.pick(is_number, (1, 5), filled=True)
    mode = g.choice(("constant", "constant", "reflect", "edge", "wrap"))
    pads = []
    for extent in x.tensor.dims * 2:
        most = {"reflect": extent - 1, "wrap": extent}.get(mode, 4)
        pads.append(g.integer(0, min(3, most)) if g.chance(0.6) else 0)
    value = g.b.constant(1.5, x.tensor.dtype) if mode == "constant" and g.chance(0.5) else None
    g.emit("Pad", x, np.array(pads, np.int64), value, mode=mode, keeps=True)


@template(1.5, special=True)
def concat(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    axis = g.axis(x)
    parts = [x]
    for _ in range(g.integer(1, 3)):
        shape = list(x.tensor.dims)
        shape[axis] = g.integer(1, 6) if g.chance(0.7) else shape[axis]
        parts.append(g.operand(x.tensor.dtype, shape))
    g.emit("Concat", *shuffled(g, *parts), axis=axis, keeps=True)


@template(1, special=True)
def split(g: Generator) -> None:
    x = g.pick(anything, (1, 9), filled=True)
    axis = g.axis(x)
    extent = x.tensor.dims[axis]
    count = g.integer(1, min(3, extent))
    cuts = np.sort(g.rng.integers(0, extent + 1, count - 1))
    sizes = np.diff([0, *cuts, extent]).astype(np.int64)
    g.emit("Split", x, sizes, axis=axis, outputs=count, keeps=True)


@template(0.7, special=True)
def tile(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    repeats = [g.choice((1, 1, 2, 3)) for _ in x.tensor.dims]
    g.emit("Tile", x, np.array(repeats, np.int64), keeps=True)


@template(0.7, special=True)
def expand(g: Generator) -> None:
    x = g.pick(anything)
    shape = [g.integer(1, 5) if d == 1 else d for d in x.tensor.dims]
    if g.chance(0.5) and len(shape) < 5:
        shape = [g.integer(1, 4), *shape]
    g.emit("Expand", x, np.array(shape, np.int64), keeps=True)


@template(1.5, special=True)
def gather(g: Generator) -> None:
    x = g.pick(anything, (1, 9), filled=True)
    axis = g.axis(x)
    shape = g.shape(g.integer(0, 2), 40)
    indices = g.rng.integers(-x.tensor.dims[axis], x.tensor.dims[axis], shape)
    g.emit("Gather", x, positions(g, indices, x.tensor.dims[axis]), axis=axis, keeps=True)


def positions(g: Generator, indices: np.ndarray, extent: int) -> Value:
    """Indices as a constant or as an input."""
    indices = np.asarray(indices, g.choice((np.int32, np.int64)))
    if g.chance(0.6) or len(g.inputs) >= 4:
        value = g.b.constant(indices)
        g.exact.add(value)
        return value
    value = g.input(dtypes.of(indices.dtype), indices.shape)
    g.inputs[-1] = indices
    g.pool.remove(value)  # arithmetic on it would be harmless, but not shorter extents
    return value


@template(0.7, special=True)
def gather_elements(g: Generator) -> None:
    x = g.pick(anything, (1, 4), filled=True)
    axis = g.axis(x)
    shape = [g.integer(1, d) for d in x.tensor.dims]
    shape[axis] = g.integer(1, 7)
    extent = x.tensor.dims[axis]
    indices = g.rng.integers(-extent, extent, shape)
    g.emit("GatherElements", x, positions(g, indices, extent), axis=axis, keeps=True)


@template(0.6, special=True)
def gather_nd(g: Generator) -> None:
    x = g.pick(anything, (1, 4), filled=True)
    depth = g.integer(1, x.tensor.rank)
    lead = g.shape(g.integer(0, 2), 20)
    columns = [g.rng.integers(-d, d, lead) for d in x.tensor.dims[:depth]]
    g.emit("GatherND", x, g.b.constant(np.stack(columns, -1).astype(np.int64)), keeps=True)


@template(0.6)
def scatter_elements(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4), filled=True)
    axis = g.axis(x)
    shape = [g.integer(1, d) for d in x.tensor.dims]
    reduction = g.choice(("none", "add", "max", "min", "mul"))
    if reduction == "none":  # each row a permutation, so that the order does not matter
        rows = list(shape)
        rows[axis] = x.tensor.dims[axis]
        indices = np.take(g.rng.random(rows).argsort(axis), range(shape[axis]), axis)
    else:
        indices = g.rng.integers(-x.tensor.dims[axis], x.tensor.dims[axis], shape)
    updates = g.operand(f32, indices.shape)
    g.emit("ScatterElements", x, indices.astype(np.int64), updates, axis=axis, reduction=reduction)


@template(0.5)
def scatter_nd(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4), filled=True)
    count = g.integer(1, 5)
    depth = g.integer(1, x.tensor.rank)
    reduction = g.choice(("add", "max", "min"))
    columns = [g.rng.integers(0, d, count) for d in x.tensor.dims[:depth]]
    updates = g.operand(f32, (count, *x.tensor.dims[depth:]))
    g.emit("ScatterND", x, np.stack(columns, -1).astype(np.int64), updates, reduction=reduction)


@template(0.5, special=True)
def depth_space(g: Generator) -> None:
    x = g.pick(anything, (4, 4), filled=True)
    _, c, h, w = x.tensor.dims
    if c % 4 == 0:
        mode = g.choice(("DCR", "CRD"))
        g.emit("DepthToSpace", x, blocksize=2, mode=mode, keeps=True)
    elif h % 2 == w % 2 == 0:
        g.emit("SpaceToDepth", x, blocksize=2, keeps=True)


@template(0.4, special=True)
def trilu(g: Generator) -> None:
    x = g.pick(is_number, (2, 5))
    k = np.array(g.integer(-3, 3), np.int64)
    g.emit("Trilu", x, k, upper=g.integer(0, 1), keeps=True)


@template(0.4, special=True)
def reverse_sequence(g: Generator) -> None:
    x = g.pick(anything, (2, 5), filled=True)
    time, batch = (0, 1) if g.chance(0.5) else (1, 0)
    lengths = g.rng.integers(1, x.tensor.dims[time] + 1, x.tensor.dims[batch]).astype(np.int64)
    g.emit("ReverseSequence", x, lengths, batch_axis=batch, time_axis=time, keeps=True)


@template(0.4)
def one_hot(g: Generator) -> None:
    indices = g.rng.integers(-4, 5, g.shape(g.integer(0, 2), 30)).astype(np.int64)
    values = np.array([0.5, 2.0], np.float32)
    axis = g.integer(-1, indices.ndim)
    g.emit("OneHot", positions(g, indices, 4), np.array(5, np.int64), values, axis=axis, keeps=True)


# ---------------------------------------------------------------- reductions


def some_axes(g: Generator, x: Value) -> np.ndarray | None:
    rank = x.tensor.rank
    if rank == 0 or g.chance(0.15):
        return None
    axes = g.rng.permutation(rank)[: g.integer(1, rank)]
    return np.array([a - rank if g.chance(0.3) else a for a in axes], np.int64)


@template(3)
def reduce_(g: Generator) -> None:
    name = g.choice(("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                     "ReduceLogSumExp", "ReduceProd"))  # fmt: skip
    x = g.pick(is_float if name != "ReduceProd" else is_wide, filled=name != "ReduceSum")
    if name == "ReduceProd":
        x = g.emit("Clip", x, -1.25, 1.25)
    g.emit(name, x, some_axes(g, x), keepdims=g.integer(0, 1))


@template(1.5, special=True)
def reduce_extreme(g: Generator) -> None:
    x = g.pick(is_number, filled=True)
    name = g.choice(("ReduceMax", "ReduceMin"))
    g.emit(name, x, some_axes(g, x), keepdims=g.integer(0, 1), keeps=True)


@template(0.7)
def reduce_integer(g: Generator) -> None:
    x = g.pick(lambda d: d in (dtypes.i32, i64))
    g.emit("ReduceSum", x, some_axes(g, x), keepdims=g.integer(0, 1), keeps=True)


@template(0.7)
def arg_extreme(g: Generator) -> None:
    x = g.pick(is_number, (1, 9), exact=True, filled=True)
    g.emit(g.choice(("ArgMax", "ArgMin")), x, axis=g.axis(x), keepdims=g.integer(0, 1),
           select_last_index=g.integer(0, 1), keeps=True)  # fmt: skip


@template(0.7)
def cumulative(g: Generator) -> None:
    x = g.pick(is_wide, (1, 4), filled=True)
    flags = {"exclusive": g.integer(0, 1), "reverse": g.integer(0, 1)}
    g.emit("CumSum", x, np.array(g.axis(x), np.int64), **flags)


@template(0.7)
def top_k(g: Generator) -> None:
    x = g.pick(lambda d: d in (f32, dtypes.f64, dtypes.i32, i64), (1, 4), exact=True, filled=True)
    axis = g.axis(x)
    size = np.array([g.integer(1, min(x.tensor.dims[axis], 40))], np.int64)
    g.emit("TopK", x, size, axis=axis, largest=g.integer(0, 1), outputs=2, keeps=True)


@template(0.3)
def data_decides(g: Generator) -> None:
    name = g.choice(("NonZero", "Compress", "Unique"))
    x = g.pick(lambda d: d in (f32, i64, boolean), (1, 4), exact=True)
    if name == "NonZero":
        g.emit(name, x, final=True)
    elif name == "Compress":
        keep = g.rng.random(g.integer(1, max(1, x.tensor.dims[0]))) < 0.5
        g.emit(name, x, keep, axis=0, final=True)
    elif x.tensor.dtype is not boolean:
        g.emit(name, x, final=True, outputs=4, sorted=g.integer(0, 1))


# ---------------------------------------------------------------- contractions


@template(3)
def matmul(g: Generator) -> None:
    x = g.pick(is_float, (1, 5))
    depth = x.tensor.dims[-1]
    if g.chance(0.15):
        shape: tuple[int, ...] = (depth,)
    else:
        lead = [d if g.chance(0.6) else 1 for d in x.tensor.dims[:-2]][g.integer(0, 2) :]
        shape = (*lead, depth, g.choice((1, 2, 3, 8, 16, 17, 33, 64, 70)))
    g.emit("MatMul", x, g.operand(x.tensor.dtype, shape))


@template(1.5)
def matmul_right(g: Generator) -> None:
    x = g.pick(is_float, (2, 4))
    rows = g.choice((1, 2, 5, 8, 16, 31))
    g.emit("MatMul", g.operand(x.tensor.dtype, (rows, x.tensor.dims[-2])), x)


@template(1.5)
def gemm(g: Generator) -> None:
    x = g.pick(is_wide, (2, 2))
    turned_a, turned_b = g.integer(0, 1), g.integer(0, 1)
    m, k = x.tensor.dims[::-1] if turned_a else x.tensor.dims
    n = g.choice((1, 3, 8, 16, 20, 65))
    w = g.operand(x.tensor.dtype, (n, k) if turned_b else (k, n))
    added = g.choice(((), (n,), (1, n), (m, 1), (m, n), None))
    c = None if added is None else g.operand(x.tensor.dtype, added)
    g.emit("Gemm", x, w, c, transA=turned_a, transB=turned_b,
           alpha=g.choice((1.0, 0.5)), beta=g.choice((1.0, 2.0)))  # fmt: skip


@template(0.7)
def einsum(g: Generator) -> None:
    x = g.pick(is_f32, (2, 3))
    a, b = x.tensor.dims[-2:]
    n = g.integer(1, 9)
    if x.tensor.rank == 2:
        equation, shape = g.choice((
            ("ij,jk->ik", (b, n)), ("ij,kj->ki", (n, b)), ("ij,ij->j", (a, b)), ("ij,i->ji", (a,)),
            ("ij,k->ijk", (n,)), ("ij,jk", (b, n)),
        ))  # fmt: skip
    else:
        equation, shape = g.choice((
            ("bij,bjk->bik", (x.tensor.dims[0], b, n)), ("bij,jk->bki", (b, n)),
            ("...ij,...jk->...ik", (b, n)), ("bij,bij->b", x.tensor.dims),
        ))  # fmt: skip
    g.emit("Einsum", x, g.operand(f32, shape), equation=equation)


def windowed(g: Generator) -> tuple[Value, int]:
    """A tensor N, C, spatial... and its number of spatial dims; made from another if needed."""
    x = g.pick(lambda d: d in (f32, f32, dtypes.f64, dtypes.f16), (3, 5), filled=True)
    return x, x.tensor.rank - 2


def window(g: Generator, x: Value, spatial: int, dilate: bool = True) -> dict:
    """Attributes of a window that fits."""
    kernel, strides, dilations, before, after = [], [], [], [], []
    for extent in x.tensor.dims[2:]:
        k = g.integer(1, min(extent, 4))
        d = g.choice((1, 1, 1, 2)) if dilate else 1
        reach = (k - 1) * d + 1
        p, q = (g.integer(0, k - 1) if g.chance(0.6) else 0 for _ in range(2))
        if extent + p + q < reach:
            raise Decline
        for items, item in zip((kernel, strides, dilations, before, after),
                               (k, g.choice((1, 1, 2, 3)), d, p, q)):  # fmt: skip
            items.append(item)
    attrs = {"kernel_shape": kernel, "strides": strides}
    if dilate:
        attrs["dilations"] = dilations
    if g.chance(0.2) and all(d == 1 for d in dilations):
        return attrs | {"auto_pad": g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))}
    return attrs | {"pads": before + after}


@template(3)
def conv(g: Generator) -> None:
    x, spatial = windowed(g)
    attrs = window(g, x, spatial)
    channels = x.tensor.dims[1]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    out = group * g.choice((1, 1, 2, 3, 8, 16) if group < 5 else (1, 2))
    w = g.operand(x.tensor.dtype, (out, channels // group, *attrs["kernel_shape"]))
    bias = g.constant(x.tensor.dtype, (out,)) if g.chance(0.6) else None
    y = g.emit("Conv", x, w, bias, group=group, **attrs)
    if g.chance(0.3):
        y = g.emit("Relu", y)
    if g.chance(0.2):
        drawn = [np.abs(g.array(x.tensor.dtype, (out,), small=True)) + 0.5 for _ in range(4)]
        g.emit("BatchNormalization", y, *(v.astype(x.tensor.dtype.np) for v in drawn))


@template(1)
def conv_transpose(g: Generator) -> None:
    x = g.pick(is_f32, (3, 5), filled=True)
    channels = x.tensor.dims[1]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0][:3])
    kernel = [g.integer(1, 3) for _ in x.tensor.dims[2:]]
    strides = [g.choice((1, 2, 3)) for _ in kernel]
    pads = [g.integer(0, k - 1) if e > 2 else 0 for k, e in zip(kernel, x.tensor.dims[2:])] * 2
    extra = [g.integer(0, s - 1) for s in strides]
    w = g.constant(f32, (channels, g.integer(1, 4), *kernel))
    g.emit("ConvTranspose", x, w, group=group, strides=strides, pads=pads, output_padding=extra)


@template(1.5)
def pool(g: Generator) -> None:
    x, spatial = windowed(g)
    name = g.choice(("MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attrs = window(g, x, spatial)
    if "auto_pad" not in attrs and g.chance(0.3):
        attrs["ceil_mode"] = 1
        g.for_onnxruntime = False  # it counts the elements of the last window differently
    if name == "AveragePool" and g.chance(0.5):
        attrs["count_include_pad"] = 1
    g.emit(name, x, keeps=name == "MaxPool", **attrs)


@template(0.6)
def global_pool(g: Generator) -> None:
    x, _ = windowed(g)
    g.emit(g.choice(("GlobalAveragePool", "GlobalMaxPool")), x)


@template(0.8)
def resize(g: Generator) -> None:
    x = g.pick(is_f32, (3, 5), filled=True)
    if x.tensor.rank == 5:
        raise Decline
    mode = g.choice(("nearest", "linear", "cubic") if x.tensor.rank == 4 else ("nearest", "linear"))
    transform = g.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    sizes = [*x.tensor.dims[:2], *(g.integer(1, 2 * d + 1) for d in x.tensor.dims[2:])]
    if mode == "nearest":
        transform = "asymmetric"
    if transform == "pytorch_half_pixel" and 1 in sizes[2:]:
        g.for_onnxruntime = False  # it takes the middle where the standard says the first
    g.emit("Resize", x, None, None, np.array(sizes, np.int64), mode=mode,
           coordinate_transformation_mode=transform, nearest_mode="floor")  # fmt: skip


# ---------------------------------------------------------------- composites


@template(2, special=True)
def softmax(g: Generator) -> None:
    x = g.pick(is_float, (1, 5))
    g.emit(g.choice(("Softmax", "Softmax", "LogSoftmax")), x, axis=g.axis(x))


@template(2)
def normalise(g: Generator) -> None:
    x = g.pick(is_f32, (2, 5), filled=True)
    axis = g.axis(x)
    shape, kind = x.tensor.dims[axis:], x.tensor.dtype
    name = g.choice(("LayerNormalization", "RMSNormalization"))
    scale = g.constant(kind, shape)
    bias = [g.constant(kind, shape)] if name.startswith("Layer") and g.chance(0.7) else []
    g.emit(name, x, scale, *bias, axis=axis, epsilon=1e-2)


@template(0.8)
def normalise_channels(g: Generator) -> None:
    x = g.pick(is_f32, (3, 5), filled=True)
    channels = x.tensor.dims[1]
    scale, bias = g.constant(f32, (channels,)), g.constant(f32, (channels,))
    if g.chance(0.5):
        g.for_onnxruntime = False  # it computes the variance by subtraction
        g.emit("InstanceNormalization", x, scale, bias, epsilon=1e-2)
    else:
        groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
        g.emit("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=1e-2)


@template(0.5)
def norm_rows(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4), filled=True)
    x = g.emit("Add", x, 3.0)
    g.emit("LpNormalization", x, axis=g.axis(x), p=g.integer(1, 2))


@template(0.4)
def local_response(g: Generator) -> None:
    g.emit("LRN", g.pick(is_f32, (3, 4), filled=True), size=g.choice((1, 3, 5)))


@template(1)
def layer_by_hand(g: Generator) -> None:
    """Layer normalisation in its parts, as exporters write it."""
    x = g.pick(is_f32, (1, 4), filled=True)
    axes = np.array([-1], np.int64)
    centred = g.emit("Sub", x, g.emit("ReduceMean", x, axes, keepdims=1))
    squares = g.emit("ReduceMean", g.emit("Mul", centred, centred), axes, keepdims=1)
    g.emit("Div", centred, g.emit("Sqrt", g.emit("Add", squares, 0.01)))


@template(1)
def attention_by_hand(g: Generator) -> None:
    x = g.pick(is_f32, (2, 4), filled=True)
    *lead, _, depth = x.tensor.dims
    keys = g.choice((1, 3, 8, 17, 40))
    k, v = g.operand(f32, (*lead, keys, depth)), g.operand(f32, (*lead, keys, g.integer(1, 20)))
    turned = list(range(len(lead))) + [len(lead) + 1, len(lead)]
    scores = g.emit("MatMul", x, g.emit("Transpose", k, perm=turned, keeps=True))
    scores = g.emit("Mul", scores, 0.25)
    g.emit("MatMul", g.emit("Softmax", scores, axis=-1), v)


@template(0.5)
def attention(g: Generator) -> None:
    x = g.pick(is_f32, (4, 4), filled=True)
    batch, heads, _, depth = x.tensor.dims
    keys = g.choice((1, 3, 8, 17))
    k, v = g.operand(f32, (batch, heads, keys, depth)), g.operand(f32, (batch, heads, keys, 5))
    g.emit("Attention", x, k, v, is_causal=g.integer(0, 1))


@template(0.4)
def recurrent(g: Generator) -> None:
    x = g.pick(is_f32, (3, 3), filled=True)
    _, _, features = x.tensor.dims
    hidden, name = g.integer(1, 5), g.choice(("LSTM", "GRU", "RNN"))
    direction = g.choice(("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name] * hidden
    w, r = g.constant(f32, (count, gates, features)), g.constant(f32, (count, gates, hidden))
    bias = g.constant(f32, (count, 2 * gates)) if g.chance(0.5) else None
    if x.tensor.dims[0] > 12:
        raise Decline
    g.emit(name, x, w, r, bias, hidden_size=hidden, direction=direction, outputs=2)


@template(0.6)
def quantise(g: Generator) -> None:
    x = g.pick(is_f32, exact=True)
    kind = g.choice((dtypes.u8, dtypes.i8))
    scale, zero = np.array(0.125, np.float32), np.array(3, kind.np)
    y = g.emit("QuantizeLinear", x, scale, zero, keeps=True)
    g.emit("DequantizeLinear", y, np.array(0.25, np.float32), zero, keeps=True)


@template(0.5)
def matmul_integer(g: Generator) -> None:
    x = g.pick(lambda d: d in (dtypes.u8, dtypes.i8), (2, 4), filled=True)
    kind = g.choice((dtypes.u8, dtypes.i8))
    w = g.operand(kind, (x.tensor.dims[-1], g.integer(1, 20)))
    zero = np.array(5, x.tensor.dtype.np) if g.chance(0.5) else None
    g.emit("MatMulInteger", x, w, zero, keeps=True)


@template(0.6)
def join(g: Generator) -> None:
    """Two branches from one value that meet again."""
    x = g.pick(is_float)
    a = g.emit(g.choice(SMOOTH), x)
    b = g.emit(g.choice(("Neg", "Abs", "Relu", "Sigmoid")), x)
    g.emit(g.choice(("Add", "Mul", "Max")), a, b)


@template(0.3)
def swish_by_hand(g: Generator) -> None:
    x = g.pick(is_float)
    g.emit("Mul", x, g.emit("Sigmoid", x))
