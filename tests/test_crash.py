"""The directory that an internal error leaves: it replays, and holds neither weights nor data."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from commands import DIGITS, graphc, make, save
from onnx import TensorProto, helper, numpy_helper

from graphc.cli import weightless
from graphc.cli.crash import leave_replay


@pytest.fixture
def crash(capsys, tmp_path, monkeypatch):
    """Fails inside graphc; the directory that this leaves."""

    def failing(*argv) -> Path:
        def broken(*args, **options):
            raise RuntimeError("broken")

        monkeypatch.chdir(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr("graphc.driver.optimise", broken)
            assert graphc(capsys, *argv)[0] == 70
        (folder,) = tmp_path.glob("graphc-crash-*")
        return folder

    return failing


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_no_weights_and_no_data(crash, tmp_path):
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    np.save(tmp_path / "image.npy", image)
    argv = ["compile", DIGITS, "--shape", "image=1,1,8,8", "--set", f"image=@{tmp_path}/image.npy"]
    folder = crash(*argv, "--emit", "kernel")
    assert "image=@5-image.npy" in json.loads((folder / "command.json").read_text())["argv"]
    assert np.load(folder / "5-image.npy").shape == image.shape
    held = bytes_of(folder)
    weights = [t for t in onnx.load(DIGITS).graph.initializer if np.prod(t.dims) > 8]
    assert weights
    for tensor in weights:
        assert numpy_helper.to_array(tensor).tobytes() not in held
    assert image.tobytes() not in held


def test_weights_that_are_asked_for(crash, monkeypatch):
    monkeypatch.setenv("GRAPHC_CRASH_WEIGHTS", "1")
    held = bytes_of(crash("compile", DIGITS, "--dim", "N=1", "--emit", "kernel"))
    assert Path(DIGITS).read_bytes() in held


@pytest.mark.parametrize("name", ["damaged.onnx", "model.gcm", "array.npy", "arrays.npz"])
def test_what_cannot_be_read_is_named_where_it_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    secret = np.arange(32, dtype=np.float32).tobytes()
    Path(name).write_bytes(secret)
    told = leave_replay(RuntimeError("broken"), ["run", name])
    (folder,) = tmp_path.glob("graphc-crash-*")
    assert told.endswith(f"graphc replay {folder.name}")
    assert secret not in bytes_of(folder)
    recorded = json.loads((folder / "command.json").read_text())
    assert recorded["argv"] == ["run", str(tmp_path / name)]


def test_tensors_everywhere_are_drawn_anew(tmp_path):
    secret = np.arange(20, dtype=np.float32) + 0.125
    inside = helper.make_graph(
        [helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(secret, "inner"))],
        "branch", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, [20])],
    )  # fmt: skip
    half = numpy_helper.from_array(secret.astype(ml_dtypes.bfloat16), "half")
    small = numpy_helper.from_array(np.array([2, 3], np.int64), "shape")
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=inside),
        helper.make_node("Constant", [], ["l"], value_floats=secret.tolist()),
        helper.make_node("Constant", [], ["s"], value_strings=[b"secret%d" % n for n in range(9)]),
    ]
    model = make(nodes, [("c", TensorProto.BOOL, ())], constants=[half, small])
    weightless.copy(Path(save(tmp_path / "m.onnx", model)), tmp_path / "copy.onnx")
    copy = onnx.load(tmp_path / "copy.onnx")
    held = copy.SerializeToString()
    for hidden in (secret.tobytes(), secret.astype(ml_dtypes.bfloat16).tobytes(), b"secret1"):
        assert hidden in model.SerializeToString() and hidden not in held
    assert [t.name for t in copy.graph.initializer] == ["half", "shape"]
    assert copy.graph.initializer[0].data_type == TensorProto.BFLOAT16
    np.testing.assert_array_equal(numpy_helper.to_array(copy.graph.initializer[1]), [2, 3])


@pytest.mark.parametrize(
    "dtype",
    ["f4", "f2", "f8", "i1", "u8", "?", "c8", "U5", ml_dtypes.int4, ml_dtypes.float8_e4m3fn],
)
def test_arrays_keep_type_shape_and_range(dtype):
    array = (np.arange(24) % 7).reshape(4, 6).astype(dtype)
    drawn = weightless.drawn(array, "w")
    assert drawn.dtype == array.dtype or array.dtype.kind == "U"
    assert drawn.shape == array.shape and (drawn != array).any()
    if array.dtype.kind in "fiu":
        assert array.min() <= drawn.min() and drawn.max() <= array.max()
    np.testing.assert_array_equal(drawn, weightless.drawn(array, "w"))
