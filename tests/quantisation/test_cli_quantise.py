"""graphc quantise on the command line."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import onnx
import pytest
from commands import DIGITS, ROOT, ok, refused

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def data():
    (value,) = onnx.load(DIGITS).graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]]
    rng = np.random.default_rng(0)
    np.savez("calib.npz", **{value.name: rng.random((8, *shape)).astype(np.float32)})
    return value.name


def test_quantises_and_reports(capsys, data):
    out = ok(capsys, "quantise", DIGITS, "--data", "calib.npz", "-o", "q.onnx")
    assert "wrote q.onnx" in out and "SQNR" in out and "8 samples" in out
    ok(capsys, "verify", "q.onnx", "--dim", "N=1")


def test_json(capsys, data):
    argv = ("quantise", DIGITS, "--data", "calib.npz", "-o", "q.onnx", "--json", "--integers")
    report = json.loads(ok(capsys, *argv))
    assert report["layers"] and all(layer["weight_bits"] == 8 for layer in report["layers"])
    assert report["samples"] == 8 and 0 <= report["agreement"] <= 1


def test_mistakes(capsys, data):
    assert "no such file" in refused(
        capsys, "quantise", DIGITS, "--data", "none.npz", "-o", "q.onnx"
    )
    assert "ending in .onnx" in refused(
        capsys, "quantise", DIGITS, "--data", "calib.npz", "-o", "q.gcm"
    )
    np.savez("other.npz", other=np.zeros((2, 2), np.float32))
    assert "there is no array" in refused(
        capsys, "quantise", DIGITS, "--data", "other.npz", "-o", "q.onnx"
    )


def test_the_commands_of_the_page_work(capsys, data):
    text = (ROOT / "docs" / "quantising.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 3
    for line in lines:
        ok(capsys, *shlex.split(line.replace("models/digits_cnn.onnx", DIGITS))[1:])
