"""Any order of passes works or is refused by name: random pipelines against the interpreter."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphc
from graphc.driver import load_graph
from graphc.errors import ModelError, UnsupportedError
from graphc.ir.compare import difference
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants, print_graph
from graphc.passes import PassManager, parse_pipeline
from graphc.passes.layout import assign_layouts
from graphc.passes.manager.base import PASSES, establishing
from graphc.passes.manager.context import Context
from graphc.passes.manager.contracts import check_order
from graphc.passes.manager.hooks import Verify
from graphc.passes.manager.pipeline import make_pass
from graphc.passes.rewriter import RULES
from tests.differential import build, floats

GROUPS = sorted({rule.group for rule in RULES.values()})
SEEDS = {"cpu": 24, "c": 6, "cuda": 5}
STEP = 0.03  # of the range: 1/256 of results up to 0.2, which rounding may be off by
Case = tuple[Graph, list[np.ndarray]]


def of_onnx(text: str, weights: dict[str, np.ndarray], inputs: list[np.ndarray]) -> Case:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    return load_graph(model.SerializeToString()), inputs


def images(rng) -> Case:
    weights, depthwise = floats(rng, 8, 3, 3, 3), floats(rng, 8, 1, 3, 3)
    mean, scale = floats(rng, 8), np.abs(floats(rng, 8))

    def body(b, x):
        y = b.Relu(b.Conv(x, weights, pads=(1, 1, 1, 1)))
        z = b.Conv(y, depthwise, group=8, pads=(1, 1, 1, 1))
        z = b.BatchNormalization(z, mean, mean, mean, scale)
        pooled = b.MaxPool(b.Add(z, y), kernel_shape=(2, 2), strides=(2, 2))
        summed = b.CumSum(pooled, np.array(1))
        return b.Softmax(b.Flatten(summed)), b.Transpose(pooled, perm=(0, 2, 3, 1))

    return build(body, x=floats(rng, 1, 3, 6, 6))


def upsampled(rng) -> Case:
    weights, mixing = floats(rng, 4, 4, 2, 2), floats(rng, 8, 4, 1, 1)

    def body(b, x):
        y = b.Conv(b.ConvTranspose(x, weights, strides=(2, 2)), mixing)
        top, where = b.TopK(y, np.array([2]), axis=1, outputs=2)
        scales = np.array([1, 1, 2, 2], np.float32)
        return b.Resize(top, None, scales, mode="linear"), where

    return build(body, x=floats(rng, 1, 4, 4, 4))


def moved(rng) -> Case:
    weights, matrices = floats(rng, 8, 4, 3, 3), [floats(rng, 8, 6) for _ in range(2)]
    scale = floats(rng, 8)

    def body(b, x):
        y = b.Conv(x, weights, pads=(1, 1, 1, 1), strides=(2, 2))
        turned = b.Mul(b.Transpose(y, perm=(0, 3, 1, 2)), np.float32(2))
        back = b.Transpose(turned, perm=(0, 2, 3, 1))
        left, right = b.Split(b.Concat(y, back, axis=1), None, axis=1, num_outputs=2, outputs=2)
        tokens = b.Transpose(b.Reshape(left, np.array((1, 8, 9))), perm=(0, 2, 1))
        joined = b.Concat(*(b.MatMul(tokens, w) for w in matrices), axis=2)
        padded = b.Pad(right, np.array([0, 0, 1, 1, 0, 0, 1, 1]))
        normal = b.GroupNormalization(padded, scale, scale, num_groups=2)
        return joined, b.CumSum(turned, np.array(2)), b.ReduceMean(normal, np.array([2, 3]))

    return build(body, x=floats(rng, 1, 4, 6, 6))


def attention(rng) -> Case:
    matrices = [floats(rng, 8, 8) for _ in range(3)]

    def body(b, x):
        parts = (b.Reshape(b.MatMul(x, w), np.array((1, 4, 2, 4))) for w in matrices)
        q, k, v = (b.Transpose(part, perm=(0, 2, 1, 3)) for part in parts)
        scores = b.MatMul(b.Mul(q, np.float32(0.5)), b.Transpose(k, perm=(0, 1, 3, 2)))
        heads = b.Transpose(b.MatMul(b.Softmax(scores), v), perm=(0, 2, 1, 3))
        return b.Gelu(b.Add(x, b.Reshape(heads, np.array((1, 4, 8)))))

    return build(body, x=floats(rng, 1, 4, 8))


def quantised(rng) -> Case:
    weights = rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    zero, low = np.int8(0), np.int8(-128)

    def through(b, x, scale, zero):
        scale = np.float32(scale)
        return b.DequantizeLinear(b.QuantizeLinear(x, scale, zero), scale, zero)

    def body(b, x):
        x = through(b, x, 0.05, np.int8(3))
        w = b.DequantizeLinear(weights, np.float32(0.01), zero)
        y = through(b, b.Relu(b.Conv(x, w, pads=(1, 1, 1, 1))), 0.03, low)
        return through(b, b.Softmax(b.Flatten(b.GlobalAveragePool(y))), 1 / 256, low)

    return build(body, x=floats(rng, 1, 3, 6, 6))


def recurrent(rng) -> Case:
    w, r = floats(rng, 2, 16, 3), floats(rng, 2, 16, 4)

    def body(b, x):
        y, h, c = b.LSTM(x, w, r, hidden_size=4, direction="bidirectional", outputs=3)
        return b.ReduceMean(y, np.array([0])), h, c

    return build(body, x=floats(rng, 3, 2, 3))


def checked(rng) -> Case:
    table = floats(rng, 10, 6)

    def body(b, i, x):
        rows, last = b.Gather(table, i), np.array([1])
        return b.Add(b.Softmax(rows), x), b.ReduceMax(rows, last), b.ReduceMin(rows, last)

    return build(body, i=rng.integers(0, 10, (4,)), x=floats(rng, 4, 6))


def controlled(rng) -> Case:
    text = """g (bool go, int64 n, float[1,4,6,6] x) => (float[1,4,6,6] s, float[1,4,6,6] y) {
      a = Conv(x, w)
      y = Loop(n, go, a) <body = b (int64 i, bool k, float[1,4,6,6] v) =>
        (bool more, float[1,4,6,6] u)
        { more = Identity(k) t = Softmax<axis = 1>(v) m = Conv(t, w)
          u = Transpose<perm = [0, 1, 3, 2]>(m) }>
      z = If(go) <then_branch = p () => (float[1,4,6,6] r) { r = Add(y, a) },
                  else_branch = q () => (float[1,4,6,6] o) { o = Mul(y, a) }>
      s = Conv(z, w)
    }"""
    inputs = [np.array(True), np.array(3), floats(rng, 1, 4, 6, 6)]
    return of_onnx(text, {"w": floats(rng, 4, 4, 1, 1)}, inputs)


def in_pieces(rng) -> Case:
    text = """g (float[1,4,6,6] x, int64[1] k) => (float[1,6,6,6] p, float[6,m] v) {
      y = Conv(x, w)
      s = SplitToSequence<axis = 1>(y, two)
      d = ConcatFromSequence<axis = 1>(s)
      p = Softmax<axis = 1>(d)
      f = Reshape(d, shape)
      v, i = TopK<axis = 1>(f, k)
    }"""
    weights = {"w": floats(rng, 6, 4, 1, 1), "two": np.array(2), "shape": np.array([6, 36])}
    return of_onnx(text, weights, [floats(rng, 1, 4, 6, 6), np.array([3])])


STATIC = [images, upsampled, moved, attention, quantised, recurrent, checked]
CASES = [*STATIC, controlled, in_pieces]


def pipeline(rng: random.Random, repaired: bool) -> str:
    """A random choice of passes in random order; `repaired` without those that are refused, and
    with one that takes operators apart."""
    names = [name for name in PASSES if name != "rewrite"]
    names += [f"rewrite{{group={group}}}" for group in GROUPS]
    steps = rng.sample(names, rng.randint(1, len(names)))
    if repaired and "decompose" not in steps:
        steps.insert(rng.randint(0, len(steps)), "decompose")
    kept: list[str] = []
    for step in steps:
        kept.append(step)
        if repaired and not accepted(", ".join(kept)):
            kept.pop()
    return ", ".join(kept)


def accepted(text: str) -> bool:
    graph, _ = checked(np.random.default_rng(0))
    try:
        check_order(parse_pipeline(text), establishing, graph)
    except ModelError:
        return False
    return True


def judge(seed: int, target: str) -> str:
    """Compiles a case by a random pipeline: "right", or the text of a refusal."""
    rng = random.Random(seed)
    case = rng.choice(CASES if target == "cpu" else STATIC)
    graph, inputs = case(np.random.default_rng(seed))
    text = pipeline(rng, repaired=rng.random() < 0.8)
    options = {"simulate": True} if target == "cuda" else {}
    expected = interpret(graph, inputs)
    try:
        model = graphc.compile(
            clone_graph(graph), target=target, passes=text, hooks=[Verify()], **options
        )
        found = model(**{p.name: v for p, v in zip(graph.params, inputs)})
    except (ModelError, UnsupportedError) as refusal:
        assert " requires a graph that is " in str(refusal), text
        return str(refusal)
    problem = difference(found, expected, STEP if case is quantised else 1e-3)
    assert problem is None, f"{text}: {problem}"
    return "right"


@pytest.mark.parametrize("target", SEEDS)
def test_any_order_of_passes_works_or_is_refused_by_name(target, pytestconfig):
    seeds = SEEDS[target] // 2 if pytestconfig.getoption("quick") else SEEDS[target]
    verdicts = [judge(seed, target) for seed in range(seeds)]
    assert verdicts.count("right") >= seeds // 2


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "text, said",
    [
        ("layout, checks", r"checks requires .* original .*: pass layout.* destroys that; put"),
        ("fuse, layout", r"layout requires .* unfused .*: pass fuse, which comes before it"),
        ("decompose, precision, fuse, precision", "precision requires .* unfused"),
    ],
)
def test_an_order_that_never_works_is_refused_when_it_is_read(text, said):
    with pytest.raises(ModelError, match=said):
        parse_pipeline(text)


def test_an_order_is_refused_before_the_first_pass_runs():
    graph, _ = images(np.random.default_rng(0))
    before = str(graph)
    said = "fuse-siblings requires .* fused .*: no pass before it establishes that; pass fuse does"
    with pytest.raises(ModelError, match=said):
        PassManager("decompose, fuse-siblings, fuse").run(graph, Context())
    assert str(graph) == before
    PassManager("decompose, fuse").run(graph, Context())
    PassManager("fuse-siblings").run(graph, Context())  # of a graph that is fused it works


def test_operators_made_of_others_are_refused_at_the_end():
    graph, _ = images(np.random.default_rng(0))
    with pytest.raises(UnsupportedError, match="Softmax.*requires a graph that is decomposed"):
        graphc.compile(graph, passes="fold, layout, fuse")


def test_narrow_sums_are_refused_where_they_would_be_rounded_at_each_step():
    updates, zeros = np.full(5000, 0.1, np.float16), np.zeros(5000, np.int64)

    def body(b, x, u):
        return b.ScatterElements(x, zeros, u, reduction="add")

    graph, inputs = build(body, x=np.zeros(2, np.float16), u=updates)
    model = graphc.compile(clone_graph(graph), passes="decompose")
    assert difference(model(x=inputs[0], u=updates), interpret(graph, inputs), 1e-3) is None
    with pytest.raises(UnsupportedError, match="ScatterElements.*requires a graph that is decomp"):
        graphc.compile(graph, passes="fold")


def test_a_pass_names_properties_that_there_are():
    for wrong in ("typed", ("tpyed",)):
        with pytest.raises(ModelError, match="requires must be a tuple of typed, original"):
            graphc.passes.register_pass(
                type("Wrong", (type(make_pass("dce")),), {"name": "wrong", "requires": wrong})
            )


# ---------------------------------------------------------------- copies to another layout


def laid_out() -> tuple[Graph, list[np.ndarray]]:
    """A convolution, which stores channels last, and a sum that reads rows."""
    rng = np.random.default_rng(0)
    weights = floats(rng, 8, 4, 3, 3)

    def body(b, x):
        return b.CumSum(b.Conv(x, weights), np.array(1))

    graph, inputs = build(body, x=floats(rng, 1, 4, 6, 6))
    assert assign_layouts(graph, Context())
    graph.phase = "laid_out"
    return graph, inputs


def test_no_rule_removes_a_relayout():
    graph, inputs = laid_out()
    expected = interpret(graph, inputs)
    PassManager("canonicalise, cse, dce, infer, fold, layout", [Verify()]).run(graph, Context())
    copy, total = graph.ops[-2:]
    assert (copy.name, total.name) == ("Relayout", "CumSum")
    assert copy.inputs[0].layout is not None and copy.output.layout is None
    assert difference(interpret(graph, inputs), expected, 0) is None


@pytest.mark.parametrize("case", STATIC)
def test_rewriting_what_is_laid_out_ends(case):
    graph, inputs = case(np.random.default_rng(0))
    expected = interpret(graph, inputs)
    passes = "layout, canonicalise, decompose, canonicalise, infer, canonicalise, layout"
    PassManager(passes, [Verify()]).run(graph, Context())
    assert difference(interpret(graph, inputs), expected, 1e-4) is None


def test_a_relayout_prints_and_parses():
    graph, _ = laid_out()
    again = parse_graph(print_graph(graph), graph_constants(graph))
    assert print_graph(again) == print_graph(graph)
    assert again.ops[-2].defn is graph.ops[-2].defn


def test_a_relayout_is_nothing_in_onnx(tmp_path):
    from graphc.frontend.onnx_export import export_onnx

    graph, inputs = laid_out()
    export_onnx(graph, tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    assert [node.op_type for node in model.graph.node] == ["Conv", "CumSum"]
    found = interpret(load_graph(tmp_path / "m.onnx"), inputs)
    assert difference(found, interpret(graph, inputs), 1e-5) is None


@pytest.mark.parametrize("target", SEEDS)
def test_passes_after_layouts_compile_for_every_target(target):
    rng = np.random.default_rng(0)
    weights = floats(rng, 8, 4, 3, 3)
    graph, inputs = build(
        lambda b, x: b.CumSum(b.Conv(x, weights), np.array(1)), x=floats(rng, 1, 4, 6, 6)
    )
    options = {"simulate": True} if target == "cuda" else {}
    passes = "decompose, fold, layout, canonicalise, fuse"
    model = graphc.compile(clone_graph(graph), target=target, passes=passes, **options)
    assert difference(model(x=inputs[0]), interpret(graph, inputs), 1e-4) is None
