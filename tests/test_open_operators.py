"""Operators whose extents, windows and factors depend on open sizes, and what fuzzing has found."""

from __future__ import annotations

import random

import numpy as np
import pytest
from open_shapes import agrees_on_the_cpu
from test_open_shapes import agrees_at, program_of

import graphc
from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.passes.general import NotOpen, general
from graphc.passes.narrowing import open_within

WHERE = "where N: 1..4, S: 2..11, H: 4..9"
GRAPHS = {
    "fourier": "(%x: f32[N,S,1]) -> ? {} { const %a : i64[] = 1 %r = DFT(%x, _, %a)",
    "fourier half": "(%x: f32[N,S,2]) -> ? {} { %a = DFT(%x) {{onesided=1}} "
    "%r = DFT(%a) {{inverse=1, onesided=1}}",
    "fourier back": "(%x: f32[N,S,2]) -> ? {} { const %l : i64[] = 5 "
    "%r = DFT(%x, %l) {{inverse=1}}",
    "fourier of known length": "(%x: f32[N,300,1]) -> ? {} { %r = DFT(%x)",
    "spectrogram": "(%x: f32[N,H,1]) -> ? {} { const %s : i64[] = 2 const %w : f32[4] = "
    "random(seed=1) %r = STFT(%x, %s, %w)",
    "centre": "(%x: f32[N,S,H]) -> ? {} { const %s : i64[2] = [5,6] "
    "%r = CenterCropPad(%x, %s) {{axes=[1,2]}}",
    "centre of another size": "(%x: f32[N,S], %y: f32[H]) -> ? {} { %s = Shape(%y) "
    "%r = CenterCropPad(%x, %s) {{axes=[-1]}}",
    "columns": "(%x: f32[N,12,9]) -> ? {} { const %s : i64[2] = [4,4] const %k : i64[2] = [2,2] "
    "%r = Col2Im(%x, %s, %k)",
    "pairs of words": "(%x: i64[N,S]) -> ? {} { %r = TfIdfVectorizer(%x) {{max_gram_length=2, "
    'max_skip_count=3, min_gram_length=1, mode="TF", ngram_counts=[0,3], '
    "ngram_indexes=[0,2,1,3,4], pool_int64s=[0,1,2,0,1,1,1]}}",
    "fractions": "(%x: f32[N,S,H]) -> ? {} { const %s : f32[3] = [1.0,0.6,2.3] "
    '%r = Resize(%x, _, %s) {{mode="linear"}}',
    "not larger": "(%x: f32[N,2,S,H]) -> ? {} { const %s : i64[2] = [7,5] "
    '%r = Resize(%x, _, _, %s) {{axes=[2,3], keep_aspect_ratio_policy="not_larger"}}',
    "not smaller": "(%x: f32[N,2,S,H]) -> ? {} { const %s : i64[2] = [7,5] %r = "
    'Resize(%x, _, _, %s) {{axes=[2,3], mode="linear", keep_aspect_ratio_policy="not_smaller"}}',
    "antialias": "(%x: f32[N,S,H]) -> ? {} { const %s : i64[2] = [5,3] "
    '%r = Resize(%x, _, _, %s) {{axes=[1,2], mode="cubic", antialias=1}}',
    "crop": "(%x: f32[N,S,H]) -> ? {} { const %s : i64[2] = [5,1] const %w : f32[4] = "
    "[0.25,0.4,0.75,0.6] %r = Resize(%x, %w, _, %s) {{axes=[1,2], "
    'mode="linear", coordinate_transformation_mode="tf_crop_and_resize"}}',
    "padded to another size": "(%x: f32[N,S], %y: f32[N,H]) -> ? {} { %s = Shape(%y) "
    "{{start=1}} const %z : i64[3] = [0,1,0] %p = Concat(%z, %s) {{axis=0}} "
    "%r = Pad(%x, %p)",
    "mirrored": "(%x: f32[N,S]) -> ? {} { const %p : i64[4] = [0,2,0,3] "
    '%r = Pad(%x, %p) {{mode="reflect"}}',
    "slices to what may be negative": "(%x: f32[N,S], %y: f32[H]) -> ? {} { %s = Shape(%y) "
    "%n = Shape(%x) {{start=1}} %d = Sub(%s, %n) const %a : i64[1] = [1] "
    "const %e : i64[1] = [100] %r = Slice(%x, %d, %e, %a)",
    "backwards": "(%x: f32[N,S,H]) -> ? {} { const %b : i64[2] = [20,-2] const %e : i64[2] = "
    "[-99,-5] const %a : i64[2] = [1,2] const %s : i64[2] = [-1,-2] %r = Slice(%x, %b, %e, %a, %s)",
    "every third": "(%x: f32[N,S]) -> ? {} { const %b : i64[1] = [1] const %e : i64[1] = [-1] "
    "const %a : i64[1] = [1] const %s : i64[1] = [3] %r = Slice(%x, %b, %e, %a, %s)",
    "windows apart": "(%x: f32[N,2,S,H]) -> ? {} { %r = MaxPool(%x) {{kernel_shape=[1,2], "
    "strides=[2,3], ceil_mode=1}}",
    "hardmax": "(%x: f32[N,S,H]) -> ? {} { %r = Hardmax(%x) {{axis=1}}",
    "halves": "(%x: f32[N,H]) -> ? {} { %s = Shape(%x) {{start=1}} const %t : i64[1] = [2] "
    "%h = Div(%s, %t) %i = Identity(%h) %j = Sub(%s, %i) %p = Concat(%i, %j) {{axis=0}} "
    "%r, %u = Split(%x, %p) {{axis=1}}",
}  # fmt: skip


def graph_of(name: str) -> Graph:
    text = GRAPHS[name].replace("{}", WHERE, 1).replace("{{", "{").replace("}}", "}")
    return graphc.parse(f"graph @g{text} return %r }}")


@pytest.mark.parametrize("name", GRAPHS)
def test_plain_loops(name):
    graph = graph_of(name)
    program = program_of(graph)
    dice = random.Random(name)
    for seed in range(6):
        ends = {s.name: (s.lo, s.hi) for s in program.sizes}
        dims = {n: e[seed] if seed < 2 else dice.randint(*e) for n, e in ends.items()}
        agrees_at(program, graph, dims, seed)


@pytest.mark.parametrize("name", GRAPHS)
def test_on_the_cpu(name):
    agrees_on_the_cpu(graph_of(name), name)


def test_bytes_of_windows_with_room_to_spare():
    graph = graphc.parse("graph @g(%x: i8[N,33,S]) -> ? where N: 1..9, S: 1..8 { "
                         "const %w : i8[3,33,3] = random(seed=1) "
                         "%r = ConvInteger(%x, %w) {pads=[1,2]} return %r }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    for n, s in [(1, 1), (9, 8), (4, 3)]:
        x = np.random.default_rng(n).integers(-9, 9, (n, 33, s)).astype(np.int8)
        np.testing.assert_array_equal(model.run([x])[0], interpret(graph, [x])[0])
    assert model.why_exact == ""


def test_a_model_is_wrong_where_an_op_is_that_nobody_reads():
    graph = graphc.parse("graph @g(%x: i64[K]) -> ? where K: 1..8 { "
                         "const %w : i64[3,17] = random(seed=1) %m = MatMul(%x, %w) "
                         "%r = Neg(%x) return %r }")  # fmt: skip
    with pytest.raises(NotOpen, match="MatMul: .* against 3"):
        general(graph)


def test_indices_are_not_checked_of_what_is_always_empty():
    graph = graphc.parse("graph @g(%x: f32[S,3]) -> ? where S: 1..5 { "
                         "const %o : i64[1] = [3] const %e : i64[1] = [9] const %a : i64[1] = [1] "
                         "%s = Slice(%x, %o, %e, %a) const %i : i64[3] = [2,1,-3] "
                         "%r = Gather(%s, %i) {axis=0} return %r }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    for size in (1, 5):
        assert model.run([np.zeros((size, 3), np.float32)])[0].shape == (3, 0)
    assert model.executables()[0].is_general


def test_indices_are_not_checked_where_there_is_nothing_to_gather():
    graph = graphc.parse("graph @g(%x: f32[N,S]) -> ? where N: 1..4, S: 1..5 { "
                         "const %o : i64[1] = [1] const %e : i64[1] = [9] const %a : i64[1] = [0] "
                         "%s = Slice(%x, %o, %e, %a) const %i : i64[3] = [2,1,0] "
                         "%r = Gather(%s, %i) {axis=1} return %r }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    assert model.run([np.zeros((1, 1), np.float32)])[0].shape == (0, 3)
    assert model.run([np.zeros((2, 3), np.float32)])[0].shape == (1, 3)
    with pytest.raises(ModelError, match="index 2 "):
        model.run([np.zeros((2, 2), np.float32)])
    assert model.executables()[0].is_general and len(model.executables()) == 1


def test_sizes_that_were_met_are_multiples():
    graph = graphc.parse("graph @g(%x: f32[N,S], %y: f32[3,S]) -> ? where N: 1..9, S: 1..9 { "
                         "const %s : i64[2] = [-1,3] %a = Reshape(%x, %s) return %a }")  # fmt: skip
    bounds = {"N": (1, 9), "S": (1, 9)}
    assert open_within(graph, bounds, {"N": 4, "S": 3}).graph.symbols.keys() == {"N", "S_by_3"}
    assert open_within(graph, bounds, {"N": 3, "S": 4}).graph.symbols.keys() == {"N_by_3", "S"}


def test_indices_of_kernels_are_checked():
    graph = graphc.parse("graph @g(%x: f32[S,N], %i: i64[2,1], %u: f32[2,N]) -> ? where "
                         "N: 1..4, S: 1..9 { %r = ScatterND(%x, %i, %u) return %r }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    x, i, u = np.zeros((5, 2), np.float32), np.array([[4], [-5]]), np.ones((2, 2), np.float32)
    assert model.run([x, i, u])[0].sum() == 4
    with pytest.raises(ModelError, match=r"index 4 of indices .* must be in -4\.\.3|-S\.\.S - 1"):
        model.run([x[:4], i, u])
    assert model.executables()[0].is_general


def test_positions_are_those_of_the_tokens():
    text = ("graph @g(%x: f32[B,2,6,4], %c: f32[9,2]) -> ? where B: 1..8 { const %p : i64[2,6] = "
            "[[0,1,2,3,4,5],[8,7,6,5,4,3]] %r = RotaryEmbedding(%x, %c, %c, %p) "
            "return %r }")  # fmt: skip
    x, cache = np.ones((8, 2, 6, 4), np.float32), np.ones((9, 2), np.float32)
    with pytest.raises(NotOpen, match="position_ids"):
        general(graphc.parse(text))
    with pytest.raises(ModelError, match=r"\[2, 6\] against \[8, 6\]"):
        graphc.compile(graphc.parse(text), specialise="any").run([x, cache])
    assert graphc.compile(graphc.parse(text)).run([x[:2], cache])[0].shape == (2, 2, 6, 4)


def test_indices_into_what_may_be_empty_are_checked():
    """Rows 3 to 9 of few rows are none: no index lies in range at all sizes."""
    graph = graphc.parse("""graph @g(%x: f32[N,2]) -> ? where N: 1..12 {
  const %a : i64[1] = [3]
  const %b : i64[1] = [9]
  const %i : i64[2] = [0, -2]
  %rows = Slice(%x, %a, %b)
  %r = Gather(%rows, %i) {axis=0}
  return %r
}
""")
    model = graphc.compile(graph, specialise="any", threads=1)
    for count in range(5, 13):
        x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        np.testing.assert_array_equal(model.run([x])[0], x[3:9][[0, -2]])
    for count in (1, 3, 4):
        with pytest.raises(ModelError, match="index -?[02] of indices|it is empty"):
            model.run([np.ones((count, 2), np.float32)])


def test_nothing_is_resized_to_something():
    graph = graphc.parse("""graph @g(%x: f32[N,M]) -> ? where N: 0..4, M: 0..4 {
  const %s : i64[1] = [3]
  %r = Resize(%x, _, _, %s) {axes=[1]}
  return %r
}
""")
    model = graphc.compile(graph, specialise="any", threads=1)
    with pytest.raises(ModelError, match="axis 1 is empty: there is nothing to make 3 of"):
        model.run([np.ones((2, 0), np.float32)])
    assert model.run([np.ones((0, 2), np.float32)])[0].shape == (0, 3)
    np.testing.assert_array_equal(
        model.run([np.eye(2, dtype=np.float32)])[0], [[1, 1, 0], [0, 0, 1]]
    )


@pytest.mark.parametrize("last", ["MatMul(%none, %y)", "Mul(%none, %y)"])
def test_operands_of_empty_results_are_checked(last):
    """At other sizes too: what is empty at all sizes is no constant before."""
    graph = graphc.parse(f"""graph @g(%x: f32[1,M], %y: f32[M]) -> ? where M: 1..8 {{
  const %b : i64[2] = [4, 3]
  const %e : i64[2] = [-5, 2]
  const %a : i64[2] = [1, 0]
  const %s : i64[2] = [-1, -2]
  %none = Slice(%x, %b, %e, %a, %s)
  %r = {last}
  return %r
}}
""")
    with pytest.raises(NotOpen, match="against 8|may be 1"):
        general(graph)
    model = graphc.compile(graph, specialise="any", threads=1)
    assert model.run([np.ones((1, 4), np.float32), np.ones(4, np.float32)])[0].size == 0
    with pytest.raises(ModelError, match="against 7"):
        model.run([np.ones((1, 7), np.float32), np.ones(7, np.float32)])


def test_lengths_of_open_shapes_may_be_none():
    """The contents of what has no elements are known."""
    graph = graphc.parse("""graph @g(%x: f32[M,N]) -> ? where M: 1..8, N: 1..4 {
  %none = Shape(%x) {start=2}
  %all = ReduceSum(%x) {keepdims=0}
  %r = Reshape(%all, %none)
  return %r
}
""")
    assert str(general(graph).results[0].type) == "f32[]"


def test_shapes_that_nobody_reads_are_checked():
    """Lengths of 1 and 4 broadcast with 4, others do not."""
    graph = graphc.parse("""graph @g(%x: f32[N], %y: f32[4]) -> ? where N: 1..4 {
  %unread = Add(%x, %y)
  %r = Neg(%x)
  return %r
}
""")
    model = graphc.compile(graph, specialise="any", threads=1)
    for count in (1, 4):
        model.run([np.ones(count, np.float32), np.ones(4, np.float32)])
    with pytest.raises(ModelError, match="3 against 4"):
        model.run([np.ones(3, np.float32), np.ones(4, np.float32)])


def test_limits_of_slices_far_beyond_the_ends():
    """As exporters write "to the first one", backwards: the type is the same each time."""
    graph = graphc.parse("""graph @g(%x: f32[N]) -> ? where N: 1..64 {
  const %b : i64[1] = [-1]
  const %e : i64[1] = [-9223372036854775808]
  const %a : i64[1] = [0]
  const %s : i64[1] = [-1]
  %r = Slice(%x, %b, %e, %a, %s)
  return %r
}
""")
    assert [str(general(graph).results[0].type) for _ in range(3)] == ["f32[N]"] * 3
    model = graphc.compile(graph, specialise="any", threads=1)
    assert model.run([np.arange(5, dtype=np.float32)])[0].tolist() == [4, 3, 2, 1, 0]
