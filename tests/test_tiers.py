"""The program for all shapes, exact programs behind it, and what decides between them."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import graphc
from graphc.cli import main, options
from graphc.driver import Settings
from graphc.errors import ModelError
from graphc.runtime import recurring
from graphc.runtime.recurring import Background

MLP = """graph @mlp(%x: f32[N,8]) -> ? where N: {bounds} {{
  const %a : f32[8,16] = random(seed=1)
  const %b : f32[16,4] = random(seed=2)
  %h = MatMul(%x, %a)
  %r = Relu(%h)
  %y = MatMul(%r, %b)
  %s = Softmax(%y) {{axis=0}}
  return %s
}}
"""


def mlp(bounds: str = "1..64"):
    return graphc.parse(MLP.format(bounds=bounds))


def batch(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)


def agrees(model: graphc.CompiledModel, count: int) -> None:
    x = batch(count)
    (found,), (expected,) = model.run([x]), graphc.interpret(mlp("0.."), [x])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def shapes_of(model: graphc.CompiledModel) -> list[str]:
    return [", ".join(str(list(shape)) for shape in key) for key, _ in model.executables()]


def test_one_program_serves_all_batches():
    model = graphc.compile(mlp(), specialise="any", threads=1)
    assert shapes_of(model) == ["[N, 8]"]  # before the first run: all bounds are known
    for count in range(1, 65):
        agrees(model, count)
    assert shapes_of(model) == ["[N, 8]"]
    assert model.why_exact == ""


def test_what_is_out_of_bounds_is_refused_as_before():
    model = graphc.compile(mlp(), specialise="any", threads=1)
    with pytest.raises(ModelError, match="N = 65"):
        model.run([batch(65)])


def test_sizes_of_zero_have_exact_programs():
    model = graphc.compile(mlp("0..8"), specialise="any", threads=1)
    (found,) = model.run([batch(0)])
    assert found.shape == (0, 4)
    agrees(model, 3)
    assert shapes_of(model) == ["[N, 8]", "[0, 8]"]
    assert "N = 0" in model.why_exact


def test_bounds_grow_where_there_are_none():
    model = graphc.compile(mlp("1.."), specialise="any", threads=1)
    assert not model.executables()
    for count in (2, 16, 3, 100, 1):
        agrees(model, count)
    ((key, native),) = model.executables()
    assert key[0][0].hi == 1024 and native.image.sizes == (key[0][0],)  # 16, then 8 times 100


def test_exact_programs_follow_where_they_pay(monkeypatch):
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    model._specialised.recurring.background.wait()
    assert shapes_of(model) == ["[N, 8]", "[5, 8]"]
    agrees(model, 5)
    agrees(model, 6)


def test_exact_programs_wait_until_they_pay():
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    model._specialised.recurring.background.wait()
    assert shapes_of(model) == ["[N, 8]"]


def test_background_is_limited():
    background = Background()
    background.busy, background.count = 1e6, 2
    done: list[int] = []
    background.start(lambda: done.append(1))
    background.wait()
    assert not done and background.cost == 5e5


def test_runs_from_several_threads(monkeypatch):
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for count in range(first, first + 6):
                agrees(model, count)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(first,)) for first in (1, 4, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_operators_made_for_one_shape_are_compiled_for_it():
    graph = graphc.parse("graph @g(%x: f32[N]) -> ? where N: 1..9 { const %k : i64[] = 0 "
                         "%y = CumSum(%x, %k) return %y }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    (found,) = model.run([np.ones(4, np.float32)])
    assert found.tolist() == [1, 2, 3, 4]
    assert shapes_of(model) == ["[4]"]
    assert "CumSum" in model.why_exact


def test_targets_without_open_sizes_compile_for_each_shape():
    model = graphc.compile(mlp(), target="c", specialise="any")
    agrees(model, 3)
    assert shapes_of(model) == ["[3, 8]"]
    assert model.why_exact == "target c has no programs for all shapes"


def test_exact_is_the_default_and_others_are_refused():
    model = graphc.compile(mlp(), threads=1)
    agrees(model, 3)
    assert shapes_of(model) == ["[3, 8]"]
    with pytest.raises(ModelError, match="specialise must be one of any, exact, auto"):
        graphc.compile(mlp(), specialise="some")


def test_the_command():
    model = str(Path(__file__).parent.parent / "models" / "digits_cnn.onnx")
    assert main(["run", model, "--dim", "N=3", "--specialise", "auto"]) == 0
    assert main(["run", model, "--dim", "N=3", "--specialise", "some"]) == 2
    for mode in options.MODES:
        assert Settings(specialise=mode).specialise == mode
