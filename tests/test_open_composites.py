"""Layers that are graphs of other operators, over open batches and sequences."""

from __future__ import annotations

import random

import numpy as np
import pytest
from test_open_shapes import agrees_at, program_of

import graphc
from graphc.errors import ModelError
from graphc.ir.expr import Const, Index, Sym, call
from graphc.ir.extents import at_most
from graphc.ir.ops.attention import Band
from graphc.ir.simplify import simplify
from graphc.passes.general import NotOpen, general

WHERE = "where N: 1..4, S: 1..6, P: 1..5"
GRAPHS = {
    "attention": "(%q: f32[N,S,12], %k: f32[N,S,12]) -> ? {} { "
    "%r = Attention(%q, %k, %k) {{q_num_heads=3, kv_num_heads=3, is_causal=1}}",
    "attention with a past and fewer key heads": "(%q: f32[N,4,S,6], %k: f32[N,2,S,6], "
    "%pk: f32[N,2,P,6], %pv: f32[N,2,P,6]) -> ? {} { %r, %b, %c = "
    "Attention(%q, %k, %k, _, %pk, %pv) {{is_causal=1, softcap=2.0}}",
    "attention of a short mask": "(%q: f32[N,2,S,6], %k: f32[N,2,9,6], %m: f32[S,4]) -> ? {} { "
    "%r = Attention(%q, %k, %k, %m) {{left_window_size=2, right_window_size=3}}",
    "attention over padding": "(%x: f32[N,S,6], %m: i32[N,S]) -> ? {} { "
    "const %w : f32[6,24] = random(seed=1) const %b : f32[24] = random(seed=2) "
    "%r = com.microsoft.Attention(%x, %w, %b, %m) {{num_heads=2}}",
    "attention, one way": "(%x: f32[N,S,6]) -> ? {} { const %w : f32[6,24] = random(seed=1) "
    "%r = com.microsoft.Attention(%x, %w) {{num_heads=2, unidirectional=1}}",
    "multi-head attention": "(%q: f32[N,S,8], %k: f32[N,P,8], %m: i32[N,P]) -> ? {} { "
    "const %b : f32[24] = random(seed=1) "
    "%r = com.microsoft.MultiHeadAttention(%q, %k, %k, %b, %m) {{num_heads=2}}",
    "lstm": "(%x: f32[4,N,3]) -> ? {} { const %w : f32[2,20,3] = random(seed=1) "
    "const %v : f32[2,20,5] = random(seed=2) const %b : f32[2,40] = random(seed=3) "
    '%r, %h, %c = LSTM(%x, %w, %v, %b) {{hidden_size=5, direction="bidirectional"}}',
    "gru, batch first": "(%x: f32[N,4,3], %h: f32[N,1,5]) -> ? {} { "
    "const %w : f32[1,15,3] = random(seed=1) const %v : f32[1,15,5] = random(seed=2) "
    "%r, %l = GRU(%x, %w, %v, _, _, %h) {{hidden_size=5, layout=1}}",
    "rnn with lengths": "(%x: f32[4,N,3], %l: i32[N]) -> ? {} { "
    "const %w : f32[1,5,3] = random(seed=1) const %v : f32[1,5,5] = random(seed=2) "
    "const %four : i32[] = 4 %m = Mod(%l, %four) "
    "%r, %h = RNN(%x, %w, %v, _, %m) {{hidden_size=5}}",
    "group norm": "(%x: f32[N,6,S,P]) -> ? {} { const %s : f32[6] = random(seed=1) "
    "const %b : f32[6] = random(seed=2) %r = GroupNormalization(%x, %s, %b) {{num_groups=3}}",
    "causal convolution": "(%x: f32[N,4,S]) -> ? {} { const %w : f32[4,1,3] = random(seed=1) "
    '%r, %l = CausalConvWithState(%x, %w) {{activation="silu"}}',
    "linear attention": "(%q: f32[N,3,8]) -> ? {} { %r, %s = LinearAttention(%q, %q, %q) "
    '{{q_num_heads=2, kv_num_heads=2, update_rule="linear"}}',
    "split": "(%x: f32[N,S,6]) -> ? {} { %y = Concat(%x, %x, %x) {{axis=1}} "
    "%a, %r, %c = Split(%y) {{axis=1, num_outputs=3}}",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name):
    text = GRAPHS[name].replace("{}", WHERE, 1).replace("{{", "{").replace("}}", "}")
    graph = graphc.parse(f"graph @g{text} return %r }}")
    program = program_of(graph)
    dice = random.Random(name)
    for seed in range(6):
        ends = [(s.lo, s.hi) for s in program.sizes]
        sizes = [end[seed] if seed < 2 else dice.randint(*end) for end in ends]
        agrees_at(program, graph, {s.name: n for s, n in zip(program.sizes, sizes)}, seed)


def test_rows_of_bands_of_open_size():
    rows, past = Sym("S", 1, 8), Sym("P", 0, 8)
    assert not Band(rows, rows + past, past, True, -1, -1).has_empty_row()
    assert not Band(rows, rows + past, past, True, 2, -1).has_empty_row()
    assert Band(rows, past, past, True, 2, -1).has_empty_row()
    assert at_most(rows, rows + past) and not at_most(rows + past, rows)


def test_comparisons_of_multiples():
    size = Sym("N", 1, 8)
    row, sample = Index("t", Const(64)), Index("n", size)
    here = row * size + sample
    assert simplify(call("lt", here, size * 32)) is simplify(call("lt", row, Const(32)))
    assert simplify(call("ge", here, size * 64)).value is False
    assert simplify(call("lt", here + 1, size * 32)) is not simplify(call("lt", row, Const(32)))


@pytest.mark.parametrize("op, shape", [("DepthToSpace", "1,N,2,2"), ("SpaceToDepth", "1,3,N,4")])
def test_blocks_are_of_multiples(op, shape):
    text = f"""graph @g(%x: f32[{shape}]) -> ? where N: 1..9 {{
      %r = {op}(%x) {{blocksize=2}} return %r }}"""
    assert str(general(graphc.parse(text)).symbols["N_by_4" if op == "DepthToSpace" else "N_by_2"])
    with pytest.raises(NotOpen, match="blocksize|blocks of 2"):
        general(graphc.parse(text.replace("1..9", "1..5" if op == "DepthToSpace" else "1..3")))


def test_regions_of_an_empty_image_are_zero():
    graph = graphc.parse("""graph @g(%x: f32[1,2,0,3], %r: f32[2,4]) -> ? {
      const %i : i64[2] = [0, 0]
      %y = RoiAlign(%x, %r, %i) {output_height=2, output_width=2, sampling_ratio=2}
      return %y }""")
    inputs = [np.zeros((1, 2, 0, 3), np.float32), np.ones((2, 4), np.float32)]
    for (y,) in (graphc.interpret(graph, inputs), graphc.compile(graph, threads=1).run(inputs)):
        assert y.shape == (2, 2, 2, 2) and not y.any()


def test_a_slice_beside_a_reader_of_fewer_dims():
    graph = graphc.parse("""graph @g(%x: f32[6,5,4]) -> (?, ?) {
      const %w : f32[4,4] = random(seed=1)
      %y = MatMul(%x, %w)
      const %zero : i64[1] = [0] const %one : i64[1] = [1] const %two : i64[1] = [2]
      %s = Slice(%y, %zero, %one, %two)
      const %axes : i64[3] = [0, 1, 2]
      %t = ReduceSum(%y, %axes) {keepdims=0}
      return %s, %t }""")
    x = np.random.default_rng(0).standard_normal((6, 5, 4), np.float32)
    for found, wanted in zip(
        graphc.compile(graph, threads=1).run([x]), graphc.interpret(graph, [x])
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_heads_that_may_not_divide_are_refused():
    text = f"""graph @g(%q: f32[N,2,S]) -> ? {WHERE} {{
      %r = Attention(%q, %q, %q) {{q_num_heads=2, kv_num_heads=2}} return %r }}"""
    with pytest.raises((NotOpen, ModelError)):
        general(graphc.parse(text))
