"""RNN, GRU and LSTM in fixed point: near ONNX Runtime's floats, the same on every processor."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from bundles import micro_program, run_bundle
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.backends.micro_c.model import Model
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph
from graphc.ir.interp import run_op
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.ir.ops.fixed_recurrent import SUM_BITS, sigmoid_table
from graphc.ir.types import TensorType

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
NEAR = 5e-4  # of results, where steps of 8 bits are 8e-3


def codes_of(rng, ways, rows, columns, spread):
    """Weights of 8 bits and a scale for each row."""
    real = rng.standard_normal((ways, rows, columns)) * spread / np.sqrt(columns)
    scales = np.abs(real).max(2) / 127
    return np.rint(real / scales[:, :, None]).astype(np.int8), scales.astype(np.float32)


def layer(kind, inputs=12, hidden=8, steps=5, batch=2, direction="forward", spread=1.0, given=(),
          x_type=TensorProto.INT8, **attrs):  # fmt: skip
    """A recurrent layer of quantised input and weights; `given` are further operands from the
    fifth on: names of inputs, or None."""
    rng = np.random.default_rng([inputs, hidden, len(direction)])
    ways, rows = 1 + (direction == "bidirectional"), GATES[kind] * hidden
    zero = np.array(
        5 if x_type != TensorProto.INT16 else 0, helper.tensor_dtype_to_np_dtype(x_type)
    )
    arrays = {"x_scale": np.float32(0.03 if zero.itemsize == 1 else 1e-4), "x_zero": zero,
              "b": (rng.standard_normal((ways, 2 * rows)) * 0.3).astype(np.float32)}  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["data"])]
    for name, columns in (("w", inputs), ("r", hidden)):
        codes, scales = codes_of(rng, ways, rows, columns, spread)
        arrays |= {f"{name}_codes": codes, f"{name}_scale": scales[0]}
        how = {"axis": 1}
        if ways > 1:
            arrays[f"{name}_scale"], how = scales[:, :, None], {"axis": 2, "block_size": columns}
        operands = [f"{name}_codes", f"{name}_scale"]
        nodes.append(helper.make_node("DequantizeLinear", operands, [name], **how))
    outputs = ["y", "last", "cell"][: 2 + (kind == "LSTM")]
    operands = ["data", "w", "r", "b", *("" if v is None else v for v in given)]
    nodes.append(helper.make_node(kind, operands, outputs, "layer", hidden_size=hidden,
                                  direction=direction, **attrs))  # fmt: skip
    shape = [batch, steps, inputs] if attrs.get("layout") else [steps, batch, inputs]
    infos = [helper.make_tensor_value_info("x", x_type, shape)]
    infos += [
        helper.make_tensor_value_info(v, TensorProto.FLOAT, [ways, batch, hidden])
        for v in given if v is not None
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", infos,
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def codes_like(model, seed=1):
    info = model.graph.input[0].type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(info.elem_type)
    shape = [d.dim_value for d in info.shape.dim]
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def expected(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


def code_of(model, cpu="cortex-m4"):
    return Model.of(micro_program(model, cpu), "net").code()


def check(model, cpu="cortex-m4", near=NEAR, **more):
    feeds = {"x": codes_like(model), **more}
    found = graphc.compile(model, target="c", cpu=cpu).run(feeds)
    for want, got in zip(expected(model, feeds), found):
        np.testing.assert_allclose(got, want, rtol=0, atol=near)
    return found


@pytest.mark.parametrize(
    ("kind", "direction"),
    [("LSTM", "forward"), ("LSTM", "bidirectional"), ("GRU", "reverse"), ("RNN", "reverse")],
)
def test_results_are_near_those_of_floats(kind, direction):
    check(layer(kind, direction=direction))


def test_gru_that_resets_after_the_product():
    check(layer("GRU", linear_before_reset=1, direction="bidirectional", steps=3))


def test_batches_that_come_first():
    model = layer("GRU", layout=1, direction="bidirectional", steps=3)
    swapped = layer("GRU", direction="bidirectional", steps=3)
    feeds = {"x": codes_like(model)}  # ONNX Runtime has no such GRU
    want = expected(swapped, {"x": np.ascontiguousarray(feeds["x"].transpose(1, 0, 2))})
    found = graphc.compile(model, target="c", cpu="cortex-m4").run(feeds)
    np.testing.assert_allclose(found[0], want[0].transpose(2, 0, 1, 3), atol=NEAR)
    np.testing.assert_allclose(found[1], want[1].transpose(1, 0, 2), atol=NEAR)


@pytest.mark.parametrize("kind", GATES)
def test_every_processor_gives_the_same(kind):
    model = layer(kind, inputs=7, hidden=9, steps=2)
    first, *others = (check(model, cpu) for cpu in ("cortex-m4", "cortex-m0plus", "rv32"))
    for other in others:
        for want, got in zip(first, other):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("x_type", [TensorProto.UINT8, TensorProto.INT16])
def test_other_types_of_input(x_type):
    check(layer("LSTM", x_type=x_type))


@pytest.mark.parametrize("kind", GATES)
def test_smallest_sizes(kind):
    for sizes in ((1, 1, 1, 1), (1, 5, 1, 3)):
        check(layer(kind, *sizes))


@pytest.mark.parametrize("kind", GATES)
def test_sums_beyond_the_table(kind):
    """Gates that are shut or open: sums of hundreds."""
    model = layer(kind, spread=60.0)
    feeds = {"x": codes_like(model)}
    found = graphc.compile(model, target="c", cpu="cortex-m4").run(feeds)
    for want, got in zip(expected(model, feeds), found):
        # where a gate is on its way, rounding of sums is magnified
        assert np.median(np.abs(got - want)) < NEAR and np.isfinite(got).all()


def test_states_may_be_given():
    """As int16 in units of 2**-15, which is what the layer has."""
    model = layer("GRU", given=[None, "h"], steps=1)
    h = model.graph.input[1]
    h.name = "codes"
    h.type.tensor_type.elem_type = TensorProto.INT16
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2**-15), "unit"))
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["codes", "unit"], ["h"]))
    codes = np.random.default_rng(2).integers(-(1 << 15), 1 << 15, (1, 2, 8)).astype(np.int16)
    assert "FixedReset" in code_of(model)
    check(model, codes=codes)


def test_the_bundle_of_its_own_test(tmp_path):
    model = layer("GRU", inputs=9, hidden=6)
    assert "FAILED" not in run_bundle(model, [codes_like(model)], tmp_path, NEAR, "cortex-m4")


def test_pairs_are_multiplied():
    code = code_of(layer("LSTM", steps=2))
    assert "FixedOutput" in code and "float" not in code.split("FixedOutput")[0]
    assert "dot4_mixed(v" in code and "dot_2x2(&v" in code


def test_a_reset_state_is_stored_before_it_is_multiplied():
    code = code_of(layer("GRU", steps=2))
    assert "FixedReset, Slice, MatMulInteger" not in code


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 1.0},
        {"activations": ["Sigmoid", "Relu", "Tanh"]},
        {"input_forget": 1},
        {"given": [None, "h"]},
    ],
    ids=["clip", "functions", "coupled gates", "any initial h"],
)
def test_what_stays_float(options):
    model = layer("LSTM", steps=2, **options)
    assert "FixedSum" not in code_of(model)
    feeds = {"x": codes_like(model)}
    if "given" in options:
        feeds["h"] = np.full((1, 2, 8), 3.0, np.float32)
    found = graphc.compile(model, target="c", cpu="cortex-m4").run(feeds)
    if not options.get("input_forget"):  # which ONNX Runtime takes for something else
        for want, got in zip(expected(model, feeds), found):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_the_tables_bounds():
    """As the module says: 8e-5 and 1.6e-4, at all sums and far beyond."""
    fine = np.arange(-20 << SUM_BITS, 20 << SUM_BITS, 97)
    sums = np.concatenate([fine, [-(1 << 31), (1 << 31) - 1]]).astype(np.int32)
    for name, exact, bound in (
        ("FixedSigmoid", lambda x: 1 / (1 + np.exp(-x)), 8e-5),
        ("FixedTanh", np.tanh, 1.6e-4),
    ):
        found = one_op(name, sums)
        with np.errstate(over="ignore"):
            error = np.abs(found / 2.0**15 - exact(sums / 2.0**SUM_BITS))
        assert error.max() < bound


def one_op(name, x):
    graph = Graph()
    param = graph.add_param(TensorType(dtypes.i32, x.shape), "x")
    b = Builder(graph)
    value = b.op(name, param, b.constant(sigmoid_table()), domain=DOMAIN)
    return run_op(value.producer, [x, sigmoid_table()])[0].astype(np.float64)


def test_quantised_layers_are_fixed():
    """From floats to integers: graphc's own quantiser, everything in integers."""
    rng = np.random.default_rng(4)
    for kind in GATES:
        shape = {"w": (1, GATES[kind] * 8, 12), "r": (1, GATES[kind] * 8, 8)}
        arrays = {n: (rng.standard_normal(s) / 3).astype(np.float32) for n, s in shape.items()}
        graph = helper.make_graph(
            [helper.make_node(kind, ["x", "w", "r"], ["y"], "layer", hidden_size=8)], "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 1, 12])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in arrays.items()],
        )  # fmt: skip
        source = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
        )
        data = [{"x": rng.standard_normal((6, 1, 12)).astype(np.float32)} for _ in range(8)]
        made = graphc.quantise(source, data, whole=True)
        (want,) = expected(source, data[0])
        step = next(op for op in made.graph.ops if op.name == "DequantizeLinear")
        scale = float(step.operand(1).constant)
        codes = np.clip(np.rint(data[0]["x"] / scale) + int(step.operand(2).constant), -128, 127)
        (got,) = graphc.compile(made.graph, target="c", cpu="cortex-m4").run(
            {"x": codes.astype(np.int8)}
        )
        assert 10 * np.log10((want**2).sum() / ((got - want) ** 2).sum()) > 30
