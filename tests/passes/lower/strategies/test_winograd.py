"""Winograd convolution: matrices by exact arithmetic, kernels against sums in float64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from differential import CpuOf, build, check, floats, native, program_of
from numpy.lib.stride_tricks import sliding_window_view
from open_shapes import agrees_on_the_cpu

from graphc.autodiff.reverse import gradients
from graphc.backends.llvm_cpu.codegen import compile_program
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.driver import optimise, program_for
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.expr import Call, Const, Ref, Sym, substitute
from graphc.ir.graph import clone_graph
from graphc.ir.types import TensorType
from graphc.passes.analysis.compose import computations
from graphc.passes.lower.strategies import winograd as strategy
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions
from graphc.passes.lower.transforms.winograd import POINTS, TAPS, operations, times, winograd
from graphc.targets.cpu import Cpu

BOUND = 1e-5  # of the range of a result; what docs/definitions.md states
NAN, INF = np.nan, np.inf


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def used(graph) -> set[str]:
    return {name.rsplit("_", 1)[0] for name in program_of(graph).kernels}


def convolution(x: np.ndarray, pads, columns: int, more=lambda b, y: y, bump=None, **options):
    """A graph with a convolution of 3 x 3 taps whose channels are neighbours in memory, as those
    are of another's result, and its inputs and weights."""
    r = rng(columns)
    same = np.eye(x.shape[1], dtype=np.float32)[:, :, None, None] * 0.5
    weights = floats(r, columns, x.shape[1], TAPS, TAPS)

    def make(b, image, *others):
        first = b.Conv(image, same)
        first = first if bump is None else b.Add(first, bump)
        return more(b, b.Conv(first, weights, pads=list(pads), **options), *others)

    return make, weights


def in_float64(x: np.ndarray, weights: np.ndarray, pads) -> np.ndarray:
    """The result of such a convolution."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64) / 2, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, (TAPS, TAPS), (2, 3))
    with np.errstate(all="ignore"):
        return np.einsum("nchwij,kcij->nkhw", windows, weights.astype(np.float64))


# ---------------------------------------------------------------- matrices


@pytest.mark.parametrize("outputs", POINTS)
def test_matrices_give_sums_of_products(outputs):
    form = winograd(outputs)
    for tap in range(TAPS):
        for at in range(form.points):
            weights = [row[tap] for row in form.weights]
            inputs = [row[at] for row in form.inputs]
            found = [
                sum(a * g * d for a, g, d in zip(row, weights, inputs)) for row in form.results
            ]
            assert found == [Fraction(int(n + tap == at)) for n in range(outputs)]


@pytest.mark.parametrize("outputs", POINTS)
def test_inputs_and_results_have_exact_matrices(outputs):
    form = winograd(outputs)
    elements = [x for row in (*form.inputs, *form.results) for x in row]
    assert all(Fraction(float(np.float32(float(x)))) == x for x in elements)


@pytest.mark.parametrize("outputs", POINTS)
@pytest.mark.parametrize("name", ["inputs", "results"])
def test_products_with_matrices_share_sums(outputs, name):
    matrix = getattr(winograd(outputs), name)
    names = [Ref(f"x{n}", f32) for n in range(len(matrix[0]))]
    values = {x: Const(float(n * n - 3 * n + 1), f32) for n, x in enumerate(names)}

    def number(expr):
        return substitute(expr, values)

    found = [number(x) for x in times(matrix, names, lambda x: x)]
    expected = [sum(float(c) * v.value for c, v in zip(row, values.values())) for row in matrix]
    assert [x.value for x in found] == expected
    alone = sum(max(0, sum(map(bool, row)) - 1) for row in matrix)
    assert operations(matrix) <= alone and not any(isinstance(x, Call) for x in found)


# ---------------------------------------------------------------- kernels

SHAPES = [
    ((1, 32, 16, 16), (1, 1, 1, 1), 32),
    ((1, 64, 14, 14), (1, 1, 1, 1), 64),
    ((2, 36, 13, 11), (1, 1, 1, 1), 40),
    ((3, 48, 9, 17), (0, 0, 0, 0), 33),
    ((1, 40, 21, 10), (0, 2, 1, 0), 70),
    ((1, 33, 7, 30), (2, 2, 2, 2), 65),
    ((1, 600, 6, 6), (1, 1, 1, 1), 32),
]


@pytest.mark.parametrize("shape, pads, columns", SHAPES)
@pytest.mark.parametrize("outputs", POINTS)
def test_errors_are_within_the_bound(shape, pads, columns, outputs, monkeypatch):
    monkeypatch.setattr(strategy, "cheapest", lambda *_: [outputs])
    x = floats(rng(1), *shape)
    make, weights = convolution(x, pads, columns)
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    (found,) = native(program_of(graph), inputs)
    expected = in_float64(x, weights, pads)
    assert np.abs(found - expected).max() < BOUND * np.abs(expected).max()


@pytest.mark.parametrize("outputs", POINTS)
@pytest.mark.parametrize("columns, block", [(16, 9), (21, 4)])
def test_kernels_stay_within_their_buffers(outputs, columns, block, monkeypatch):
    monkeypatch.setattr(strategy, "cheapest", lambda *_: [outputs])
    monkeypatch.setattr(strategy, "block_of_tiles", lambda *_: block)
    x = floats(rng(2), 1, 18, 5, 6)
    x[0, 2, 1, 4] = INF
    make, _ = convolution(x, (1, 0, 1, 2), columns, lambda b, y: b.Relu(y))
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    check(graph, inputs, (64, 32, 16), interpreted=(64, 16))


# ---------------------------------------------------------------- weights that are trained


def trained(x, weights, pads, more=lambda b, y: y):
    """A graph with a convolution of 3 x 3 taps by weights that are an input, and its inputs."""
    same = np.eye(x.shape[1], dtype=np.float32)[:, :, None, None] * 0.5

    def make(b, image, taps):
        return more(b, b.Conv(b.Conv(image, same), taps, pads=list(pads)))

    return build(make, x=x, weights=weights)


@pytest.mark.parametrize("shape, pads, columns", [SHAPES[0], SHAPES[2], SHAPES[3], SHAPES[5]])
@pytest.mark.parametrize("outputs", POINTS)
def test_weights_are_transformed_at_run_time(shape, pads, columns, outputs, monkeypatch):
    monkeypatch.setattr(strategy, "cheapest", lambda *_: [outputs])
    r = rng(21)
    x, weights = floats(r, *shape), floats(r, columns, shape[1], TAPS, TAPS)
    graph, inputs = trained(x, weights, pads)
    assert {"winograd", "winograd_weights"} <= used(graph)
    (result,) = native(program_of(graph), inputs)
    expected = in_float64(x, weights, pads)
    assert np.abs(result - expected).max() < BOUND * np.abs(expected).max()


@pytest.mark.parametrize("outputs", POINTS)
@pytest.mark.parametrize("columns, block", [(16, 9), (21, 4)])
def test_transformed_weights_stay_within_their_buffers(outputs, columns, block, monkeypatch):
    monkeypatch.setattr(strategy, "cheapest", lambda *_: [outputs])
    monkeypatch.setattr(strategy, "block_of_tiles", lambda *_: block)
    r = rng(22)
    x, weights = floats(r, 1, 18, 5, 6), floats(r, columns, 18, TAPS, TAPS)
    graph, inputs = trained(x, weights, (1, 0, 1, 2), lambda b, y: b.Relu(y))
    assert {"winograd", "winograd_weights"} <= used(graph)
    check(graph, inputs, (64, 32, 16), interpreted=(64, 16))


@pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38])
def test_trained_weights_that_are_not_finite_reach_their_channel_alone(value, monkeypatch):
    monkeypatch.setattr(strategy, "cheapest", lambda *_: [4])
    r = rng(23)
    x, weights = floats(r, 1, 32, 13, 11), floats(r, 48, 32, TAPS, TAPS)
    weights[5, 3, 1, 2] = value
    graph, inputs = trained(x, weights, (1, 1, 1, 1))
    assert "winograd_weights" in used(graph)
    with np.errstate(all="ignore"):
        expected = in_float64(x, weights, (1, 1, 1, 1)).astype(np.float32)
        (result,) = native(program_of(graph), inputs)
    near = np.abs(expected) < 1e6
    assert near[:, np.arange(48) != 5].all() and not near[:, 5].all()
    np.testing.assert_allclose(result[near], expected[near], 1e-4, 1e-4)
    is_nan = np.isnan(expected)
    assert (np.isnan(result) == is_nan).all()
    np.testing.assert_allclose(result[~near & ~is_nan], expected[~near & ~is_nan], 1e-5)


def test_gradients_of_images_are_convolutions_too(monkeypatch):
    monkeypatch.setattr(strategy, "cheapest", lambda *_: [4])
    r = rng(25)
    x, w = floats(r, 2, 32, 12, 9), floats(r, 40, 32, TAPS, TAPS)
    before, after = floats(r, 32, 32, 1, 1), floats(r, 32, 40, 1, 1)

    def make(b, image, taps):
        first = b.Conv(image, before)
        y = b.Conv(b.Conv(first, taps, pads=[1, 0, 1, 2]), after)
        total = b.ReduceSum(b.Mul(y, y), keepdims=0)
        return gradients(b.region, {total: b.constant(np.float32(1))}, [image])

    graph, inputs = build(make, x=x, w=w)
    program = check(graph, inputs, (64,), interpreted=())
    names = [name.rsplit("_", 1)[0] for name in program.kernels]
    assert names.count("winograd") == 2


def test_weights_that_cost_more_to_transform_than_they_save_are_not():
    r = rng(24)
    graph, _ = trained(floats(r, 1, 192, 6, 6), floats(r, 192, 192, TAPS, TAPS), (1, 1, 1, 1))
    assert "contract" in used(graph) and "winograd" not in used(graph)


def _residual(b, y, r):
    return b.Relu(b.Add(y, r))


def _long(b, y, r):
    return b.Mul(b.Gelu(y), b.Sigmoid(r))


def _two(b, y, r):
    return b.Relu(y), b.Sub(y, r)


@pytest.mark.parametrize("more", [_residual, _long, _two])
def test_epilogues(more):
    x, r = floats(rng(3), 2, 32, 10, 12), floats(rng(4), 2, 48, 10, 12)
    make, _ = convolution(x, (1, 1, 1, 1), 48, more)
    graph, inputs = build(make, x=x, r=r)
    assert "winograd" in used(graph)
    check(graph, inputs, (64, 32), interpreted=())


def test_concatenated_operands_are_read_where_they_lie():
    x, y = floats(rng(5), 1, 32, 12, 12), floats(rng(6), 1, 32, 12, 12)
    w, v = floats(rng(7), 32, 32, 1, 1), floats(rng(8), 32, 64, 3, 3)

    def make(b, x, y):
        both = b.Concat(b.Conv(x, w), b.Conv(y, w), axis=1)
        return b.Conv(both, v, pads=[1, 1, 1, 1])

    graph, inputs = build(make, x=x, y=y)
    program = check(graph, inputs, (32, 64), interpreted=())
    assert "winograd" in {name.rsplit("_", 1)[0] for name in program.kernels}


def test_outliers_do_not_spoil_their_neighbours():
    x, bump = floats(rng(17), 1, 32, 13, 11), np.zeros((1, 32, 13, 11), np.float32)
    bump[0, 3, 5, 7] = 1e30
    make, weights = convolution(
        x, (1, 1, 1, 1), 48, lambda b, y: b.Clip(y, np.float32(-6), np.float32(6)), bump=bump
    )
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    whole = x.astype(np.float64) + 2 * bump.astype(np.float64)
    expected = np.clip(in_float64(whole, weights, (1, 1, 1, 1)), -6, 6)
    np.testing.assert_allclose(native(program_of(graph), inputs)[0], expected, 1e-4, 1e-4)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1.5e38])
@pytest.mark.parametrize("at", [(0, 0), (5, 7), (12, 10)])
def test_values_that_are_not_finite_reach_their_outputs_alone(value, at):
    x, bump = floats(rng(9), 1, 32, 13, 11), np.zeros((1, 32, 13, 11), np.float32)
    bump[(0, 3, *at)] = value
    make, weights = convolution(x, (1, 1, 1, 1), 48, bump=bump)
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    with np.errstate(all="ignore"):
        expected = in_float64(
            x.astype(np.float64) + 2 * bump.astype(np.float64), weights, (1, 1, 1, 1)
        ).astype(np.float32)
    (found,) = native(program_of(graph), inputs)
    far = np.abs(expected) > 1e6
    assert far.any() or not np.isfinite(expected).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def test_weights_that_are_not_finite():
    x = floats(rng(10), 1, 32, 9, 9)
    make, weights = convolution(x, (1, 1, 1, 1), 48)
    weights[5, 3, 1, 1], weights[7, 2, 0, 2] = INF, NAN
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    with np.errstate(all="ignore"):
        expected = in_float64(x, weights, (1, 1, 1, 1)).astype(np.float32)
    (found,) = native(program_of(graph), inputs)
    assert np.isnan(found[:, 7]).any() and np.isinf(found[:, 5]).all()
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("shape, columns", [((2, 32, 40, 40), 64), ((1, 32, 12, 12), 128)])
def test_two_threads_give_what_one_does(shape, columns):
    x = floats(rng(11), *shape)
    make, _ = convolution(x, (1, 1, 1, 1), columns)
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    image = compile_program(program_of(graph))
    np.testing.assert_array_equal(
        NativeModel(image, 2)(inputs)[0], NativeModel(image, 1)(inputs)[0]
    )


def test_one_kernel_for_images_of_any_size():
    sizes = {"H": Sym("H", 1, 40), "W": Sym("W", 1, 40)}
    same, weights = floats(rng(15), 32, 32, 1, 1), floats(rng(16), 48, 32, TAPS, TAPS)
    graph = new_graph("main", x=TensorType(f32, (1, 32, *sizes.values())))
    b = Builder(graph)
    image = b.Conv(graph.params[0], same)
    graph.set_results([b.Relu(b.Conv(image, weights, pads=[1, 1, 1, 1]))])
    graph.output_names, graph.phase, graph.symbols = ["y"], "typed", sizes
    assert "winograd" in used(graph)
    agrees_on_the_cpu(graph, "winograd")


def test_exact_asks_for_direct_products():
    x = floats(rng(12), 1, 64, 16, 16)
    make, weights = convolution(x, (1, 1, 1, 1), 64)
    graph, inputs = build(make, x=x)
    assert "winograd" in used(graph)
    program = program_for(clone_graph(graph), CpuOf(exact=True))
    assert not any(name.startswith("winograd") for name in program.kernels)
    expected = in_float64(x, weights, (1, 1, 1, 1))
    assert np.abs(native(program, inputs)[0] - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    "options", [{"strides": [2, 2]}, {"strides": [1, 2]}, {"dilations": [2, 2]}]
)
def test_convolutions_that_are_computed_directly(options):
    x = floats(rng(13), 1, 64, 12, 12)
    make, _ = convolution(x, (1, 1, 1, 1), 64, **options)
    graph, inputs = build(make, x=x)
    assert "winograd" not in used(graph)
    check(graph, inputs, (64,), interpreted=())


def test_equal_options_give_equal_code():
    x = floats(rng(14), 1, 32, 16, 16)
    make, _ = convolution(x, (1, 1, 1, 1), 32)
    programs = [program_of(build(make, x=x)[0]) for _ in range(2)]
    assert programs[0].kernels == programs[1].kernels


@pytest.mark.parametrize(
    "channels, side, vector_bytes, l2_bytes, taken",
    [
        (512, 7, 32, 512 << 10, False),  # whose transformed weights come from memory, twice
        (512, 7, 64, 2 << 20, False),
        (128, 28, 64, 2 << 20, True),
        (64, 28, 32, 512 << 10, True),
    ],
)
def test_few_places_take_direct_products(channels, side, vector_bytes, l2_bytes, taken):
    x = np.ones((1, channels, side, side), np.float32)
    make, _ = convolution(x, (1, 1, 1, 1), channels)
    graph, _ = build(make, image=x)
    ops = optimise(graph, target=Cpu()).ops
    tiles = strategy.WinogradTiles(RegisterTileOptions(vector_bytes, 16, l2_bytes))
    proposals = [tiles.propose(c) for c in computations([op for op in ops if op.inputs])]
    assert any(not isinstance(p, str) for p in proposals) is taken
