"""The examples that `--help` gives are commands that work."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import graphc, make, ok, save
from onnx import TensorProto, helper, numpy_helper

from graphc.cli.app import parser

PLUGIN = """from graphc.passes import P, rule, var

@rule("relu-of-relu-again", P.Relu(P.Relu(var("x"))))
def relu_of_relu(rw, inner, outer, x):
    '''relu(relu(x)) == relu(x).'''
    return rw.Relu(x)
"""
VALUES = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
DEVICE = re.compile(r"--board|verify .*--trace|--log|replay")  # need a board, its log, or a crash


def shown() -> list[str]:
    """The examples of all commands."""
    top = parser([])
    (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    texts = [top.epilog, *(command.epilog for command in commands.choices.values())]
    lines = [line for text in texts if text for line in text.splitlines()]
    found = [re.fullmatch(r"  ((?:\w+=\w+ )?graphc .*)", line) for line in lines]
    return list(dict.fromkeys(match[1] for match in found if match))


EXAMPLES = [line for line in shown() if not DEVICE.search(line) and "--help" not in line]


@pytest.fixture
def folder(elsewhere, capsys):
    """The folder that the examples are run in, with the files they read."""
    np.save("x.npy", VALUES.T)
    np.savez("feeds.npz", x=VALUES.T)
    for name in ("train.npz", "test.npz"):
        np.savez(name, x=np.tile(VALUES.T, (40, 1)), label=np.arange(120) % 3)
    np.savez("calib.npz", x=np.tile(VALUES.T, (40, 1)))
    np.save("y.npy", np.arange(120) % 3)
    Path("my_pass.py").write_text(PLUGIN)


def write_model(line: str) -> None:
    """The model of a command, open where the command says how large its batch is."""
    opened = re.search(r"--dim (\w+)=|graphc (train)", line)
    batch = (opened[1] or "N") if opened else len(VALUES.T)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "fc1"),
        helper.make_node("Relu", ["h"], ["y"], "relu1"),
    ]
    inputs, outputs = [("x", TensorProto.FLOAT, (batch, 4))], [("y", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(VALUES, "w")]
    for name in ("model", "other", "q"):
        save(Path(f"{name}.onnx"), make(nodes, inputs, outputs, constants))


def shorter(words: list[str]) -> list[str]:
    """A command that measures for a moment only."""
    if "--runs" in words or not {"bench", "profile", "report"} & set(words):
        return words
    if "--seconds" in words:
        words[words.index("--seconds") + 1] = "0.05"
        return words
    return [*words, "--seconds", "0.05"]


@pytest.mark.parametrize("line", EXAMPLES)
def test_example(folder, capsys, monkeypatch, line):
    if "--simulate" in line and shutil.which("g++") is None:
        pytest.skip("needs g++")
    linkers = {"aarch64-linux-gnu": "aarch64-linux-gnu-gcc", "wasm32": "wasm-ld"}
    for triple, linker in linkers.items():
        if f"--triple {triple}" in line and shutil.which(linker) is None:
            pytest.skip(f"needs {linker}")
    if "completion" in line:
        pytest.importorskip("shtab")
    words = shlex.split(line.partition(" > ")[0])
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("="))
    for earlier in EXAMPLES:
        if f"-o {words[2]}" in earlier:  # writes the file that this one reads
            write_model(earlier)
            ok(capsys, *shlex.split(earlier)[1:])
    write_model(line)
    code, _, err = graphc(capsys, *shorter(words)[1:])
    assert code == 0, err


def test_examples_are_found():
    assert len(EXAMPLES) > 30
