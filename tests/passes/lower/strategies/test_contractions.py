"""Matrix products and convolutions: shapes around the tile sizes, against the interpreter."""

import itertools

import numpy as np
import pytest
from differential import build, check, floats, program_of

from graphc.ir import dtypes
from graphc.ir.text.printer import print_kernel
from graphc.passes.analysis.spaces import balanced_tiles
from graphc.passes.lower.strategies import tile_emitter, tile_rules
from graphc.passes.lower.strategies.tile_emitter import row_tiles
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def used(graph, width: int = 64) -> set[str]:
    """The strategies that made the kernels of a graph, as the kernels' names tell."""
    return {name.rsplit("_", 1)[0] for name in program_of(graph, width).kernels}


SIZES = [(1, 16, 16), (2, 31, 17), (5, 4, 15), (7, 33, 64), (13, 20, 65), (29, 8, 100), (3, 5, 129)]


@pytest.mark.parametrize("m, k, n", SIZES)
@pytest.mark.parametrize("constant", [True, False])
def test_matmul(m, k, n, constant):
    r = rng(m * n)
    a, w = floats(r, m, k), floats(r, k, n)
    if constant:
        graph, inputs = build(lambda b, x: b.MatMul(x, w), x=a)
    else:
        graph, inputs = build(lambda b, x, y: b.MatMul(x, y), x=a, y=w)
    assert "contract" in used(graph)
    check(graph, inputs, (64, 32, 16, 0), interpreted=(64, 0) if m * n * k < 9000 else ())


LEADS = [((3,), ()), ((), (3,)), ((3,), (3,)), ((2, 1), (3,)), ((1, 3), (2, 1)),
         ((2, 3), (2, 3)), ((1,), (4,))]  # fmt: skip


@pytest.mark.parametrize("lead_a, lead_b", LEADS)
def test_batches_broadcast(lead_a, lead_b):
    r = rng(1)
    a, c = floats(r, *lead_a, 5, 9), floats(r, *lead_b, 9, 18)
    graph, inputs = build(lambda b, x, y: b.MatMul(x, y), x=a, y=c)
    check(graph, inputs)
    graph, inputs = build(lambda b, x: b.Relu(b.MatMul(x, c)), x=a)
    check(graph, inputs)


@pytest.mark.parametrize("ta, tb, constant", list(itertools.product((0, 1), (0, 1), (True, False))))
def test_transposed_operands(ta, tb, constant):
    r = rng(2)
    a = floats(r, *((11, 7) if ta else (7, 11)))
    w = floats(r, *((35, 11) if tb else (11, 35)))
    c = floats(r, 35)
    if constant:
        graph, inputs = build(lambda b, x: b.Gemm(x, w, c, transA=ta, transB=tb, alpha=0.5), x=a)
    else:
        graph, inputs = build(
            lambda b, x, y: b.Gemm(x, y, c, transA=ta, transB=tb, beta=3.0), x=a, y=w
        )
    check(graph, inputs)


@pytest.mark.parametrize("dtype, ulp", [(dtypes.f16, 2**-10), (dtypes.bf16, 2**-7)])
def test_narrow_floats(dtype, ulp):
    """Products are summed in float32; constants stay narrow in memory."""
    a, w = (floats(rng(n), *shape).astype(dtype.np) for n, shape in ((1, (9, 40)), (2, (40, 35))))
    graph, inputs = build(lambda b, x: b.Relu(b.MatMul(x, w)), x=a)
    program = check(graph, inputs, (0, 32, 64), tolerance=ulp)
    assert "contract" in used(graph) and [c.dtype for c in program.constants] == [dtype.np]
    kernel = floats(rng(3), 6, 5, 3, 3).astype(dtype.np)
    image = floats(rng(4), 1, 5, 9, 8).astype(dtype.np)
    graph, inputs = build(lambda b, x: b.Conv(x, kernel, pads=[1] * 4), x=image)
    assert "contract" in used(graph)
    check(graph, inputs, tolerance=ulp)
    graph, inputs = build(lambda b, x, y: b.MatMul(x, y), x=a, y=w)
    assert "contract" in used(graph)
    check(graph, inputs, tolerance=ulp)


def test_vectors_on_either_side():
    a, v = floats(rng(3), 6, 21), floats(rng(4), 21)
    check(*build(lambda b, x: b.MatMul(x, v), x=a))
    check(*build(lambda b, x, y: b.MatMul(y, b.Transpose(x)), x=a, y=v))
    check(*build(lambda b, x, y: b.MatMul(x, y), x=v, y=v))


@pytest.mark.parametrize("rows, kind", [(1, "nest"), (3, "nest"), (20, "contract")])
def test_few_rows_need_no_panels(rows, kind):
    """Queries of one step, or a matrix times a vector."""
    q, keys = floats(rng(), 2, rows, 40), floats(rng(1), 2, 11, 40)

    def function(b, q, keys):
        return b.Relu(b.MatMul(q, b.Transpose(keys, perm=(0, 2, 1))))

    graph, inputs = build(function, q=q, keys=keys)
    program = check(graph, inputs, (0, 64), interpreted=(64,))
    assert (program.arena_bytes == 0) == (kind == "nest") and kind in used(graph)


@pytest.mark.parametrize("shape, kernel, strides, pads", [
    ((1, 20, 17, 33), (3, 3), (1, 1), [1, 1, 1, 1]), ((2, 5, 14, 14), (3, 3), (2, 2), [0, 1, 1, 0]),
    ((1, 3, 9, 70), (7, 5), (1, 3), [3, 2, 3, 2]), ((1, 8, 100), (31,), (1,), [15, 15]),
])  # fmt: skip
def test_depthwise_convolutions_of_images_pack_nothing(shape, kernel, strides, pads):
    r, channels = rng(5), shape[1]
    weights, bias = floats(r, channels, 1, *kernel), floats(r, channels)
    graph, inputs = build(
        lambda b, x: b.Relu(b.Conv(x, weights, bias, group=channels, strides=strides, pads=pads)),
        x=floats(r, *shape),
    )
    assert used(graph) == {"nest"} and len(program_of(graph, 64).steps) == 1
    check(graph, inputs, (64, 32, 16, 0))


def test_epilogue_with_several_results():
    """Bias, residual and activation join the product; both sums leave the kernel."""
    r = rng(5)
    a, w, bias, rest = floats(r, 10, 24), floats(r, 24, 40), floats(r, 40), floats(r, 10, 40)

    def function(b, x, y):
        total = b.Add(b.Add(b.MatMul(x, w), bias), y)
        return total, b.Sigmoid(total)

    graph, inputs = build(function, x=a, y=rest)
    program = check(graph, inputs, (64, 32, 0), interpreted=(64, 32))
    assert len(program.kernels) == 1


def test_prologue_is_computed_once():
    """An activation before a product is stored, not computed again for every column."""
    a, w = floats(rng(6), 12, 20), floats(rng(7), 20, 64)
    graph, inputs = build(lambda b, x: b.MatMul(b.Exp(b.Tanh(x)), w), x=a)
    program = check(graph, inputs)
    assert len(program.steps) == 2


@pytest.mark.suite("all")
@pytest.mark.parametrize("largest", [1, 4, 7, 14])
def test_balanced_tiles(largest):
    """Tiles cover the whole once, none is too large, and sizes differ by one at most."""
    for total in range(1, 60):
        position, sizes = 0, set()
        for start, count, size in balanced_tiles(total, largest):
            assert start == position and 0 < size <= largest
            position += count * size
            sizes.add(size)
        assert position == total and max(sizes) - min(sizes) <= 1


# ---------------------------------------------------------------- convolutions


@pytest.mark.suite("all")
@pytest.mark.parametrize("largest", [1, 4, 7, 14])
def test_tiles_of_one_size(largest):
    """Tiles that may overlap are of one size, unless too many rows would be summed twice."""
    for rows in range(1, 700):
        size = tile_rules.same_size(rows, largest)
        tiles = row_tiles(rows, size or largest, overlap=size > 0)
        covered = [
            row for tile in tiles for row in range(tile.first, tile.first + tile.count * tile.size)
        ]
        assert covered == list(range(len(covered))) and len(covered) >= rows
        again = len(covered) - rows
        assert again * tile_rules.FEW_AGAIN <= rows
        assert again == 0 or [tile.end for tile in tiles] == [rows]
    assert tile_rules.same_size(400, 14) == 14


@pytest.mark.parametrize("rows", [6, 15, 17, 29])
@pytest.mark.parametrize("long", [1, 1000])
@pytest.mark.parametrize("residual", [True, False])
def test_tiles_that_overlap(monkeypatch, rows, long, residual):
    """The last tile sums rows of the one before; where a result may lie over an input, it does not
    store them."""
    monkeypatch.setattr(tile_rules, "FEW_AGAIN", 0)
    monkeypatch.setattr(tile_emitter, "LONG_DEPTH", long)
    r = rng(rows)
    x, y, w, v = floats(r, rows, 12), floats(r, rows, 9), floats(r, 12, 40), floats(r, 9, 40)

    def body(b, x, y):
        first = b.MatMul(x, w)
        return b.MatMul(b.Add(b.MatMul(y, v), first) if residual else b.Abs(first), w.T)

    graph, inputs = build(body, x=x, y=y)
    check(graph, inputs, (64, 32, 16), interpreted=(64,))


def random_convolution(seed: int):
    r = rng(seed)
    spatial = int(r.choice([1, 2, 2, 2, 3]))
    group = int(r.choice([1, 1, 1, 2, 3]))
    depthwise = r.random() < 0.25
    channels = int(r.integers(3, 20)) if depthwise else group * int(r.integers(1, 9))
    group = channels if depthwise else group
    out = group * int(r.integers(1, 3)) if depthwise else group * int(r.integers(1, 20))
    kernel = [int(r.integers(1, 5 if spatial < 3 else 3)) for _ in range(spatial)]
    dilations = [int(r.integers(1, 3)) for _ in range(spatial)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    pads = [int(r.integers(0, e + 1)) for e in (*reach, *reach)]
    extents = [e + int(r.integers(0, 9)) for e in reach]
    attributes = {
        "group": group, "dilations": dilations, "pads": pads,
        "strides": [int(r.integers(1, 4)) for _ in range(spatial)],
    }  # fmt: skip
    x = floats(r, int(r.integers(1, 3)), channels, *extents)
    w = floats(r, out, channels // group, *kernel)
    bias = floats(r, out) if r.random() < 0.5 else None

    def function(b, x):
        y = b.Conv(x, w, bias, **attributes)
        return b.Relu(y) if seed % 2 else b.Add(b.Conv(x, w, **attributes), b.Exp(b.Neg(b.Abs(y))))

    return build(function, x=x)


@pytest.mark.parametrize("seed", range(30))
def test_convolutions(seed):
    graph, inputs = random_convolution(seed)
    width = (64, 32, 16, 0)[seed % 4]
    check(graph, inputs, [width], interpreted=[width] if inputs[0].size < 1500 else ())


def test_convolution_of_a_reflection():
    """What is read of a reflection that is padded with zeros once more must stay inside."""
    w = floats(rng(8), 5, 7, 1, 3)

    def function(b, x):
        padded = b.Pad(x, np.array([0, 0, 0, 0, 0, 2, 0, 0]), mode="reflect")
        return b.Conv(padded, w, pads=[0, 2, 0, 2])

    check(*build(function, x=floats(rng(9), 1, 5, 9, 15)), (64, 0), interpreted=(64, 0))


IMAGES = {
    "reflected": lambda b, x: b.Pad(x, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"),
    "clamped": lambda b, x: b.Pad(x, np.array([0, 0, 2, 1, 0, 0, 0, 1]), mode="edge"),
    "enlarged": lambda b, x: b.Resize(
        x,
        None,
        np.array([1, 1, 2, 2], np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "of blocks": lambda b, x: b.DepthToSpace(x, blocksize=2),
}


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("pads", [0, 1])
def test_convolutions_of_images_made_by_moving(kind, pads):
    """The image is made once, not once for every tap."""
    w = floats(rng(10), 20, 2 if kind == "of blocks" else 8, 3, 3)
    graph, inputs = build(
        lambda b, x: b.Conv(b.Relu(IMAGES[kind](b, b.Exp(x))), w, pads=[pads] * 4),
        x=floats(rng(11), 1, 8, 6, 7),
    )
    check(graph, inputs, (64, 0), interpreted=(64,))
    labels = [kernel.comment.split()[0] for kernel in program_of(graph).kernels.values()]
    assert "operand" not in labels


def test_convolution_whose_kernel_is_taller_than_the_image():
    """The output has one row, so that its index vanishes; the window still overlaps the padding."""
    w = floats(rng(10), 16, 1, 2, 2)
    graph, inputs = build(
        lambda b, x: b.Conv(x, w, pads=[0, 1, 1, 0], strides=[3, 3]), x=floats(rng(11), 1, 1, 1, 17)
    )
    check(graph, inputs, (64, 0), interpreted=(64, 0))


def test_indices_and_loops_of_equal_extent():
    """Both dims of the output take as many steps as its tiles: no name may be mistaken."""
    w, c = floats(rng(12), 2, 17), floats(rng(13), 16, 2)
    graph, inputs = build(lambda b, x: b.Gemm(b.Tanh(x), w, c, transB=1), x=floats(rng(14), 16, 17))
    check(graph, inputs, (64, 32, 16, 0), interpreted=(64, 32, 16, 0))


@pytest.mark.parametrize("seed", range(12))
def test_columns_beyond_the_caches(monkeypatch, seed):
    """Panels outside, rows of the image inside: as if no cache held any columns."""
    graph, inputs = random_convolution(seed)
    monkeypatch.setattr(RegisterTileOptions, "held_bytes", 0)
    monkeypatch.setattr(tile_emitter, "SMALL_PANELS", 0)
    check(graph, inputs)


def test_rows_of_the_image_are_inside_columns_beyond_the_caches(monkeypatch):
    w = floats(rng(1), 96, 8, 3, 3)
    graph, _ = build(lambda b, x: b.Conv(x, w, pads=[1] * 4), x=floats(rng(2), 1, 8, 5, 6))
    rows, panels = "p // 2", "p // 5"  # of an image of 5 rows, and 2 panels of 48 columns
    assert rows in contraction_of(graph) and panels not in contraction_of(graph)
    monkeypatch.setattr(RegisterTileOptions, "held_bytes", 0)
    assert panels in contraction_of(graph) and rows not in contraction_of(graph)


@pytest.fixture(params=["one tile", "several tiles"])
def small_caches(request, monkeypatch):
    """As if caches held next to nothing: all is computed in blocks, of few tiles and steps."""
    monkeypatch.setattr(tile_rules, "PART_FOR_TILE", 1 << 40)
    monkeypatch.setattr(tile_rules, "STEPS", 6)
    monkeypatch.setattr(tile_rules, "STACK", 1 << 14)
    monkeypatch.setattr(tile_rules, "FEW_PANELS", 2)
    if request.param == "several tiles":
        monkeypatch.setattr(tile_rules, "PART_FOR_BLOCK", 1 << 40)
        monkeypatch.setattr(tile_rules, "TOGETHER", 5)
        monkeypatch.setattr(tile_rules, "DEEP_PIECES", 1)


BLOCKED = [(14, 12, 32), (31, 13, 161), (1, 29, 200), (97, 7, 97), (50, 40, 320), (5, 61, 16)]


@pytest.mark.parametrize("m, k, n", BLOCKED)
@pytest.mark.parametrize("ta", [0, 1])
def test_blocks(small_caches, m, k, n, ta):
    r = rng(m + n)
    a, c, d = floats(r, *((k, m) if ta else (m, k))), floats(r, k, n), floats(r, m, n)
    graph, inputs = build(
        lambda b, x, y, z: b.Tanh(b.Add(b.Gemm(x, y, transA=ta), z)), x=a, y=c, z=d
    )
    assert ("stack" in contraction_of(graph)) or k <= 12 or m == 1
    check(graph, inputs, interpreted=(64,) if m * n * k < 9000 else ())


@pytest.mark.parametrize("batch, length", [(3, 7), (2, 6), (5, 13)])
def test_blocks_of_a_depth_of_two_indices(small_caches, batch, length):
    """The gradient of the weight of a convolution sums over images and positions."""
    x, y = floats(rng(3), batch, 9, length + 2), floats(rng(4), batch, 35, length)
    graph, inputs = build(
        lambda b, x, y: b.Conv(b.Transpose(x, perm=[1, 0, 2]), b.Transpose(y, perm=[1, 0, 2])),
        x=x, y=y,
    )  # fmt: skip
    assert "contract" in used(graph)
    check(graph, inputs)


def contraction_of(graph) -> str:
    """The text of the only contraction's kernel."""
    kernels = program_of(graph).kernels.items()
    (kernel,) = [kernel for name, kernel in kernels if name.startswith("contract")]
    return print_kernel(kernel)


@pytest.mark.parametrize("columns", [2, 3])
def test_few_columns(columns):
    """Images have three channels, flows two."""
    w = floats(rng(3), columns, 6, 3, 3)
    graph, inputs = build(lambda b, x: b.Conv(x, w, pads=[1] * 4), x=floats(rng(4), 1, 6, 7, 5))
    assert "contract" in used(graph)
    check(graph, inputs)
    matrix = floats(rng(5), 20, columns)
    graph, inputs = build(lambda b, x: b.MatMul(x, matrix), x=floats(rng(6), 9, 20))
    assert "contract" in used(graph)
    check(graph, inputs)


@pytest.mark.parametrize("columns, width", [(1000, 16), (1000, 32), (80, 32), (1008, 64)])
def test_panels_of_one_row_store_no_columns_that_are_not_there(columns, width):
    r = rng(columns)
    w = floats(r, 8, columns)
    graph, inputs = build(lambda b, x: b.MatMul(x, w), x=floats(r, 1, 8))
    assert sum(c.nbytes for c in program_of(graph, width).constants) == w.nbytes
    check(graph, inputs, (width,))
