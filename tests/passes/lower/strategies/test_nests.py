"""Loop nests: rows, movements, fused regions and memory in place, against the interpreter."""

import numpy as np
import pytest
from differential import build, check, floats, interpret_program, native, program_of

from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Index, Reduce, Sym, as_expr, walk
from graphc.ir.instructions import TRANSPOSE
from graphc.ir.kernel import Alloc, Buffer, For, Intrin, walk_stmts
from graphc.ir.text.printer import print_kernel
from graphc.passes.analysis.computation import Computation, Output
from graphc.passes.lower.strategies.nest import NestOptions, lower_nest


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


ROWS = [(1, 1), (3, 2), (2, 15), (3, 16), (2, 17), (5, 63), (1, 64), (2, 65), (4, 129), (2, 3, 33)]


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_softmax(shape):
    graph, inputs = build(
        lambda b, x: b.Softmax(b.Mul(x, np.float32(3)), axis=-1), x=floats(rng(), *shape)
    )
    program = check(graph, inputs, (64, 32, 0), interpreted=(64, 32, 0))
    assert len(program.steps) == 1, "one kernel"


def test_exponentials_of_a_softmax_are_kept():
    graph, _ = build(lambda b, x: b.Softmax(x, axis=-1), x=floats(rng(), 4, 100))
    (kernel,) = program_of(graph).kernels.values()
    rows = [s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.scope == "stack"]
    assert [s.buffer.shape for s in rows] == [(100,)]


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_layer_normalisation(shape):
    scale, bias = floats(rng(1), shape[-1]), floats(rng(2), shape[-1])

    def function(b, x):
        return b.Relu(b.LayerNormalization(b.Add(x, x), scale, bias, epsilon=1e-2))

    program = check(*build(function, x=floats(rng(), *shape)), (64, 16, 0), interpreted=(64,))
    assert len(program.steps) == 1


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceProd", "ReduceLogSumExp"])
def test_reductions_over_any_axes(axes, op):
    x = floats(rng(3), 5, 18, 19) / 3

    def function(b, x):
        small = b.op(op, x, np.array(axes), keepdims=1)
        return b.Sub(x, small), b.op(op, x, np.array(axes), keepdims=0)

    check(*build(function, x=x), (64, 0), interpreted=(64,))


@pytest.mark.parametrize("shape", [(9, 40), (5, 3, 16), (4, 2, 3, 19), (70,)], ids=str)
def test_reductions_along_memory_run_along_it(shape):
    """Whatever the elements' own dims: no vector gathers from many rows."""

    def function(b, x):
        last = np.array([len(shape) - 1])
        return b.ReduceMax(x, last, keepdims=0), b.ReduceMean(b.Mul(x, x), last, keepdims=1)

    program = check(*build(function, x=floats(rng(4), *shape)), (0, 64), interpreted=(64,))
    for kernel in program.kernels.values():
        vectors = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind == "vector"]
        inside = [s for v in vectors for s in walk_stmts(v.body) if isinstance(s, (For, Alloc))]
        assert vectors and not inside


@pytest.mark.parametrize("shape, axis", [((40, 300), 1), ((40, 300), 0), ((8, 9, 11), 1)])
def test_reductions_of_the_same_elements_read_them_once(shape, axis):
    """The least, the largest and the sum of squares are taken in one kernel, in the same loops."""
    x = floats(rng(), *shape)

    def function(b, x):
        along = b.constant([axis], i64)
        kinds = (b.ReduceMin, b.ReduceMax, b.ReduceSumSquare)
        return [kind(x, along, keepdims=0) for kind in kinds]

    program = check(*build(function, x=x), machines=(16, 64, 0))
    (kernel,) = program.kernels.values()
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For)]
    assert len([s for s in loops if s.extent == shape[axis]]) == 1


@pytest.mark.suite("all")
@pytest.mark.parametrize("count", [513, 6661, 6664, 262_147])
def test_errors_of_long_sums_do_not_grow_with_their_length(count):
    x = rng(3).random((2, count), np.float32)
    graph, inputs = build(lambda b, x: b.ReduceMean(x, np.array([1])), x=x)
    program = program_of(graph, 0)
    (found,) = interpret_program(program, inputs) if count < 1000 else native(program, inputs)
    np.testing.assert_allclose(found[:, 0], x.mean(axis=1, dtype=np.float64), rtol=2e-6)


@pytest.mark.parametrize("axes", [(0, 2), (0, 2, 3), (0, 1), (1, 2, 3)])
def test_errors_of_means_over_channels(axes):
    x = rng(3).random((60, 24, 30, 36), np.float32)
    graph, inputs = build(lambda b, v: b.ReduceMean(v, np.array(axes), keepdims=0), v=x)
    (result,) = native(program_of(graph, 64), inputs)
    np.testing.assert_allclose(result, x.mean(axis=axes, dtype=np.float64), rtol=6e-7)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceProd"])
@pytest.mark.parametrize("shape", [(31, 37, 2), (2, 547, 3), (25, 3, 23)], ids=str)
def test_long_reductions_in_parts(shape, op):
    """Over axes of which one is cut, or none; padding stays outside."""

    def function(b, x):
        wide = b.Pad(x, np.array([1, 2, 0, 0, 1, 0]))
        return b.op(op, wide, np.array([0, 1])), b.ReduceMean(b.Mul(wide, wide), np.array([0, 1]))

    check(*build(function, x=floats(rng(3), *shape)), (64, 0), interpreted=(64, 0))


@pytest.mark.parametrize("vector_bytes", [0, 32])
def test_reductions_over_an_extent_without_a_bound(vector_bytes):
    size, row = Sym("n", 1), Index("k", Sym("n", 1))
    x, y = Buffer("x", f32, (size,)), Buffer("y", f32, (), "out")
    computation = Computation((x,), (Output(y, (), Reduce("sum", x[row], (row,))),))
    kernel = lower_nest(computation, NestOptions(vector_bytes=vector_bytes)).kernel
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For)]
    assert any(size in walk(as_expr(loop.extent)) for loop in loops)


def test_argmax_and_top():
    x = rng(4).integers(0, 5, (6, 37)).astype(np.float32)  # ties
    for last in (0, 1):
        check(*build(lambda b, x, n=last: b.ArgMax(x, axis=1, select_last_index=n), x=x))


@pytest.mark.parametrize("seed", range(12))
def test_chains_of_movements(seed):
    """Concat, Pad, Slice, Transpose and Reshape on one another: all become index arithmetic."""
    r = rng(seed)

    def function(b, x):
        for _ in range(5):
            rank = x.tensor.rank
            axis = int(r.integers(rank))
            extent = x.tensor.dims[axis]
            kind = int(r.integers(5))
            if kind == 0 and x.tensor.size < 3000:
                x = b.Concat(x, b.Neg(x), x, axis=axis)
            elif kind == 1:
                pads = [int(n) for n in r.integers(0, 3, 2 * rank)]
                x = b.Pad(x, np.array(pads), np.float32(2))
            elif kind == 2 and extent > 2:
                low, step = int(r.integers(extent - 1)), int(r.integers(1, 3))
                x = b.Slice(x, *(np.array([v]) for v in (low, extent, axis, step)))
            elif kind == 3:
                x = b.Transpose(x, perm=[int(d) for d in r.permutation(rank)])
            else:
                x = b.Reshape(
                    x, np.array([-1, x.tensor.dims[-1]] if rank == 3 else [1, *x.tensor.dims])
                )
        return b.Mul(x, np.float32(2))

    check(*build(function, x=floats(r, 3, 5, 17)), (64, 0), interpreted=(64, 0))


def tiles(program) -> int:
    """How many tiles kernels transpose."""
    stmts = [s for kernel in program.kernels.values() for s in walk_stmts(kernel.body)]
    return sum(isinstance(s, Intrin) and s.name == TRANSPOSE for s in stmts)


TURNS = [((16, 16), (1, 0)), ((33, 20), (1, 0)), ((3, 17, 40), (0, 2, 1)),
         ((18, 5, 37), (2, 1, 0)), ((2, 16, 3, 35), (0, 3, 2, 1)), ((4, 19, 21), (2, 0, 1)),
         ((5, 4, 3), (2, 1, 0))]  # fmt: skip


@pytest.mark.parametrize("shape, order", TURNS, ids=str)
def test_transpositions_in_tiles(shape, order):
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    graph, inputs = build(lambda b, x: b.Transpose(x, perm=order), x=data)
    check(graph, inputs, (64, 32, 16, 0), interpreted=(32,), tolerance=0)
    large = min(shape[order[-1]], shape[-1]) >= 16
    assert [tiles(program_of(graph, m)) > 0 for m in (64, 0)] == [large, False]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.bool_, np.int64])
def test_element_types_of_tiles(dtype):
    data = (np.arange(37 * 18).reshape(37, 18) % 113).astype(dtype)
    graph, inputs = build(lambda b, x: b.Transpose(x, perm=[1, 0]), x=data)
    program = check(graph, inputs, (0, 16, 32, 64), interpreted=(32,), tolerance=0)
    assert tiles(program) == 1


def test_transpositions_beside_what_runs_along():
    """Of several operands those that lie across are turned, in what is computed of all."""
    r = rng(3)
    x, y, row = floats(r, 2, 19, 37), floats(r, 2, 37, 19), floats(r, 19)

    def function(b, x, y, row):
        turned = b.Transpose(x, perm=[0, 2, 1])
        return b.Tanh(b.Add(b.Mul(turned, row), y)), b.Sub(turned, y)

    graph, inputs = build(function, x=x, y=y, row=row)
    program = check(graph, inputs, (64, 32, 16, 0), interpreted=(64, 32, 0))
    assert tiles(program_of(graph)) == len(program.kernels)


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (35, 5, 3, 3), (17, 19, 2, 2), (20, 37, 1, 3)])
def test_tiles_run_along_several_short_dimensions(shape):
    """Weights of a convolution, and their gradients, which are stored with the channels last."""
    r, order = rng(5), (2, 3, 1, 0)
    w, g = floats(r, *shape), floats(r, *(shape[d] for d in order))

    def function(b, w, g):
        turned = b.Transpose(g, perm=[3, 2, 0, 1])
        return b.Sub(w, b.Sqrt(b.Abs(turned))), b.Add(w, turned)

    graph, inputs = build(function, w=w, g=g)
    check(graph, inputs, (64, 32, 16, 0), interpreted=(64, 32))
    assert tiles(program_of(graph)) > 0


def test_guarded_loads_are_not_taken_in_tiles():
    """A tile would read what lies outside."""
    graph, inputs = build(
        lambda b, x: b.Transpose(b.Pad(x, np.array([1, 2, 3, 0])), perm=[1, 0]),
        x=floats(rng(4), 30, 20),
    )
    check(graph, inputs, (64, 32, 0), interpreted=(64, 32))


SHORT = [((3, 100), (1, 0)), ((2, 3, 19), (0, 2, 1)), ((4, 33), (1, 0)), ((12, 40), (1, 0)),
         ((3, 5), (1, 0)), ((5, 7, 3), (0, 1, 2)), ((2, 17, 2, 4), (0, 2, 1, 3))]  # fmt: skip


@pytest.mark.parametrize("shape, order", SHORT, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_short_rows_are_taken_several_at_a_time(shape, order, dtype):
    data = (np.arange(np.prod(shape)).reshape(shape) % 113).astype(dtype)
    row = np.arange(shape[order[-1]]).astype(dtype)

    def function(b, x, row):
        return b.Add(b.Transpose(x, perm=order), row)

    check(*build(function, x=data, row=row), (64, 32, 16, 0), (64, 32), tolerance=0)


def test_vectors_of_short_rows_are_whole():
    graph, _ = build(lambda b, x: b.Transpose(x, perm=[1, 0]), x=floats(rng(), 3, 64))
    (kernel,) = program_of(graph).kernels.values()
    assert {v.extent for v in vectors(kernel)} == {16}


def test_rows_that_are_gathered_stay_apart():
    """What is read at no known distances is no vector of several rows."""
    places = rng(1).integers(0, 9, (3, 50))
    graph, inputs = build(
        lambda b, x, places: b.Transpose(b.Gather(x, places, axis=0), perm=[1, 0]),
        x=floats(rng(), 9), places=places,
    )  # fmt: skip
    check(graph, inputs, (64, 32, 0), (64, 32), tolerance=0)


def vectors(kernel) -> list[For]:
    return [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind == "vector"]


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize("pads, length", [((3, 3), 64), ((0, 5), 48), ((17, 1), 80), ((2, 0), 33)])
def test_only_the_ends_of_rows_have_conditions(mode, pads, length):
    def function(b, x):
        return b.Pad(x, np.array([0, pads[0], 0, pads[1]]), mode=mode)

    graph, inputs = build(function, x=floats(rng(2), 3, length))
    check(graph, inputs, (64, 32, 16, 0), (64, 32), tolerance=0)
    (kernel,) = program_of(graph, 16).kernels.values()
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind == "serial"]
    assert loops if pads[0] <= 4 else True
    assert not [s for s in loops if "select" in str(s) and pads[0] <= 4]


SAMPLES = [
    ((1, 8, 9, 11), (5, 18), {}), ((2, 5, 7, 6), (3, 7), {"padding_mode": "border"}),
    ((1, 6, 5, 8), (4, 20), {"padding_mode": "reflection", "align_corners": 1}),
    ((2, 4, 9, 6), (1, 33), {"mode": "nearest"}), ((1, 4, 8, 8), (9, 4), {"mode": "cubic"}),
    ((1, 4, 1, 1), (6, 17), {}),
]  # fmt: skip


@pytest.mark.parametrize("shape, places, attrs", SAMPLES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_places_of_samples_are_computed_once_for_all_channels(shape, places, attrs, dtype):
    grid = (rng(1).random((shape[0], *places, 2)) * 3 - 1.5).astype(np.float32)
    grid.reshape(-1)[:4] = np.inf, -np.inf, 1e30, -1e30

    def function(b, x, grid):
        return b.Relu(b.GridSample(x, grid, **attrs))

    graph, inputs = build(function, x=floats(rng(), *shape).astype(dtype), grid=grid)
    program = check(graph, inputs, (0, 16, 64), (64, 32))
    first, second = program.kernels.values()
    assert "floor" in str(first) or "round" in str(first)
    assert "floor" not in str(second) and "round" not in str(second)


def test_few_channels_have_no_tables():
    graph, _ = build(
        lambda b, x, grid: b.GridSample(x, grid),
        x=floats(rng(), 1, 3, 8, 8), grid=floats(rng(), 1, 20, 20, 2),
    )  # fmt: skip
    assert len(program_of(graph).kernels) == 1


def test_views_cost_nothing():
    def function(b, x):
        flat = b.Reshape(b.Exp(x), np.array([30]))
        part = b.Slice(flat, np.array([5]), np.array([25]))
        return b.Neg(b.Reshape(part, np.array([4, 5])))

    program = check(*build(function, x=floats(rng(5), 2, 3, 5)))
    assert len(program.steps) <= 2


def test_results_that_are_views_are_made_in_their_place():
    """Also where the values themselves are read later, or returned as they are."""

    def function(b, x):
        y = b.Softmax(x, axis=-1)
        z = b.Softmax(b.Neg(y), axis=-1)
        w = b.Softmax(z, axis=-1)
        return b.Reshape(b.Reshape(y, np.array([30])), np.array([5, 6])), b.Flatten(z), w, w

    program = check(*build(function, x=floats(rng(5), 2, 3, 5)), (64, 0), interpreted=(64, 0))
    assert len(program.steps) == 2  # the second copies a result that is asked for twice


def test_pieces_of_an_operand_are_views_of_it():
    def function(b, x):
        y = b.Softmax(x, axis=-1)
        parts = b.Split(y, np.array([1, 2, 3]), axis=0, outputs=3)
        return tuple(b.Softmax(part, axis=-1) for part in parts)

    program = check(*build(function, x=floats(rng(5), 6, 7)), (64, 0), interpreted=(64, 0))
    assert len(program.steps) == 4


def test_results_of_a_region_of_different_shapes():
    def function(b, x, y):
        s = b.Add(x, y)
        m = b.ReduceMean(s, np.array([1]), keepdims=1)
        return s, m, b.Sub(s, m), b.Transpose(s), b.Slice(s, np.array([1]), np.array([3]))

    check(*build(function, x=floats(rng(6), 7, 33), y=floats(rng(7), 7, 33)), (64, 0), (64, 0))


def test_results_that_are_inputs_constants_or_the_same():
    constant = floats(rng(8), 3)

    def function(b, x):
        y = b.Exp(x)
        return (
            x,
            y,
            y,
            b.constant(constant),
            b.Reshape(x, np.array([-1])),
            b.Reshape(y, np.array([3, 2])),
        )

    check(*build(function, x=floats(rng(9), 2, 3)), (64, 0), interpreted=(64, 0))


# ---------------------------------------------------------------- memory in place


def test_a_chain_stays_in_place():
    """Rows cannot fuse over different axes, but each may overwrite the one before."""

    def function(b, x):
        for axis in (0, 1, 0, 1):
            x = b.Softmax(x, axis=axis)
            x = b.Transpose(x)
            x = b.CumSum(x, np.int64(0))
        return x

    check(*build(function, x=floats(rng(10), 8, 8)), (64, 0), interpreted=(64, 0))


@pytest.mark.parametrize("seed", range(10))
def test_values_used_again_later_are_not_overwritten(seed):
    """Every value is read by several ops at once and long after."""
    r = rng(seed)

    def function(b, x):
        values = [x]
        middle = np.array([3]), np.array([12])
        for _ in range(8):
            a, c = (values[int(r.integers(len(values)))] for _ in range(2))
            made = [
                lambda a=a, c=c: b.CumSum(b.Add(a, c), np.int64(1)),
                lambda a=a, c=c: b.Sub(b.Transpose(a), c),
                lambda a=a, c=c: b.Mul(b.Softmax(a, axis=0), c),
                lambda a=a, c=c: b.MatMul(b.Tanh(a), b.Softmax(c, axis=-1)),
                lambda a=a, c=c: b.Max(b.Slice(b.Concat(a, c, axis=0), *middle), a),
            ][int(r.integers(5))]  # fmt: skip
            values.append(b.Tanh(made()))
        return values[3], values[-1], values[-2]

    check(*build(function, x=floats(r, 9, 9)), (64, 0), interpreted=(64,))


# ---------------------------------------------------------------- element types


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", "float64", "float16"]
)
def test_element_types(dtype):
    r = rng(11)
    x = (r.integers(0, 50, (5, 35))).astype(dtype)
    y = (r.integers(1, 9, (5, 35))).astype(dtype)

    def function(b, x, y):
        total = b.Add(b.Mul(x, y), x)
        return (
            total,
            b.Max(total, y),
            b.ReduceMax(total, np.array([1])),
            b.Cast(total, to=1),
            b.Div(x, y),
        )

    check(*build(function, x=x, y=y), (64, 32, 0), interpreted=(64,), tolerance=1e-6)


def test_booleans_and_mixed_widths():
    r = rng(12)
    x, n = floats(r, 4, 37), r.integers(-5, 5, (4, 37))

    def function(b, x, n):
        positive = b.Greater(x, np.float32(0))
        even = b.Equal(b.Mod(n, np.int64(2)), np.int64(0))
        both = b.And(positive, b.Not(even))
        doubled = b.Where(both, b.Cast(n, to=11), b.Cast(x, to=11))
        return both, doubled, b.Cast(both, to=7), b.Xor(positive, even)

    check(*build(function, x=x, n=n), (64, 32, 16, 0), interpreted=(64, 16))


def test_empty_tensors():
    def function(b, x):
        y = b.Concat(x, b.Exp(x), axis=0)
        return y, b.ReduceSum(x, np.array([0]), keepdims=0), b.MatMul(b.Transpose(x), x)

    check(*build(function, x=np.zeros((0, 4), np.float32)), (64, 0), interpreted=(64, 0))


@pytest.mark.parametrize("count", [3, 60])
def test_pieces_of_rows_are_apart(count):
    """Steps of a sequence that are brought together, and turned so that samples come first."""
    steps = {f"x{n}": floats(rng(n), 4, 20) for n in range(count)}

    def function(b, *values):
        whole = b.Reshape(b.Concat(*values, axis=0), np.array([count, 4, 20]))
        return b.Transpose(whole, perm=(1, 0, 2))

    graph, inputs = build(function, **steps)
    (kernel,) = check(graph, inputs, (0, 64)).kernels.values()
    assert "select" not in print_kernel(kernel)


@pytest.mark.parametrize("rows", [5, 13, 24])
def test_long_epilogues_are_written_once_for_a_tile(rows):
    weights = floats(rng(1), 3, 1, 3, 3)

    def windows(b, x):
        return b.Conv(x, weights, group=3, pads=(1, 1, 1, 1))

    graph, inputs = build(lambda b, x: b.Gelu(windows(b, x)), x=floats(rng(), 1, 3, rows, 33))
    program = check(graph, inputs, (64, 16, 0), interpreted=(64,))
    (kernel,) = program.kernels.values()
    assert print_kernel(kernel).count("erf(") <= 6, "for vectors and a tail of three kinds of tiles"


def test_rows_that_are_joined_and_flattened_have_no_conditions():
    pairs = [floats(rng(n), 1, 2, 256) for n in range(3)]

    def function(b, x, y, z):
        turned = [b.Concat(a[0], a[1], axis=0) for a in ((x, y), (y, z), (z, x))]
        joined = b.Concat(*(b.Unsqueeze(t, np.array([0])) for t in turned), axis=0)
        return b.Reshape(joined, np.array([3, 1024]))

    graph, inputs = build(function, x=pairs[0], y=pairs[1], z=pairs[2])
    program = check(graph, inputs, (64, 0), interpreted=(64,))
    (kernel,) = program.kernels.values()
    assert "select" not in print_kernel(kernel)
