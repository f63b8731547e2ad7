"""Computations: constants that follow a rule are computed where they are needed, not read."""

import numpy as np
import pytest

from graphc import compile
from graphc.ir.expr import loads
from graphc.ir.text.parser import parse_graph
from graphc.passes.analysis.compose import computation


def sources(contents: str, type: str) -> set[str]:
    """The inputs that the conversion of a constant reads."""
    shape = type[type.index("[") :]
    graph = parse_graph(f"""graph @g() -> f64{shape} phase typed {{
      const %c : {type} = {contents}
      %y = Cast(%c) {{to=11}} : f64{shape}
      return %y
    }}""")
    (op,) = (op for op in graph.ops if op.name == "Cast")
    (output,) = computation(op).outputs
    return {load.source for load in loads(output.expr)}


@pytest.mark.parametrize(
    ("contents", "type"),
    [
        ("[3, 5, 7, 9]", "i64[4]"),
        ("[[2], [1], [0]]", "i32[3,1]"),
        ("[6, 6, 6, 6]", "i64[4]"),
        ("[[true, true, true, true]]", "bool[1,4]"),
    ],
)
def test_constants_that_follow_a_rule_are_not_read(contents, type):
    assert sources(contents, type) == set()


@pytest.mark.parametrize(
    ("contents", "type"),
    [
        ("[3, 5, 7, 8]", "i64[4]"),
        ("[true, false, true, true]", "bool[4]"),
        ("[0.0, 1.0, 2.0, 3.0]", "f32[4]"),
    ],
)
def test_other_constants_are_read(contents, type):
    assert sources(contents, type) == {"in0"}


def test_the_rule_gives_what_the_constant_holds():
    graph = parse_graph("""graph @g(%x: i64[4]) -> ? {
      const %c : i64[4] = [9, 7, 5, 3]
      %y = Add(%x, %c)
      return %y
    }""")
    (found,) = compile(graph).run([np.arange(4)])
    assert found.tolist() == [9, 8, 7, 6]
