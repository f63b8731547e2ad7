"""NAME_push_rows gives what NAME_run does, however the rows of an image arrive."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from bundles import SANITISED, STRICT, checked
from commands import graphc, ok
from onnx import TensorProto, helper
from quantised_models import QuantisedModel

from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.driver import Settings, to_program, typed
from graphc.passes.lower.program import composed
from graphc.passes.lower.rows.candidates import all_segments
from graphc.passes.lower.rows.segments import RowPlan
from graphc.targets.micro_c import MicroC

FLAGS = ("-std=c99", "-O1", *STRICT, *SANITISED)

MAIN = """\
#include "m.h"

#include <stdio.h>
#include <string.h>

static union { unsigned char bytes[M_ARENA_SIZE]; double aligned; } arena;
static signed char image[M_INPUT_INPUT_SIZE], plain[M_OUTPUT_OUTPUT_SIZE], out[sizeof plain];

int main(void)
{
    m_inputs inputs;
    m_outputs outputs;
    m_rows rows;
    uint32_t piece, row;
    for (row = 0; row < sizeof image; ++row) {
        image[row] = (signed char)(row * row * 37u % 251u);
    }
    inputs.input = image;
    outputs.output = plain;
    if (m_run(&inputs, &outputs, &arena) != M_OK) {
        return 1;
    }
    outputs.output = out;
    for (piece = 0; piece <= M_ROWS; ++piece) { /* 0: one row, and none, by turns */
        const uint32_t most = piece == 0 ? 1 : piece;
        memset(&arena, (int)piece, sizeof arena);
        memset(out, 99, sizeof out);
        m_start_rows(&rows);
        for (row = 0; row < M_ROWS;) {
            const uint32_t count = most < M_ROWS - row ? most : M_ROWS - row;
            const m_status wanted = row + count < M_ROWS ? M_MORE_ROWS : M_OK;
            signed char part[M_INPUT_INPUT_SIZE]; /* gone after the call */
            memcpy(part, image + row * M_ROW_BYTES, count * M_ROW_BYTES);
            if (piece == 0 && m_push_rows(&rows, row, 0, 0, &outputs, &arena) != M_MORE_ROWS) {
                return 2;
            }
            if (m_push_rows(&rows, row + 1, 1, part, &outputs, &arena) != M_WRONG_ROWS ||
                m_push_rows(&rows, row, M_ROWS + 1 - row, part, &outputs, &arena) !=
                    M_WRONG_ROWS ||
                m_push_rows(&rows, row, 0xffffffffu, part, &outputs, &arena) != M_WRONG_ROWS) {
                return 3;
            }
            if (m_push_rows(&rows, row, count, part, &outputs, &arena) != wanted) {
                return 4;
            }
            row += count;
        }
        if (memcmp(out, plain, sizeof out) != 0) {
            return 5;
        }
        if (m_push_rows(&rows, M_ROWS, 1, image, &outputs, &arena) != M_WRONG_ROWS) {
            return 6;
        }
    }
    m_start_rows(&rows);
    if (m_push_rows(0, 0, 1, image, &outputs, &arena) != M_NULL_POINTER ||
        m_push_rows(&rows, 0, 1, 0, &outputs, &arena) != M_NULL_POINTER ||
        m_push_rows(&rows, 0, 1, image, 0, &arena) != M_NULL_POINTER ||
        m_push_rows(&rows, 0, 1, image, &outputs, 0) != M_NULL_POINTER ||
        m_push_rows(&rows, 0, 1, image, &outputs, arena.bytes + 1) != M_MISALIGNED ||
        m_push_rows(&rows, 0, 1, (signed char *)arena.bytes, &outputs, &arena) != M_OVERLAP ||
        m_push_rows(&rows, 0, 1, out, &outputs, &arena) != M_OVERLAP) {
        return 7;
    }
    puts("equal");
    return 0;
}
"""


def images(height, width, mean=True):
    """A small network over images; without its mean, its last rows are read by nothing."""
    m = QuantisedModel(seed=height)
    x = m.node("Transpose", m.activation((1, height, width, 3)), perm=[0, 3, 1, 2])

    def conv(value, shape, group=1, **attrs):
        weights, bias = m.weights(shape), m.weights(shape[:1], bits=32)
        made = m.node("Conv", value, weights, bias, group=group, kernel_shape=shape[2:], **attrs)
        return m.dequantise(m.quantise(made, 0.9), 0.9, -5)

    value = conv(x, (8, 3, 3, 3), strides=[2, 2], pads=[1, 1, 0, 1] if mean else [0, 1, 0, 1])
    value = conv(value, (8, 1, 3, 3), 8, pads=[1, 1, 1, 1])
    value = conv(value, (4, 8, 1, 1))
    result = m.node("GlobalAveragePool", value) if mean else value
    return m.build(m.quantise(result, 0.5))


@pytest.fixture
def compiled(tmp_path, capsys):
    """Compiles a model with its rows pushed; the folder."""

    def made(model, *options):
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        chosen = ["--target", "c", "--name", "m", "--push-rows", *options]
        ok(capsys, "compile", tmp_path / "m.onnx", *chosen, "-o", tmp_path / "m")
        return tmp_path / "m"

    return made


@pytest.mark.parametrize(("height", "mean"), [(21, True), (12, False)])
def test_pieces_of_all_heights_give_the_same(compiled, height, mean):
    folder = compiled(images(height, 5, mean), "--cpu", "cortex-m4", "--with-test")
    for main, told in ((_main(folder), "equal"), ("m_test.c", "pushed rows")):
        checked(["gcc", *FLAGS, "m.c", "m_weights.c", main, "-lm", "-o", "test"], folder)
        assert told in checked(["./test"], folder)


@pytest.mark.parametrize("height, compact", [(1, False), (3, False), (1, True)])
def test_loops_wait_for_rows(tmp_path, height, compact):
    class Even(MicroC):
        def draft(self, graph, lower):
            super().draft(graph, lower)  # which optimises the graph
            known = all_segments(graph, composed(graph))
            segment = [s for s in known if s.source in graph.params][-1]
            return lower(graph, rows=replace(RowPlan.even(segment, height), compact=compact))

    source = images(40, 5).SerializeToString()
    program = to_program(typed(source), Even(cpu="cortex-m4"), Settings())
    write_bundle(program, tmp_path, BundleOptions(name="m", pushed=True))
    assert height > 1 or "++image->trip" in (tmp_path / "m.c").read_text()
    checked(["gcc", *FLAGS, "m.c", "m_weights.c", _main(tmp_path), "-o", "test"], tmp_path)
    assert "equal" in checked(["./test"], tmp_path)


def _main(folder):
    """Writes a main for a bundle; the name of the file."""
    names = {side: _field(folder, side) for side in ("INPUT", "OUTPUT")}
    text = MAIN.replace("INPUT_INPUT", names["INPUT"]).replace("OUTPUT_OUTPUT", names["OUTPUT"])
    text = text.replace(".input =", f".{names['INPUT'][6:]} =")
    (folder / "main.c").write_text(text.replace(".output =", f".{names['OUTPUT'][7:]} ="))
    return "main.c"


def _field(folder, side):
    """SIDE_NAME, as the header's macros spell it."""
    lines = (folder / "m.h").read_text().splitlines()
    start = f"#define M_{side}_"
    return next(x for x in lines if x.startswith(start)).split()[1][2:].removesuffix("_SIZE")


@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="needs QEMU")
def test_on_a_board(compiled):
    folder = compiled(images(21, 5), "--board", "mps2-an386")
    assert "pushed rows" in checked(["make", "run"], folder)


def test_the_image_takes_no_ram(compiled, capsys, tmp_path):
    (tmp_path / "n.onnx").write_bytes(images(64, 32).SerializeToString())
    options = [tmp_path / "n.onnx", "--target", "c", "--cpu", "cortex-m4", "--push-rows"]
    ok(capsys, "compile", *options, "--ram", "5K", "-o", tmp_path / "n")  # of an image of 6 KB
    assert "n_push_rows(" in (tmp_path / "n" / "n.h").read_text()


def test_without_the_option_there_is_no_such_function(capsys, tmp_path):
    (tmp_path / "n.onnx").write_bytes(images(12, 4).SerializeToString())
    ok(capsys, "compile", tmp_path / "n.onnx", "--target", "c", "-o", tmp_path / "n")
    for name in ("n.h", "n.c"):
        assert "_ROWS" not in (tmp_path / "n" / name).read_text()


def dense():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=0)], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def two_inputs():
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 3]) for n in "ab"]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", given, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (dense, [], "must be read by rows"),
        (two_inputs, [], "must have one input"),
        (lambda: images(12, 4), ["--io", "arena"], "--io arena"),
    ],
)
def test_what_cannot_be_pushed_is_refused(model, options, why, capsys, tmp_path):
    (tmp_path / "n.onnx").write_bytes(model().SerializeToString())
    chosen = ["--target", "c", "--push-rows", *options, "-o", tmp_path / "n"]
    code, _, error = graphc(capsys, "compile", tmp_path / "n.onnx", *chosen)
    assert code and "--push-rows" in error and why in error and "Traceback" not in error
