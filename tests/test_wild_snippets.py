"""Idioms of exporters that leave shape arithmetic and control flow behind: one compilation runs
them at several shapes, as ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import graphc

runtime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def parsed(text: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')


HEADS = """g (float[B,T,32] x) => (y)
<int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64 heads = {4}, int64[1] axis = {0},
 int64[1] four = {4}, int64 zero = {0}, float low = {-1e9}> {
    s = Shape(x)
    b = Gather(s, i0)  t = Gather(s, i1)  e = Gather(s, i2)
    d = Div(e, heads)
    bu = Unsqueeze(b, axis)  tu = Unsqueeze(t, axis)  du = Unsqueeze(d, axis)
    shape = Concat<axis = 0>(bu, tu, four, du)
    r = Reshape(x, shape)
    q = Transpose<perm = [0, 2, 1, 3]>(r)
    k = Transpose<perm = [0, 2, 3, 1]>(r)
    qk = MatMul(q, k)
    df = Cast<to = 1>(d)
    root = Sqrt(df)
    scaled = Div(qk, root)
    tt = Concat<axis = 0>(tu, tu)
    ones = ConstantOfShape<value: tensor = int64[1] {1}>(tt)
    lower = Trilu<upper = 0>(ones)
    hidden = Equal(lower, zero)
    masked = Where(hidden, low, scaled)
    y = Softmax<axis = -1>(masked)
}"""

PAD_TO_EIGHT = """g (float[1,2,H,4] x) => (y)
<int64 i2 = {2}, int64 eight = {8}, int64[1] axis = {0}, int64[6] none = {0, 0, 0, 0, 0, 0}> {
    s = Shape(x)
    h = Gather(s, i2)
    n = Neg(h)
    p = Mod(n, eight)
    pu = Unsqueeze(p, axis)
    pads = Concat<axis = 0>(none, pu, axis)
    y = Pad(x, pads)
}"""

SCALED_SIZE = """g (float[N,3,H,W] x) => (y)
<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, float by = {1.7}> {
    s = Shape(x)
    hw = Slice(s, two, four, zero)
    f = Cast<to = 1>(hw)
    g1 = Mul(f, by)
    g2 = Floor(g1)
    g3 = Cast<to = 7>(g2)
    nc = Slice(s, zero, two, zero)
    sizes = Concat<axis = 0>(nc, g3)
    y = Resize<mode = "linear">(x, , , sizes)
}"""

CELL_GRID = """g (float[N,2,H,W] x) => (y)
<int64 i2 = {2}, int64 i3 = {3}, int64 o = {0}, int64 l = {1}, int64[1] one = {1},
 int64[1] zero = {0}, int64[1] last = {-1}, int64[3] rows = {0, -1, 2}, float stride = {8}> {
    s = Shape(x)
    h = Gather(s, i2)  w = Gather(s, i3)
    ys = Range(o, h, l)  xs = Range(o, w, l)
    yu = Unsqueeze(ys, one)  xu = Unsqueeze(xs, zero)
    hu = Unsqueeze(h, zero)  wu = Unsqueeze(w, zero)
    hw = Concat<axis = 0>(hu, wu)
    ye = Expand(yu, hw)  xe = Expand(xu, hw)
    yl = Unsqueeze(ye, last)  xl = Unsqueeze(xe, last)
    grid = Concat<axis = -1>(xl, yl)
    gf = Cast<to = 1>(grid)
    t = Transpose<perm = [0, 2, 3, 1]>(x)
    c = Sigmoid(t)
    m = Add(c, gf)
    b = Mul(m, stride)
    y = Reshape(b, rows)
}"""

DISTANCES = """g (float[B,T,4] x, float[16,2] table) => (y)
<int64 i1 = {1}, int64 o = {0}, int64 l = {1}, int64[1] zero = {0}, int64[1] one = {1},
 float unit = {1}, float by = {4.3}, int64 near = {8}, int64 most = {15}> {
    s = Shape(x)
    t = Gather(s, i1)
    r = Range(o, t, l)
    a = Unsqueeze(r, zero)  b = Unsqueeze(r, one)
    d = Sub(a, b)
    n = Abs(d)
    f = Cast<to = 1>(n)
    f1 = Max(f, unit)
    lg = Log(f1)
    lm = Mul(lg, by)
    far = Cast<to = 7>(lm)
    c = Less(n, near)
    w = Where(c, n, far)
    bucket = Min(w, most)
    bias = Gather(table, bucket)
    bt = Transpose<perm = [2, 0, 1]>(bias)
    bu = Unsqueeze(bt, zero)
    xt = Transpose<perm = [0, 2, 1]>(x)
    xx = MatMul(x, xt)
    xu = Unsqueeze(xx, one)
    z = Add(xu, bu)
    y = Softmax(z)
}"""

FEW_OF_THE_BEST = """g (float[N,M] x, int64 k) => (v, y)
<int64 one = {1}, int64[1] flat = {-1}> {
    s = Shape(x)
    n = Gather(s, one)
    least = Min(n, k)
    count = Reshape(least, flat)
    v, i = TopK<axis = 1>(x, count)
    y = GatherElements<axis = 1>(x, i)
}"""

WRITTEN_BY_A_MASK = """g (float[N,4] x) => (y, count, kept)
<float zero = {0}, float two = {2}, int64[1] flat = {-1}> {
    m = Greater(x, zero)
    p = NonZero(m)
    t = Transpose<perm = [1, 0]>(p)
    v = GatherND(x, t)
    w = Mul(v, two)
    y = ScatterND(x, t, w)
    count = Shape(v)
    mf = Reshape(m, flat)
    kept = Compress(x, mf)
}"""

GREEDY = """g (int64 start, int64[n] first, float[10,6] table, float[6,10] weights)
    => (int64[m] tokens, float[k] scores)
<int64 most = {12}, bool go = {1}, int64 end = {3}, int64[1] zero = {0}> {
    last, tokens, scores = Loop(most, go, start, first) <body = b (
        int64 step, bool going, int64 token, int64[a] sofar
    ) => (bool on, int64 next, int64[c] more, float score) {
        e = Gather(table, token)
        logits = MatMul(e, weights)
        next = ArgMax<axis = -1, keepdims = 0>(logits)
        nu = Unsqueeze(next, zero)
        more = Concat<axis = 0>(sofar, nu)
        ended = Equal(next, end)
        on = Not(ended)
        score = ReduceMax<keepdims = 0>(logits)
    }>
}"""

BACK_AND_FORTH = """g (float[3] x, int64 n) => (float[3] y)
<int64 one = {1}, int64 two = {2}, bool go = {1}> {
    y = Loop(n, go, x) <body = outer (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
        trips = Add(i, one)
        b = Loop(trips, c, a) <body = inner (int64 j, bool p, float[3] u) => (bool q, float[3] v) {
            odd = Mod(j, two)
            flag = Cast<to = 9>(odd)
            v = If(flag) <
                then_branch = t () => (float[3] r) { r = Add(u, x) },
                else_branch = e () => (float[3] w) { w = Sub(u, x) }
            >
            q = Identity(p)
        }>
        d = Identity(c)
    }>
}"""

TABLE, WEIGHTS = f32(10, 6), f32(6, 10)
CASES = {
    "heads of attention": (HEADS, [{"x": f32(2, 5, 32)}, {"x": f32(1, 9, 32)}]),
    "padding to a multiple": (PAD_TO_EIGHT, [{"x": f32(1, 2, n, 4)} for n in (5, 8)]),
    "size by a factor": (SCALED_SIZE, [{"x": f32(1, 3, 5, 7)}, {"x": f32(2, 3, 4, 4)}]),
    "a grid of cells": (CELL_GRID, [{"x": f32(1, 2, 3, 4)}, {"x": f32(2, 2, 5, 2)}]),
    "a bias by distance": (
        DISTANCES, [{"x": f32(b, t, 4), "table": f32(16, 2)} for b, t in ((2, 6), (1, 20))],
    ),
    "a bounded count": (
        FEW_OF_THE_BEST, [{"x": f32(2, 6), "k": np.array(k)} for k in (3, 10)],
    ),
    "writing by a mask": (WRITTEN_BY_A_MASK, [{"x": f32(3, 4)}, {"x": -np.abs(f32(2, 4))}]),
    "greedy decoding": (
        GREEDY,
        [{"start": np.array(n), "first": np.array([n]), "table": TABLE, "weights": WEIGHTS}
         for n in range(4)],
    ),
    "loops in loops": (BACK_AND_FORTH, [{"x": f32(3), "n": np.array(n)} for n in (0, 1, 4)]),
}  # fmt: skip


def agree(found: list, wanted: list) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.suite(1)
@pytest.mark.parametrize("name", CASES)
def test_at_all_shapes(name):
    text, cases = CASES[name]
    made = parsed(text)
    session = runtime.InferenceSession(made.SerializeToString())
    model = graphc.compile(made, threads=1)
    for feeds in cases:
        wanted = session.run(None, feeds)
        agree(model.run(feeds), wanted)


@pytest.mark.parametrize("name", CASES)
def test_exported(name):
    text, cases = CASES[name]
    made = parsed(text)
    session = runtime.InferenceSession(made.SerializeToString())
    shapes = {key: value.shape for key, value in cases[0].items()}
    pinned = graphc.export_onnx(graphc.compile(made, shapes=shapes).graph)
    again = runtime.InferenceSession(pinned.SerializeToString())
    agree(again.run(None, cases[0]), session.run(None, cases[0]))
