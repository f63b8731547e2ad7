"""What users are told: names that they may have meant, and what a model is, in a line."""

from __future__ import annotations

import numpy as np
import pytest
from commands import DIGITS, refused

import graphc
from graphc import dsl


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["verfy", DIGITS], "'verify'"),
        (["compile", DIGITS, "--tagret", "c"], "'--target'"),
        (["inspect", DIGITS, "--sed"], "'--seed'"),
        (["compile", DIGITS, "--target", "cdua"], "'cuda'"),
        (["compile", DIGITS, "--target", "c", "--cpu", "cortexm4"], "'cortex-m4'"),
        (["compile", DIGITS, "--dim", "n=4"], "'N'"),
        (["compile", DIGITS, "--shape", "imag=1,1,8,8"], "'image'"),
        (["run", DIGITS, "--input", "imge=x.npy"], "'image'"),
        (["compile", DIGITS, "--set", "Image=1"], "'image'"),
        (["compile", DIGITS, "--dim", "N=1", "--passes", "canonicalize"], "'canonicalise'"),
        (["compile", DIGITS, "--dim", "N=1", "--explain", "fold-bn"], "'fold-bn-into-conv'"),
    ],
    ids=lambda x: "" if isinstance(x, str) else " ".join(x[::2]),
)
def test_commands(capsys, argv, meant):
    message = refused(capsys, *argv)
    assert f"did you mean {meant}" in message or f" or {meant}" in message


def test_nothing_is_made_up(capsys):
    assert "did you mean" not in refused(capsys, "compile", DIGITS, "--xyzzy")
    message = refused(capsys, "compile", DIGITS, "--dim", "N=1", "--passes", "qqqqqq")
    assert "did you mean" not in message and "canonicalise" in message  # all that there are


def test_python():
    with pytest.raises(graphc.ModelError, match="did you mean 'threads'"):
        graphc.compile(DIGITS, "cpu", thread=1)
    with pytest.raises(graphc.ModelError, match="did you mean 'cpu'"):
        graphc.compile(DIGITS, "cpuu")
    with dsl.building("g") as g:
        x = g.input("x", dsl.f32[2])
        g.output(y=x)
        with pytest.raises(graphc.ModelError, match="did you mean 'Softmax'"):
            dsl.op("SoftMax", x)
        with pytest.raises(AttributeError, match="did you mean 'f32'"):
            _ = dsl.fp32
    model = graphc.compile(DIGITS)
    with pytest.raises(graphc.ModelError, match="did you mean 'logits'"):
        model.run([np.zeros((1, 1, 8, 8), np.float32)], into={"logit": np.zeros(1)})


def test_models_tell_what_they_are_in_a_line(tmp_path):
    model = graphc.compile(DIGITS, dims={"N": 1})
    assert repr(model) == "<graphc.CompiledModel (image: f32[1,1,8,8]) -> (logits)>"
    model.save(tmp_path / "m.gcm")
    assert repr(graphc.load(tmp_path / "m.gcm")).startswith("<graphc.SavedModel (image: f32[1,")
    told = repr(graphc.import_onnx(DIGITS))
    assert told == "<graphc.Graph main_graph of 31 ops: (image: f32[N,1,8,8]) -> (logits)>"


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_sizes_that_times_depend_on_are_asked_for(capsys, command):
    message = refused(capsys, command, DIGITS)
    assert "dimension N is open" in message and "--dim N=8" in message
