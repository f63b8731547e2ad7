"""Pages of the repository's root and of examples, and links to them, in the site that mkdocs makes
(`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
PLACE = "project"
LINK = re.compile(r"(\[[^\]]*\])\(([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the root; README.md, which would be the index of a folder, as start.md."""
    for name in PAGES:
        files.append(File.generated(config, _place(name), content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Has links lead to where pages are in the site; what is no page there is named alone."""
    here = Path(page.file.src_uri)
    if here.parts[0] == PLACE:
        return LINK.sub(lambda match: _from_root(*match.groups()), markdown)
    return LINK.sub(lambda match: _from_docs(*match.groups()), markdown)


def _place(name: str) -> str:
    return f"{PLACE}/{'start.md' if name == 'README.md' else name.lower()}"


def _from_docs(text: str, path: str, anchor: str | None) -> str:
    if not path.startswith("../"):
        return f"{text}({path}{anchor or ''})"
    name = path.removeprefix("../")
    return f"{text}({_place(name)}{anchor or ''})" if name in PAGES else f"`{name}`"


def _from_root(text: str, path: str, anchor: str | None) -> str:
    if path in PAGES:
        return f"{text}({_place(path).removeprefix(PLACE + '/')}{anchor or ''})"
    if path.startswith("docs/") and path.endswith(".md"):
        return f"{text}(../{path.removeprefix('docs/')}{anchor or ''})"
    return f"`{path}`"
