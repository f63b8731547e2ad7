"""The demo runs and its results are right."""

from __future__ import annotations

from graphc import demo


def test_demo(capsys, monkeypatch):
    monkeypatch.setattr(demo, "SECONDS", 0.05)
    assert demo.main() == 0
    out = capsys.readouterr().out
    for part in ("63 of 64", "ONNX Runtime", "bound by", "arena", "largest tensors"):
        assert part in out
