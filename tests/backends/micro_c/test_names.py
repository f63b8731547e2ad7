"""Names of a model in C: no keywords or macros of C or C++, and whole words."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import STRICT, checked, float_model, micro_program, model_of
from onnx import TensorProto, helper

from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.model import field_name, layer_name

FIELDS = {
    "image": "image", "x_1": "x_1", "X": "X", "I": "i", "INT_MAX": "int_max", "A0": "a0",
    "errno": "errno_1", "and": "and_1", "co_await": "co_await_1", "int8_t": "int8_t_1",
    "serving/default:0": "serving_default_0", "*/": "tensor", "": "tensor", "_x": "v_x",
    "a__b": "a__b", "a//b": "a_b", "x" * 99: "x" * 63, "日本": "tensor",
}  # fmt: skip


def test_fields():
    assert {name: field_name(name) for name in FIELDS} == FIELDS
    assert [field_name(n, ["a_b"]) for n in ("a.b", "A_B")] == ["a_b_1", "a_b_1"]


def test_layers_are_named_after_whole_words():
    long = "model/batch_normalization_2/FusedBatchNormV3;model/conv2d"
    assert layer_name(long) == "batch_normalization_2_FusedBatchNormV3"
    assert layer_name("a" * 50) == "a" * 40 and layer_name("??") == "layer"


TAKEN = [
    "INT_MAX", "NULL", "EOF", "I", "errno", "linux", "stdout", "and", "xor", "nullptr", "memory",
    "arena", "main", "inputs", "outputs", "status", "FLT_MANT_DIG", "uint8_t", "near", "OK",
]  # fmt: skip


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("language", [["-std=gnu99"], ["-x", "c++", "-std=c++17"]])
def test_tensors_named_like_macros_and_keywords(language, resident, tmp_path):
    from graphc import driver

    nodes = [helper.make_node("Add", ["stdin", "NAN"], ["sum"])]
    nodes += [
        helper.make_node("Mul", ["sum", "sum"], [name], name=f"L{n}")
        for n, name in enumerate(TAKEN)
    ]
    shape = (TensorProto.FLOAT, [2])
    model = model_of(nodes, {"stdin": shape, "NAN": shape}, dict.fromkeys(TAKEN, shape))
    program = driver.program_for(driver.typed(model), "c", io="arena" if resident else "caller")
    samples = ([np.ones(2, np.float32)] * 2, [np.full(2, 4, np.float32)] * len(TAKEN))
    write_bundle(program, tmp_path, BundleOptions(name="net", samples=samples))
    for source in ("net.c", "net_test.c"):
        checked(["gcc", *language, *STRICT, "-c", source], tmp_path)


def test_functions_are_named_like_no_macro_of_the_bundle(tmp_path):
    x = np.zeros((2, 4), np.float32)
    for name in ("KERNEL", "OK", "assert_byte", "assert_in_x", "BEGIN"):
        model = float_model(helper.make_node("Softmax", ["x"], ["y"], name=name), x, {})
        write_bundle(micro_program(model), tmp_path, BundleOptions(name="NET"))
        checked(["gcc", "-std=c99", *STRICT, "-c", "NET.c"], tmp_path)


def test_kernels_say_what_they_compute(tmp_path):
    x = np.zeros((1, 2, 6, 6), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="block/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="block/act;other;names"),
    ]
    weights = {"w": np.ones((2, 2, 3, 3), np.float32)}
    shape = (TensorProto.FLOAT, x.shape)
    files = write_bundle(
        micro_program(model_of(nodes, {"x": shape}, {"y": shape}, weights)), tmp_path,
        BundleOptions(name="net"),
    )  # fmt: skip
    expected = "/* Conv, Relu\n * layer 0: block/conv, block/act;... */\nstatic NET_KERNEL void"
    assert expected in files["net.c"]
