"""Graphs built in Python: what numpy would compute, in the interpreter and in ONNX Runtime."""

import inspect

import numpy as np
import pytest

from graphc.errors import GraphcError, ModelError
from graphc.frontend import dsl
from graphc.frontend.onnx_export import export_onnx
from graphc.ir.interp import interpret
from graphc.ir.types import OptionalType, SequenceType, TensorType

pytestmark = pytest.mark.suite("all")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
Y = RNG.standard_normal((3, 4, 5)).astype(np.float32)
I = np.array([[7, -7, 3], [-3, 0, 5]], np.int64)
J = np.array([[2, 2, -2], [-2, 3, -3]], np.int64)


def check(function, *arrays, shapes=None, runtime=True, **tolerance):
    """Runs `function` on tensors, in two ways, and on arrays, and compares."""
    with dsl.building("checked") as g:
        types = [
            dsl.ElementType(dsl.dtypes.of(a.dtype))[tuple(s)]
            for a, s in zip(arrays, shapes or [a.shape for a in arrays])
        ]
        inputs = [g.input(f"x{n}", type) for n, type in enumerate(types)]
        g.output(y=function(*inputs))
    want = np.asarray(function(*arrays))
    got = [interpret(g.graph, list(arrays))[0]]
    if runtime:
        session = pytest.importorskip("onnxruntime").InferenceSession(
            export_onnx(g.graph).SerializeToString()
        )
        got += session.run(None, {f"x{n}": a for n, a in enumerate(arrays)})
    for one in got:
        assert one.shape == want.shape
        np.testing.assert_allclose(one, want, **({"rtol": 1e-5, "atol": 1e-6} | tolerance))
    return g.graph


FLOAT_OPERATORS = [
    lambda x, y: x + y, lambda x, y: x - 2, lambda x, y: 2.5 - x, lambda x, y: x * y * 3,
    lambda x, y: x / y, lambda x, y: 1 / x, lambda x, y: -x, lambda x, y: abs(x),
    lambda x, y: abs(x) ** 1.5, lambda x, y: 2**x, lambda x, y: x // y, lambda x, y: x % y,
    lambda x, y: x < y, lambda x, y: x <= 0, lambda x, y: x < 0, lambda x, y: x >= y,
    lambda x, y: x == x, lambda x, y: x != y, lambda x, y: (x < 0) & (y < 0),
    lambda x, y: (x < 0) | ~(y < 0), lambda x, y: (x < 0) ^ (y < 0),
    lambda x, y: x @ y.transpose(0, 2, 1), lambda x, y: np.ones((2, 4), np.float32) @ x,
    lambda x, y: x.T, lambda x, y: x.reshape(-1, 10), lambda x, y: x.reshape([4, 15]),
    lambda x, y: x.sum(), lambda x, y: x.mean(1), lambda x, y: x.max((0, -1), keepdims=True),
    lambda x, y: x.min(0), lambda x, y: x.astype(np.int32), lambda x, y: y[0, 0] + x,
]  # fmt: skip


@pytest.mark.parametrize("function", FLOAT_OPERATORS)
def test_float_operators(function):
    check(function, X, Y)


INTEGER_OPERATORS = [
    lambda i, j: i + 1, lambda i, j: i // j, lambda i, j: i % j, lambda i, j: i & j,
    lambda i, j: i | 1, lambda i, j: i ^ j, lambda i, j: ~i, lambda i, j: i == 3,
    lambda i, j: -i * j, lambda i, j: abs(i),
]  # fmt: skip


@pytest.mark.parametrize("function", INTEGER_OPERATORS)
def test_integer_operators(function):
    check(function, I, J)


KEYS = [
    np.s_[1], np.s_[-1], np.s_[1:], np.s_[:, 1:3], np.s_[..., 0], np.s_[..., ::2], np.s_[::-1],
    np.s_[:, ::-2, 3:0:-1], np.s_[None], np.s_[:, None, 2, :, None], np.s_[2, 3, 4],
    np.s_[..., None, 1:9], np.s_[-2:, :-1], np.s_[[2, 0, 0]], np.s_[:, np.array([[1], [3]])],
    np.s_[:, 1, [4, -1]], np.s_[[0, 2], 1], np.s_[:0],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing(key):
    check(lambda x: x[key], X)


def test_index_tensors():
    check(lambda x, i: x[:, i], X, np.array([3, 0]))
    check(lambda x, i: x[i, None, 1:], X, np.array([[2], [0]]))


def test_tuple_unpacking():
    check(lambda x: sum(row for row in x), X)
    with dsl.building() as g:
        x = g.input("x", dsl.f32[2, "N"])
        a, b = x
        assert len(x) == 2
        g.output(y=a + b)


def test_numbers_take_the_type_of_their_tensor():
    @dsl.graph
    def g(x: dsl.f16[2], i: dsl.i8[2], p: dsl.bool[2]):
        return (
            x + 1,
            2 * i,
            dsl.Where(p, x, 0),
            dsl.Clip(i, 0, 9),
            dsl.Gather(x, 1),
            dsl.Pad(x, [1, 1]),
        )

    assert [str(v.tensor) for v in g.results] == [
        "f16[2]", "i8[2]", "f16[2]", "i8[2]", "f16[]", "f16[4]",
    ]  # fmt: skip
    for wrong in (lambda x: x + 1.5, lambda x: x + 1000, lambda x: x / 2):
        with pytest.raises(ModelError), dsl.building() as b:
            wrong(b.input("x", dsl.i8[2]))


# ---------------------------------------------------------------- graphs


def test_symbolic_dims():
    @dsl.graph
    def g(a: dsl.f32["N: 1..8", 4], b: dsl.f32["N", "M"], c: dsl.f32[None, 2]):  # noqa: F722, F821
        return {"y": dsl.Relu(a), "z": dsl.Concat(a, b, axis=1), "w": a[1:] @ np.ones((4, 2), "f4")}

    assert set(g.symbols) == {"N", "M", "c_dim0"}
    assert g.params[1].tensor.dims[0] is g.params[0].tensor.dims[0] is g.symbols["N"]
    assert str(g.results[0].tensor) == "f32[N,4]"
    arrays = [np.ones((3, 4), "f4"), np.ones((3, 2), "f4"), np.ones((1, 2), "f4")]
    assert [r.shape for r in interpret(g, arrays)] == [(3, 4), (3, 6), (2, 2)]


def test_names_of_graphs_outputs_and_layers():
    @dsl.graph(name="net", outputs=["logits", "hidden"])
    def g(x: dsl.f32[2, 3]):
        h = dsl.Relu(x, name="first")
        return h @ np.ones((3, 2), np.float32), h

    assert g.name == "net"
    assert g.output_names == ["logits", "hidden"]
    relu = next(op for op in g.ops if op.name == "Relu")
    product = next(op for op in g.ops if op.name == "MatMul")
    assert relu.loc == ("first",) and relu.output.name == "first"
    assert product.loc[0].startswith("test_dsl.py:") and product.output.name == "logits"
    made = export_onnx(g)
    assert [o.name for o in made.graph.output] == ["logits", "hidden"]


def test_context_manager_with_sequences_and_optionals():
    with dsl.building("parts") as g:
        s = g.input("s", dsl.sequence(dsl.f32[2]))
        o = g.input("o", dsl.optional(dsl.f32[2]))
        x = g.input("x", dsl.f32)
        g.output(first=dsl.SequenceAt(s, 0) + x, there=dsl.OptionalHasElement(o))
    assert [type(p.type) for p in g.graph.params] == [SequenceType, OptionalType, TensorType]
    first, there = interpret(g.graph, [[np.ones(2, "f4")], None, np.float32(2)])
    np.testing.assert_array_equal(first, [3, 3])
    assert not there


def test_operators_of_other_domains_and_several_outputs():
    @dsl.graph
    def g(x: dsl.f32[2, 6]):
        scaled = dsl.op("ai.onnx.ml.Scaler", x, scale=[2.0], offset=[1.0])
        values, places = dsl.TopK(x, [2])
        a, b, c = dsl.Split(x, axis=1, num_outputs=3)
        d, e = dsl.Split(x, [2, 4], axis=1)
        y, h, _ = dsl.LSTM(
            x[None], np.ones((1, 12, 6), "f4"), np.ones((1, 12, 3), "f4"), hidden_size=3, outputs=3
        )
        return scaled, values, places, dsl.Cast(c, to=dsl.f16), e, y, h, dsl.Cast(b, to="f64")

    assert [str(v.tensor.dtype) for v in g.results] == [
        "f32",
        "f32",
        "i64",
        "f16",
        "f32",
        "f32",
        "f32",
        "f64",
    ]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    scaled, _, places, c, e, *_ = interpret(g, [x])
    np.testing.assert_array_equal(scaled, (x - 1) * 2)
    np.testing.assert_array_equal(places, [[5, 4], [5, 4]])
    np.testing.assert_array_equal(c, x[:, 4:])
    np.testing.assert_array_equal(e, x[:, 2:])


def test_constants():
    @dsl.graph
    def g(x: dsl.f32[2]):
        w = dsl.constant([1.0, 2.0], name="w")
        return x + w, dsl.constant([1, 2], dsl.i32), [3.5]

    assert [str(v.tensor) for v in g.results] == ["f32[2]", "i32[2]", "f32[1]"]


# ---------------------------------------------------------------- control flow


def loops(x, flag, n):
    def body(i, state):
        scaled = dsl.cond(
            flag, lambda: state * x, lambda: dsl.cond(i > 1, lambda: -state, lambda: x)
        )
        return scaled + 1, scaled.sum(), i

    return dsl.loop(body, x, trips=n)


@pytest.mark.parametrize("flag", [True, False])
def test_nested_control_flow(flag):
    @dsl.graph
    def g(x: dsl.f32[2], flag: dsl.bool[()], n: dsl.i64[()]):
        last, sums, counts = loops(x, flag, n)
        return {"last": last, "sums": sums, "counts": counts}

    x, state, sums = np.array([0.5, -2], np.float32), np.array([0.5, -2], np.float32), []
    for i in range(4):
        scaled = state * x if flag else -state if i > 1 else x
        state = scaled + 1
        sums.append(scaled.sum())
    last, stacked, counts = interpret(g, [x, np.array(flag), np.array(4)])
    np.testing.assert_allclose(last, state, rtol=1e-6)
    np.testing.assert_allclose(stacked, sums, rtol=1e-6)
    np.testing.assert_array_equal(counts, range(4))
    for op in g.walk():
        for value in filter(None, op.inputs):
            owner = value.producer.region if value.producer else None
            assert owner in (op.region, None)


def test_control_flow_runs_in_onnx_runtime():
    def function(x, flag):
        if isinstance(x, np.ndarray):
            state = x
            for _ in range(3):
                state = state * x if flag else x + 1
            return state
        return dsl.loop(
            lambda i, s: dsl.cond(flag, lambda: s * x, lambda: x + 1), x, trips=np.int64(3)
        )

    for flag in (True, False):
        check(function, X, np.array(flag))


def test_while_loop():
    @dsl.graph
    def g(x: dsl.f32[()]):
        return dsl.loop(lambda i, s: (s * 2, s), x, while_=lambda s: s < 100)

    last, every = interpret(g, [np.float32(3)])
    assert last == 192
    np.testing.assert_array_equal(every, [3, 6, 12, 24, 48, 96])
    assert len(interpret(g, [np.float32(300)])[1]) == 0


def test_loop_without_state():
    @dsl.graph
    def g(x: dsl.f32[2]):
        return dsl.loop(lambda i: x * i.astype("f32"), trips=3)

    want = np.outer([0, 1, 2], [1, 2])
    np.testing.assert_array_equal(interpret(g, [np.array([1, 2], np.float32)])[0], want)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    def function(x, y):
        if isinstance(x, np.ndarray):
            rows = np.moveaxis(x * y, 1, 0)
            sums = np.cumsum(rows[::-1] if reverse else rows, 0)
            return sums[::-1] if reverse else sums
        start = np.zeros((3, 5), np.float32)
        body = lambda s, a, b: (s + a * b, s + a * b)  # noqa: E731
        return dsl.scan(body, start, over=[x, y], axes=[1, 1], reverse=reverse)[1]

    check(function, X, Y)


# ---------------------------------------------------------------- errors


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return start + next(n for n, line in enumerate(lines) if text in line)


def test_errors_name_the_line_of_the_call():
    def build():
        @dsl.graph
        def g(x: dsl.f32[2, 3]):
            y = dsl.Relu(x)
            return y @ np.ones((4, 5), np.float32)

    with pytest.raises(ModelError) as caught:
        build()
    assert f'MatMul "test_dsl.py:{line_of(build, "y @ np")}"' in str(caught.value)


@pytest.mark.parametrize(
    "wrong,message",
    [
        (
            lambda x: dsl.Relu(x, slope=2, name="act"),
            r'Relu "act": has no attribute .*test_dsl.py:',
        ),
        (lambda x: dsl.op("own.Frob", x), "no operator own.Frob"),
        (lambda x: x[5], "index 5 of .* is out of range"),
        (lambda x: x[0, 0, 0], "3 indices"),
        (lambda x: x["a"], "'a' is no index"),
        (lambda x: x + "a", "takes float | int, found string"),
        (lambda x: x[0, None, [0]], "index in two steps"),
        (lambda x: dsl.cond(x[0, 0] > 0, lambda: x, lambda: (x, x)), "return 1 and 2"),
        (lambda x: dsl.loop(lambda i, s: s, x), "needs trips= or while_="),
        (lambda x: dsl.loop(lambda i, s: (), x, trips=1), "fewer than its 1"),
        (lambda x: {"y": object()}, "no array"),
    ],
)
def test_mistakes(wrong, message):
    with pytest.raises(GraphcError, match=message), dsl.building() as g:
        result = wrong(g.input("x", dsl.f32[2, 3]))
        g.output(**(result if isinstance(result, dict) else {"y": result}))


def test_a_tensor_has_no_truth_value():
    with pytest.raises(TypeError, match="dsl.cond"), dsl.building() as g:
        if g.input("x", dsl.f32[()]) > 0:
            pass


def test_tensors_stay_in_their_graph():
    with dsl.building() as g:
        x = g.input("x", dsl.f32[2])
        kept = []
        g.output(y=dsl.cond(x[0] > 0, lambda: kept.append(x + 1) or kept[0], lambda: x))
        with pytest.raises(ModelError, match="branch or loop that has ended"):
            kept[0] + 1
    with pytest.raises(ModelError, match="another graph"), dsl.building() as h:
        h.input("y", dsl.f32[2]) + x
    with pytest.raises(ModelError, match="no graph is being built"):
        x + 1


def test_declarations_are_checked():
    with pytest.raises(ModelError, match="has no type"):
        dsl.graph(lambda x: x)
    with pytest.raises(ModelError, match="has no outputs"), dsl.building("empty"):
        pass
    with pytest.raises(ModelError, match="is no dimension"):
        dsl.f32["a b"]
    with pytest.raises(ModelError, match="an input 'x' already"), dsl.building() as g:
        g.input("x", dsl.f32[1])
        g.input("x", dsl.f32[1])
    with pytest.raises(ModelError, match="two different bounds"), dsl.building() as g:
        g.input("x", dsl.f32["N: 1..4"])
        g.input("y", dsl.f32["N: 1..5"])
    with pytest.raises(AttributeError, match="no operator or element type 'Frob'"):
        dsl.Frob  # noqa: B018
