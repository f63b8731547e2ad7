"""Training steps in files: graphc compile --train, for Python, for C and for ONNX Runtime."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import train
from graphc.cli.app import main

MODEL = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
RNG = np.random.default_rng(0)
BATCHES = [(RNG.random((4, 1, 8, 8), np.float32), RNG.integers(0, 10, 4)) for _ in range(3)]
RATE = 0.01


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"step{suffix}"
    options = ["--train", "last 1 layers", "--optimizer", "adamw", "--dim", "N=4"]
    assert main(["compile", str(MODEL), *options, "-o", str(path)]) == 0
    return path


def in_graphc(path: Path):
    model = graphc.load(path)

    names = [output.name for output in model.outputs]
    return lambda feeds: dict(zip(names, model.run(feeds)))


def in_onnx_runtime(path: Path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds)))


def in_c(path: Path):
    """The shared library, by ctypes; names and sizes are those that its header gives."""
    library = ctypes.CDLL(str(path))
    header = path.with_suffix(".h").read_text().splitlines()

    def listed(kind: str) -> list[tuple[str, int]]:
        start = f"#define STEP_{kind}"
        names = [x.split('"')[1] for x in header if x.startswith(start) and "_NAME" in x]
        sizes = [int(x.split()[-1]) for x in header if x.startswith(start) and "_ELEMENTS" in x]
        return list(zip(names, sizes))

    library.step_create.restype = ctypes.c_void_p

    def run(feeds):
        given = [np.array(feeds[name], order="C") for name, _ in listed("INPUT")]
        made = {name: np.zeros(size, np.float32) for name, size in listed("OUTPUT")}
        context = ctypes.c_void_p(library.step_create(1))
        pointers = [
            (ctypes.c_void_p * len(group))(*(a.ctypes.data for a in group))
            for group in (given, list(made.values()))
        ]
        assert library.step_run(context, *pointers) == 0
        library.step_destroy(context)
        shapes = {f"new {name}": a.shape for name, a in feeds.items()}
        return {name: a.reshape(shapes.get(name, ())) for name, a in made.items()}

    return run


RUNNERS = {".gcm": in_graphc, ".so": in_c, ".onnx": in_onnx_runtime}


@pytest.mark.parametrize("suffix", RUNNERS)
def test_steps_are_those_of_python(suffix, tmp_path):
    path = written(tmp_path, suffix)
    run, state = RUNNERS[suffix](path), dict(np.load(path.with_suffix(".npz")))
    step = train.Step(MODEL, "cross_entropy", train.AdamW(RATE), ["fc.*"], train_mode=False)
    for x, labels in BATCHES:
        feeds = {"image": x, "target": labels.astype(np.int32)}
        made = run({**feeds, "rate of the step": np.array(RATE, np.float32), **state})
        loss = step((x, labels.astype(np.int32))).loss
        np.testing.assert_allclose(made["loss"], loss, rtol=1e-5)
        state = {name: made[f"new {name}"] for name in state}
    for name in ("fc.weight", "fc.bias"):
        np.testing.assert_allclose(state[name], step.state_dict()[name], atol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-o", "step.onnx"], "give --train"),
        (["--train", "nothing.*", "--dim", "N=4", "-o", "step.onnx"], "no parameter matches"),
        (["--train", "all", "-o", "step.onnx"], "dimension N is open"),
        (["--train", "all"], "--train: goes with --target cpu and a file"),
    ],
)
def test_what_is_refused(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compile", str(MODEL), *arguments]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
