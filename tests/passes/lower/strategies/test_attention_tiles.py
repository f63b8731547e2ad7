"""Attention is one kernel, which keeps no matrix of scores, and gives what the graph gives."""

import numpy as np
import pytest
from differential import assert_same, build, check, floats, native, program_of

import graphc
from graphc.driver import configured, policy, to_program
from graphc.ir.interp import interpret
from graphc.passes.general import general
from graphc.passes.lower.strategies import attention_plan
from graphc.passes.specialise import specialise


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def operands(rows=21, keys=37, depth=24, columns=20, batch=(2, 3)) -> dict[str, np.ndarray]:
    g = rng()
    return {
        "q": floats(g, *batch, rows, depth),
        "k": floats(g, *batch, keys, depth),
        "v": floats(g, *batch, keys, columns),
    }


def turned(b, k):
    return b.Transpose(k, perm=[*range(k.tensor.rank - 2), k.tensor.rank - 1, k.tensor.rank - 2])


def plain(b, q, k, v):
    scores = b.Mul(b.MatMul(q, turned(b, k)), np.float32(0.3))
    return b.MatMul(b.Softmax(scores), v)


def masked(b, q, k, v, m):
    return b.MatMul(b.Softmax(b.Add(b.MatMul(q, turned(b, k)), m)), v)


def guarded(b, q, k, v, m):
    """Rows without keys give zeros."""
    scores = b.Where(m, b.MatMul(q, turned(b, k)), np.float32(-np.inf))
    weights = b.Softmax(scores)
    return b.MatMul(b.Where(b.IsNaN(weights), np.float32(0), weights), v)


def residual(b, q, k, v, x):
    """An epilogue, and rows of heads side by side."""
    return b.Add(b.Transpose(plain(b, q, k, v), perm=[0, 2, 1, 3]), x)


def computed(b, q, k, v):
    """Operands that are computed while they are read."""
    return plain(b, b.Mul(q, q), b.Neg(k), b.Exp(v))


def attention(**attributes):
    return lambda b, q, k, v: b.Attention(q, k, v, **attributes)


def kernels(program) -> list[str]:
    return sorted(k.name.split("_")[0] for k in program.kernels.values())


@pytest.fixture(params=["one block", "blocks"])
def blocks(request, monkeypatch):
    """As if few keys fitted into caches, too."""
    if request.param == "blocks":
        monkeypatch.setattr(attention_plan, "SMALL_BLOCK", 8)
        monkeypatch.setattr(attention_plan, "MOST_KEYS", 16)


def agree(function, inputs, interpreted=(64,), widths=(64, 0), tolerance=2e-5):
    graph, arrays = build(function, **inputs)
    program = check(graph, arrays, widths, interpreted, tolerance)
    assert "attention" in kernels(program)
    assert program.arena_bytes < 2 * sum(x.nbytes for x in arrays)
    return program


@pytest.mark.parametrize("rows, keys, depth, columns", [
    (21, 37, 24, 20), (1, 70, 16, 16), (3, 40, 20, 33), (29, 2, 3, 5),
])  # fmt: skip
@pytest.mark.usefixtures("blocks")
def test_shapes(rows, keys, depth, columns):
    program = agree(plain, operands(rows, keys, depth, columns, (2,)))
    assert kernels(program) == ["attention"]
    assert program.arena_bytes == 0


@pytest.mark.usefixtures("blocks")
def test_vectors_of_other_widths():
    agree(plain, operands(9, 21, 10, 12, (1,)), (32, 0), (32, 16, 0))


@pytest.mark.parametrize("shape", [(21, 37), (2, 1, 1, 37)], ids=str)
@pytest.mark.usefixtures("blocks")
def test_masks(shape):
    agree(masked, {**operands(), "m": floats(rng(1), *shape)})


@pytest.mark.parametrize("options", [
    {"softcap": 2.0}, {"is_causal": 1, "left_window_size": 3},
    {"left_window_size": 3, "right_window_size": 2},
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("blocks")
def test_operators(options):
    g = rng()
    heads = {"q": floats(g, 1, 6, 33, 8), "k": floats(g, 1, 2, 33, 8), "v": floats(g, 1, 2, 33, 8)}
    agree(attention(**options), heads)


@pytest.mark.usefixtures("blocks")
def test_windows_that_end_where_data_says():
    g = rng()
    given = {
        "q": floats(g, 2, 3, 4, 8), "k": floats(g, 2, 3, 8, 8), "v": floats(g, 2, 3, 8, 8),
        "n": np.array([6, 8]),
    }  # fmt: skip

    def function(b, q, k, v, n):
        options = {"is_causal": 1, "left_window_size": 2}
        return b.Attention(q, k, v, None, None, None, n, **options)

    agree(function, given)


@pytest.mark.parametrize("function", [residual, computed])
@pytest.mark.usefixtures("blocks")
def test_prologues_and_epilogues(function):
    more = {"x": floats(rng(1), 2, 21, 3, 20)} if function is residual else {}
    agree(function, {**operands(), **more}, tolerance=1e-4)


@pytest.mark.usefixtures("blocks")
def test_keys_and_values_that_are_stored_the_other_way():
    def function(b, q, k, v):
        return b.MatMul(b.Softmax(b.MatMul(q, k)), turned(b, v))

    given = operands()
    given["k"], given["v"] = (np.ascontiguousarray(given[n].swapaxes(2, 3)) for n in "kv")
    agree(function, given, (32,), (64, 32, 0))


@pytest.mark.parametrize("function", [guarded, masked])
@pytest.mark.usefixtures("blocks")
def test_rows_that_see_nothing(function):
    """They are NaN by the definition of softmax, or what a guard makes of that."""
    seen = rng(1).random((21, 37)) < 0.5
    seen[3] = seen[20] = False
    mask = seen if function is guarded else np.where(seen, 0, -np.inf).astype(np.float32)
    given = {**operands(), "m": mask}
    agree(function, given)
    graph, arrays = build(function, **given)
    (found,) = native(program_of(graph), arrays)
    empty = found[:, :, [3, 20]]
    assert np.all(empty == 0) if function is guarded else np.isnan(empty).all()


@pytest.mark.usefixtures("blocks")
def test_causal_rows_before_all_keys_see_nothing():
    """More queries than keys, which are the last of these."""
    g = rng()
    heads = {"q": floats(g, 1, 2, 30, 8), "k": floats(g, 1, 2, 12, 8), "v": floats(g, 1, 2, 12, 8)}
    agree(attention(is_causal=1), heads)


@pytest.mark.parametrize("name, value", [
    ("q", np.nan), ("q", 3e38), ("k", np.inf), ("k", 80.0), ("v", np.nan), ("v", -np.inf),
])  # fmt: skip
@pytest.mark.usefixtures("blocks")
def test_special_values(name, value):
    given = operands(5, 37, 16, 8, (1,))
    given[name][0, 3, 5] = value
    agree(plain, given, (), (64, 0))


def test_scores_that_are_large_and_growing():
    given = operands(17, 200, 8, 8, (1,))
    given["k"] *= np.linspace(1, 40, 200, dtype=np.float32)[:, None]
    agree(plain, given, (), (64, 0))


OPEN = """graph @g(%q: f32[2,S,16], %k: f32[2,T,16], %v: f32[2,T,24]) -> ?
    where S: 1..70, T: 1..300 {
  %t = Transpose(%k) {perm=[0,2,1]}
  %a = MatMul(%q, %t)
  %p = Softmax(%a)
  %y = MatMul(%p, %v)
  return %y
}"""


def test_one_program_for_all_sizes_and_any_threads():
    graph = graphc.parse(OPEN)
    target, settings = configured("cpu", None, {})
    program = to_program(general(graph, policy(target)), target, settings)
    assert kernels(program) == ["attention"]
    models = [graphc.compile(graph, specialise="any", threads=n) for n in (1, 2)]
    for rows, keys in ((1, 1), (2, 300), (15, 129), (70, 300), (33, 32)):
        g = rng(rows)
        arrays = [floats(g, 2, rows, 16), floats(g, 2, keys, 16), floats(g, 2, keys, 24)]
        one, two = (model.run(arrays) for model in models)
        shapes = {name: x.shape for name, x in zip("qkv", arrays)}
        wanted = interpret(specialise(graphc.parse(OPEN), shapes), arrays)
        assert_same(one, wanted, 2e-5, f"{rows} rows, {keys} keys")
        assert np.array_equal(one[0], two[0])
    assert not any(model.why_exact for model in models)
