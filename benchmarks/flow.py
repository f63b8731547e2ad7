"""Control flow, and shapes that data decides: graphc next to ONNX Runtime, on one thread.

    python benchmarks/flow.py [--rounds 50] [NAME ...]

The models are small and made here, so that what a loop, a branch or a shape costs shows. Both run
in turn in one process on the same inputs. One JSON line per model: milliseconds of CPU time of each
(medians), the median over rounds of the ratio of ONNX Runtime's time to graphc's, the largest error
relative to the range of an output, and whether all is one program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import graphc
from graphc.ir.compare import agreements

Feeds = Sequence[np.ndarray]
STATE = ",".join(["0.0"] * 32)

VALUES = """g (float[%d,%d] x, float least) => (float[n] y) {
    m = Greater(x, least)
    i = NonZero(m)
    j = Transpose<perm = [1, 0]>(i)
    v = GatherND(x, j)
    y = Mul(v, v)
}"""
ROWS = """g (float[4096,64] x, bool[4096] c) => (float[n,64] y) {
    k = Compress<axis = 0>(x, c)
    y = Tanh(k)
}"""
DISTINCT = """g (int64[20000] x) => (float[n] y) {
    u, i, v, c = Unique(x)
    f = Cast<to = 1>(c)
    y = Sqrt(f)
}"""
BOXES = """g (float[1,2000,4] b, float[1,4,2000] s) => (float[n,4] y, float[n] v) {
    most = Constant<value_ints = [50]>()
    over = Constant<value_floats = [0.5]>()
    least = Constant<value_floats = [0.6]>()
    k = NonMaxSuppression(b, s, most, over, least)
    two = Constant<value_int = 2>()
    n = Gather<axis = 1>(k, two)
    zero = Constant<value_ints = [0]>()
    all = Squeeze(b, zero)
    y = Gather<axis = 0>(all, n)
    v = GatherND(s, k)
}"""
LOOP = """g (float[32] x, float[32,32] w) => (float[32] y) {
    n = Constant<value_int = 1000>()
    y = Loop(n, , x) <body = b (int64 i, bool go, float[32] s) => (bool on, float[32] t) {
        on = Identity(go)
        p = MatMul(s, w)
        t = Tanh(p)
    }>
}"""
LOOKUP = """g (float[64,32] w, int64[1000] ids) => (float[32] y, float[1000,32] r) {
    n = Constant<value_int = 1000>()
    z = Constant<value = float[32] {%s}>()
    y, r = Loop(n, , z) <body = b (int64 i, bool go, float[32] s)
            => (bool on, float[32] t, float[32] u) {
        on = Identity(go)
        id = Gather(ids, i)
        row = Gather(w, id)
        sum = Add(s, row)
        t = Tanh(sum)
        u = Identity(t)
    }>
}"""
SCAN = """g (float[32] z, float[1000,32] x, float[32,32] w) => (float[32] y, float[1000,32] r) {
    y, r = Scan<num_scan_inputs = 1,
            body = b (float[32] s, float[32] row) => (float[32] t, float[32] u) {
        p = MatMul(s, w)
        sum = Add(p, row)
        t = Tanh(sum)
        u = Identity(t)
    }>(z, x)
}"""
BRANCHES = """g (float[1,512] x, int64 rate, float[1,64] h, float[32,1,32] k, float[32,1,16] l,
           float[32,64] w) => (float[1,64] y) {
    fast = Constant<value_int = 16000>()
    is_fast = Equal(rate, fast)
    f = If(is_fast) <
        then_branch = t () => (float[1,32,31] a) {
            one = Constant<value_ints = [1]>()
            wide = Unsqueeze(x, one)
            c = Conv<strides = [16]>(wide, k)
            a = Relu(c)
        },
        else_branch = e () => (float[1,32,16] b) {
            one_ = Constant<value_ints = [1]>()
            from = Constant<value_ints = [0]>()
            to = Constant<value_ints = [256]>()
            part = Slice(x, from, to, one_)
            wide_ = Unsqueeze(part, one_)
            c_ = Conv<strides = [16]>(wide_, l)
            b = Relu(c_)
        }>
    two = Constant<value_ints = [2]>()
    m = ReduceMean<keepdims = 0>(f, two)
    g = MatMul(m, w)
    s = Add(g, h)
    y = Tanh(s)
}"""


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def values(size: int, kept: float) -> tuple[str, Callable]:
    """The elements of a square above a limit that so many of them are above."""
    limit = np.array(statistics.NormalDist().inv_cdf(1 - kept), np.float32)
    return VALUES % (size, size), lambda rng: [floats(rng, size, size), limit]


def boxes(rng: np.random.Generator) -> Feeds:
    corner, size = rng.random((1, 2000, 2)), rng.random((1, 2000, 2)) * 0.2
    corners = np.concatenate([corner, corner + size], axis=2).astype(np.float32)
    return [corners, rng.random((1, 4, 2000)).astype(np.float32)]


def windows(rng: np.random.Generator) -> Feeds:
    more = [floats(rng, *s) / 8 for s in ((1, 64), (32, 1, 32), (32, 1, 16), (32, 64))]
    return [floats(rng, 1, 512), np.array(16000), *more]


MODELS: dict[str, tuple[str, Callable[[np.random.Generator], Feeds]]] = {
    "nonzero_gather_1000_30%": values(1000, 0.3),
    "nonzero_gather_1000_1%": values(1000, 0.01),
    "nonzero_gather_100_30%": values(100, 0.3),
    "compress_rows": (ROWS, lambda rng: [floats(rng, 4096, 64), rng.random(4096) < 0.3]),
    "unique": (DISTINCT, lambda rng: [rng.integers(0, 5000, 20000)]),
    "nms_gather": (BOXES, boxes),
    "loop_1000": (LOOP, lambda rng: [floats(rng, 32), floats(rng, 32, 32) / 6]),
    "loop_1000_indices": (
        LOOKUP % STATE, lambda rng: [floats(rng, 64, 32), rng.integers(0, 64, 1000)],
    ),
    "scan_1000": (
        SCAN, lambda rng: [floats(rng, 32), floats(rng, 1000, 32), floats(rng, 32, 32) / 6],
    ),
    "branches": (BRANCHES, windows),
}  # fmt: skip


def measured(source: str, feeds: Feeds, rounds: int) -> dict[str, object]:
    """A line of results."""
    text = f'<ir_version: 10, opset_import: ["": 21]>\n{source}'
    proto = onnx.parser.parse_model(text).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    named = dict(zip([value.name for value in session.get_inputs()], feeds))
    compiled = graphc.compile(proto, threads=1)
    found, expected = compiled.run(list(feeds)), session.run(None, named)
    names = [value.name for value in session.get_outputs()]
    error = max(output.error for output in agreements(names, found, expected))
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        start = time.process_time()
        compiled.run(list(feeds))
        middle = time.process_time()
        session.run(None, named)
        times.append((middle - start, time.process_time() - middle))
    ours, theirs = (statistics.median(column) * 1e3 for column in zip(*times))
    return {
        "graphc_ms": round(ours, 4), "onnxruntime_ms": round(theirs, 4),
        "speedup": round(statistics.median(b / a for a, b in times), 2), "error": float(error),
        "one_program": [type(e.run).__name__ for e in compiled.executables()] == ["NativeModel"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    for name in args.names or MODELS:
        source, draw = MODELS[name]
        line = measured(source, draw(np.random.default_rng(0)), args.rounds)
        print(json.dumps({"model": name, **line}), flush=True)


if __name__ == "__main__":
    main()
