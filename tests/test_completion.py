"""What a shell offers after the script of graphc completion."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from commands import ok, refused


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ver"], {"verify"}),
        (["compile", "--tar"], {"--target"}),
        (["compile", "--target", ""], {"cpu", "cuda", "c", "plain"}),
        (["quantise", "m.onnx", "--weights", ""], {"int8", "int4", "float16"}),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bash(capsys, tmp_path, words, offered):
    pytest.importorskip("shtab")
    script = tmp_path / "graphc.bash"
    script.write_text(ok(capsys, "completion", "bash"))
    quoted = " ".join(f"'{word}'" for word in ("graphc", *words))
    text = f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _shtab_graphc; "
    done = subprocess.run(
        ["bash", "-c", text + 'echo "${COMPREPLY[@]}"'], capture_output=True, text=True
    )
    assert set(done.stdout.split()) == offered, done.stderr


def test_the_package_that_is_missing_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "'graphc-compiler[completion]'" in refused(capsys, "completion", "zsh")
