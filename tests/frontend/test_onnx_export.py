"""Exported models are valid, and compute what the graph computes: in ONNX Runtime and here."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import model, run, single

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend import onnx_export
from graphc.frontend.onnx_export import export_onnx
from graphc.frontend.onnx_import import import_onnx
from graphc.ir import dtypes, opdef
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph, Op, Region
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.ir.types import Layout, TensorType
from graphc.passes import run_pipeline
from graphc.passes.specialise import specialise, type_symbolically

runtime = pytest.importorskip("onnxruntime")
WILD = Path(__file__).parents[1] / "models_wild"
CASES = json.loads((WILD / "manifest.json").read_text())
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def execute(made, inputs):
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(made.SerializeToString(), options)
    return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})


def check(graph, inputs, wanted):
    made = export_onnx(graph)
    assert [o.name for o in made.graph.output] == graph.output_names
    for got in (execute(made, inputs), interpret(import_onnx(made), list(inputs.values()))):
        for one, want in zip(got, wanted):
            assert one.dtype == want.dtype
            np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)
    return made


def data_of(case):
    arrays = np.load(WILD / case["npz"])
    inputs = {name: arrays[f"input_{n}"] for n, name in enumerate(case["inputs"])}
    return inputs, [arrays[f"output_{n}"] for n in range(len(case["outputs"]))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_models_of_many_exporters(case):
    inputs, wanted = data_of(case)
    made = check(import_onnx(WILD / case["file"]), inputs, wanted)
    names = [output for node in made.graph.node for output in node.output if output]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name", ["dynamo_patchnet", "paddle_style", "tf2onnx_style", "if_runtime_one"]
)
def test_optimised_graphs(name):
    case = next(case for case in CASES if case["name"] == name)
    inputs, wanted = data_of(case)
    graph = specialise(import_onnx(WILD / case["file"]), {k: v.shape for k, v in inputs.items()})
    run_pipeline(graph, "decompose, cse, dce, layout, fuse")
    check(graph, inputs, wanted)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_models_inside_onnx(name):
    path = LIGHT / f"light_{name}.onnx"
    graph = import_onnx(path)
    assert len(graph.params) == 1
    shape = graph.params[0].tensor.static_shape
    inputs = {graph.params[0].name: (np.arange(np.prod(shape)).reshape(shape) / 1e5).astype("f4")}
    made = export_onnx(graph)
    want = execute(onnx.load(path), inputs)[0]
    np.testing.assert_allclose(execute(made, inputs)[0], want, rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------- names


def test_names_are_kept_and_unique():
    text = """g (bool c, float[3,4] x) => (float[3,4] y, float[3,4] x) {
        a = Neg(x)
        y = If(c) <
            then_branch = left () => (l) { t = Add(a, x) l = Relu(t) },
            else_branch = right () => (r) { t = Sub(a, x) r = Relu(t) }
        >
    }"""
    graph = import_onnx(model(text))
    made = check(graph, {"c": np.array(True), "x": X}, [np.zeros_like(X), X])
    branches = [attribute.g for attribute in made.graph.node[-1].attribute]
    assert [[n.output[0] for n in g.node] for g in branches] == [["t", "l"], ["t.1", "r"]]
    assert [list(branches[1].node[0].input)] == [["a", "x"]]


def test_one_value_as_two_outputs_and_a_constant_as_output():
    graph = new_graph("g", x=TensorType(dtypes.f32, (3, 4)))
    b = Builder(graph)
    y = b.Relu(graph.params[0])
    graph.set_results([y, y, b.constant(X), graph.params[0]])
    graph.output_names = ["y", "again", "w", "z"]
    relu = np.maximum(X, 0)
    check(graph, {"x": X}, [relu, relu, X, X])


def test_bodies_that_return_captures_parameters_and_constants():
    text = """g (int64 n, float[3,4] x) =>
        (float[3,4] last, float[n,3,4] all, float[n,1] more) {
        t = Constant<value = bool {1}>()
        last, all, more = Loop(n, t, x) <body = b (int64 i, bool c, float[3,4] s) => (c, s, x, k)
            <float[1] k = {7}> { }>
    }"""
    wanted = [X, np.stack([X, X]), np.full((2, 1), 7, np.float32)]
    check(import_onnx(model(text)), {"n": np.array(2), "x": X}, wanted)


def test_constants_inside_bodies_are_stored_once():
    text = """g (bool c, float[3,4] x) => (y) <float[4] w = {1, 2, 3, 4}> {
        a = Add(x, w)
        y = If(c) <then_branch = l () => (l) { l = Add(a, w) },
                   else_branch = r () => (r) { r = Sub(a, w) }>
    }"""
    made = export_onnx(import_onnx(model(text)))
    assert [t.name for t in made.graph.initializer] == ["w"]
    assert not any(a.g.initializer for a in made.graph.node[-1].attribute)


# ---------------------------------------------------------------- ops that are not ONNX's


def test_fused_regions_and_layouts():
    graph = new_graph("g", x=TensorType(dtypes.f32, (1, 2, 3, 3)))
    x = graph.params[0]
    copy = graph.append(Op(opdef.lookup("Relayout", "graphc"), [x])).output
    copy.type = x.tensor.with_layout(Layout((0, 2, 3, 1)))
    body = Region()
    b = Builder(body)
    body.set_results([b.Relu(b.Neg(body.add_param(x.type)))])
    fused = graph.append(Op(opdef.FUSED, [copy], regions=[body]))
    fused.output.type, fused.output.name = x.type, "y"
    graph.set_results([fused.output])
    graph.output_names = ["y"]
    data = X.reshape(-1)[:9].repeat(2).reshape(1, 2, 3, 3)
    made = check(graph, {"x": data}, [np.maximum(-data, 0)])
    assert [node.op_type for node in made.graph.node] == ["Neg", "Relu"]


def test_composite_operators_are_expanded(monkeypatch):
    monkeypatch.setattr(opdef, "REGISTRY", dict(opdef.REGISTRY))

    @opdef.composite("Cube", domain="test")
    def cube(b, x: opdef.Float):
        return b.Mul(b.Mul(x, x), x)

    graph = new_graph("g", x=TensorType(dtypes.f32, (3, 4)))
    graph.set_results([Builder(graph).op("Cube", graph.params[0], domain="test")])
    graph.output_names = ["y"]
    check(graph, {"x": X}, [X**3])


def test_an_op_without_counterpart_is_named(monkeypatch):
    monkeypatch.setattr(opdef, "REGISTRY", dict(opdef.REGISTRY))

    @opdef.imperative("Twice", domain="test", infer=lambda x: x.type)
    def twice(k, x: opdef.Float):
        with k.loops(*x.shape) as where:
            k.store(k.outputs[0], where, x[where] + x[where])

    graph = new_graph("g", x=TensorType(dtypes.f32, (3, 4)))
    graph.set_results([Builder(graph, loc=("t",)).op("Twice", graph.params[0], domain="test")])
    with pytest.raises(UnsupportedError, match='Twice "t": test.Twice has no counterpart'):
        export_onnx(graph)


# ---------------------------------------------------------------- types and versions


def test_symbolic_dims_and_dtypes_survive():
    text = "g (float16[N,4] x, seq(int64[2]) s) => (y, s) { y = Relu(x) }"
    made = export_onnx(import_onnx(model(text)))
    again = import_onnx(made)
    assert [p.type for p in again.params] == [p.type for p in import_onnx(model(text)).params]
    assert made.graph.output[0].type == made.graph.input[0].type


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "op,attrs,least",
    [("Relu", {}, 21), ("Swish", {}, 24), ("BitCast", {"to": 6}, 26)],
)
def test_the_lowest_opset_that_has_the_operator(op, attrs, least):
    made = export_onnx(import_onnx(single(op, {"x": X}, opset=28, **attrs)))
    assert [entry.version for entry in made.opset_import] == [least]


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ("to=[1, 2]", r"Cast: attribute 'to' is \[1, 2\], expected int"),
        ('to="f32"', "attribute 'to' is 'f32', expected int"),
        ("to=1.5", "attribute 'to' is 1.5, expected int"),
        ("to=1, axis=1", "attribute 'axis' does not exist in ONNX"),
    ],
)
def test_attributes_that_onnx_does_not_have(attrs, message):
    graph = parse_graph(
        f"graph @g(%x: f32[3]) -> ? {{\n  %y = Cast(%x) {{{attrs}}}\n  return %y\n}}"
    )
    with pytest.raises(ModelError, match=message):
        export_onnx(graph)


# ---------------------------------------------------------------- files


def test_operators_deprecated_in_the_newest_version_of_their_domain():
    graph = new_graph("g", x=TensorType(dtypes.f32, (2, 1)))
    tree = {
        "nodes_treeids": (0, 0, 0), "nodes_nodeids": (0, 1, 2), "nodes_featureids": (0, 0, 0),
        "nodes_modes": ("BRANCH_LEQ", "LEAF", "LEAF"), "nodes_values": (0.5, 0.0, 0.0),
        "nodes_truenodeids": (1, 0, 0), "nodes_falsenodeids": (2, 0, 0), "n_targets": 1,
        "target_treeids": (0, 0), "target_nodeids": (1, 2), "target_ids": (0, 0),
        "target_weights": (3.0, 4.0),
    }  # fmt: skip
    y = Builder(graph).op("TreeEnsembleRegressor", graph.params[0], domain="ai.onnx.ml", **tree)
    graph.set_results([y])
    made = export_onnx(graph)
    assert {o.domain: o.version for o in made.opset_import}["ai.onnx.ml"] < 5
    x = np.array([[0.25], [0.75]], np.float32)
    assert interpret(import_onnx(made), [x])[0].tolist() == [[3.0], [4.0]]


def test_a_written_file_is_the_model(tmp_path):
    path = tmp_path / "out.onnx"
    made = export_onnx(import_onnx(single("Add", {"x": X, "const": X})), path)
    assert onnx.load(path) == made
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]
    with pytest.raises(UnsupportedError):
        export_onnx(Graph_with_unknown(), tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


def Graph_with_unknown() -> Graph:  # noqa: N802
    graph = Graph("g")
    value = graph.add_param(TensorType(dtypes.f32, (1,)), "x")
    graph.set_results([graph.append(Op(opdef.OpDef("Odd", "host"), [value])).output])
    return graph


def test_large_constants_go_beside_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "EXTERNAL", 1000)
    big = np.arange(1200, dtype=np.float32).reshape(300, 4)
    source = single("MatMul", {"x": X, "const": big.T.copy()})
    path = tmp_path / "out.onnx"
    export_onnx(import_onnx(source), path)
    assert {p.name for p in tmp_path.iterdir()} == {"out.onnx", "out.onnx.data"}
    assert (tmp_path / "out.onnx.data").stat().st_size == big.nbytes
    np.testing.assert_array_equal(run(path, X)[0], run(source, X)[0])
    session = runtime.InferenceSession(str(path))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ big.T, rtol=1e-4)


@pytest.mark.parametrize("where", ["input", "output"])
def test_ranks_that_are_not_known(where):
    body = "y = Neg(x)" if where == "input" else "s = NonZero(x) t = Flatten(s) y = Reshape(x, t)"
    made = model(f"g (float[N] x) => (float[M] y) {{ {body} }}")
    info = (made.graph.input if where == "input" else made.graph.output)[0]
    info.type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match=f"the rank of {where} '.' is not known"):
        export_onnx(import_onnx(made))


def test_wrong_models_that_nobody_has_typed():
    made = import_onnx(model("g (float[2] x) => (float[2] y) { y = Concat<axis = 5>(x, x) }"))
    with pytest.raises(ModelError, match="not valid ONNX: .*Concat"):
        export_onnx(made)


def test_wrong_models_of_open_dims():
    """Behind a value whose type is not known, nobody but ONNX finds what is wrong."""
    body = "s = MaxPool<kernel_shape = [2, 2]>(x) m = ReduceMean(s) f = Flatten(m) y = MatMul(f, w)"
    text = "g (float[N, 4, 1, 1] x) => (float[N, 2] y) <float[4, 2] w = {1, 1, 1, 1, 1, 1, 1, 1}>"
    made = type_symbolically(import_onnx(model(f"{text} {{ {body} }}")))
    with pytest.raises(ModelError, match="not valid ONNX: .*MatMul"):
        export_onnx(made)


def test_batch_statistics_that_nobody_asks_for():
    """In training mode ONNX wants all three outputs of a BatchNormalization."""
    graph = new_graph(x=TensorType(dtypes.f32, (3, 4)))
    b, x = Builder(graph), graph.params[0]
    ones = [np.ones(4, np.float32)] * 4
    graph.set_results([b.op("BatchNormalization", x, *ones, training_mode=1)])
    wanted = interpret(graph, [X])
    made = export_onnx(graph)
    assert len(made.graph.node[0].output) == 3
    np.testing.assert_allclose(interpret(import_onnx(made), [X])[0], wanted[0])


def test_element_types_that_onnx_lacks():
    graph = new_graph(x=TensorType(dtypes.f6e2m3, (2,)))
    graph.set_results([Builder(graph).Identity(graph.params[0])])
    graph.phase = "typed"
    with pytest.raises(UnsupportedError, match="unsupported type"):
        export_onnx(graph)
