"""Programs of open shape in files and in the cache: saved, loaded, and run at every size."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.cli import main
from graphc.cli.saved import contents
from graphc.errors import ModelError, UnsupportedError
from graphc.runtime import recurring
from graphc.runtime.model_cache import CachedModel

pytestmark = pytest.mark.usefixtures("own_cache")
WEIGHTS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def model_file(path, size="batch"):
    """A file of softmax(x @ weights), and x between rows of zeros, for any number of rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Softmax", ["y"], ["s"], axis=1),
        helper.make_node("Pad", ["x", "ends"], ["padded"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, 8])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("s", "padded")
    ]
    ends = np.array([1, 0, 1, 0], np.int64)
    constants = [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(ends, "ends")]
    graph = helper.make_graph(nodes, "open", [x], outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)


def agrees(model: graphc.Runnable, count: int) -> None:
    x = rows(count)
    softmax, padded = model.run([x])
    powers = np.exp(x @ WEIGHTS)
    np.testing.assert_allclose(softmax, powers / powers.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_array_equal(padded, np.pad(x, ((1, 1), (0, 0))))


def compiled(path, mode="any", bounds=(1, 40)):
    dims = {"batch": bounds} if bounds else None
    return graphc.compile(path, dims=dims, specialise=mode, threads=1)


# ---------------------------------------------------------------- files


def test_a_saved_model_runs_at_every_size(tmp_path):
    compiled(model_file(tmp_path / "m.onnx")).save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm", threads=1)
    for count in range(1, 41):
        agrees(loaded, count)
    for count in (0, 41):
        with pytest.raises(ModelError, match=rf"batch = {count}\b"):
            loaded.run([rows(count)])


def test_bounds_that_grew_are_told(tmp_path):
    model = compiled(model_file(tmp_path / "m.onnx"), bounds=None)
    with pytest.raises(ModelError, match="dimension batch is open"):
        model.save(tmp_path / "m.gcm")
    agrees(model, 3)
    model.save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm", threads=1)
    agrees(loaded, 32)
    with pytest.raises(ModelError, match=r"dimension batch = 33 is not in 1\.\.32"):
        loaded.run([rows(33)])


def test_exact_programs_are_saved_beside_it(tmp_path):
    model = compiled(model_file(tmp_path / "m.onnx"), bounds=(0, 40))
    model._specialised.compile_for(((7, 8),))
    agrees(model, 0)  # by a program for all shapes, as a request was empty
    model.save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm", threads=1)
    agrees(loaded, 7)
    agrees(loaded, 8)
    agrees(loaded, 0)
    with pytest.raises(ModelError, match=r"dimension batch = 41 is not in 0\.\.40"):
        loaded.run([rows(41)])
    text = contents(str(tmp_path / "m.gcm"), None)
    assert "\n[7, 8] " in text and "\n[batch, 8] " in text and "\n[0, 8]" not in text
    assert "where batch is in 0..40" in text


def test_without_a_general_program_all_shapes_are_saved(tmp_path):
    graph = graphc.parse("graph @g(%x: f32[3,3,3], %i: i64[2,N]) -> ? where N: 1..3 "
                         "{ %y = GatherND(%x, %i) return %y }")  # fmt: skip
    graphc.compile(graph, specialise="any", threads=1).save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm", threads=1)
    x = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    np.testing.assert_array_equal(loaded.run([x, np.array([[0, 1, 2], [2, 2, 2]])])[0], [5, 26])
    with pytest.raises(UnsupportedError, match="saved for inputs of shapes"):
        loaded.run([x, np.zeros((2, 4), np.int64)])


# ---------------------------------------------------------------- the cache

WARM = """
import sys
import numpy as np
import graphc
model = {how}
print([[y.shape[0] for y in model.run([np.ones((n, 8), np.float32)])] for n in (5, 31)])
heavy = ("onnx", "llvmlite", "graphc.ir.graph", "graphc.passes", "graphc.driver", "graphc.targets")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere LLVM loads the code")
def test_a_warm_process_imports_no_compiler(tmp_path):
    path = model_file(tmp_path / "m.onnx")
    model = compiled(path)
    model.save(tmp_path / "m.gcm")
    arguments = f"{str(path)!r}, dims={{'batch': (1, 40)}}, specialise='any', threads=1"
    for how in (f"graphc.compile({arguments})", f"graphc.load({str(tmp_path / 'm.gcm')!r})"):
        told = ""
        for _ in range(2):  # the first one may compile what checks digests
            told = subprocess.run(
                [sys.executable, "-c", WARM.format(how=how)],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        assert told == "[[5, 7], [31, 33]]\n[]\n"


@pytest.mark.parametrize("mode", ["any", "auto"])
def test_the_general_program_comes_from_the_cache(tmp_path, mode):
    path = model_file(tmp_path / "m.onnx")
    compiled(path, mode)
    model = compiled(path, mode)
    assert type(model) is CachedModel and model.prepare()
    for count in (1, 9, 40):
        agrees(model, count)
    assert "whole" not in vars(model)
    with pytest.raises(ModelError, match="batch = 41"):
        model.run([rows(41)])


def test_the_cache_follows_bounds_that_grow(tmp_path):
    path = model_file(tmp_path / "m.onnx")
    agrees(compiled(path, bounds=None), 3)
    model = compiled(path, bounds=None)
    agrees(model, 32)
    assert "whole" not in vars(model)
    agrees(model, 33)
    assert "whole" in vars(model)
    again = compiled(path, bounds=None)
    for count in (33, 200, 3):
        agrees(again, count)
    assert "whole" not in vars(again)


def test_shapes_that_keep_coming_are_compiled_for_once(tmp_path, monkeypatch):
    path = model_file(tmp_path / "m.onnx")
    compiled(path, "auto")
    model = compiled(path, "auto")
    agrees(model, 5)
    assert "whole" not in vars(model)
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    agrees(model, 5)
    model._recurring.background.wait()
    assert not model._ready[(5, 8),].image.sizes
    agrees(model, 5)
    again = compiled(path, "auto")
    agrees(again, 5)
    assert "whole" not in vars(again) and not again._ready[(5, 8),].image.sizes


def test_equal_graphs_of_other_bounds_are_other_programs(tmp_path):
    path = model_file(tmp_path / "m.onnx")
    compiled(path, bounds=(1, 4))
    agrees(compiled(path, bounds=(1, 400)), 300)


def test_the_command_saves_more_sizes_than_it_would_compile_for(tmp_path):
    path, saved = model_file(tmp_path / "m.onnx"), tmp_path / "m.gcm"
    options = ["--dim", "batch=1..5000", "--threads", "1", "-o", str(saved)]
    assert main(["compile", str(path), "--specialise", "exact", *options]) != 0
    assert main(["compile", str(path), *options]) == 0
    x = np.ones((4321, 8), np.float32)
    result, _ = graphc.load(saved).run([x])
    expected, _ = graphc.compile(str(path), threads=1).run([x])
    np.testing.assert_allclose(result, expected, rtol=1e-5)
