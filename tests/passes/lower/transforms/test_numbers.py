"""Computations that differ in numbers alone share a kernel, which reads the numbers."""

import numpy as np
from differential import build, check, program_of

from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Index, Load, Reduce, cast, walk
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import Computation, Output
from graphc.passes.lower.transforms.numbers import with_numbers_read

I, K = Index("i0", 8), Index("k", 8)
X = Load("in0", (I,), f32)


def computed(expr) -> Computation:
    """A computation of eight elements from eight of the same type as X."""
    source = Buffer("in0", f32, (8,), "in")
    output = Output(Buffer("out0", expr.dtype, (8,), "out"), (I,), expr)
    return Computation((source,), (output,), frozenset(), "test")


def read(*exprs):
    """The expressions and the numbers, of computations of these expressions."""
    found = with_numbers_read(list(map(computed, exprs)))
    return [(x.computation.outputs[0].expr, x.numbers) for x in found]


def test_numbers_that_differ_are_read_and_others_stay():
    (one, first), (two, second) = read((X * 2.5 + 1.5) * 3.0, (X * 2.5 + 4.5) * 7.0)
    assert one is two
    np.testing.assert_array_equal(sorted(first["numbers_f32"]), [1.5, 3.0])
    np.testing.assert_array_equal(sorted(second["numbers_f32"]), [4.5, 7.0])
    assert 2.5 in [node.value for node in walk(one) if isinstance(node, Const)]


def test_what_is_alone_or_repeated_keeps_its_numbers():
    exprs = X * 2.5, X * 2.5, X + 1.5
    assert [(e, {}) for e in exprs] == read(*exprs)


def test_wide_numbers_that_fit_take_half_and_wide_factors_stay():
    wide = cast(X, i64)
    (one, first), (two, second) = read(wide * 5 + (1 << 40), wide * 7 + (1 << 41))
    assert one is two
    assert {n: a.tolist() for n, a in first.items()} == {
        "numbers_i32": [5], "numbers_i64": [1 << 40],
    }  # fmt: skip
    assert second["numbers_i32"].dtype == np.int32
    (one, _), (two, _) = read(wide * (1 << 40), wide * (1 << 41))
    assert one is not two


def test_positions_and_reductions_keep_their_numbers():
    total = Reduce("sum", Load("in0", (K,), f32) * 2.5, (K,))
    other = Reduce("sum", Load("in0", (K,), f32) * 3.5, (K,))
    positions = cast(I + 1, f32), cast(I + 2, f32)
    assert all(not numbers for _, numbers in read(X + total, X + other, *positions))


def test_layers_of_other_scales_share_kernels():
    """Three quantised products, each with scales and zero points of its own."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (12, 32)).astype(np.uint8)

    def function(b, x):
        for n, scale in enumerate((0.011, 0.013, 0.0145)):
            w = b.constant(rng.integers(-127, 128, (32, 32)).astype(np.int8))
            scales = [b.constant(np.float32(s)) for s in (0.02 + n / 500, scale, 0.05 + n / 300)]
            zeros = [b.constant(np.uint8(z)) for z in (11 + n, 40 + 3 * n)]
            by = b.DequantizeLinear(w, scales[1])
            y = b.MatMul(b.DequantizeLinear(x, scales[0], zeros[0]), by)
            x = b.QuantizeLinear(y, scales[2], zeros[1])
        return x

    graph, arrays = build(function, x=x)
    check(graph, arrays, machines=(0, 32, 64), tolerance=0)
    program = program_of(graph)
    assert len(program.steps) == 3 * len(program.kernels)  # where rows are widened before, two each
