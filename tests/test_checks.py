"""Indices and lengths out of range fail a run on every target, where ONNX Runtime fails; what is in
range does not."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import graphc
from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

MS, ML = "com.microsoft", "ai.onnx.ml"
EVERY = {"interpreter": {}, "cpu": {}, "c": {}, "cuda": {"simulate": True}}
COMPILERS = {"c": "gcc", "cuda": "g++"}
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def longs(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def bytes_(*shape: int) -> np.ndarray:
    return RNG.integers(0, 255, shape, np.uint8)


TABLE = floats(10, 4)
RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}
ROIS = np.array([[0, 0, 3, 3]], np.float32)


def recurrent(name: str, length: int) -> tuple:
    gates = RECURRENT[name]
    inputs = [floats(4, 2, 3), floats(1, 2 * gates, 3), floats(1, 2 * gates, 2), None]
    return name, [*inputs, ints(length, 2)], {"hidden_size": 2}


def embedding(words=(0, 1), segments=(0, 1), positions=(0, 1)) -> tuple:
    tables = [floats(9, 4), floats(9, 4), floats(2, 4), floats(4), floats(4)]
    rows = [np.array([x], np.int32) for x in (words, segments, positions)]
    return "EmbedLayerNormalization", [*rows[:2], *tables, None, rows[2]], {}, MS, 2


def grouped(queries: int, length: int, total: int, past: int = 8) -> tuple:
    cache = [floats(1, 1, past, 8) if past else None for _ in range(2)]
    new = [floats(1, queries, 16), floats(1, queries, 8), floats(1, queries, 8)]
    attrs = {"num_heads": 2, "kv_num_heads": 1}
    return "GroupQueryAttention", [*new, *cache, ints(length), ints(total)], attrs, MS, 3


def quantised_lstm(length: int) -> tuple:
    weights = [bytes_(1, 3, 8), bytes_(1, 2, 8)]
    scale, zero = floats(1) ** 2, np.zeros(1, np.uint8)
    inputs = [floats(4, 2, 3), *weights, None, ints(length, 2), None, None, None]
    return "DynamicQuantizeLSTM", [*inputs, scale, zero, scale, zero], {"hidden_size": 2}, MS


def attention(lengths: tuple[int, ...]) -> tuple:
    return "Attention", [floats(2, 4, 8), floats(8, 24), floats(24), ints(*lengths)], \
        {"num_heads": 2}, MS  # fmt: skip


def rotary(*positions: int) -> tuple:
    where = longs(*positions)
    inputs = [
        floats(1, 3, 8),
        where if where.size == 1 else where[None],
        floats(8, 4),
        floats(8, 4),
    ]
    return "RotaryEmbedding", inputs, {"num_heads": 1}, MS


def loss(label: int, name: str = "NegativeLogLikelihoodLoss", **attrs) -> tuple:
    return name, [floats(3, 5), longs(0, label, 2)], attrs


def unpool(index: int) -> tuple:
    indices = longs(0, index, 2, 3).reshape(1, 1, 2, 2)
    return "MaxUnpool", [floats(1, 1, 2, 2), indices], {"kernel_shape": [3, 3], "strides": [3, 3]}


def align(image: int) -> tuple:
    return "RoiAlign", [floats(2, 1, 6, 6), ROIS, longs(image)], {"output_height": 2}


def roi_pool(image: int) -> tuple:
    rois = np.array([[image, 0, 0, 3, 3]], np.float32)
    return "MaxRoiPool", [floats(2, 1, 6, 6), rois], {"pooled_shape": [2, 2]}


def tensor_scatter(start: int, mode: str = "linear") -> tuple:
    inputs = [floats(2, 5, 4), floats(2, 2, 4), longs(start, 0)]
    return "TensorScatter", inputs, {"axis": 1, "mode": mode}, "", 1, 24


def padded_attention(length: int) -> tuple:
    keys = [floats(1, 1, 2, 4), floats(1, 1, 4, 4), floats(1, 1, 4, 4)]
    return "Attention", [*keys, None, None, None, longs(length)], {}, "", 1, 24


def gather(*indices: int) -> tuple:
    return "Gather", [TABLE, longs(*indices)], {}


def block(index: int) -> tuple:
    attrs = {"quantize_axis": 1, "block_size": 16, "bits": 8}
    return "GatherBlockQuantized", [bytes_(10, 16), longs(index), floats(10, 1)], attrs, MS


CASES = {
    **{f"Gather {n}": (gather(0, n), n) for n in (9, 10, 12345, -10, -11, 2**63 - 1, -(2**63))},
    **{f"GatherElements {n}": (("GatherElements", [TABLE, np.full((10, 4), n)], {}), n)
       for n in (-10, 10, -11)},
    **{f"GatherND {n}": (("GatherND", [TABLE, longs(n)[None]], {}), n) for n in (-10, 10, -11)},
    **{f"GatherND, second {n}": (("GatherND", [TABLE, longs(9, n)[None]], {}), n)
       for n in (-4, 3, 4, -5)},
    **{f"ScatterElements {n}":
       (("ScatterElements", [TABLE, np.full((1, 4), n), floats(1, 4)], {}), n)
       for n in (-10, 9, 10, -11)},
    **{f"ScatterND {n}": (("ScatterND", [TABLE, longs(n)[None], floats(1, 4)], {}), n)
       for n in (-10, 9, 10, -11)},
    **{f"TensorScatter {n}": (tensor_scatter(n), n) for n in (3, 4, -1)},
    **{f"TensorScatter around {n}": (tensor_scatter(n, "circular"), n) for n in (7, -1)},
    **{f"ArrayFeatureExtractor {n}": (("ArrayFeatureExtractor", [TABLE, longs(n)], {}, ML), n)
       for n in (3, 4, -1)},
    **{f"MaxUnpool {n}": (unpool(n), n) for n in (35, 36, -1)},
    **{f"RoiAlign {n}": (align(n), n) for n in (1, 2, -1)},
    **{f"MaxRoiPool {n}": (roi_pool(n), n) for n in (1, 2, -1)},
    **{f"loss {n}": (loss(n), n) for n in (4, 5, -1, -6)},
    **{f"loss of each {n}": (loss(n, reduction="none"), n) for n in (5, -1)},
    **{f"loss, ignored {n}": (loss(n, ignore_index=-100), n) for n in (-100, 5)},
    **{f"softmax loss {n}": (loss(n, "SoftmaxCrossEntropyLoss"), n) for n in (4, 5, -1)},
    **{f"softmax loss, ignored {n}":
       (loss(n, "SoftmaxCrossEntropyLoss", ignore_index=-100), n) for n in (-100, 5)},
    **{f"ReverseSequence {n}":
       (("ReverseSequence", [floats(4, 2), longs(n, 1)], {"time_axis": 0, "batch_axis": 1}), n)
       for n in (0, 4, 5, -1)},
    **{f"{name} {n}": (recurrent(name, n), n) for name in RECURRENT for n in (0, 4, 5, -1)},
    **{f"DynamicQuantizeLSTM {n}": (quantised_lstm(n), n) for n in (4, 5, -1)},
    **{f"words {n}": (embedding(words=(0, n)), n) for n in (8, 9, -1)},
    **{f"segments {n}": (embedding(segments=(0, n)), n) for n in (1, 2, -1)},
    **{f"positions {n}": (embedding(positions=(0, n)), n) for n in (8, 9, -1)},
    **{f"RotaryEmbedding {n}": (rotary(n, 0, 1), n) for n in (7, 8, -1)},
    "RotaryEmbedding from 5": (rotary(5), 5),
    "RotaryEmbedding from 6": (rotary(6), 8),
    **{f"GroupQueryAttention {n}": (grouped(1, n, 4), n) for n in (0, 3, 7, 8, 100, -1)},
    **{f"GroupQueryAttention, two {n}": (grouped(2, n, 4), n) for n in (1, 7, 0, 8)},
    **{f"GroupQueryAttention, prompt {n}": (grouped(4, n, 4, 0), n) for n in (1, 3, 5, -1)},
    **{f"keys {n}": (padded_attention(n), n) for n in (0, 4, 5, -1)},
    **{f"lengths {n}": (attention((n, 2)), n) for n in (9, 0, -1)},
    **{f"lengths and starts {n}": (attention((4, 4, n, 0)), n) for n in (-1,)},
    **{f"GatherBlockQuantized {n}": (block(n), n) for n in (10, -11)},
    "OneHot": (("OneHot", [longs(99), longs(3), floats(2)], {}), 99),
}  # fmt: skip
"""A node, and the value that is out of range if one is: ONNX Runtime tells."""


def model_of(name, inputs, attrs, domain="", outputs=1, opset=16) -> onnx.ModelProto:
    """A model of one node."""
    given = {f"x{n}": array for n, array in enumerate(inputs) if array is not None}
    names = ["" if array is None else f"x{n}" for n, array in enumerate(inputs)]
    made = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(name, names, made, "the node", domain=domain, **attrs)
    types = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for key, a in given.items()
    ]
    graph = helper.make_graph([node], "one", types, [helper.make_empty_tensor_value_info(y)
                                                     for y in made])  # fmt: skip
    sets = [helper.make_opsetid(d, v) for d, v in (("", opset), (MS, 1), (ML, 3))]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def runner(model: onnx.ModelProto, target: str, **options):
    """What runs a model on a target."""
    if target in COMPILERS and shutil.which(COMPILERS[target]) is None:
        pytest.skip(f"{COMPILERS[target]} is not there")
    if target == "interpreter":
        graph = import_onnx(model)
        return lambda inputs: interpret(graph, inputs)
    return graphc.compile(model, target, **EVERY[target], **options).run


def outcome(run, inputs) -> str:
    """The message of a run that fails, or nothing."""
    try:
        run(inputs)
    except ModelError as error:
        return str(error)
    return ""


def fails(model: onnx.ModelProto, inputs) -> bool:
    """Whether a run of ONNX Runtime does."""
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), quiet)
    try:
        session.run(None, {f"x{n}": a for n, a in enumerate(inputs) if a is not None})
    except Exception:
        return True
    return False


def given(inputs) -> list[np.ndarray]:
    return [array for array in inputs if array is not None]


@pytest.mark.suite(20)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_fails_where_onnx_runtime_does(target, case):
    node, value = CASES[case]
    model = model_of(*node)
    said = outcome(runner(model, target), given(node[1]))
    assert bool(said) == fails(model, node[1]), said
    if said:
        assert f" {value} " in said and '"the node"' in said


FEW = ("Gather 10", "GatherND -11", "ScatterND 10", "MaxUnpool -1", "RoiAlign 2", "LSTM 5",
       "words 9", "loss 5", "GroupQueryAttention -1", "ReverseSequence 5", "Gather 9", "LSTM 0",
       "GatherBlockQuantized 10")  # fmt: skip


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("target", ["c", "cuda"])
def test_other_targets_say_the_same(target, case):
    node, _ = CASES[case]
    model, inputs = model_of(*node), given(node[1])
    assert outcome(runner(model, target), inputs) == outcome(runner(model, "cpu"), inputs)


@pytest.mark.parametrize("target", ["cpu", "c", "cuda"])
def test_without_checks_indices_are_clamped(target):
    node = gather(-10, 12345)
    run = runner(model_of(*node), target, checks="off")
    (found,) = run(node[1])
    np.testing.assert_array_equal(found, TABLE[[0, 9]])


@pytest.mark.parametrize("passes", ["decompose, fold", "checks, decompose, fold, fuse"])
def test_a_pipeline_of_the_users_own_has_checks(passes):
    node = gather(0, 12345)
    assert "index 12345 of indices" in outcome(
        runner(model_of(*node), "cpu", passes=passes), node[1]
    )
    run = runner(model_of(*node), "cpu", passes=passes, checks="off")
    np.testing.assert_array_equal(run(node[1])[0], TABLE[[0, 9]])


@pytest.mark.parametrize("target", EVERY)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_largest_and_smallest_indices(target, dtype):
    run = runner(model_of("Gather", [TABLE, np.zeros(3, dtype)], {}), target)
    for extreme in (np.iinfo(dtype).max, np.iinfo(dtype).min):
        said = outcome(run, [TABLE, np.array([0, extreme, 9], dtype)])
        assert f"index {extreme} of indices" in said


def test_one_of_many_indices_in_any_lane_of_any_thread():
    count = 10_007  # of no vectors, and of several threads
    model = model_of("GatherElements", [floats(count, 3), np.zeros((count, 3), np.int64)], {})
    run = graphc.compile(model, threads=4).run
    data, indices = floats(count, 3), RNG.integers(-count, count, (count, 3))
    assert not outcome(run, [data, indices])
    for row in (0, 7, 5000, count - 2, count - 1):
        wrong = indices.copy()
        wrong[row, row % 3] = count + row
        assert f"index {count + row} of" in outcome(run, [data, wrong])


@pytest.mark.suite
def test_what_is_padded_is_not_checked():
    for count in range(1, 20):
        node = "Gather", [TABLE, np.full(count, 9)], {}
        assert not outcome(runner(model_of(*node), "cpu"), node[1])


GRAPH = """graph @g(%x: f32[10,4], %i: i64[5]) -> ? {
  const %two : i64[] = 2
  %j = Mul(%i, %two)
  %a = Gather(%x, %j) loc("twice")
  %r = Relu(%a)
  %b = Gather(%x, %j) {axis=0} loc("again")
  %c = Add(%r, %b)
  return %c
}"""


def test_computed_indices_and_equal_checks():
    from graphc.driver import program_for
    from graphc.ir.text.parser import parse_graph
    from graphc.passes.specialise import specialise

    graph = specialise(parse_graph(GRAPH))
    program = program_for(graph)
    assert len(program.checks) == 1
    run = graphc.compile(parse_graph(GRAPH)).run
    assert not outcome(run, [TABLE, longs(0, -5, 4, 1, 2)])
    assert "index 10 of" in outcome(run, [TABLE, longs(0, 1, 2, 3, 5)])


def branches(indices: list[int], chosen: bool | None) -> onnx.ModelProto:
    """If(condition, x[indices], x[0, 0]); without an answer the condition is an input."""
    make = helper.make_tensor_value_info
    output = helper.make_empty_tensor_value_info

    def branch(which: list[int], name: str):
        constant = helper.make_tensor(name, 7, [2], which)
        node = helper.make_node("Gather", ["x", name], [f"y_{name}"], f"gather {name}")
        return helper.make_graph([node], name, [], [output(f"y_{name}")], [constant])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch(indices, "bad"), else_branch=branch([0, 0], "good")
    )
    constants = [] if chosen is None else [helper.make_tensor("c", 9, [], [chosen])]
    inputs = [make("x", 1, [10, 4]), *([make("c", 9, [])] if chosen is None else [])]
    graph = helper.make_graph([node], "if", inputs, [output("y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=10)


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_only_the_branch_taken_fails(target):
    run = runner(branches([0, 10], None), target)
    assert not outcome(run, [TABLE, np.array(False)])
    assert "index 10 of" in outcome(run, [TABLE, np.array(True)])
    assert not outcome(runner(branches([0, 10], False), target), [TABLE])


def test_constants_are_judged_when_compiling():
    with pytest.raises(ModelError, match="index 10 of"):
        graphc.compile(branches([0, 10], True)).run([TABLE])
    program_checks(branches([0, -10], True), 0)


def program_checks(model, count: int) -> None:
    from graphc.driver import program_for, typed

    assert len(program_for(typed(model)).checks) == count


def test_models_without_indices_have_the_same_code():
    from graphc.driver import program_for, typed

    model = model_of("Relu", [TABLE], {})
    for target in ("cpu", "cuda", "c"):
        on, off = (program_for(typed(model), target, checks=x) for x in ("on", "off"))
        assert str(on) == str(off) and not on.checks


@pytest.mark.parametrize("checks", ["maybe", "", None])
def test_other_words_are_refused(checks):
    with pytest.raises(ModelError, match="checks must be one of on, off"):
        graphc.compile(model_of(*gather(0)), checks=checks)


def test_the_text_of_a_program_keeps_its_checks():
    from graphc.driver import program_for, typed
    from graphc.ir.text.printer import print_program, program_constants
    from graphc.ir.text.program_parser import parse_program

    program = program_for(typed(model_of(*embedding())))
    assert len(program.checks) == 3
    again = parse_program(print_program(program), program_constants(program))
    assert again.checks == program.checks and str(again) == str(program)


def test_saved_models_keep_their_checks(tmp_path):
    model = graphc.compile(model_of(*gather(0, 1)))
    model.save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm")
    assert not outcome(loaded.run, [TABLE, longs(0, 9)])
    assert "index 12345 of indices" in outcome(loaded.run, [TABLE, longs(0, 12345)])


SHARED = """
#include <stdio.h>
#include "m.h"
int main(void)
{
    static float x[40], y[8];
    long long good[2] = {-10, 9}, bad[2] = {0, 12345};
    const void *in[2] = {x, good};
    void *out[1] = {y};
    m_context *context = m_create(2);
    int first = m_run(context, in, out);
    in[1] = bad;
    int second = m_run(context, in, out);
    printf("%d %d %d %s\\n", M_OUTPUTS, first, second, m_error(context));
    m_destroy(context);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_shared_libraries_have_a_status(tmp_path):
    from graphc.backends.llvm_cpu.aot import build
    from graphc.driver import program_for, typed

    build(program_for(typed(model_of(*gather(0, 1)))), tmp_path / "m.so")
    (tmp_path / "main.c").write_text(SHARED)
    command = "gcc -Wall -Wextra -Werror main.c ./m.so -o main"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    done = subprocess.run("./main", cwd=tmp_path, check=True, capture_output=True, text=True)
    said = "Gather \"the node\": index 12345 of indices 'x1' must be in -10..9"
    assert done.stdout == f"1 0 1 {said}\n"


BUNDLE = """
#include <stdio.h>
#include "one.h"
int main(void)
{
    static float x[40], y[8];
    static double arena[ONE_ARENA_SIZE / sizeof(double) + 2];
    int64_t good[2] = {-10, 9}, bad[2] = {0, 12345};
    one_inputs in = {x, good};
    one_outputs out = {y};
    one_status first = one_run(&in, &out, arena), second;
    x[36] = 7;
    in.x1 = bad;
    second = one_run(&in, &out, arena);
    printf("%d %d %s %g\\n", first, second, one_status_string(second), (double)y[4]);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("switch", ["", "-DONE_CHECKS=0", "-m32"])
def test_bundles_have_a_status_and_a_switch(tmp_path, switch):
    from graphc.backends.micro_c import bundle
    from graphc.driver import program_for, typed

    for path, text in bundle(program_for(typed(model_of(*gather(0, 1))), "c")).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "main.c").write_text(BUNDLE)
    sources = [p.name for p in tmp_path.glob("*.c")]
    command = f"gcc -std=c99 -Wall -Wextra -Werror -pedantic {switch} {' '.join(sources)} -o main"
    built = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True)
    if switch == "-m32" and built.returncode and "bits/" in built.stderr:
        pytest.skip("gcc has no 32-bit libraries here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run("./main", cwd=tmp_path, check=True, capture_output=True, text=True)
    said = "Gather \"the node\": index of indices 'x1' must be in -10..9"
    assert done.stdout == ("0 0 ok 7\n" if "CHECKS" in switch else f"0 4 {said} 0\n")


def test_checks_cost_bundles_without_indices_nothing():
    from graphc.backends.micro_c import bundle
    from graphc.driver import program_for, typed

    model = model_of("Relu", [TABLE], {})
    on, off = (bundle(program_for(typed(model), "c", checks=x)) for x in ("on", "off"))
    assert on == off and not any("CHECKS" in str(text) for text in on.values())


def test_ranges_that_overlap_are_both_checked():
    """Of equal values in -10..9 and in 0..19, the first check does not imply the second."""
    from onnx.helper import make_node

    make = helper.make_tensor_value_info
    inputs = [make("x", 1, [20, 1, 4, 4]), make("rois", 1, [1, 4]), make("n", 7, [1])]
    inputs.append(make("table", 1, [10, 4]))
    nodes = [
        make_node("RoiAlign", ["x", "rois", "n"], ["y"], output_height=1, output_width=1),
        make_node("Gather", ["table", "n"], ["z"]),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in "yz"]
    ones = [np.ones(s, np.float32) for s in ((20, 1, 4, 4), (1, 4))]
    for order in (nodes, nodes[::-1]):
        graph = helper.make_graph(order, "two", inputs, outputs)
        opset = [helper.make_opsetid("", 16)]
        run = graphc.compile(helper.make_model(graph, opset_imports=opset, ir_version=10)).run
        assert not outcome(run, [*ones, longs(9), TABLE])
        assert "index 15 of indices" in outcome(run, [*ones, longs(15), TABLE])
        assert "index -3 of batch_indices" in outcome(run, [*ones, longs(-3), TABLE])


@pytest.mark.parametrize("phase", ["canonical", "fused"])
def test_checks_in_the_text_of_a_graph_are_no_outputs(phase, tmp_path):
    """What goes on from the text has the model's outputs, and its checks as far as it can."""
    from graphc.cli import main

    model = tmp_path / "model.onnx"
    onnx.save(model_of("Gather", [TABLE, longs(1, 2)], {}), model)
    text = tmp_path / "model.gir"
    assert main(["compile", str(model), "--stop-after", phase, "-o", str(text)]) == 0
    saved, exported = tmp_path / "model.gcm", tmp_path / "again.onnx"
    assert main(["compile", str(text), "-o", str(saved)]) == 0
    loaded = graphc.load(saved)
    assert len(loaded.outputs) == 1
    assert "index 12 of" in outcome(loaded.run, [TABLE, longs(1, 12)])
    assert main(["opt", str(text), "-o", str(exported)]) == 0
    assert len(onnx.load(exported).graph.output) == 1
