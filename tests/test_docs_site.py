"""The site of the documentation: every page is in it, and no link leads nowhere."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(tmp_path: Path, docs: Path | None = None) -> list[str]:
    """Makes the site; what mkdocs warns of."""
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build as make
    from mkdocs.config import load_config

    more = {} if docs is None else {"docs_dir": str(docs)}
    config = load_config(str(ROOT / "mkdocs.yml"), strict=False, site_dir=str(tmp_path), **more)
    records: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mkdocs")
    logger.addHandler(handler)
    try:
        make(config)
    finally:
        logger.removeHandler(handler)
    return records


def test_links_and_pages(tmp_path):
    assert build(tmp_path) == []
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert pages <= {path.stem for path in tmp_path.glob("*.html")}
    index = (tmp_path / "index.html").read_text()
    for name in pages:  # each is in the navigation
        assert f'"{name}.html"' in index, name
    assert (tmp_path / "project" / "start.html").exists()


def test_links_that_lead_nowhere_are_found(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        (docs / page.name).write_text(page.read_text())
    with (docs / "serving.md").open("a") as file:
        file.write("\n[nothing](nothing.md) and [no heading](quantising.md#nowhere)\n")
    found = build(tmp_path / "site", docs)
    assert any("nothing.md" in text for text in found)
    assert any(re.search("quantising.md.*#?nowhere", text) for text in found)
