"""The picture of the arena: well-formed whatever names are, and true to the plan."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from graphc import driver
from graphc.analysis.arena_svg import LEFT, WIDTH, arena_svg
from graphc.analysis.memory import arena_use
from graphc.cli import main
from graphc.ir.text.parser import parse_graph

DIGITS = Path(__file__).parent.parent / "models" / "digits_cnn.onnx"
SPACE = "{http://www.w3.org/2000/svg}"


def rectangles(text: str) -> list[ElementTree.Element]:
    """The rectangles of tensors: those with a colour and a tooltip."""
    boxes = ElementTree.fromstring(text).iter(f"{SPACE}rect")
    return [b for b in boxes if b.get("fill", "").startswith("hsl")]


@pytest.mark.parametrize("resident", [False, True])
def test_every_tensor_is_drawn(resident):
    graph = driver.typed(DIGITS, dims={"N": 1})
    program = driver.program_for(graph, "c", io="arena" if resident else "caller")
    boxes = rectangles(arena_svg(program))
    tensors = arena_use(program).tensors
    assert len(boxes) == len(tensors) > 3
    widest = max(t.last - t.first + 1 for t in tensors) / len(program.steps)
    assert abs(max(float(b.get("width")) for b in boxes) - widest * WIDTH) < 0.1
    assert min(float(b.get("x")) for b in boxes) >= LEFT
    assert arena_svg(program) == arena_svg(program)


def test_names_are_escaped():
    graph = driver.typed(
        parse_graph("""graph @g(%x: f32[64]) -> ? {
  %a = Softmax(%x)
  %b = Softmax(%a)
  return %b
}""")
    )
    for op in graph.ops:
        op.loc = ('<a href="x">&\u0001\ud800é</a>',)
    text = arena_svg(driver.program_for(graph, "c", io="arena"))
    text.encode()
    assert "<a href" not in text and "&lt;a href" in text and "é" in text
    assert rectangles(text)


def test_a_program_without_an_arena():
    graph = driver.typed(parse_graph("graph @g(%x: f32[4]) -> ? {\n%y = Exp(%x)\nreturn %y\n}"))
    assert not rectangles(arena_svg(driver.program_for(graph, "c")))


def test_the_command(tmp_path, capsys):
    place = tmp_path / "arena.svg"
    argv = ["inspect", str(DIGITS), "--target", "c", "--machine", "1,1", "--svg", str(place)]
    assert main(argv) == 0, capsys.readouterr().err
    assert rectangles(place.read_text(encoding="utf-8"))
