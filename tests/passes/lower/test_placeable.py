"""What no program can hold is refused by the name of its node, whatever the form asked for."""

import pytest
from programs import WithoutFlow

from graphc.driver import program_for
from graphc.errors import UnsupportedError
from graphc.ir.text.parser import parse_graph
from graphc.passes.specialise import specialise

LOOP = """graph @g(%n: i64[], %go: bool[], %x: f32[3]) -> ? {
  %y = Loop(%n, %go, %x) loc("again") {
    ^(%i: i64[], %k: bool[], %v: f32[3])
    %t = Tanh(%v)
    yield %k, %t
  }
  return %y
}"""
SEQUENCE = """graph @g(%x: f32[4,3]) -> ? {
  %s = SplitToSequence(%x)  loc("split")
  return %s
}"""
STRINGS = """graph @g(%s: string[3]) -> ? {
  %t = StringConcat(%s, %s)
  return %t
}"""
COMPLEX = """graph @g(%x: c64[3]) -> ? {
  %y = Identity(%x)
  return %y
}"""


def test_control_flow_is_refused_by_targets_that_have_none():
    message = r'Loop "again": its branch or trip count depends on data.*--set'
    with pytest.raises(UnsupportedError, match=message):
        program_for(specialise(parse_graph(LOOP)), WithoutFlow())


@pytest.mark.suite("all")
@pytest.mark.parametrize("target", ["cpu", "c", "cuda", "plain"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SEQUENCE, r"'s' is seq<f32\[1,3\]>: sequences need a host"),
        (STRINGS, "'s' is string.*compiled code has no strings"),
        (COMPLEX, "'x' is c64.*compiled code has no complex numbers"),
    ],
)
def test_what_needs_a_host_is_refused(target, text, message):
    graph = specialise(parse_graph(text))
    with pytest.raises(UnsupportedError, match=message):
        program_for(graph, target)
