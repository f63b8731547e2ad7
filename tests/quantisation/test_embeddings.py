"""Tables of embeddings in 8 bits, in graphc and in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from commands import ok
from differential import program_of
from saturation import exact_session

import graphc
from graphc import dsl
from graphc.driver import typed
from graphc.frontend.onnx_export import export_onnx
from graphc.ir.text.printer import program_constants

RNG = np.random.default_rng(1)
INT8, FLOAT = onnx.TensorProto.INT8, onnx.TensorProto.FLOAT


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(table):
    """Two lookups in one table, another table along its second axis, and a layer."""
    with dsl.building("words") as g:
        words, others = g.input("words", dsl.i64[1, 5]), g.input("others", dsl.i64[1, 5])
        table = dsl.constant(table)
        h = dsl.Gather(table, words) + dsl.Gather(table, others)
        h = h + dsl.Transpose(dsl.Gather(f32(16, 40), others, axis=1), perm=[1, 2, 0])
        g.output(y=dsl.MatMul(h, f32(16, 8)))
    return export_onnx(g.graph)


def words(count=8):
    return {name: RNG.integers(0, 40, (count, 5)) for name in ("words", "others")}


def kinds(message):
    return {tuple(t.dims): t.data_type for t in message.graph.initializer}


def test_a_table_becomes_integers_once_with_a_scale_for_each_row():
    table = f32(40, 16) * np.geomspace(1e-3, 1e3, 40)[:, None].astype(np.float32)
    quantised = graphc.quantise(model(table), words(), embeddings="int8")
    assert [(x.operator, x.weight_bits, x.activation_bits) for x in quantised.layers] == [
        ("Gather", 8, 32), ("MatMul", 8, 8)
    ]  # fmt: skip
    assert 38 < quantised.layers[0].sqnr < 60
    made = quantised.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    assert kinds(made)[40, 16] == INT8 and kinds(made)[16, 40] == FLOAT
    assert sum(tuple(t.dims) == (40, 16) for t in made.graph.initializer) == 1
    data = words(1)
    (theirs,) = exact_session(made).run(None, data)
    (ours,) = graphc.compile(made).run(data)
    assert np.abs(ours - theirs).max() <= 2e-2 * np.abs(theirs).max()


def test_each_row_is_within_half_a_step():
    table = f32(40, 16) * np.geomspace(1e-3, 1e3, 40)[:, None].astype(np.float32)
    table[7] = 0
    made = graphc.quantise(model(table), words(), embeddings="int8").to_onnx()
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    nodes = [n for n in made.graph.node if n.op_type == "DequantizeLinear"]
    (node,) = [n for n in nodes if n.input[0] in arrays and arrays[n.input[0]].shape == (40, 16)]
    real = arrays[node.input[0]] * arrays[node.input[1]][:, None]
    ranges = np.abs(table).max(1)
    assert (np.abs(real - table).max(1) <= 0.21 * ranges).all()  # what is clipped included
    assert (np.sqrt(((real - table) ** 2).mean(1)) <= 0.01 * ranges).all()


def test_the_table_stays_in_bytes_and_only_chosen_rows_are_converted():
    table = f32(2000, 16)
    made = graphc.quantise(model(table), words(), embeddings="int8").to_onnx()
    program = program_of(typed(graphc.import_onnx(made)))
    constants = program_constants(program).values()
    assert [t.dtype.name for t in constants if t.size == table.size] == ["int8"]
    assert program.arena_bytes < 16 * 1024  # 2000 rows in floats are 128 KB


def test_what_is_left_out_stays_float():
    plain = graphc.quantise(model(f32(40, 16)), words())
    assert kinds(plain.to_onnx())[40, 16] == FLOAT
    first = graphc.quantise(model(f32(40, 16)), words(), embeddings="int8").layers[0].name
    quantised = graphc.quantise(model(f32(40, 16)), words(), embeddings="int8", left_out=[first])
    assert kinds(quantised.to_onnx())[40, 16] == FLOAT and first in quantised.left_out


def test_mistakes_are_told():
    with pytest.raises(graphc.ModelError, match="embeddings must be one of float, int8, found"):
        graphc.quantise(model(f32(40, 16)), words(), embeddings="int4")
    with pytest.raises(graphc.ModelError, match="float16 are for all constants"):
        graphc.quantise(model(f32(40, 16)), words(), embeddings="int8", weights="float16")


def test_on_the_command_line(capsys, elsewhere):
    onnx.save(model(f32(400, 16)), "m.onnx")
    np.savez("calib.npz", **words())
    argv = ("quantise", "m.onnx", "--data", "calib.npz", "--embeddings", "int8", "-o", "q.onnx")
    assert "Gather" in ok(capsys, *argv)
