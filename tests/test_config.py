"""What the environment asks for: GRAPHC_DEBUG, of which each level tells something more."""

import pytest

import graphc
from graphc import config

GRAPH = """graph @g(%x: f32[4,8]) -> f32[4,8] {
  const %w: f32[8,8] = random(seed=1)
  %y = MatMul(%x, %w) : f32[4,8]
  %z = Tanh(%y) : f32[4,8]
  return %z
}"""
TOLD = {
    1: "ms  fuse", 2: "pass fuse", 3: "// ---- after: fuse", 4: "kernel @contract", 5: "fuse ",
}  # fmt: skip


@pytest.mark.parametrize("level", range(6))
def test_debug_levels(level, monkeypatch, capsys):
    monkeypatch.setenv("GRAPHC_DEBUG", str(level))
    graphc.compile(graphc.parse(GRAPH), threads=1)
    lines = capsys.readouterr().err.splitlines()
    for needed, text in TOLD.items():
        assert any(text in line for line in lines) == (level >= needed), text


def test_debug_tells_why_strategies_declined(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHC_DEBUG", "4")
    graphc.compile(graphc.parse(GRAPH.replace("MatMul(%x, %w)", "Exp(%x)")), threads=1)
    assert "contraction: it must have one reduction, found none" in capsys.readouterr().err


def test_what_is_no_number(monkeypatch):
    monkeypatch.setenv("GRAPHC_DEBUG", "loud")
    with pytest.raises(graphc.ModelError, match="GRAPHC_DEBUG must be an integer, found 'loud'"):
        config.debug()
