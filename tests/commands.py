"""Commands run in this process, and small models for them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from graphc.cli import main

ROOT = Path(__file__).parent.parent
DIGITS = str(ROOT / "models" / "digits_cnn.onnx")


def graphc(capsys, *argv) -> tuple[int, str, str]:
    """Runs a command: exit code, stdout, stderr."""
    code = main(list(map(str, argv)))
    out = capsys.readouterr()
    return code, out.out, out.err


def ok(capsys, *argv) -> str:
    """What a command prints that must succeed."""
    code, out, err = graphc(capsys, *argv)
    assert code == 0, err
    return out


def refused(capsys, *argv, code: int = 2) -> str:
    """The message of a command that must fail with one line and no traceback."""
    found, _, err = graphc(capsys, *argv)
    lines = [line for line in err.splitlines() if not line.startswith("graphc: taking --dim")]
    assert (found, len(lines)) == (code, 1), err
    assert "Traceback" not in err
    return lines[0]


def save(path: Path, model: onnx.ModelProto) -> str:
    """Writes a model to a file; the file's name."""
    path.write_bytes(model.SerializeToString())
    return str(path)


def make(
    nodes,
    inputs=(("x", TensorProto.FLOAT, (2, 3)),),
    outputs=(("y", TensorProto.FLOAT, None),),
    constants=(),
) -> onnx.ModelProto:
    """A model of these nodes; inputs and outputs are (name, type, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        list(constants),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def relu() -> onnx.ModelProto:
    return make([helper.make_node("Relu", ["x"], ["y"], name="relu1")])
