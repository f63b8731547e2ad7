"""What the importer makes of constants, names, functions, captures and types."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, run, single

from graphc import backend
from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir import opdef
from graphc.ir.dtypes import f32, i64
from graphc.ir.interp import interpret
from graphc.ir.types import OptionalType, SequenceType, TensorType

pytestmark = pytest.mark.suite("all")

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def test_names_locations_and_output_names():
    text = """g (float[3,4] x) => (float[3,4] y, float[3,4] x) {
        [first] t = Relu(x)
        y = Neg(t)
    }"""
    graph = import_onnx(model(text))
    assert [v.name for v in graph.values()] == ["x", "t", "y"]
    assert [op.loc for op in graph.ops] == [("first",), ("y",)]
    assert graph.output_names == ["y", "x"]
    assert graph.results[1] is graph.params[0]


def test_symbolic_and_unknown_dims():
    text = "g (float[N,4] a, float[N,M] b, float[?,2] c, float d) => (y) { y = Neg(a) }"
    graph = import_onnx(model(text))
    a, b, c, d = (p.tensor for p in graph.params)
    assert a.dims[0] is b.dims[0] is graph.symbols["N"]
    assert set(graph.symbols) == {"N", "M", "c_dim0"}
    assert c.dims[1] == 2 and d.shape == ()


def test_dims_whose_names_are_no_identifiers():
    infos = [
        helper.make_tensor_value_info("x", 1, ["batch size", "batch/size", "i0", -1]),
        helper.make_tensor_value_info("y", 1, None),
    ]
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = import_onnx(helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:])))
    assert list(graph.symbols) == ["batch_size", "batch_size_", "_i0", "x_dim3"]


def test_initializers_that_are_inputs():
    text = "g (float[3,4] x, float[4] w) => (y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }"
    made = model(text)
    assert [p.name for p in import_onnx(made).params] == ["x"]
    assert [p.name for p in import_onnx(made, keep_inputs=["w"]).params] == ["x", "w"]
    np.testing.assert_array_equal(backend.prepare(made, "INTERP").run([X])[0], X + [1, 2, 3, 4])


@pytest.mark.parametrize(
    "attribute,want",
    [
        ("value = float[2] {1, 2}", np.array([1, 2], np.float32)),
        ("value_float = 1.5", np.array(1.5, np.float32)),
        ("value_floats = [1.5, 2.5]", np.array([1.5, 2.5], np.float32)),
        ("value_int = 3", np.array(3, np.int64)),
        ("value_ints = [3, 4]", np.array([3, 4], np.int64)),
        ('value_string = "é"', np.array("é", object)),
        ('value_strings = ["a", "b"]', np.array(["a", "b"], object)),
    ],
)
def test_constants_of_all_kinds(attribute, want):
    graph = import_onnx(model(f"g () => (y) {{ y = Constant<{attribute}>() }}"))
    value = graph.results[0].constant
    assert value.dtype == want.dtype and value.shape == want.shape
    np.testing.assert_array_equal(value, want)


@pytest.mark.parametrize("indices", [[[0, 1], [2, 3]], [1, 11]])
def test_sparse_constants(indices):
    values = numpy_helper.from_array(np.array([5, 6], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices)), [3, 4])
    made = model("g (float[3,4] x) => (y) { y = Add(x, w) }")
    made.graph.sparse_initializer.append(sparse)
    want = np.zeros((3, 4), np.float32)
    want[0, 1] = 5
    want[2, 3] = 6
    np.testing.assert_array_equal(run(made, X)[0], X + want)
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    out = helper.make_tensor_value_info("y", 1, None)
    alone = helper.make_model(helper.make_graph([node], "g", [], [out]))
    np.testing.assert_array_equal(import_onnx(alone).results[0].constant, want)


DTYPES = [
    np.float64, np.float16, np.int8, np.uint16, np.uint64, np.bool_, np.complex64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2fnuz, ml_dtypes.int4,
    ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("raw", [True, False])
def test_initializers_of_all_dtypes(dtype, raw):
    want = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 1]]).astype(dtype)
    tensor = numpy_helper.from_array(want, "w")
    if not raw:
        number = tensor.data_type
        values = want.astype(np.complex64 if dtype == np.complex64 else np.float32)
        tensor = helper.make_tensor("w", number, want.shape, values.reshape(-1))
    made = model("g () => (w) { }")
    made.graph.initializer.append(tensor)
    got = import_onnx(made).results[0].constant
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(np.complex64), want.astype(np.complex64))


@pytest.mark.parametrize("number", [np.int64(2**40 + 1), np.float64(1 / 3)])
def test_wide_constants_are_not_narrowed_by_arithmetic(number):
    """Raw data has its byte order named in its numpy type, which is then not numpy's own object."""
    made = single("Add", {"x": np.zeros(1, number.dtype), "const": np.array([number])})
    graph = import_onnx(made)
    assert interpret(graph, [np.zeros(1, number.dtype)])[0].tolist() == [number]
    named = np.array([number]).astype(number.dtype.newbyteorder("<"))
    assert interpret(graph, [named])[0].tolist() == [number + number]


def test_types_of_inputs():
    text = "g (seq(float[2]) s, optional(float[2]) o, optional(seq(int64)) p) => (s) { }"
    s, o, p = (value.type for value in import_onnx(model(text)).params)
    assert s == SequenceType(TensorType(f32, (2,)))
    assert o == OptionalType(TensorType(f32, (2,)))
    assert isinstance(p, OptionalType) and p.element.element.dtype is i64


def test_attribute_values():
    made = single("LeakyRelu", {"x": X}, alpha=0.5)
    assert import_onnx(made).ops[0].attrs == {"alpha": 0.5}
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    made.graph.node[0].CopyFrom(node)
    made.graph.output[0].name = "y"
    assert import_onnx(made).ops[0].attrs == {"perm": (1, 0)}


# ---------------------------------------------------------------- control flow


NESTED = """g (bool c, float[3,4] x) => (float[3,4] y)
    <float[4] w = {1, 2, 3, 4}> {
    a = Neg(x)
    y = If(c) <
        then_branch = left () => (l) { l = Add(a, w) },
        else_branch = right () => (r) {
            b = Abs(x)
            r = If(c) <
                then_branch = inner () => (i) { i = Add(b, w) },
                else_branch = other () => (o) { o = Sub(a, w) }
            >
        }
    >
}"""


def test_captures_are_operands_and_constants_are_repeated():
    graph = import_onnx(model(NESTED))
    op = graph.ops[-1]
    assert [v.name for v in op.inputs] == ["c", "a", "x", "c"]
    for region in op.regions:
        assert [p.name for p in region.params] == ["a", "x", "c"]
        assert [p.index for p in region.params] == [0, 1, 2]
        for inner in region.ops:
            assert all(v in set(region.values()) for v in inner.inputs)
    (constant,) = [op for op in op.regions[0].ops if op.name == "Constant"]
    assert constant.attrs["value"] is graph.ops[0].attrs["value"]


@pytest.mark.parametrize("condition", [True, False])
def test_nested_branches_run(condition):
    w = np.array([1, 2, 3, 4], np.float32)
    want = -X + w if condition else -X - w
    np.testing.assert_array_equal(run(model(NESTED), condition, X)[0], want)


def test_loop_with_state_scan_output_and_captures():
    text = """g (int64 n, float[4] x, float[4] step) => (last, all) {
        t = Constant<value = bool {1}>()
        last, all = Loop(n, t, x) <body = b (int64 i, bool c, float[4] s) => (c, s2, out) {
            s2 = Add(s, step)
            out = Mul(s2, step)
        }>
    }"""
    x, step = np.ones(4, np.float32), np.arange(4, dtype=np.float32)
    last, every = run(model(text), np.int64(3), x, step)
    np.testing.assert_array_equal(last, x + 3 * step)
    np.testing.assert_array_equal(every, [(x + k * step) * step for k in (1, 2, 3)])


# ---------------------------------------------------------------- functions


FUNCTION = """g (float[3,4] x) => (y) {
    [call] y = own.Scaled<factor = 2.0>(x)
}
<domain: "own", opset_import: ["": 12, "own": 1]>
Scaled <factor, shift: float = 1.0> (a, b) => (c) {
    f = Constant<value_float = @factor>()
    s = Constant<value_float = @shift>()
    m = Mul(a, f)
    d = Add(m, s)
    c = own.Rows(d)
}
<domain: "own", opset_import: ["": 11]>
Rows (a) => (b) { b = ReduceSum<axes = [1], keepdims = 0>(a) }
"""


def test_model_functions_are_expanded():
    made = model(FUNCTION, domains=', "own": 1')
    graph = import_onnx(made)
    assert {op.loc[0] for op in graph.ops} == {
        f"call/{name}" for name in ("f", "s", "m", "d", "c/b")
    }
    assert [v.name for v in graph.results] == ["y"]
    np.testing.assert_allclose(run(made, X)[0], (2 * X + 1).sum(1))


def test_a_recursive_function_is_refused():
    text = FUNCTION.replace("b = ReduceSum<axes = [1], keepdims = 0>(a)", "b = own.Scaled(a)")
    with pytest.raises(ModelError, match=r'^Scaled "call/c/b": .*calls itself'):
        import_onnx(model(text, domains=', "own": 1'))


def test_functions_that_call_each_other_twice_do_not_explode(monkeypatch):
    parts = ["g (float[1] x) => (y) { y = own.F0(x) }"]
    for n in range(40):
        body = f"t = own.F{n + 1}(a) b = own.F{n + 1}(t)"
        parts.append(f'<domain: "own", opset_import: ["": 21]> F{n} (a) => (b) {{ {body} }}')
    parts.append('<domain: "own", opset_import: ["": 21]> F40 (a) => (b) { b = Neg(a) }')
    with pytest.raises(UnsupportedError, match='F0 "y": more than [0-9]+ operations'):
        import_onnx(model("\n".join(parts), domains=', "own": 1'))  # 2^40, counted beforehand


@pytest.mark.parametrize("op,attrs", [("Celu", {"alpha": 2.0}), ("Gelu", {}), ("Clip", {})])
def test_schema_functions_are_expanded(monkeypatch, op, attrs):
    made = single(op, {"x": X}, **attrs)
    want = run(made, X)[0]
    find = opdef.find
    monkeypatch.setattr(opdef, "find", lambda n, d="": None if n == op else find(n, d))
    assert op not in {op.name for op in import_onnx(made).ops}
    np.testing.assert_allclose(run(made, X)[0], want, rtol=1e-5, atol=1e-6)


def test_an_unknown_operator_is_named():
    with pytest.raises(UnsupportedError, match=r'Frob "node": operator own.Frob has neither'):
        import_onnx(single("Frob", {"x": X}, domain="own"))


# ---------------------------------------------------------------- onnx.backend


def test_backend_takes_lists_dicts_and_scalars():
    made = single("Add", {"x": X, "b": np.float32(0)})
    rep = backend.prepare(made, "INTERP")
    np.testing.assert_array_equal(rep.run([X, 2.0])[0], X + 2)
    np.testing.assert_array_equal(rep.run({"b": 2.0, "x": X})[0], X + 2)
    with pytest.raises(ModelError, match=r"expected 2 inputs \['x', 'b'\], found 1"):
        rep.run([X])
    with pytest.raises(ModelError, match="inputs must be"):
        rep.run({"x": X, "c": X})


def test_backend_devices():
    assert backend.supports_device("CPU") and backend.supports_device("cuda:0")
    assert not backend.supports_device("TPU")
    with pytest.raises(UnsupportedError, match="TPU"):
        backend.prepare(single("Neg", {"x": X}), "TPU")


def test_a_file_is_imported(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(single("Neg", {"x": X}).SerializeToString())
    assert import_onnx(path) == import_onnx(str(path)) == import_onnx(path.read_bytes())
    with pytest.raises(GraphcError, match="no such file"):
        import_onnx(tmp_path / "other.onnx")
    assert TensorProto.FLOAT == onnx.TensorProto.FLOAT


def test_parts_that_nobody_wants():
    made = model("g (float[6] x) => (y) { a, y, b = Split<num_outputs = 3>(x) }", opset=18)
    made.graph.node[0].output[:] = ["", "y", ""]
    (found,) = run(made, np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(found, [2, 3])


def test_nodes_in_any_order():
    """A node moves up to the first that needs it, also inside of a branch."""
    text = """g (bool c, float[2] x) => (y) {
        y = If(c) <
            then_branch = a () => (l) { l = Neg(k) k = Abs(t) },
            else_branch = b () => (r) { r = Identity(u) }
        >
        u = Mul(t, x)
        t = Sub(x, s)
        s = Add(x, x)
    }"""
    made, x = model(text), np.array([1, -2], np.float32)
    assert [op.name for op in import_onnx(made).ops] == ["Add", "Sub", "Mul", "If"]
    assert run(made, True, x)[0].tolist() == [-1, -2]
    assert run(made, False, x)[0].tolist() == [-1, -4]
