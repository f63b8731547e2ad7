"""What cannot be placed on a microcontroller is refused by name, with what to do about it."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import model_of
from onnx import TensorProto, helper

from graphc import driver
from graphc.backends.micro_c import bundle
from graphc.backends.micro_c.goals import GOALS
from graphc.errors import GraphcError, UnsupportedError
from graphc.targets import micro_c as micro_c_target

FLOAT, INT, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def strings():
    node = helper.make_node(
        "StringNormalizer", ["x"], ["y"], name="lower", case_change_action="LOWER"
    )
    return model_of([node], {"x": (TEXT, [3])}, {"y": (TEXT, None)})


def sequences():
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], name="take apart", axis=0),
        helper.make_node("SequenceAt", ["s", "n"], ["y"], name="pick"),
    ]
    return model_of(nodes, {"x": (FLOAT, [3, 2]), "n": (INT, [])}, {"y": (FLOAT, None)})


def unbounded():
    node = helper.make_node("Reshape", ["x", "to"], ["y"], name="as told")
    return model_of([node], {"x": (FLOAT, [6]), "to": (INT, [2])}, {"y": (FLOAT, None)})


def open_dimension():
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    return model_of([node], {"x": (FLOAT, ["rows", 2])}, {"y": (FLOAT, None)})


def branches():
    def branch(name, copies):
        node = helper.make_node("Concat", ["x"] * copies, [name], axis=0)
        return helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(name, FLOAT, [2 * copies])]
        )

    node = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=branch("a", 1),
                            else_branch=branch("b", 2))  # fmt: skip
    shapes = {"x": (FLOAT, [2]), "c": (TensorProto.BOOL, [])}
    return model_of([node], shapes, {"y": (FLOAT, None)})


CASES = {
    "strings": (strings, "lower|input.*'x'.*strings"),
    "sequences": (sequences, "take apart.*"),
    "unbounded": (unbounded, 'Reshape "as told".*operand shape.*static shapes'),
    "open": (open_dimension, "dimension rows.*give"),
    "branches": (branches, r'If "choose".*f32\[2\] and f32\[4\].*static shapes'),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    make, message = CASES[name]
    with pytest.raises(GraphcError, match=message) as refused:
        bundle(driver.program_for(driver.typed(make()), "c"))
    assert refused.value.exit_code == 2


def test_strings_say_what_to_do():
    with pytest.raises(UnsupportedError, match="convert it to real numbers beforehand"):
        driver.program_for(driver.typed(strings()), "c")


def test_complex_numbers():
    node = helper.make_node("Identity", ["x"], ["y"])
    kind = (TensorProto.COMPLEX64, [2])
    with pytest.raises(UnsupportedError, match="complex numbers"):
        driver.program_for(driver.typed(model_of([node], {"x": kind}, {"y": kind})), "c")


def test_what_can_be_resolved_is_not_refused():
    """A branch on a constant, and sequences that come down to tensors."""
    nodes = branches().graph.node
    model = model_of(list(nodes), {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])},
                     {"c": np.array(True)})  # fmt: skip
    assert driver.program_for(driver.typed(model), "c").steps


def test_the_command_line_knows_the_goals():
    assert tuple(GOALS) == micro_c_target.GOALS
