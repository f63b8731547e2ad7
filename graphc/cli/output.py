"""What commands write: answers as text or JSON, the files they wrote, remarks, and progress on a
terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def note(text: str) -> None:
    """A remark on stderr."""
    print(f"graphc: {text}", file=sys.stderr)


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Names what is being done while it lasts, if a person watches."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
    finally:
        if shown:
            seconds = time.perf_counter() - start
            print(f"\r\x1b[K{what}: {seconds:.1f} s", file=sys.stderr, flush=True)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Answers for programs."""
    parser.add_argument("--json", action="store_true", help="print the answer as one line of JSON")


def answer(args: argparse.Namespace, data: Mapping[str, Any], text: str) -> None:
    """Prints what a command found, as --json asks for it or as text."""
    if args.json:
        print(json.dumps(finite(data)))
    elif text:
        print(text)


def finite(data: Any) -> Any:
    """Data as JSON has it: None for what is infinite or no number."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data


class Written:
    """What a command writes from now on to a file or a folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._before: dict[Path, tuple[int, int]] = {}
        if self.path.is_dir():
            self._before = {file: _state(file) for file in self._files()}

    def _files(self) -> list[Path]:
        return [file for file in self.path.rglob("*") if file.is_file()]

    def _new(self) -> list[Path]:
        """The files that have been written."""
        if self.path.is_dir():
            return [f for f in self._files() if self._before.get(f) != _state(f)]
        return [self.path] if self.path.is_file() else []  # and not a pipe

    @property
    def data(self) -> dict[str, Any]:
        """Where they are, their bytes, and how many there are."""
        new = self._new()
        size = sum(file.stat().st_size for file in new)
        return {"output": str(self.path), "bytes": size, "files": len(new)}

    def __str__(self) -> str:
        """In a line; nothing for a pipe or a device."""
        from graphc.analysis.text import nbytes

        data = self.data
        many = f"{data['files']} files, " if self.path.is_dir() else ""
        return f"wrote {self.path} ({many}{nbytes(data['bytes'])})" if data["files"] else ""


def _state(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns
