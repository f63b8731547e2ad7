"""Rewrites of iteration spaces, guards, windows, views and constants: each keeps every element.

Random expressions are evaluated over the whole space before and after.
"""

import itertools

import numpy as np
import pytest
from differential import build, floats

from graphc.ir.addresses import flatten_index, unflatten_index
from graphc.ir.dtypes import boolean, f32, f64, i64
from graphc.ir.expr import Const, Expr, Index, Load, Reduce, call, cast, select, substitute
from graphc.ir.interp import evaluate
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis import spaces
from graphc.passes.analysis.compose import computation
from graphc.passes.analysis.computation import Computation, Output, loop_indices
from graphc.passes.analysis.guards import guard_atoms, trim
from graphc.passes.analysis.views import view_of
from graphc.passes.lower.materialise import materialise
from graphc.passes.lower.transforms import splitting
from graphc.passes.lower.transforms.im2col import window

pytestmark = pytest.mark.suite("all")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def indices(*extents: int) -> list[Index]:
    return [Index(f"i{d}", extent) for d, extent in enumerate(extents)]


def values(expr: Expr, space: list[Index], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """An expression over a space, as a flat list in the order of the space."""
    names: dict[Expr, Expr] = {x: Index(f"i{d}", x.extent) for d, x in enumerate(space)}
    shape = tuple(int(x.extent) for x in space)
    return evaluate(substitute(expr, names), shape, arrays).reshape(-1)


def ones(expr: Expr, space: list[Index]) -> np.ndarray:
    """An integer expression over a space."""
    return values(expr, space, {})


# ---------------------------------------------------------------- merging and splitting


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 5, 1), (4, 1, 3), (2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_merging_keeps_order_and_elements(shape, seed):
    """Loads through random permutations: only what addresses memory as one is merged."""
    space = indices(*shape)
    order = [int(d) for d in rng(seed).permutation(len(shape))]
    turned = tuple(shape[d] for d in order)
    data = np.arange(np.prod(shape), dtype=np.float32)
    flat = flatten_index(tuple(space[d] for d in order), turned)
    expr: Expr = Load("x", (flat,), f32) + Load("y", (flatten_index(tuple(space), shape),), f32)
    arrays = {"x": data, "y": data * 100}
    before = values(expr, space, arrays)
    left, (dropped,) = spaces.drop_units(space, [expr])
    merged, (after,) = spaces.merge_adjacent(left, [dropped])
    assert np.array_equal(values(after, merged, arrays), before)
    if order == sorted(order):
        assert len(merged) <= 1


def test_unlike_addresses_are_not_merged():
    i, j = indices(3, 4)
    assert spaces.fuse_indices([Load("x", (i * 5 + j,), f32)], i, j, "m") is None
    assert spaces.fuse_indices([Load("x", (i * 4 + j,), f32)], i, j, "m") is not None


@pytest.mark.parametrize("op", ["max", "sum"])
def test_reductions_take_the_order_of_memory(op):
    """Over a transposed tensor."""
    i, j = indices(3, 20)
    body = Load("x", (j // 5 * 15 + i * 5 + j % 5,), f32)
    expr = Reduce(op, body, (i, j))
    after = spaces.merge_reductions(expr)
    assert isinstance(after, Reduce)
    assert [x.extent for x in after.axes] == [60]
    arrays = {"x": rng().permutation(60).astype(np.float32)}  # whose sum is exact
    assert np.array_equal(values(after, [], arrays), values(expr, [], arrays))


def test_splitting_removes_division():
    (i,) = indices(24)
    expr = Load("x", (i // 6 * 100 + i % 6,), f32)
    data = np.arange(400, dtype=np.float32)
    split, (after,) = spaces.split_divided([i], [expr])
    assert [x.extent for x in split] == [4, 6]
    assert not spaces.uses_division([after], split[0])
    assert np.array_equal(values(after, split, {"x": data}), values(expr, [i], {"x": data}))


@pytest.mark.parametrize("seed", range(8))
def test_segments_cover_the_space_once(seed):
    """Selects on one index cut the space; in every piece the comparisons are decided."""
    r = rng(seed)
    space = indices(3, 17)
    target = space[int(r.integers(2))]
    expr: Expr = Const(0, i64)
    for n in range(3):
        edge = int(r.integers(-2, 20))
        test = [target < edge, edge <= target, target - 3 > edge, target * -1 >= -edge][
            int(r.integers(4))
        ]
        expr = select(test, space[0] * 100 + space[1] + n * 1000, expr)
    found = np.full((3, 17), -1, np.int64)
    where = flatten_index(tuple(space), (3, 17))
    for piece, (place, part) in splitting.segments(space, [where, expr]):
        at = ones(place, piece)
        assert (found.reshape(-1)[at] == -1).all(), "no element twice"
        found.reshape(-1)[at] = ones(part, piece)
    assert np.array_equal(found.reshape(-1), ones(expr, space))


def test_segments_of_very_many_pieces():
    """They are narrowed by and by, and still cover the space once, in order."""
    row, column = indices(2, 3 * splitting.AT_ONCE + 5)
    expr: Expr = Const(0, i64)
    for n in range(column.count):
        expr = select(column >= n, row * 100 + column * n, expr)
    wanted = ones(expr, [row, column]).reshape(2, -1)
    cut = list(splitting.segments([row, column], [row * column.count + column, expr]))
    assert len(cut) == column.count
    for n, (piece, (place, part)) in enumerate(cut):
        assert ones(place, piece).tolist() == [n, column.count + n]
        assert ones(part, piece).tolist() == wanted[:, n].tolist()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 1, 5)], ids=str)
def test_flatten_and_unflatten(shape):
    (p,) = indices(int(np.prod(shape)))
    parts = unflatten_index(p, shape)
    assert np.array_equal(ones(flatten_index(parts, shape), [p]), np.arange(np.prod(shape)))


# ---------------------------------------------------------------- guards and windows


@pytest.mark.parametrize(
    "stride, dilation, pad", list(itertools.product((1, 2, 3), (1, 2), (0, 1, 2)))
)
def test_trimmed_ranges_are_the_taps_inside(stride, dilation, pad):
    """For every position of a window: the loop runs over exactly the taps that are not padding."""
    extent, taps = 7, 3
    out = Index("o", (extent + 2 * pad - (taps - 1) * dilation - 1) // stride + 1)
    k = Index("k", taps)
    y = out * stride + k * dilation - pad
    guard = call("and", Const(0, i64) <= y, y < extent)
    body = select(guard, Load("x", (y,), f32), Const(0.0, f32))
    reduction = Reduce("sum", body, (k,))
    trimmed = trim([reduction], [simplify(body)], k, frozenset({out}))
    if pad == 0:
        assert trimmed is None
        return
    inside, (left,) = trimmed
    assert not guard_atoms("sum", Const(0.0, f32), left)
    lows, counts = ones(inside.low, [out]), ones(inside.extent, [out])
    for o in range(int(out.extent)):
        taps_inside = [t for t in range(taps) if 0 <= o * stride + t * dilation - pad < extent]
        assert list(range(lows[o], lows[o] + counts[o])) == taps_inside


def test_a_guard_on_other_indices_is_kept():
    k, o = Index("k", 3), Index("o", 5)
    body = select(o + k < 4, Load("x", (o + k,), f32), Const(0.0, f32))
    assert trim([Reduce("sum", body, (k,))], [body], k, frozenset()) is None


def padded(position: Expr, extent: int) -> tuple[Expr, Expr]:
    return call("and", Const(0, i64) <= position, position < extent), position


def mirrored(position: Expr, extent: int) -> tuple[Expr, Expr]:
    beyond = select(position > extent - 1, (extent - 1) * 2 - position, position)
    return Const(True, boolean), select(position < 0, -position, beyond)


def enlarged(position: Expr, extent: int) -> tuple[Expr, Expr]:
    return call("and", Const(0, i64) <= position, position < 2 * extent), position // 2


KINDS = (padded, mirrored, enlarged)


@pytest.mark.parametrize("seed", range(36))
def test_windows(seed):
    """Loads from the copy give what the expression gave, of images that are padded, mirrored or
    enlarged; what is to spare holds zeros."""
    r = rng(seed)
    extents, kinds = [int(n) for n in r.integers(6, 9, 2)], (KINDS[seed % 3], KINDS[seed // 3 % 3])
    space, where, guard = [Index("c", 2)], [], Const(True, boolean)
    for d, (extent, kind) in enumerate(zip(extents, kinds)):
        most = 1 if kind is enlarged else 2  # (2 * o + k) // 2 is o + k // 2, no such sum
        stride, dilation, taps = (
            int(n) for n in r.integers((1, 1, 2), (most, most, 3), endpoint=True)
        )
        pad, whole = int(r.integers(3)), extent * (2 if kind is enlarged else 1)
        o = Index(f"o{d}", (whole + 2 * pad - (taps - 1) * dilation - 1) // stride + 1)
        k = Index(f"k{d}", taps)
        space += [o, k]
        inside, at = kind(o * stride + k * dilation - pad, extent)
        guard, where = call("and", guard, inside), [*where, at]
    load = Load("x", (space[0], *where), f32)
    expr = select(guard, load * 2.0, Const(0.5, f32))
    data = floats(r, 2, *extents)
    whole = Computation((Buffer("x", f32, (2, *extents), "in"),), (), frozenset(), "test")
    spare = int(r.integers(3))
    found = window(expr, "copy", whole, spare)
    assert found is not None
    copy = values(found.contents, list(found.index), {"x": data}).reshape(found.buffer.shape)
    assert not spare or not copy[..., -spare:].any()
    result = values(found.load, space, {"copy": copy})
    assert np.array_equal(result, values(expr, space, {"x": data}))


def test_a_window_holds_each_position_once():
    y, ky, c = Index("y", 6), Index("ky", 3), Index("c", 4)
    whole = Computation((Buffer("x", f32, (4, 5), "in"),), (), frozenset(), "test")
    inside, at = padded(y + ky - 1, 5)
    found = window(select(inside, Load("x", (at, c), f32), Const(0.0, f32)), "copy", whole)
    assert found is not None and found.buffer.shape == (8, 4)
    skipping, at = padded(y * 4 + ky - 1, 22)  # every fourth is not read
    expr = select(skipping, Load("x", (at, c), f32), Const(0.0, f32))
    assert window(expr, "copy", whole) is None


def test_positions_in_one_offset_are_told_apart():
    """Rows and columns of an image that is a flat list: guards know them, the offset adds them."""
    y, ky, x, kx = Index("y", 4), Index("ky", 3), Index("x", 6), Index("kx", 3)
    whole = Computation((Buffer("x", f32, (4 * 6,), "in"),), (), frozenset(), "test")
    (rows, at_y), (columns, at_x) = padded(y + ky - 1, 4), padded(x + kx - 1, 6)
    load = Load("x", (at_y * 6 + at_x,), f32)
    expr = select(call("and", rows, columns), load, Const(0.0, f32))
    found = window(expr, "copy", whole)
    assert found is not None and sorted(found.buffer.shape) == [6, 8]
    data = floats(rng(0), 24)
    copy = values(found.contents, list(found.index), {"x": data}).reshape(found.buffer.shape)
    space = [y, ky, x, kx]
    result = values(found.load, space, {"copy": copy})
    assert np.array_equal(result, values(expr, space, {"x": data}))


def test_positions_that_are_not_shared_make_no_window():
    k, o = Index("k", 7), Index("o", 3)
    whole = Computation((Buffer("x", f32, (5, 3), "in"),), (), frozenset(), "test")
    where = select(k > 4, Const(8, i64) - k, k)
    assert window(Load("x", (where, o), f32), "copy", whole) is None
    apart = select(o > 0, Load("x", (o + k, Const(0, i64)), f32), Const(0.0, f32))
    assert window(apart, "copy", whole) is None


# ---------------------------------------------------------------- views


def op_of(function, **inputs):
    graph, _ = build(function, **inputs)
    return graph.results[0].producer


X = np.zeros((2, 6, 5), np.float32)
VIEWS = [
    (lambda b, x: b.Reshape(x, np.array([12, 5])), 0),
    (lambda b, x: b.Unsqueeze(x, np.array([1])), 0),
    (lambda b, x: b.Slice(x, np.array([1]), np.array([2])), 30),
    (lambda b, x: b.Slice(x, np.array([0]), np.array([1])), 0),
    (lambda b, x: b.Gather(x, np.int64(1)), 30),
    (lambda b, x: b.Transpose(x, perm=[1, 0, 2]), None),
    (lambda b, x: b.Slice(x, np.array([1]), np.array([3]), np.array([1])), None),
    (lambda b, x: b.Slice(x, np.array([-1]), np.array([-3]), np.array([0]), np.array([-1])), None),
    (lambda b, x: b.Expand(x, np.array([3, 2, 6, 5])), None),
    (lambda b, x: b.Pad(x, np.array([0, 0, 0, 1, 0, 0])), None),
    (lambda b, x: b.Neg(x), None),
    (lambda b, x: b.Cast(x, to=6), None),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views(number):
    function, offset = VIEWS[number]
    found = view_of(computation(op_of(function, x=X)))
    assert found == (None if offset is None else ("in0", offset))


def test_a_transpose_of_unit_dims_is_a_view():
    x = np.zeros((1, 6, 5), np.float32)
    found = view_of(computation(op_of(lambda b, x: b.Transpose(x, perm=[1, 0, 2]), x=x)))
    assert found == ("in0", 0)


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("seed", range(10))
def test_packing_is_what_the_interpreter_gives(seed):
    """Panels of a matrix, padded to whole panels, from a matrix stored either way round."""
    r = rng(seed)
    depth, columns, panel = (int(n) for n in r.integers(1, 20, 3))
    turned = bool(seed % 2)
    source = floats(r, columns, depth) if turned else floats(r, depth, columns)
    i = indices(-(-columns // panel), depth, panel)
    column = i[0] * panel + i[2]
    load = Load("w", (column, i[1]) if turned else (i[1], column), f32)
    expr = simplify(select(column < columns, load, Const(0.0, f32)))
    buffer = Buffer("panels", f32, tuple(int(x.extent) for x in i), "out")
    found = materialise(Output(buffer, tuple(i), expr), {"w": source})
    plain = source.T if turned else source
    wanted = np.zeros((depth, buffer.shape[0] * panel), np.float32)
    wanted[:, :columns] = plain
    wanted = wanted.reshape(depth, -1, panel).transpose(1, 0, 2)
    assert np.array_equal(found, wanted)


def test_packing_of_arithmetic_and_of_nothing():
    (i,) = indices(4)
    expr = Load("w", (i,), f32) * 2.0
    output = Output(Buffer("t", f32, (4,), "out"), (i,), expr)
    assert np.array_equal(materialise(output, {"w": np.arange(4, dtype=np.float32)}), [0, 2, 4, 6])
    (none,) = indices(0)
    empty = Output(Buffer("t", f32, (0,), "out"), (none,), Load("w", (none,), f32))
    assert materialise(empty, {"w": np.zeros(0, np.float32)}).shape == (0,)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1, 3), (3, 2, 1, 0)])
def test_sums_of_products_with_small_matrices(order):
    """A matrix on either side, with the dims of the result in any order."""
    extents = (4, 5, 6, 7)
    space = indices(*(extents[d] for d in order))
    i, j, c, k = (space[order.index(d)] for d in range(4))
    taps = Index("tap0", 3), Index("tap1", 2)
    left, right = Load("g", (i, taps[0]), f64), Load("h", (j, taps[1]), f64)
    product = left * right * cast(Load("w", (k, c, *taps), f32), f64)
    r = rng(8)
    arrays = {"g": r.standard_normal((4, 3)), "h": r.standard_normal((5, 2)),
              "w": floats(r, 7, 6, 3, 2)}  # fmt: skip
    expr = cast(Reduce("sum", product, taps), f32)
    buffer = Buffer("t", f32, tuple(int(x.extent) for x in space), "out")
    found = materialise(Output(buffer, tuple(space), expr), arrays)
    wanted = np.einsum("ia,jb,kcab->ijck", *arrays.values()).transpose(order)
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)


# ---------------------------------------------------------------- computations


def test_composition_keeps_reductions_apart():
    """Two softmaxes over axes of one extent: their reductions nest, and must not share an index."""
    x = floats(rng(3), 5, 5)

    def function(b, x):
        return b.ReduceSum(b.Mul(b.ReduceMax(x, np.array([1]), keepdims=1), x), np.array([1]))

    graph, _ = build(function, x=x)
    from graphc.passes import Context
    from graphc.passes.fusion.fuse import fuse

    fuse(graph, Context())
    whole = computation(graph.results[0].producer)
    found = evaluate(whole.outputs[0].expr, whole.outputs[0].extents, {"in0": x})
    np.testing.assert_allclose(
        found, (x.max(1, keepdims=True) * x).sum(1, keepdims=True), rtol=1e-5
    )


def test_indices_of_spaces_are_unlike_those_of_loops():
    assert not {x.name for x in loop_indices((2, 3))} & {f"i{n}" for n in range(10)}


def test_outputs_of_different_shapes_are_split():
    i, j = indices(3, 4)
    x = Buffer("x", f32, (3, 4), "in")
    wide = Output(Buffer("a", f32, (3, 4), "out"), (i, j), x[i, j])
    row = Output(Buffer("b", f32, (3,), "out"), (i,), Const(1.0, f32))
    same = Output(Buffer("c", boolean, (3, 4), "out"), (i, j), x[i, j] < 0)
    parts = splitting.split_outputs(Computation((x,), (wide, row, same)))
    assert [[o.buffer.name for o in part.outputs] for part in parts] == [["a", "c"], ["b"]]
    assert [len(part.inputs) for part in parts] == [1, 0]
