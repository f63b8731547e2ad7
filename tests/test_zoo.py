"""Known architectures: agreement with ONNX Runtime, memory, determinism and the round trip of text.

The models are not in this repository: they are looked for in $GRAPHC_MODELS, then beside the
checkout. Only the small ones run by default; GRAPHC_TEST_ALL=1 runs all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from programs import check_program

import graphc
from graphc import verify
from graphc.backends.llvm_cpu.codegen import llvm_text
from graphc.driver import program_for
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.compare import agreements
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants, print_graph, print_program
from graphc.ir.verify.graphs import verify as verify_graph
from graphc.passes import Hook
from graphc.passes.specialise import pin, specialise
from graphc.runtime.feeds import random_feeds

BESIDE = Path(__file__).parents[2] / "shared" / "models"
MODELS = Path(os.environ.get("GRAPHC_MODELS", BESIDE))
HOLLOW = MODELS.parent / "tools" / "hollow.py"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
ALL = os.environ.get("GRAPHC_TEST_ALL") == "1"
TOLERANCE = 1e-4  # of the range of an output
ARENA_SLACK = 1.05  # largest arena over its proven lower bound
SMALL_ZOO = {"mlp_mnist", "lstm_tagger", "resnet18", "mobilenet_v2", "llama_tiny", "unet_small"}
SMALL_LIGHT = {"squeezenet", "shufflenet"}
SIMULATED = {"mlp_mnist", "resnet18"} | ({"lstm_tagger"} if ALL else set())
HALF_TOLERANCE = 1e-2
CROP = 32  # height and width of the images that resnet18 gets in the simulator
BATCH, SEQUENCE = 1, 16  # for dimensions left open


def chosen(folder: str, pattern: str, small: set[str] | None) -> list[Path]:
    paths = sorted((MODELS / folder).glob(pattern))
    return [p for p in paths if ALL or small is None or p.stem in small]


ZOO = chosen("zoo", "*.onnx", SMALL_ZOO)
TINY = chosen("mlperf_tiny", "*_f32.onnx", None)
LIGHTS = [
    p for p in sorted(LIGHT.glob("*.onnx")) if ALL or p.stem.removeprefix("light_") in SMALL_LIGHT
]


@lru_cache(maxsize=2)
def loaded(path: Path) -> onnx.ModelProto:
    """A model, its weights drawn again if they were taken out."""
    model = onnx.load(path)
    if any(p.key == "hollow" for p in model.metadata_props):
        spec = importlib.util.spec_from_file_location("hollow", HOLLOW)
        assert spec is not None and spec.loader is not None
        hollow = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hollow)
        model = hollow.fill(model)
    return model


def static_graph(path: Path) -> Graph:
    graph = import_onnx(loaded(path))
    sizes = {name: BATCH if "batch" in name.lower() else SEQUENCE for name in graph.symbols}
    return specialise(pin(graph, dims=sizes))


def cropped(path: Path) -> onnx.ModelProto:
    """A model; resnet18 for small images."""
    model = loaded(path)
    if path.stem == "resnet18":
        model = onnx.ModelProto.FromString(model.SerializeToString())
        for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
            dim.dim_value = CROP
        del model.graph.value_info[:]
    return model


def check(path: Path, target: str = "cpu") -> None:
    """Outputs agree with ONNX Runtime's; the arena is near its bound."""
    programs: list[Program] = []
    graph = static_graph(path)
    feeds = random_feeds(graph)
    model = graphc.compile(graph, target, threads=1, observe=programs.append)
    expected = verify.onnxruntime(loaded(path).SerializeToString(), 1)(feeds)
    names = [spec.name for spec in model.outputs]
    for agreement in agreements(names, model.run(feeds), expected):
        assert agreement.within(TOLERANCE), agreement
    for program in programs:
        assert program.arena_lower_bound <= program.arena_bytes
        assert program.arena_bytes <= ARENA_SLACK * program.arena_lower_bound


def parametrised(paths: list[Path]):
    return pytest.mark.parametrize("path", paths, ids=lambda p: p.stem)


@parametrised(ZOO)
def test_zoo(path):
    check(path)


@parametrised(LIGHTS)
def test_light_models(path):
    check(path)


@parametrised(TINY)
def test_mlperf_tiny(path):
    check(path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
@parametrised([*TINY, *[p for p in ZOO if p.stem in SIMULATED]])
def test_in_the_simulator(path, precision):
    """Kernels for GPUs, run on the host."""
    if precision != "f32" and path.stem != "mlp_mnist" and not ALL:
        pytest.skip("only with GRAPHC_TEST_ALL=1")
    model = cropped(path)
    graph = specialise(import_onnx(model))
    feeds = random_feeds(graph)
    compiled = graphc.compile(graph, "cuda", simulate=True, precision=precision)
    expected = verify.onnxruntime(model.SerializeToString(), 1)(feeds)
    names = [spec.name for spec in compiled.outputs]
    for agreement in agreements(names, compiled.run(feeds), expected):
        assert agreement.within(TOLERANCE if precision == "f32" else HALF_TOLERANCE), agreement


@pytest.mark.gpu
@parametrised([*ZOO, *TINY])
def test_on_a_gpu(path):
    check(path, "cuda")


# ---------------------------------------------------------------- many shapes


MANY_SHAPES = [(1, 8), (4, 8), (2, 37), (1, 128)]


@pytest.mark.skipif(not (MODELS / "zoo/distilbert_dyn.onnx").exists(), reason="no such model here")
def test_one_model_for_many_shapes(pytestconfig):
    model = loaded(MODELS / "zoo" / "distilbert_dyn.onnx")
    compiled = graphc.compile(model, threads=1)
    reference = verify.onnxruntime(model.SerializeToString(), 1)
    shapes = [(1, 8), (2, 37)] if pytestconfig.getoption("quick") else MANY_SHAPES
    if ALL:
        shapes = [(b, s) for b in range(1, 5) for s in (8, 21, 64, 128)]
    for batch, sequence in shapes:
        rng = np.random.default_rng(sequence)
        feeds = {
            spec.name: np.ones((batch, sequence), np.int64)
            if "mask" in spec.name
            else rng.integers(0, 1000, (batch, sequence))
            for spec in compiled.inputs
        }
        names = [spec.name for spec in compiled.outputs]
        for agreement in agreements(names, compiled.run(feeds), reference(feeds)):
            assert agreement.within(TOLERANCE), (batch, sequence, agreement)


# ---------------------------------------------------------------- text and determinism


class RoundTrip(Hook):
    """After every pass the graph verifies, and its text parses back to an equal graph."""

    def after(self, step, graph, ctx, changed) -> None:
        verify_graph(graph)
        text = print_graph(graph)
        again = parse_graph(text, graph_constants(graph))
        assert again == graph and print_graph(again) == text, f"after {step}"


TEXT_MODELS = [
    *TINY,
    *[p for p in LIGHTS if ALL],
    *[p for p in ZOO if ALL or p.stem in ("mobilenet_v2", "llama_tiny", "lstm_tagger")],
]


@pytest.mark.suite(1)
@parametrised(TEXT_MODELS)
def test_text_after_every_phase(path):

    graph = import_onnx(loaded(path))
    text = print_graph(graph)
    assert parse_graph(text, graph_constants(graph)) == graph
    typed = static_graph(path)
    assert parse_graph(print_graph(typed), graph_constants(typed)) == typed
    program = program_for(typed, hooks=[RoundTrip()])
    check_program(program)
    again = program_for(static_graph(path))
    assert print_program(again) == print_program(program)
    assert llvm_text(again) == llvm_text(program)
