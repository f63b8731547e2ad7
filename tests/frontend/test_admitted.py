"""Ops of types that ONNX's operators do not take: exported with the same meaning, or refused."""

import numpy as np
import pytest

import graphc
from graphc.errors import UnsupportedError
from graphc.passes.specialise import specialise


def typed(line: str, inputs: str, results: str = "%y"):
    text = f"graph @g({inputs}) -> ? {{\n  {line}\n  return {results}\n}}"
    return specialise(graphc.parse(text))


def exported(graph, *inputs) -> list[str]:
    """The ops of the exported model, which gives the same results as the graph."""
    model = graphc.export_onnx(graph)
    found = graphc.interpret(graphc.import_onnx(model), list(inputs))
    for array, expected in zip(found, graphc.interpret(graph, list(inputs))):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
    return [node.op_type for node in model.graph.node]


BYTES = np.array([[200, 3, 255], [7, 16, 0]], np.uint8)
SHORT = np.array([[-32768, 3, 32767], [-7, 16, 0]], np.int16)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "line,inputs,arrays,ops",
    [
        ("%y = Pow(%a, %a)", "%a: u8[2,3]", [BYTES], ["Cast", "Pow", "Cast"]),
        ("%y = Relu(%a)", "%a: u8[2,3]", [BYTES], ["Cast", "Relu", "Cast"]),
        ("%y = ReduceMax(%a)", "%a: i16[2,3]", [SHORT], ["Cast", "ReduceMax", "Cast"]),
        ("%y = ReduceSum(%a)", "%a: i16[2,3]", [SHORT], ["Cast", "ReduceSum", "Cast"]),
        ("%y = Mean(%a, %a)", "%a: f16[2]", [np.ones(2, np.float16)], ["Mean"]),
    ],
)
def test_converted(line, inputs, arrays, ops):
    assert exported(typed(line, inputs), *arrays) == ops


def test_members_keep_their_positions():
    graph = typed("%y = Gather(%a, %i)", "%a: i4[4], %i: i64[2]")
    array = np.array([-8, 7, 1, 2]).astype(graph.params[0].tensor.dtype.np)
    assert exported(graph, array, np.array([-1, 0])) == ["Cast", "Gather", "Cast"]


def test_composites_are_expanded():
    graph = typed("%y = MeanVarianceNormalization(%a)", "%a: f16[1,2,3,3]")
    found = exported(graph, np.arange(18, dtype=np.float16).reshape(1, 2, 3, 3))
    assert "MeanVarianceNormalization" not in found


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "line,inputs",
    [
        ("%y = ReduceMean(%a)", "%a: i16[2,3]"),  # the mean of wrapped sums is another
        ("%y = Relu(%a)", "%a: u64[2]"),  # nothing is wider
        ("%y = QuantizeLinear(%a, %a)", "%a: f64[]"),
    ],
)
def test_refused(line, inputs):
    with pytest.raises(UnsupportedError, match=r"does not take [a-z0-9]+; Cast to a type"):
        graphc.export_onnx(typed(line, inputs))
