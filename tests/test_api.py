"""The public surface from Python: imports, compile, run, pins, options, feeds, verification."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphc
from graphc.ir.compare import agreements, compare
from graphc.runtime.feeds import index_bound, open_dims, random_feeds
from graphc.verify import interpreter, onnxruntime

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "models" / "digits_cnn.onnx"


@pytest.fixture(scope="module")
def samples():
    with np.load(ROOT / "models" / "digits_samples.npz") as found:
        return dict(found)


def test_import_costs_nothing():
    """`import graphc` loads neither numpy nor onnx, whatever it offers."""
    code = (
        "import sys, graphc; print([m for m in ('numpy', 'onnx', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_exported_is_there():
    for name in graphc.__all__:
        assert getattr(graphc, name) is not None, name
        assert name in dir(graphc)
    with pytest.raises(AttributeError, match="nonsense"):
        graphc.nonsense  # noqa: B018


@pytest.mark.parametrize("how", ["path", "text path", "bytes", "proto", "graph"])
def test_sources(how, samples):
    source = {
        "path": DIGITS,
        "text path": str(DIGITS),
        "bytes": DIGITS.read_bytes(),
        "proto": onnx.load(DIGITS),
        "graph": graphc.import_onnx(DIGITS),
    }[how]
    model = graphc.compile(source, threads=1)
    (logits,) = model.run({"image": samples["images"][:2]})
    assert np.allclose(logits, samples["logits"][:2], atol=1e-4)


def test_feeds_by_name_order_and_call(samples):
    model = graphc.compile(DIGITS, shapes={"image": (4, 1, 8, 8)}, threads=1)
    x = samples["images"][:4]
    runs = [model.run({"image": x}), model.run([x]), model.run(x), model(x), model(image=x)]
    assert all(np.array_equal(run[0], runs[0][0]) for run in runs)
    assert [(i.name, i.dtype, i.shape) for i in model.inputs] == [("image", "f4", (4, 1, 8, 8))]
    assert model.outputs[0].name == "logits"


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "missing"),
        ({"image": np.zeros((1, 1, 8, 8), np.float32), "x": 1}, "unknown"),
        ({"image": np.zeros((1, 1, 8, 8))}, "float64"),
        ({"image": np.zeros((1, 2, 8, 8), np.float32)}, r"1, 2, 8, 8"),
        ([], "expected 1 inputs"),
        (None, "a dict or a list of arrays, found NoneType"),
        ({"image": [[1.0], [1.0, 2.0]]}, "is no array"),
    ],
)
def test_bad_feeds(feeds, message):
    with pytest.raises(graphc.ModelError, match=message):
        graphc.compile(DIGITS, threads=1).run(feeds)


@pytest.mark.parametrize("option", [{"simulate": True}, {"arch": "sm_80"}])
def test_options_of_gpus_for_a_cpu(option):
    with pytest.raises(graphc.UnsupportedError, match=f"no {next(iter(option))}=.*'cuda' has"):
        graphc.compile(DIGITS, **option)


SQUARE = """graph @g(%x: f32[2,3], %n: i64[2]) -> (f32[2,3], i64[2]) {
  %y = Mul(%x, %x) : f32[2,3]
  %m = Neg(%n) : i64[2]
  return %y, %m
}"""


class Exchanged:
    """An array of the host that other libraries take through DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("target", ["cpu", "c"])
def test_arrays_as_they_come(target):
    """Other orders, strides, byte orders and alignments, read-only memory, lists, DLPack."""
    model = graphc.compile(graphc.parse(SQUARE), target, threads=1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    spread = np.zeros((4, 9), np.float32)
    spread[::2, ::3] = x
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)
    forms = (np.asfortranarray(x), spread[::2, ::3], x.astype(">f4"), odd, x.tolist(), Exchanged(x))
    for form in forms:
        y, m = model.run([form, [1, 2]])
        assert np.array_equal(y, x * x) and m.tolist() == [-1, -2]
        assert y.flags.writeable and y.flags.owndata


def test_numbers_that_integers_cannot_hold():
    model = graphc.compile(graphc.parse(SQUARE), threads=1)
    for wrong in ([1.5, 2], [float("nan"), 1], [1 << 63, 0]):
        with pytest.raises(graphc.ModelError, match="'n' takes int64, which cannot hold"):
            model.run([np.zeros((2, 3), np.float32), wrong])


def test_what_can_be_pickled():
    graph = graphc.import_onnx(DIGITS)
    for other in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), copy.copy(graph)):
        assert other == graph and other is not graph and other.ops[0] is not graph.ops[0]
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(graphc.UnsupportedError, match="hand on its model or graph"):
            attempt(graphc.compile(graph, threads=1))


class OnTheDevice:
    """An array in a GPU's memory, as libraries describe it."""

    __cuda_array_interface__ = {"shape": (1, 1, 8, 8), "typestr": "<f4", "data": (64, False)}


def test_an_array_of_a_gpu_for_a_cpu():
    with pytest.raises(graphc.ModelError, match="'image' is in a GPU's memory"):
        graphc.compile(DIGITS).run([OnTheDevice()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "gpu"}, "cpu, c"),
        ({"shapes": {"picture": (1,)}}, "picture"),
        ({"shapes": {"image": (1, 2, 8, 8)}}, "takes"),
        ({"dims": {"M": 1}}, "'M'"),
        ({"shapes": {"image": (1.5, 1, 8, 8)}}, "must be integers"),
        ({"shapes": {"image": 4}}, "a tuple of integers, found 4"),
        ({"dims": {"N": "4"}}, "an integer or a pair, found '4'"),
        ({"dims": {"N": (8, 1)}}, "nothing is within 8..1"),
        ({"dims": {"N": 1 << 64}}, "'N' is from 0 to 2\\^46, found 18446744073709551616"),
        ({"threads": 0}, "positive"),
        ({"nonsense": 1}, "no option 'nonsense'"),
        ({"passes": "nonsense"}, "no pass or rule"),
        ({"target": "cuda", "device": "cuda:0"}, "the number of a GPU, found 'cuda:0'"),
        ({"target": "cuda", "arch": ["sm_80"]}, "found .'sm_80'."),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(graphc.ModelError, match=message):
        graphc.compile(DIGITS, **options)


@pytest.mark.parametrize("source", [None, 3, onnx.ModelProto()])
def test_what_is_no_model(source):
    with pytest.raises(graphc.ModelError, match="a model is a path|has no graph"):
        graphc.compile(source)


def test_pinned_models_are_compiled_at_once(samples):
    programs = []
    model = graphc.compile(DIGITS, dims={"N": 2}, threads=1, observe=programs.append)
    assert len(programs) == 1 and programs[0].inputs[0][1].static_shape == (2, 1, 8, 8)
    model.run([samples["images"][:2]])
    assert len(programs) == 1
    with pytest.raises(graphc.ModelError):
        model.run([samples["images"][:3]])


def test_bounded_dimensions(samples):
    model = graphc.compile(DIGITS, dims={"N": (1, 4)}, threads=1)
    assert str(model.inputs[0].type) == "f32[N,1,8,8]"
    model.run([samples["images"][:4]])
    with pytest.raises(graphc.ModelError, match="out of 1..4"):
        model.run([samples["images"][:5]])


def test_text_round_trip(samples):
    graph = graphc.import_onnx(DIGITS)
    text = str(graph)
    from graphc.ir.text.printer import graph_constants

    again = graphc.parse(text, graph_constants(graph))
    assert again == graph and str(again) == text


def test_export_round_trip(samples):
    proto = graphc.export_onnx(graphc.import_onnx(DIGITS))
    (logits,) = onnxruntime(proto.SerializeToString())({"image": samples["images"]})
    assert np.allclose(logits, samples["logits"], atol=1e-4)


def test_backend_interface(samples):
    rep = graphc.backend.prepare(onnx.load(DIGITS), "CPU")
    (logits,) = rep.run([samples["images"]])
    assert (logits.argmax(1) == samples["logits"].argmax(1)).all()


def test_backend_interface_takes_a_target_as_an_option(samples):
    rep = graphc.backend.prepare(onnx.load(DIGITS), "CPU", target="c")
    (logits,) = rep.run([samples["images"][:2]])
    assert (logits.argmax(1) == samples["logits"][:2].argmax(1)).all()


def test_all_targets_and_references_agree(samples):
    feeds = {"image": samples["images"][:2]}
    graph = graphc.import_onnx(DIGITS)
    expected = onnxruntime(DIGITS, 1)(feeds)
    runs = [interpreter(graph)] + [graphc.compile(graph, t, threads=1).run for t in ("cpu", "c")]
    for run in runs:
        (result,) = agreements(["logits"], run(feeds), expected)
        assert result.within(1e-5)


# ---------------------------------------------------------------- comparing


def test_error_is_relative_to_the_range():
    expected = np.array([0.0, 100.0], np.float32)
    assert compare("y", expected + np.float32(1), expected).error == pytest.approx(0.01)
    assert compare("y", expected, expected).within(0)
    narrow = np.array([1000.0, 1000.5], np.float32)
    assert compare("y", narrow + np.float32(1), narrow).error == pytest.approx(1 / 1000.5)


def test_what_cannot_be_compared():
    x = np.ones(2, np.float32)
    nan, inf = np.array([1, np.nan], np.float32), np.array([1, np.inf], np.float32)
    assert compare("y", nan, nan).within(0) and compare("y", inf, inf).within(0)
    for found, expected in ((nan, x), (x, nan), (inf, nan), (-inf, inf), (x[:1], x), (None, x),
                            (x.astype(np.float64), x), ([x], [x, x]), ([x], x)):  # fmt: skip
        result = compare("y", found, expected)
        assert result.error == np.inf and result.problem
    words = np.array(["a", "b"], object)
    assert compare("y", words, words).within(0) and not compare("y", words, words[::-1]).within(1)
    assert not compare("y", [x, x], [x, x + 1]).within(0.1) and compare("y", [], []).within(0)
    assert not compare("y", np.array([True]), np.array([False])).within(1)


# ---------------------------------------------------------------- random inputs

EMBEDDING = """\
graph @g(
  %ids: i64[N],
  %attention_mask: i64[N],
  %x: f32[N],
  %flag: bool[2],
  %code: u8[3]
) -> f32[N,4] where N: 1..8 {
  const %table : f32[5,4] = random(seed=1)
  %rows = Gather(%table, %ids) : f32[N,4]
  return %rows
}
"""


def test_random_feeds():
    graph = graphc.parse(EMBEDDING)
    assert open_dims(graph) == {"N": 1} and index_bound(graph.params[0]) == 5
    from graphc.passes.specialise import pin

    pinned = pin(graph, dims={"N": 8})
    feeds = random_feeds(pinned, 3)
    assert list(feeds) == ["ids", "attention_mask", "x", "flag", "code"]
    assert feeds["ids"].shape == (8,) and 0 <= feeds["ids"].min() <= feeds["ids"].max() < 5
    assert (feeds["attention_mask"] == 1).all()
    assert feeds["code"].dtype == np.uint8 and feeds["flag"].dtype == bool
    again, other = random_feeds(pinned, 3), random_feeds(pinned, 4)
    assert np.array_equal(feeds["x"], again["x"]) and not np.array_equal(feeds["x"], other["x"])
    with pytest.raises(graphc.ModelError, match="shape"):
        random_feeds(graph)


def test_onnxruntime_gives_small_floats_as_bytes():
    graph = graphc.parse("""graph @g(%x: f32[3]) -> ? {
  %y = Cast(%x) {to=f8e4m3fn}
  return %y
}""")
    feeds = {"x": np.array([1, -2, 0.3], np.float32)}
    assert compare("y", onnxruntime(graph)(feeds)[0], interpreter(graph)(feeds)[0]).within(0)
