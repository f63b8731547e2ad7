"""What elements do with one another, by many threads: scans, selections, sorts, updates, picks."""

from collections.abc import Callable

import numpy as np
import pytest

from graphc.backends.cuda import emit
from graphc.backends.cuda.launches import launches
from graphc.driver import compile, program_for
from graphc.ir.expr import as_expr
from graphc.ir.interp import interpret
from graphc.ir.kernel import For, walk_stmts
from graphc.ir.simplify import bounds
from tests.backends.cuda.cuda_programs import bank_conflicts, graph_of, needs_compiler

pytestmark = needs_compiler
RNG = np.random.default_rng(3)


def graph(body: str, *inputs: str, outputs: int = 1) -> str:
    params = ", ".join(f"%x{n}: {type}" for n, type in enumerate(inputs))
    results = ", ".join(f"%y{n}" for n in range(outputs))
    types = ", ".join("?" for _ in range(outputs))
    return f"graph @g({params}) -> ({types}) {{\n  {body}\n  return {results}\n}}"


def simulated(text: str, checks: str = "on") -> Callable[..., list[np.ndarray]]:
    """A graph in the simulator: a function from inputs to results, as large as they truly are."""
    model = compile(graph_of(text), target="cuda", simulate=True, checks=checks)
    return lambda *inputs: model.run(list(inputs))


def longest_loop(text: str) -> int:
    """The iterations of the longest loop that a single thread of a program takes."""
    program = program_for(graph_of(text), "cuda")
    loops = (
        stmt
        for kernel in program.kernels.values()
        for launch in launches(kernel)
        for stmt in walk_stmts(launch.kernel.body)
        if isinstance(stmt, For) and stmt.kind in ("serial", "unroll")
    )
    return max((int(bounds(as_expr(loop.extent))[1]) for loop in loops), default=1)


# ---------------------------------------------------------------- scans

LINES = {
    "one block": ((3, 700), 1, 0), "blocks": ((9300,), 0, 1), "neighbours": ((70, 3), 0, 1),
    "lines of blocks": ((2, 5200), 1, 0), "parts": ((3, 90, 2), 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("shape, axis, backwards", LINES.values(), ids=LINES)
def test_running_sums(shape, axis, backwards):
    x = RNG.integers(-9, 9, shape)
    run = simulated(graph(
        f"const %axis : i64[1] = [{axis}]\n"
        f"  %y0 = CumSum(%x0, %axis) {{exclusive={backwards}, reverse={backwards}}}",
        f"i64[{','.join(map(str, shape))}]",
    ))  # fmt: skip
    turned = np.flip(x, axis) if backwards else x
    expected = np.cumsum(turned, axis) - backwards * turned
    np.testing.assert_array_equal(run(x)[0], np.flip(expected, axis) if backwards else expected)


def test_running_sums_of_floats_stay_infinite_and_not_a_number_from_there_on():
    x = np.ones(3000, np.float32)
    x[1000], x[2000] = np.inf, np.nan
    run = simulated(graph("const %axis : i64[1] = [0]\n  %y0 = CumSum(%x0, %axis)", "f32[3000]"))
    np.testing.assert_array_equal(run(x)[0], np.cumsum(x))


def test_no_thread_goes_along_a_long_line_alone():
    text = graph("const %axis : i64[1] = [1]\n  %y0 = CumSum(%x0, %axis)", "f32[1,4194304]")
    assert longest_loop(text) <= 32


# ---------------------------------------------------------------- selections


@pytest.mark.parametrize("shape", [(0,), (40,), (30, 100)])
def test_positions_other_than_zero(shape):
    run = simulated(graph("%y0 = NonZero(%x0)", f"f32[{','.join(map(str, shape))}]"))
    for share in (0, 0.4, 1):
        x = np.where(RNG.random(shape) < share, RNG.standard_normal(shape), 0).astype(np.float32)
        np.testing.assert_array_equal(run(x)[0], np.array(np.nonzero(x)))


@pytest.mark.parametrize("axis, count", [(0, 90), (1, 7), (None, 100)])
def test_compressed(axis, count):
    attrs = "" if axis is None else f" {{axis={axis}}}"
    run = simulated(graph(f"%y0 = Compress(%x0, %x1){attrs}", "f32[90,7]", f"bool[{count}]"))
    x = RNG.standard_normal((90, 7)).astype(np.float32)
    for share in (0, 0.4, 1):
        condition = RNG.random(count) < share
        np.testing.assert_array_equal(run(x, condition)[0], np.compress(condition, x, axis))


def test_selections_take_no_thread_long():
    text = graph("%y0 = Compress(%x0, %x1) {axis=0}", "f32[65536,64]", "bool[65536]")
    assert longest_loop(text) <= 32


# ---------------------------------------------------------------- sorting

SORTS = {
    "a block": ((3, 100), 100, 1, "f32"), "lines of a block": ((600, 33), 5, 1, "f32"),
    "neighbours": ((33, 600), 5, 0, "f32"), "few of many": ((2, 4500), 40, 1, "f16"),
    "runs": ((1, 6200), 6200, 1, "u8"), "many of many": ((2, 4097), 3000, 1, "i64"),
}  # fmt: skip


def values_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values with ties, extremes, and, of floats, infinities and NaN."""
    if not dtype.startswith("f"):
        info = np.iinfo({"u8": np.uint8, "i64": np.int64}[dtype])
        x = RNG.integers(0, 40, shape).astype(info.dtype)
        x[RNG.random(shape) < 0.1], x[RNG.random(shape) < 0.1] = info.min, info.max
        return x
    x = RNG.integers(-20, 20, shape).astype({"f32": np.float32, "f16": np.float16}[dtype])
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[RNG.random(shape) < 0.1] = value
    return x


@pytest.mark.parametrize("shape, wanted, axis, dtype", SORTS.values(), ids=SORTS)
def test_first_in_order(shape, wanted, axis, dtype):
    largest = int(dtype != "f16")
    x = values_of(shape, dtype)
    run = simulated(graph(
        f"const %k : i64[1] = [{wanted}]\n"
        f"  %y0, %y1 = TopK(%x0, %k) {{axis={axis}, largest={largest}}}",
        f"{dtype}[{','.join(map(str, shape))}]", outputs=2,
    ))  # fmt: skip
    keys = x.astype(np.float64 if dtype.startswith("f") else object)
    if dtype.startswith("f"):  # NaN is the greatest
        keys = np.nan_to_num(keys, nan=1e4, posinf=1e3, neginf=-1e3)
    order = np.argsort(-keys if largest else keys, axis, kind="stable")
    order = np.take(order, range(wanted), axis)
    values, indices = run(x)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape", [(3, 2048), (5, 77), (400, 1000)])
def test_sorting_has_no_bank_conflicts(shape, dtype):
    body = "const %k : i64[1] = [7]\n  %y0, %y1 = TopK(%x0, %k)"
    text = graph(body, f"{dtype}[{','.join(map(str, shape))}]", outputs=2)
    found = bank_conflicts(program_for(graph_of(text), "cuda"), "TopK")
    assert found and max(found.values()) == 0


@pytest.mark.parametrize("wanted", [1, 50, 128256])
def test_no_thread_sorts_long(wanted):
    text = f"const %k : i64[1] = [{wanted}]\n  %y0, %y1 = TopK(%x0, %k)"
    assert longest_loop(graph(text, "f32[4,128256]", outputs=2)) <= 32


@pytest.mark.parametrize("shape, axis", [((2500,), None), ((70, 3), 0)])
@pytest.mark.parametrize("ascending", [0, 1])
def test_distinct_items(shape, axis, ascending):
    dims, attrs = ",".join(map(str, shape)), "" if axis is None else f", axis={axis}"
    text = graph(
        f"%y0, %y1, %y2, %y3 = Unique(%x0) {{sorted={ascending}{attrs}}}",
        f"f32[{dims}]", outputs=4,
    )  # fmt: skip
    x = RNG.integers(0, 40 if axis is None else 3, shape).astype(np.float32)
    for found, expected in zip(simulated(text)(x), interpret(graph_of(text), [x])):
        np.testing.assert_array_equal(found, expected)


# ---------------------------------------------------------------- updates


def expected_updates(data: np.ndarray, index: np.ndarray, updates: np.ndarray, add: bool):
    """Update after update of rows of the data; those of rows that are not there are left out."""
    data = data.copy()
    for at, update in zip(index[:, 0], updates):
        if -len(data) <= at < len(data):
            data[at] = data[at] + update if add else update
    return data


UPDATES = {
    "few in turn": ((400, 5), 9, 300), "one by one": ((300,), 700, 300),
    "many at few places": ((5000,), 2500, 20), "rows": ((60, 7), 500, 60),
}  # fmt: skip


@pytest.mark.parametrize("shape, count, places", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_updates_of_places(shape, count, places, reduction):
    data = RNG.standard_normal(shape).astype(np.float32)
    index = RNG.integers(-places - 2, places + 2, (count, 1))
    updates = RNG.standard_normal((count, *shape[1:])).astype(np.float32)
    types = [",".join(map(str, x.shape)) for x in (data, index, updates)]
    run = simulated(graph(
        f'%y0 = ScatterND(%x0, %x1, %x2) {{reduction="{reduction}"}}',
        f"f32[{types[0]}]", f"i64[{types[1]}]", f"f32[{types[2]}]",
    ), checks="off")  # fmt: skip
    expected = expected_updates(data, index, updates, reduction == "add")
    np.testing.assert_array_equal(run(data, index, updates)[0], expected)


def test_updates_of_lines_stay_apart():
    data, updates = np.zeros((3, 40), np.float32), RNG.standard_normal((3, 90))
    index = RNG.integers(0, 40, (3, 90))
    run = simulated(graph(
        '%y0 = ScatterElements(%x0, %x1, %x2) {axis=1, reduction="add"}',
        "f32[3,40]", "i64[3,90]", "f32[3,90]",
    ))  # fmt: skip
    updates = updates.astype(np.float32)
    lines = [expected_updates(*line, True) for line in zip(data, index[..., None], updates)]
    np.testing.assert_array_equal(run(data, index, updates)[0], np.stack(lines))


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_no_thread_updates_long(reduction):
    text = f'%y0 = ScatterND(%x0, %x1, %x2) {{reduction="{reduction}"}}'
    assert longest_loop(graph(text, "f32[65536]", "i64[65536,1]", "f32[65536]")) <= 32


# ---------------------------------------------------------------- picking


@pytest.mark.parametrize("boxes, limit, threshold", [(1200, 30, 0.1), (40, 40, 0.9), (20, 5, 2.0)])
def test_boxes_that_do_not_overlap(boxes, limit, threshold):
    text = graph(
        f"const %n : i64[1] = [{limit}]\n  const %iou : f32[1] = [0.4]\n"
        f"  const %score : f32[1] = [{threshold}]\n"
        "  %y0 = NonMaxSuppression(%x0, %x1, %n, %iou, %score)",
        f"f32[2,{boxes},4]", f"f32[2,3,{boxes}]",
    )  # fmt: skip
    corners = RNG.random((2, boxes, 2)) * 9
    where = np.concatenate([corners, corners + RNG.random((2, boxes, 2)) * 3], -1)
    scores = np.round(RNG.random((2, 3, boxes)) * 20) / 20  # of which many are equal
    inputs = [where.astype(np.float32), scores.astype(np.float32)]
    (expected,) = interpret(graph_of(text), inputs)
    np.testing.assert_array_equal(simulated(text)(*inputs)[0], expected)


def test_each_tree_of_each_row_has_a_thread():
    columns = {"feature": "i64", "split": "f32", "mode": "i64", "yes": "i64", "no": "i64"}
    tables = "\n  ".join(f"const %{n} : {t}[700] = random(seed=1)" for n, t in columns.items())
    text = graph(
        f"{tables}\n  const %missing : bool[700] = random(seed=1)\n"
        "  const %roots : i64[100] = random(seed=1)\n"
        "  %y0 = graphc.TreeLeaves(%x0, %feature, %split, %mode, %yes, %no, %missing, %roots)"
        " {modes=[0], missing_matters=0}",
        "f32[64,9]",
    )
    (step,) = emit(program_for(graph_of(text), "cuda")).steps
    assert step.grid * step.block >= 6400


def test_classes_are_drawn_as_on_one_thread():
    text = graph("%y0 = Multinomial(%x0) {sample_size=9, seed=2.0, dtype=7}", "f32[3,700]")
    x = RNG.standard_normal((3, 700)).astype(np.float32)
    np.testing.assert_array_equal(simulated(text)(x)[0], interpret(graph_of(text), [x])[0])


@pytest.mark.parametrize("shape", [(2, 16, 16), (37, 37), (1, 3, 70, 70)], ids=str)
def test_determinants(shape):
    x = RNG.standard_normal(shape).astype(np.float32) / np.float32(shape[-1] ** 0.5 / 1.6)
    text = graph("%y0 = Det(%x0)", f"f32[{','.join(map(str, shape))}]")
    expected = np.linalg.det(x.astype(np.float64))
    np.testing.assert_allclose(simulated(text)(x)[0], expected, rtol=1e-4)


def test_determinants_of_singular_matrices_and_of_nan():
    x = RNG.standard_normal((4, 20, 20)).astype(np.float32)
    x[0], x[1, 5], x[2, :, 7], x[3, 4, 4] = 0, 0, 0, np.nan
    found = simulated(graph("%y0 = Det(%x0)", "f32[4,20,20]"))(x)[0]
    np.testing.assert_array_equal(found, [0, 0, 0, np.nan])


def test_no_thread_eliminates_a_large_matrix():
    (step, *others) = emit(
        program_for(graph_of(graph("%y0 = Det(%x0)", "f32[500,500]")), "cuda")
    ).steps
    assert not others and step.block == 512
