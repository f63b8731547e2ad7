"""graphc compare: differences of values are those that numpy computes, and models pair rightly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import DIGITS, ROOT, graphc, make, ok, refused, relu, save
from onnx import TensorProto, helper, numpy_helper

import graphc as library
from graphc.cli.deviation import deviations, units
from graphc.comparing.differences import Difference
from graphc.comparing.pairs import pairs_of
from graphc.passes.rewriter import RULES

SAMPLES = ROOT / "models" / "digits_samples.npz"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Samples of the digits model, their labels, and the model in 8 bits."""
    folder = tmp_path_factory.mktemp("digits")
    with np.load(SAMPLES) as samples:
        images, labels = samples["images"][:32], samples["labels"][:32]
    np.savez(folder / "x.npz", image=images)
    np.save(folder / "y.npy", labels)
    parts = folder / "parts"
    parts.mkdir()
    for number in range(2):
        np.savez(parts / f"{number}.npz", image=images[16 * number : 16 * number + 16])
    library.quantise(DIGITS, {"image": images}).save(folder / "q.onnx")
    return folder


def seen(found, expected):
    difference = Difference()
    for a, b in zip(found, expected):
        difference.add(a, b)
    return difference


def test_differences_over_samples_are_those_of_all_at_once():
    rng = np.random.default_rng(0)
    b = rng.standard_normal((4, 50)).astype(np.float32)
    a = b + 1e-3 * rng.standard_normal(b.shape).astype(np.float32)
    found = seen(a, b)
    x, y = a.astype(float).ravel(), b.astype(float).ravel()
    assert found.max_abs == pytest.approx(np.abs(x - y).max())
    assert found.relative == pytest.approx(np.abs(x - y).max() / (y.max() - y.min()))
    assert found.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert found.sqnr == pytest.approx(10 * np.log10(y @ y / ((x - y) @ (x - y))))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulp_counts_floats_between(dtype):
    expected = np.array([1, -1, 2, 0.5], dtype)
    found = expected.copy()
    for _ in range(3):
        found[1] = np.nextafter(found[1], dtype(-9))
    assert seen([found], [expected]).ulp == 3
    assert seen([np.nextafter(np.ones(3, dtype), dtype(0))], [np.ones(3, dtype)]).ulp == 1


def test_what_cannot_be_compared_is_a_problem():
    ones = np.ones((2, 2), np.float32)
    assert "shape" in seen([ones], [np.ones(4, np.float32)]).problem
    assert "infinite" in seen([ones], [ones * np.nan]).problem
    assert seen([ones * np.nan], [ones * np.nan]).problem == ""
    assert seen([np.array(["a"], object)], [np.array(["b"], object)]).problem
    assert seen([[ones]], [[ones]]).problem == "it is no tensor"
    assert seen([ones], [ones]).data()["sqnr_db"] is None
    assert seen([ones], [ones]).sqnr == np.inf and seen([ones], [0 * ones]).sqnr == -np.inf


def test_values_of_a_quantised_model_pair_behind_dequantising(digits):
    reference, other = library.import_onnx(DIGITS), library.import_onnx(str(digits / "q.onnx"))
    pairs = {pair.layer: pair for pair in pairs_of(reference, other)}
    assert {"/bn1/BatchNormalization", "/pool/MaxPool", "/fc/Gemm"} <= set(pairs)
    relu = pairs["/Relu"]  # the quantised model's readers see it dequantised
    (maker,) = (op for op in other.ops if relu.other in [v.name for v in op.outputs])
    assert maker.name == "DequantizeLinear" and relu.name != relu.other


def test_graphc_against_onnxruntime(capsys):
    out = ok(capsys, "compare", DIGITS, "--dim", "N=2", "--threads", "1")
    assert "no layer departs" in out and "/conv1/Conv" in out
    assert "output logits: max abs" in out and "same largest element in 100% of rows" in out


def test_against_the_interpreter(capsys):
    argv = ["--dim", "N=1", "--against", "interpreter", "--threads", "1", "--json"]
    data = json.loads(ok(capsys, "compare", DIGITS, *argv))
    assert data["agrees"] and len(data["layers"]) > 8
    assert all(layer["own"] is not None for layer in data["layers"])


WRONG = '''
from graphc.passes import P, rule, var

@rule("tanh-is-wrong", P.Tanh(var("x")))
def tanh_is_wrong(rw, tanh, x):
    """tanh(x) == sigmoid(x), which is wrong."""
    return rw.Sigmoid(x)
'''


def test_a_rewrite_of_the_compiler_that_is_wrong_is_found(capsys, tmp_path):
    plugin = tmp_path / "wrong.py"
    plugin.write_text(WRONG)
    chain = (("Exp", "x", "e"), ("Tanh", "e", "t"), ("Relu", "t", "y"))
    nodes = [helper.make_node(op, [a], [b], f"{op}_{b}".lower()) for op, a, b in chain]
    path = save(tmp_path / "m.onnx", make(nodes))
    code, out, _ = graphc(capsys, "compare", path, "--plugin", plugin, "--threads", "1")
    assert code == 1 and 'first layer that departs: Tanh "tanh_t"' in out
    RULES.pop("tanh-is-wrong")  # which a plugin registers for the whole process
    ok(capsys, "compare", path, "--threads", "1")


def test_float_against_quantised_over_samples_with_labels(capsys, digits):
    argv = ["--with", digits / "q.onnx", "--data", digits / "x.npz", "--batch", "8",
            "--labels", digits / "y.npy", "--threads", "1", "--json"]  # fmt: skip
    data = json.loads(ok(capsys, "compare", DIGITS, *argv))
    (output,) = data["outputs"]
    assert data["samples"] == 4 and output["rows"] == 32
    assert output["reference_top1"] > 0.9 and output["top1"] > 0.9 and output["agreement"] > 0.9
    assert output["sqnr_db"] > 15
    assert data["agrees"] and all(layer["own"]["sqnr_db"] > 25 for layer in data["layers"])


def test_a_folder_of_samples_is_as_one_file(capsys, digits):
    found = []
    for source in ("x.npz", "parts"):
        argv = ["--data", digits / source, "--batch", "4", "--threads", "1", "--json"]
        found.append(json.loads(ok(capsys, "compare", DIGITS, *argv))["outputs"])
    assert found[0] == found[1]


def test_outputs_are_those_of_the_model_that_nobody_observes(capsys):
    data = json.loads(ok(capsys, "compare", DIGITS, "--dim", "N=1", "--threads", "1", "--json"))
    assert [output["name"] for output in data["outputs"]] == ["logits"]


def test_what_does_not_fit_is_told(capsys, tmp_path, digits):
    other = save(tmp_path / "relu.onnx", relu())
    assert "has inputs ['x']" in refused(capsys, "compare", DIGITS, "--with", other)
    integers = make([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
                    [("x", TensorProto.INT8, (2, 3))])  # fmt: skip
    first, other = save(tmp_path / "f.onnx", relu()), save(tmp_path / "i.onnx", integers)
    message = refused(capsys, "compare", first, "--with", other)
    assert "input 'x' is i8[2,3]" in message and "f32[2,3]" in message
    assert "--data" in refused(capsys, "compare", DIGITS, "--labels", digits / "y.npy")
    message = refused(capsys, "compare", DIGITS, "--data", digits / "x.npz", "--batch", "5")
    assert "32 samples are no multiple of the batch of 5" in message
    short = tmp_path / "short.npy"
    np.save(short, np.arange(3))
    message = refused(capsys, "compare", DIGITS, "--data", digits / "x.npz", "--labels", short,
                      "--against", "graphc", "--threads", "1")  # fmt: skip
    assert "3 labels for 32 rows" in message


def test_models_without_a_common_value_are_told(capsys, tmp_path):
    one = make([helper.make_node("Relu", ["x"], ["y"])])
    two = make([helper.make_node("Relu", ["x"], ["z"])], outputs=(("z", TensorProto.FLOAT, None),))
    a, b = save(tmp_path / "a.onnx", one), save(tmp_path / "b.onnx", two)
    assert "has outputs ['z']" in refused(capsys, "compare", a, "--with", b)


def test_weights_that_are_dequantised_belong_to_their_layer(tmp_path):
    weights = {"w": np.ones((3, 3), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wf"], "weights"),
        helper.make_node("MatMul", ["x", "wf"], ["y"], "product"),
    ]
    constants = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    graph = library.import_onnx(make(nodes, constants=constants))
    assert [pair.layer for pair in pairs_of(graph, graph)] == ["product"]


# ---------------------------------------------------------------- verify of quantised outputs


def network_of_bytes(scale: float) -> bytes:
    """Products, quantised on both sides; the output is what DequantizeLinear gives."""
    rng = np.random.default_rng(3)
    constants = {"w": rng.standard_normal((8, 6)).astype(np.float32), "s": np.float32(scale),
                 "z": np.int8(0)}  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"], "quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantise"),
        helper.make_node("Reshape", ["d", "shape"], ["y"], "reshape"),
    ]
    constants["shape"] = np.array([-1])
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    return make(nodes, [("x", TensorProto.FLOAT, (4, 8))], constants=tensors)


def test_a_step_of_an_output_is_its_scale():
    graph = library.import_onnx(network_of_bytes(0.5))
    (unit,) = units(graph, [np.array([-4, 4], np.float32)])
    assert unit == 0.5 / 8
    (unit,) = units(library.import_onnx(relu()), [np.ones(3, np.float32)])
    assert unit == 0
    assert units(graph, [np.array([-4, 4], np.int8)]) == [1 / 8]


def test_who_deviates():
    one, two, far = (np.array([0, x], np.float32) for x in (1.0, 1.1, 1.3))
    (near,) = deviations(["y"], [one], [two], [one])
    assert near.is_accepted and "own ways differ as much" in near.told(0.1)
    (off,) = deviations(["y"], [far], [two], [one])
    assert not off.is_accepted and "graphc deviates" in off.told(0.0)


def test_verify_takes_steps(capsys, tmp_path, monkeypatch):
    path = save(tmp_path / "m.onnx", network_of_bytes(0.5))
    assert "passed" in ok(capsys, "verify", path, "--steps", "0", "--threads", "1")
    from graphc import verify

    real = verify.onnxruntime

    def moved(source, threads=None, optimised=True):
        run = real(source, threads, optimised)
        return lambda feeds: [out + np.float32(0.5) * optimised for out in run(feeds)]

    monkeypatch.setattr(verify, "onnxruntime", moved)  # by a step, where it optimises
    assert "passed" in ok(capsys, "verify", path, "--threads", "1")
    out = ok(capsys, "verify", path, "--steps", "0", "--threads", "1")
    assert "1 steps from ONNX Runtime, 0 steps from it without" in out
    monkeypatch.setattr(verify, "onnxruntime", lambda *a, **k: lambda feeds: [
        out + np.float32(1.5) for out in real(path)(feeds)])  # fmt: skip
    code, out, _ = graphc(capsys, "verify", path, "--threads", "1")
    assert code == 1 and "graphc deviates" in out
