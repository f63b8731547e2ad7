"""Parallel loops of imperative kernels in vectors, against the interpreter."""

import numpy as np
import pytest
from differential import build, check, floats, program_of

from graphc.ir.dtypes import f32, i64
from graphc.ir.kernel import Buffer, For, Kernel, KernelBuilder, walk_stmts
from graphc.passes.kernel.vectorise import in_lanes

RNG = np.random.default_rng(3)
WIDTHS = (64, 32, 0)


def vectors(program) -> list[int]:
    """The lanes of all vector loops of a program."""
    loops = (s for k in program.kernels.values() for s in walk_stmts(k.body) if isinstance(s, For))
    return [loop.extent for loop in loops if loop.kind == "vector"]


@pytest.mark.parametrize("shape", [(3, 7, 40), (2, 5, 3, 5), (1, 9, 3)])
def test_lines_that_run_side_by_side(shape):
    graph, inputs = build(
        lambda b, x: b.CumSum(x, b.constant(np.int64(1)), reverse=1), x=floats(RNG, *shape)
    )
    check(graph, inputs, WIDTHS)
    assert bool(vectors(program_of(graph))) == (np.prod(shape[2:]) >= 4)


def test_lines_that_follow_one_another_stay_apart():
    graph, inputs = build(lambda b, x: b.CumSum(x, b.constant(np.int64(-1))), x=floats(RNG, 40, 9))
    check(graph, inputs)
    assert not vectors(program_of(graph))


def test_running_sums_of_bytes():
    x = RNG.integers(0, 50, (2, 4, 77)).astype(np.int32)
    check(*build(lambda b, x: b.CumSum(x, b.constant(np.int64(1))), x=x), WIDTHS)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_rows_are_scattered_by_vectors(reduction):
    graph, inputs = build(
        lambda b, x, i, u: b.ScatterND(x, i, u, reduction=reduction),
        x=floats(RNG, 9, 5, 7), i=RNG.integers(-9, 9, (6, 1)), u=floats(RNG, 6, 5, 7),
    )  # fmt: skip
    check(graph, inputs, WIDTHS)
    assert vectors(program_of(graph)) == [16, 11, 16, 3], "copies, and rows of 35 elements"


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_are_kept_by_vectors(axis):
    x = floats(RNG, 6, 7, 21)
    keep = RNG.random(x.shape[axis]) < 0.5
    graph, inputs = build(lambda b, x, c: b.Compress(x, c, axis=axis), x=x, c=keep)
    check(graph, inputs, WIDTHS)
    mask, *copies = vectors(program_of(graph))  # of slices that are kept; then these
    assert mask == {6: 4, 7: 4, 21: 16}[len(keep)], "a power of two, so that masks overlap"
    assert bool(copies) == (axis < 2)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_bins_of_regions(mode, ratio):
    corners = RNG.random((5, 2)) * 20 - 3
    rois = np.concatenate([corners, corners + RNG.random((5, 2)) * 15], 1).astype(np.float32)
    graph, inputs = build(
        lambda b, x, r, n: b.RoiAlign(
            x, r, n, output_height=3, output_width=5, mode=mode, sampling_ratio=ratio
        ),
        x=floats(RNG, 2, 3, 12, 17), r=rois, n=np.array([0, 1, 1, 0, 1]),
    )  # fmt: skip
    check(graph, inputs, WIDTHS)


def made(extent: int, step: int) -> Kernel:
    """A kernel that doubles every so many elements."""
    x, y = (Buffer(n, f32, (extent * step,), a) for n, a in (("x", "in"), ("y", "out")))
    k = KernelBuilder()
    with k.loop(extent, "parallel") as i:
        k.store(y, i * step, x[i * step] * 2)
    return Kernel("k", (x, y), k.body())


def test_loops_become_vectors_and_a_rest():
    (whole, rest) = in_lanes(made(35, 1), 64).body
    assert (whole.extent, whole.kind, whole.body[0].extent) == (2, "parallel", 16)
    assert (rest.extent, rest.kind) == (3, "vector")


def test_what_is_stored_must_lie_side_by_side():
    assert in_lanes(made(35, 2), 64) == made(35, 2)
    assert in_lanes(made(3, 1), 64) == made(3, 1)


def test_a_branch_that_differs_keeps_a_loop_scalar():
    x, y = Buffer("x", i64, (32,)), Buffer("y", i64, (32,), "out")
    k = KernelBuilder()
    with k.loop(32, "parallel") as i, k.when(x[i] > 0):
        k.store(y, i, x[i])
    kernel = Kernel("k", (x, y), k.body())
    assert in_lanes(kernel, 64) == kernel
