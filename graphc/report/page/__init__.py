"""The page of a report: one HTML file that asks for nothing else.

The data are compressed, in base64, so that no name of a model can be read as HTML. The page's
script takes them apart and writes names as text alone. Its policy (CSP) lets nothing run or load
but that script and that style sheet, each by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from graphc.errors import ModelError
from graphc.report.gathered import FORMAT, VERSION, Data

SCRIPTS = ("base", "layout", "graph", "tables", "plots", "detail", "compare", "main")
PARTS = {  # of a report, with keys that the page cannot do without
    "layers": ("name", "operator", "results", "types", "fate", "reads", "groups", "steps"),
    "groups": ("operator", "loc", "layers", "reads", "neighbours", "steps"),
    "steps": ("kind", "name", "loc", "layers", "flops", "bytes", "least", "seconds", "bound"),
    "kernels": ("name", "schedule", "code"),
    "arenas": ("bytes", "lower_bound", "live", "tensors", "constants"),
    "remedies": ("title", "text", "gain", "of"),
}
MOST = 1 << 28  # bytes of a file that is read


def page(report: Data, against: Data | None = None) -> str:
    """The page of a report, beside another if there is one."""
    script = "\n".join(_text(f"{name}.js") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    style = _text("style.css")
    data = json.dumps({"report": report, "against": against}, allow_nan=False)
    packed = base64.b64encode(zlib.compress(data.encode(), 9)).decode()
    parts = {
        "title": html.escape(shown(str(report["about"]["model"]))), "style": style,
        "script": script, "script_digest": _digest(script), "style_digest": _digest(style),
        "data": packed,
    }  # fmt: skip
    head, *rest = _text("page.html").split("{{")
    return head + "".join(
        parts[name] + after for name, _, after in (part.partition("}}") for part in rest)
    )


def shown(text: str) -> str:
    """A name without characters that cannot be seen, or that change the order of others."""
    return "".join(
        c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "\ufffd" for c in text
    )


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---------------------------------------------------------------- reading


def read_report(path: Path) -> Data:
    """A report that `graphc report --json` printed; ModelError if it is none."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ModelError(f"{path}: is not what graphc report --json prints")
    if data.get("version") != VERSION:
        raise ModelError(
            f"{path}: is a report of version {data.get('version')!r}, this graphc reads {VERSION}: "
            "make it again with this graphc"
        )
    for name in (*PARTS, "limits", "about"):
        if not _is_whole(name, data.get(name)):
            raise ModelError(f"{path}: is damaged: {name} is not as graphc report writes it")
    return data


def _is_whole(name: str, part: object) -> bool:
    if name == "about":
        return isinstance(part, dict) and isinstance(part.get("interface"), dict)
    if not isinstance(part, list):
        return False
    if name == "limits":
        return all(isinstance(text, str) for text in part)
    return all(isinstance(item, dict) and item.keys() >= set(PARTS[name]) for item in part)


def read_json(path: Path) -> Any:
    """What a JSON file holds; ModelError if it cannot be read."""
    try:
        if path.stat().st_size > MOST:
            raise ModelError(f"{path}: is larger than {MOST >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is no JSON: {error}") from error
