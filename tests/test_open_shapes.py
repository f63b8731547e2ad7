"""One program for all sizes within bounds: it gives what the static graph of each size gives."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from open_shapes import loops_of_any_size, run_at
from programs import check_program

import graphc
from graphc.driver import configured, load_graph, optimise
from graphc.errors import ModelError, UnsupportedError
from graphc.ir import sizes
from graphc.ir.compare import compare
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.ir.sizes import sizes_of
from graphc.ir.types import at
from graphc.passes.checks import add_checks
from graphc.passes.general import check_open, general
from graphc.passes.layout import row_major_operands
from graphc.passes.lower import lower
from graphc.passes.specialise import pin, specialise
from graphc.runtime.feeds import random_feeds

ROOT = Path(__file__).parent.parent
WILD = ROOT / "tests" / "models_wild"
MODELS = {
    ROOT / "models" / "digits_cnn.onnx": [{"N": 1}, {"N": 3}],
    WILD / "sklearn_mlp.onnx": [{"X_dim0": n} for n in (1, 7, 64)],
    WILD / "sklearn_mixture.onnx": [{"X_dim0": n} for n in (1, 7, 64)],
    WILD / "sklearn_gaussian_process.onnx": [{"X_dim0": n} for n in (1, 64)],
    WILD / "decoder_sliding.onnx": [
        {"new": 1, "past": 1, "total": 2}, {"new": 3, "past": 4, "total": 7},
    ],
}  # fmt: skip
WHERE = "where N: 1..5, S: 1..6, H: 5..9"
GRAPHS = {
    "broadcast": "(%x: f32[N,S,4], %y: f32[N,1,4]) -> ? {} { %a = Add(%x, %y) %r = Relu(%a)",
    "matmul": "(%x: f32[N,S,4], %y: f32[N,4,S]) -> ? {} { %r = MatMul(%x, %y)",
    "gemm": "(%x: f32[N,4]) -> ? {} { const %w : f32[4,6] = random(seed=1) %r = Gemm(%x, %w)",
    "conv": "(%x: f32[N,3,H,H]) -> ? {} { const %w : f32[4,3,3,3] = random(seed=1) "
    "%r = Conv(%x, %w) {{pads=[1,1,1,1], strides=[2,2]}}",
    "depthwise": "(%x: f32[N,3,H,8]) -> ? {} { const %w : f32[3,1,3,3] = random(seed=1) "
    "%a = Conv(%x, %w) {{group=3}} %r = Transpose(%a) {{perm=[0,2,3,1]}}",
    "pools": "(%x: f32[N,3,H,H]) -> ? {} { %a = MaxPool(%x) {{kernel_shape=[3,3], strides=[2,2]}} "
    "%r = GlobalAveragePool(%a)",
    "average": "(%x: f32[N,2,H]) -> ? {} { %r = AveragePool(%x) {{kernel_shape=[3], pads=[1,1]}}",
    "softmax": "(%x: f32[N,S]) -> ? {} { %r = Softmax(%x) {{axis=1}}",
    "norm": "(%x: f32[N,S,6]) -> ? {} { const %s : f32[6] = random(seed=1) "
    "%r = LayerNormalization(%x, %s)",
    "mean": "(%x: f32[N,S,3]) -> ? {} { const %a : i64[1] = [1] "
    "%r = ReduceMean(%x, %a) {{keepdims=0}}",
    "concat": "(%x: f32[N,S], %y: f32[N,3]) -> ? {} { %r = Concat(%x, %y, %x) {{axis=1}}",
    "twice": "(%x: f32[N,3]) -> ? {} { %r = Concat(%x, %x) {{axis=0}}",
    "slice": "(%x: f32[N,H]) -> ? {} { const %b : i64[1] = [-3] const %e : i64[1] = [1000] "
    "const %a : i64[1] = [1] %r = Slice(%x, %b, %e, %a)",
    "heads": "(%x: f32[N,S,12]) -> ? {} { const %s : i64[4] = [0,0,3,4] %a = Reshape(%x, %s) "
    "%b = Transpose(%a) {{perm=[0,2,1,3]}} const %t : i64[2] = [-1,4] %r = Reshape(%b, %t)",
    "shapes": "(%x: f32[N,S,6]) -> ? {} { %d = Shape(%x) const %one : i64[1] = [1] "
    "const %zero : i64[1] = [0] %n = Gather(%d, %zero) %s = Gather(%d, %one) %m = Mul(%n, %s) "
    "const %two : i64[1] = [2] const %three : i64[1] = [3] "
    "%t = Concat(%m, %three, %two) {{axis=0}} %a = Reshape(%x, %t) "
    "%b = Transpose(%a) {{perm=[1,0,2]}} %c = Neg(%b) %u = Concat(%three, %n, %s, %two) {{axis=0}} "
    "%r = Reshape(%c, %u)",
    "expand": "(%x: f32[N,1]) -> ? {} { const %s : i64[3] = [2,1,4] %r = Expand(%x, %s)",
    "positions": "(%x: i64[N,S]) -> ? {} { const %w : f32[9,3] = random(seed=1) %d = Shape(%x) "
    "const %at : i64[] = 1 %s = Gather(%d, %at) const %z : i64[] = 0 const %o : i64[] = 1 "
    "%p = Range(%z, %s, %o) %e = Gather(%w, %p) %y = Cast(%x) {{to=1}} "
    "const %l : i64[1] = [2] %v = Unsqueeze(%y, %l) %r = Add(%v, %e)",
    "pad": "(%x: f32[N,H]) -> ? {} { const %p : i64[4] = [0,1,0,2] %r = Pad(%x, %p)",
    "upsample": "(%x: f32[N,2,H,H]) -> ? {} { const %s : f32[4] = [1.0,1.0,2.0,2.5] "
    '%r = Resize(%x, _, %s) {{mode="linear"}}',
    "to the size of another": "(%x: f32[N,2,H,S], %y: f32[N,3,S,H]) -> ? {} { %d = Shape(%y) "
    "const %two : i64[1] = [2] const %end : i64[1] = [4] const %c : i64[2] = [1,2] "
    "%to = Slice(%d, %two, %end) %n = Shape(%x) const %zero : i64[1] = [0] "
    "%own = Slice(%n, %zero, %two) %size = Concat(%own, %to) {{axis=0}} "
    '%r = Resize(%x, _, _, %size) {{mode="linear"}}',
    "nearest": "(%x: f32[N,2,H]) -> ? {} { const %s : f32[3] = [1.0,1.0,3.0] "
    '%r = Resize(%x, _, %s) {{mode="nearest", coordinate_transformation_mode="asymmetric"}}',
    "argmax": "(%x: f32[N,S]) -> ? {} { %r = ArgMax(%x) {{axis=1}}",
}
"""Graphs by name; `{}` stands for the bounds of their symbols."""


def program_of(graph: Graph) -> Program:
    """The program of a graph of open shape, of plain loops."""
    typed = general(graph)
    target, settings = configured("cpu", None, {})
    optimise(typed, settings, target=target)
    row_major_operands(typed, settings.context)
    check_open(typed)
    program = lower(typed, [loops_of_any_size])
    check_program(program)
    return program


def agrees_at(program: Program, graph: Graph, dims: Mapping[str, int], seed: int) -> None:
    feeds = random_feeds(pin(graph, dims=dims), seed)
    shapes = {name: array.shape for name, array in feeds.items()}
    expected = interpret(specialise(graph, shapes), list(feeds.values()))
    for found, wanted in zip(run_at(program, list(feeds.values())), expected, strict=True):
        agreement = compare("output", found, wanted)
        assert agreement.within(2e-5), f"{dict(dims)}: {agreement}"


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models(path):
    graph = load_graph(path)
    graph = pin(graph, dims={name: (1, 64) for name in graph.symbols if name != "_"})
    program = program_of(graph)
    for seed, dims in enumerate(MODELS[path]):
        agrees_at(program, graph, dims, seed)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name):
    text = GRAPHS[name].replace("{}", WHERE, 1).replace("{{", "{").replace("}}", "}")
    graph = graphc.parse(f"graph @g{text} return %r }}")
    program = program_of(graph)
    dice = random.Random(name)
    used = program.sizes
    for seed in range(8):
        dims = {s.name: (s.lo, s.hi)[seed] if seed < 2 else dice.randint(s.lo, s.hi) for s in used}
        agrees_at(program, graph, dims, seed)


def test_sizes_are_checked():
    graph = graphc.parse("graph @g(%x: f32[N,2], %y: f32[N,1]) -> ? where N: 1..4 {"
                         " %r = Mul(%x, %y) return %r }")  # fmt: skip
    program = program_of(graph)
    assert sizes_of(program.sizes, program.inputs, [(3, 2), (3, 1)]) == (3,)
    with pytest.raises(ModelError, match="dimension N = 5 is not in 1..4"):
        sizes_of(program.sizes, program.inputs, [(5, 2), (5, 1)])
    with pytest.raises(ModelError, match="input 'y' takes"):
        sizes_of(program.sizes, program.inputs, [(3, 2), (2, 1)])


def test_a_new_size_takes_little_arithmetic(monkeypatch):
    """Expressions are evaluated once each, and where dims are sizes there are none."""
    graph = graphc.parse("graph @g(%x: f32[N,M], %y: f32[N,M+1], %z: f32[M+1]) -> ? "
                         "where N: 1..4, M: 1..4 { %r = Mul(%y, %z) return %r }")  # fmt: skip
    interface = [(p.name, p.tensor) for p in graph.params]
    evaluated = []
    monkeypatch.setattr(sizes, "at", lambda dim, known: evaluated.append(dim) or at(dim, known))
    symbols = list(graph.symbols.values())
    assert sizes.sizes_of(symbols, interface, [(3, 2), (3, 3), (3,)]) == (3, 2)
    assert len(evaluated) == 1


def test_what_depends_on_a_size_being_one_is_refused():
    graph = graphc.parse(f"graph @g(%x: f32[N,2,S]) -> ? {WHERE} {{ %r = Squeeze(%x) return %r }}")
    with pytest.raises(UnsupportedError, match="Squeeze.* at N = 1, S = 1"):
        general(graph)
    graph = graphc.parse(f"graph @g(%x: f32[N], %y: f32[S]) -> ? {WHERE} {{ %r = Add(%x, %y) "
                         "return %r }")  # fmt: skip
    with pytest.raises(UnsupportedError, match="may be 1"):
        general(graph)


def test_what_depends_on_data_is_refused():
    graph = graphc.parse(f"graph @g(%x: f32[N]) -> ? {WHERE} {{ %r = NonZero(%x) return %r }}")
    with pytest.raises(UnsupportedError, match="NonZero"):
        general(graph)


def test_memory_is_that_of_the_largest_sizes():
    graph = graphc.parse(f"graph @g(%x: f32[N,S]) -> ? {WHERE} {{ %a = Softmax(%x) {{axis=0}} "
                         "%r = Softmax(%a) {axis=1} return %r }")  # fmt: skip
    program = program_of(graph)
    assert program.arena_bytes % 64 == 0
    assert 4 * 5 * 6 <= program.arena_bytes <= 2 * 128
    assert np.prod([size.hi for size in program.sizes]) == 30


UNET = """graph @unet(%x: f32[1,3,H,W]) -> ? where H: 5..40, W: 8..40 {
  const %v : f32[5,3,3,3] = random(seed=1)
  const %w : f32[5,5,2,2] = random(seed=2)
  %a = Conv(%x, %v) {pads=[1,1,1,1]}
  %b = MaxPool(%a) {kernel_shape=[2,2], strides=[2,2]}
  %c = MaxPool(%b) {kernel_shape=[2,2], strides=[2,2]}
  %d = ConvTranspose(%c, %w) {strides=[2,2]}
  %e = Concat(%b, %d) {axis=1}
  return %e
}
"""


def test_sizes_are_multiples_where_a_network_takes_no_others():
    graph = graphc.parse(UNET)
    dims = general(graph).params[0].tensor.dims
    assert [str(d) for d in dims[2:]] == ["H_by_4 * 4", "W_by_4 * 4"]
    model = graphc.compile(graph, specialise="any", threads=1)
    for height, width in [(8, 8), (40, 12), (20, 40)]:
        x = np.random.default_rng(height).standard_normal((1, 3, height, width), np.float32)
        for found, wanted in zip(model.run([x]), graphc.interpret(graph, [x]), strict=True):
            assert compare("output", found, wanted).within(2e-5)
    assert len(model.executables()) == 1
    with pytest.raises(ModelError, match="Concat"):
        model.run([np.zeros((1, 3, 10, 8), np.float32)])
    (found,) = model.run([np.zeros((1, 3, 9, 8), np.float32)])  # rounds down at each step
    assert found.shape == (1, 10, 4, 4) and "H_by_4" in model.why_exact
    assert len([made for made in model.executables() if made.run is not None]) == 2


def test_multiples_are_read_in_files(tmp_path):
    model = graphc.compile(graphc.parse(UNET), specialise="any", threads=1)
    model.save(tmp_path / "unet.gcm")
    saved = graphc.load(tmp_path / "unet.gcm", threads=1)
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 16), np.float32)
    np.testing.assert_array_equal(saved.run([x])[0], model.run([x])[0])
    with pytest.raises(ModelError, match=r"H_by_4 \* 4.* found \(1, 3, 10, 8\)"):
        saved.run([np.zeros((1, 3, 10, 8), np.float32)])


def test_only_sizes_that_must_be_are_multiples():
    text = """graph @g(%x: f32[N,S]) -> ? where N: 1..9, S: 1..9 {
      const %s : i64[3] = [0,-1,3] %r = Reshape(%x, %s) return %r }"""
    (dims,) = [p.tensor.dims for p in general(graphc.parse(text)).params]
    assert [str(d) for d in dims] == ["N", "S_by_3 * 3"]


IMAGES = {
    "convolutions": "const %w : f32[24,8,3,3] = random(seed=1) "
    "const %v : f32[40,24,1,1] = random(seed=2) %a = Conv(%x, %w) {{pads=[1,1,1,1]}} "
    "%b = Relu(%a) %r = Conv(%b, %v) {{strides=[2,2]}}",
    "depthwise": "const %w : f32[8,1,3,3] = random(seed=1) const %v : f32[32,8,1,1] = "
    "random(seed=2) %a = Conv(%x, %w) {{group=8, pads=[1,1,1,1], strides=[2,2]}} "
    "%r = Conv(%a, %v)",
    "pools": "const %v : f32[32,8,1,1] = random(seed=2) %a = Conv(%x, %v) "
    "%b = MaxPool(%a) {{kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]}} "
    "%c = AveragePool(%b) {{kernel_shape=[2,2]}} %r = GlobalAveragePool(%c)",
    "residual": "const %w : f32[24,8,3,3] = random(seed=1) %a = Conv(%x, %w) {{pads=[1,1,1,1]}} "
    "%b = Sigmoid(%a) %c = Add(%a, %b) %r = MaxPool(%c) {{kernel_shape=[3,3]}}",
}
"""Networks of images of which the batch, the height and the width are open."""


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_all_sizes_are_stored_as_those_of_one_size(name):
    text = IMAGES[name].replace("{{", "{").replace("}}", "}")
    graph = graphc.parse("graph @g(%x: f32[N,8,H,W]) -> ? where N: 1..3, H: 5..24, W: 5..24 { "
                         f"{text} return %r }}")  # fmt: skip
    assert layouts(general(graph)) == layouts(specialise(graph, {"x": (3, 8, 24, 24)})) != set()
    model = graphc.compile(graph, specialise="any", threads=1)
    for shape in [(1, 8, 5, 5), (3, 8, 24, 24), (2, 8, 7, 18), (1, 8, 19, 6), (3, 8, 16, 23)]:
        x = np.random.default_rng(shape[2]).standard_normal(shape, np.float32)
        for found, wanted in zip(model.run([x]), graphc.interpret(graph, [x]), strict=True):
            assert compare("output", found, wanted).within(2e-5)
    assert model.why_exact == "" and len(model.executables()) == 1


def layouts(graph: Graph) -> set[str]:
    """How the values of a graph are stored, by the names of the layouts."""
    target, settings = configured("cpu", None, {})
    optimise(graph, settings, target=target)
    return {str(v.layout) for v in graph.values() if v.layout is not None}


def test_operands_that_may_not_be_longer_are_typed_at_the_largest_sizes():
    graph = graphc.parse("graph @g(%x: f32[6], %i: i64[N]) -> ? where N: 1..9 { "
                         "const %d : f32[6,1] = random(seed=1) const %l : i64[1] = [1] "
                         "%j = Unsqueeze(%i, %l) %y = Transpose(%j) "
                         "%z = GatherElements(%d, %j) {axis=1} return %z }")  # fmt: skip
    with pytest.raises(UnsupportedError, match="at N = 9, .* must be at least 9"):
        general(graph)


CHECKED = {
    "(%x: f32[N,S], %i: i64[H]) -> ? {} {{ %r = Gather(%x, %i) {{axis=1}}": "index",
    "(%x: f32[N,S], %i: i64[1,H]) -> ? {} {{ %r = GatherElements(%x, %i) {{axis=1}}": "index",
    "(%x: f32[S,N,2], %i: i64[N]) -> ? {} {{ %r = ReverseSequence(%x, %i)": "length",
    "(%x: f32[S,N], %i: i64[H,1]) -> ? {} {{ %r = GatherND(%x, %i)": "index",
}


@pytest.mark.parametrize("text", CHECKED)
def test_indices_are_checked_against_sizes(text):
    graph = graphc.parse(f"graph @g{text.format(WHERE)} return %r }}")
    model = graphc.compile(graph, specialise="any", threads=1)
    shapes = {"N": 3, "S": 5, "H": 3 if "Reverse" in text else 6}
    x, i = (np.ones([shapes.get(str(d), d) for d in p.tensor.dims], np.int64) for p in graph.params)
    for value, fits in ((1, True), (-1, "Reverse" not in text), (77, False), (6, False)):
        given = [x.astype(np.float32), i * value]
        if fits:
            (found,), (expected,) = model.run(given), interpret(graph, given)
            assert np.array_equal(found, expected)
        else:
            with pytest.raises(ModelError, match=f"{CHECKED[text]} .* must be in"):
                model.run(given)
    assert model.executables()[0].is_general


def test_windows_may_be_of_open_extent():
    graph = graphc.parse("graph @g(%x: f32[1,1,K,K], %w: f32[1,2,K,K]) -> ? where K: 1..8 { "
                         "%y = ConvTranspose(%x, %w) return %y }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    rng = np.random.default_rng(0)
    for k in (3, 1, 8, 2):
        given = [rng.standard_normal((1, n, k, k)).astype(np.float32) for n in (1, 2)]
        (found,), (expected,) = model.run(given), interpret(graph, given)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert [info.is_general for info in model.executables()] == [True]


def test_checks_of_sizes_can_be_written_and_read():
    text = (
        "graph @g(%x: f32[N,S], %i: i64[2]) -> ? {} {{ %r = Gather(%x, %i) {{axis=1}} return %r }}"
    )
    typed = general(graphc.parse(text.format(WHERE).replace("{{", "{").replace("}}", "}")))
    add_checks(typed)
    assert "InRange" in str(typed) and str(graphc.parse(str(typed))) == str(typed)


def test_constant_indices_are_checked_where_sizes_decide():
    graph = graphc.parse("graph @g(%x: f32[S]) -> ? where S: 1..9 { const %i : i64[1] = [-5] "
                         "%y = Gather(%x, %i) return %y }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    assert model.run([np.arange(7, dtype=np.float32)])[0].tolist() == [2]
    with pytest.raises(ModelError, match=r"index -5 .* must be in -S\.\.S - 1"):
        model.run([np.arange(3, dtype=np.float32)])
