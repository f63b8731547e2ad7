"""The examples of the documentation run, and print what they say they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
SHOWN = re.compile(r"^(?:print\(.*\) +# |.* +# prints )(.*)$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples(page, capsys, tmp_path, monkeypatch):
    (tmp_path / "models").symlink_to(DOCS.parent / "models")
    monkeypatch.chdir(tmp_path)  # what they write stays there
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    namespace: dict = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(page), "exec", dont_inherit=True), namespace)
        printed = capsys.readouterr().out.splitlines()
        for shown in SHOWN.findall(block):
            assert shown in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_exist(page):
    """Every file or folder that a page names is there."""
    root = DOCS.parent
    for name in re.findall(r"`((?:graphc|tests)/[\w./]+)`", page.read_text()):
        assert (root / name).exists(), name
    files = [
        f"/{path}"
        for top in ("graphc", "tests", "benchmarks", "docs", "examples")
        for path in (root / top).rglob("*.py")
    ]
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text()):
        assert "NAME" in name or any(file.endswith(f"/{name}") for file in files), name
    for name in re.findall(r"\]\(([\w.]+\.md)\)", page.read_text()):
        assert (DOCS / name).exists(), name


def test_written_operators_are_right():
    """What the definitions on the page compute, next to numpy."""
    import numpy as np

    from graphc import dsl
    from graphc.ir.interp import interpret

    text = (DOCS / "writing_an_operator.md").read_text()
    namespace: dict = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, "writing_an_operator.md", "exec", dont_inherit=True), namespace)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 5), (4, 5)))
    with dsl.building("both") as g:
        x, y = g.input("x", dsl.f32[3, 5]), g.input("y", dsl.f32[4, 5])
        g.output(d=dsl.apply("my.ops.Manhattan", x, y), c=dsl.apply("my.ops.Centred", x))
    distances, centred = interpret(g.graph, [a, b])
    np.testing.assert_allclose(distances, abs(a[:, None] - b).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(centred, a - a.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)


TERMS = re.findall(
    r"^\| ([^|]+?) \| [^|]+ \| `([^`]+)` \|$", (DOCS / "glossary.md").read_text(), re.M
)


@pytest.mark.parametrize(("term", "file"), TERMS, ids=lambda x: x.replace("/", "."))
def test_glossary_terms_are_in_their_files(term, file):
    """A search for each name of a term finds the file that the glossary gives."""
    text = " ".join((DOCS.parent / "graphc" / file).read_text().lower().split())
    for name in re.split(r", | and ", term.lower()):
        assert name.removesuffix("ing").removesuffix("ion") in text, name


def test_the_written_strategy_is_right():
    """Products of several forms by the strategy on the page, in the interpreter of kernels."""
    import numpy as np
    from differential import build, interpret_program

    from graphc.driver import program_for
    from graphc.ir.graph import clone_graph
    from graphc.ir.interp import interpret

    text = (DOCS / "writing_a_strategy.md").read_text()
    namespace: dict = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, "writing_a_strategy.md", "exec", dont_inherit=True), namespace)
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    w, v = floats(6, 3, 3, 3), floats(5, 7)
    cases = [
        build(lambda b, x, y: b.Relu(b.MatMul(x, y)), x=floats(2, 3, 5), y=floats(2, 5, 4)),
        build(lambda b, x: b.Conv(x, w, pads=[1, 1, 1, 1], strides=[2, 2]), x=floats(1, 3, 6, 7)),
        build(lambda b, x: b.Tanh(b.Gemm(x, v, transA=1)), x=floats(5, 4)),
    ]
    for graph, inputs in cases:
        passes = "decompose, fold, canonicalise, fuse"
        program = program_for(clone_graph(graph), "rows", passes=passes, checks="off")
        assert any(name.startswith("row_sums") for name in program.kernels)
        for found, expected in zip(interpret_program(program, inputs), interpret(graph, inputs)):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_table_of_kernels_is_up_to_date():
    done = subprocess.run([sys.executable, DOCS / "runtime_table.py", "--check"])
    assert done.returncode == 0, "write it again: python docs/runtime_table.py"


def test_the_api_reference_is_up_to_date():
    done = subprocess.run([sys.executable, DOCS / "api_reference.py", "--check"])
    assert done.returncode == 0, "write it again: python docs/api_reference.py"


def test_whatever_is_public_is_described():
    entries = re.split(r"^#{3,4} ", (DOCS / "api.md").read_text(), flags=re.M)[1:]
    signature = re.compile(r"\n```\n.*?\n```", re.S)
    assert [
        e for e in entries if not signature.sub("", e, count=1).partition("\n")[2].strip()
    ] == []
