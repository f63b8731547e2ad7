"""graphc explain: every layer of small models has an answer on every target, each part specific."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import onnx
import pytest
from commands import DIGITS, ok, refused

from graphc.cli import explain
from graphc.cli.app import parser
from graphc.errors import ModelError
from graphc.report import text
from graphc.report.answers import Answer, Record

ROOT = Path(__file__).parents[1]
WILD = (
    "torchscript_tagger",
    "paddle_style",
    "sklearn_mlp",
    "genai_style",
    "torchscript_if_squeeze",
    "if_runtime",
)
TARGETS = {
    "cpu": ["--threads", "1"],
    "c": ["--target", "c", "--cpu", "cortex-m4"],
    "cuda": ["--target", "cuda", "--arch", "sm_80"],
}
MACHINE = ["--machine", "100,20"]
VAGUE = ("not fused", "None", "<", "unknown")


@cache
def answers(model: str, target: str) -> tuple[Record, tuple[Answer, ...]]:
    """The answers for all layers of a model."""
    argv = ["explain", model, *TARGETS[target], *MACHINE]
    args = parser(argv).parse_args(argv)
    record, layers = explain.record(args)
    return record, tuple(map(record.answer, layers))


def models(target: str) -> list[str]:
    wild = WILD if target == "cpu" else WILD[:1]
    return [DIGITS, *(str(ROOT / "tests" / "models_wild" / f"{name}.onnx") for name in wild)]


@pytest.mark.parametrize("target", TARGETS)
def test_every_layer_is_answered(target):
    for model in models(target):
        for answer in answers(model, target)[1]:
            where = f"{Path(model).stem}: {answer.layer}"
            assert answer.fate and not any(v in answer.fate for v in VAGUE), where
            computed = bool(answer.groups)
            assert computed == answer.fate.startswith("computed at run time"), where
            assert not computed or answer.kernels or answer.notes, f"{where} has no kernel"
            for kernel in answer.kernels:
                assert kernel.strategy and kernel.about and kernel.schedule, where
                assert kernel.bound and kernel.seconds, where
                assert all(reason for _, reason in kernel.declined), where
            text.full(answer)


@pytest.mark.parametrize("target", TARGETS)
def test_every_neighbour_has_a_specific_reason(target):
    for model in models(target):
        for answer in answers(model, target)[1]:
            for neighbour in (n for group in answer.groups for n in group.neighbours):
                reason = f"{answer.layer} {neighbour.side} {neighbour.name}: {neighbour.reason}"
                assert len(neighbour.reason) > 15, reason
                assert not any(v in neighbour.reason for v in VAGUE), reason


def test_a_folded_layer_names_the_rule_and_what_took_it():
    _, found = answers(DIGITS, "cpu")
    bn = next(a for a in found if a.layer.operator == "BatchNormalization")
    assert "together with /conv1/Conv" in bn.fate
    assert any("fold-bn-into-conv" in text for text in bn.rewrites)
    assert any("weights" in text for text in bn.layouts)


def test_why_two_convolutions_are_two_kernels():
    _, found = answers(DIGITS, "cpu")
    conv = next(a for a in found if a.layer.name == "/conv2/Conv")
    reads = [n for n in conv.groups[0].neighbours if n.side == "reads"]
    assert len(reads) == 1 and "/conv1/Conv" in reads[0].name
    assert "sum of products" in reads[0].reason


def test_bytes_of_a_kernel_are_those_of_its_operands():
    _, found = answers(DIGITS, "cpu")
    pool = next(a for a in found if a.layer.name == "/pool/MaxPool").kernels[0]
    assert (pool.bytes_read, pool.bytes_written) == (4 * 32 * 8 * 8, 4 * 32 * 4 * 4)


def test_the_command_prints_a_layer_a_pattern_and_json(capsys):
    one = ok(capsys, "explain", DIGITS, *MACHINE, "--layer", "logits")
    assert "/fc/Gemm" in one and "strategy" in one and "bound" in one
    several = ok(capsys, "explain", DIGITS, *MACHINE, "--layer", "/bn*")
    assert several.count("rule fold-bn-into-conv") == 3
    data = json.loads(ok(capsys, "explain", DIGITS, *MACHINE, "--json"))
    conv = next(answer for answer in data if answer["layer"]["name"] == "/conv1/Conv")
    assert conv["kernels"][0]["schedule"] and conv["groups"][0]["neighbours"]
    lines = ok(capsys, "explain", DIGITS, *MACHINE).splitlines()
    assert sum(line.startswith("/conv") for line in lines) == 3


def test_branches_of_a_program_are_all_answered():
    """Two Ifs are branches of the program."""
    _, given = answers(str(ROOT / "tests" / "models_wild" / "if_runtime.onnx"), "cpu")
    notes = {answer.layer.name: answer.notes for answer in given}
    assert all("a branch or a loop" in notes[n][0] for n in ("factor__node", "pick__node"))
    taken = next(a for a in given if a.layer.name == "negative/MatMul_2__node")
    assert taken.kernels[0].strategy == "register_tiles"


def staged(path: Path) -> str:
    """A model in stages, in a file."""
    nodes = [
        onnx.helper.make_node("NonZero", ["x"], ["places"], name="places"),
        onnx.helper.make_node("Transpose", ["places"], ["rows"], name="rows"),
        onnx.helper.make_node("GatherND", ["x", "rows"], ["values"], name="values"),
        onnx.helper.make_node("TopK", ["values", "one"], ["y", "at"], name="last"),
    ]
    one = onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], [one])), path)
    return str(path)


def test_what_waits_for_the_host_is_compiled_and_told(tmp_path):
    """NonZero gives as many positions as there are, which is a size of the program; a kernel that
    is made for one shape is compiled after it ran."""
    model = staged(tmp_path / "nonzero.onnx")
    given = {answer.layer.name: answer for answer in answers(model, "cpu")[1]}
    for name in ("places", "values"):
        assert given[name].kernels and not given[name].notes
    assert given["last"].kernels
    assert any("once the host has run" in note for note in given["last"].notes)


def test_what_a_run_did_not_come_to_is_told(monkeypatch, tmp_path):
    def refuse(self, feeds):
        raise ModelError("index 7 is out of range")

    monkeypatch.setattr("graphc.runtime.compiled.CompiledModel.run", refuse)
    argv = ["explain", staged(tmp_path / "nonzero.onnx"), *TARGETS["cpu"], *MACHINE]
    record, layers = explain.record(parser(argv).parse_args(argv))
    fates = {layer.name: record.answer(layer).fate for layer in layers}
    assert fates["last"].endswith("the run ended before it: index 7 is out of range")


def test_a_float_model_lists_no_rule_for_integers():
    _, given = answers(DIGITS, "cpu")
    declined = {rule for answer in given for rule, _ in answer.declined}
    assert declined and not any("quantise" in rule for rule in declined)


def test_a_name_that_is_not_there_suggests_those_that_are_near(capsys):
    message = refused(capsys, "explain", DIGITS, "--layer", "/pool/maxpol")
    assert "/pool/MaxPool" in message
