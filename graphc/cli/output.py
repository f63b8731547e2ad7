"""What commands write: answers as text or JSON, the files they wrote, remarks, and progress on a
terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphc.finite import finite
from graphc.progress import heard_by


def note(text: str) -> None:
    """A remark on stderr."""
    print(f"graphc: {text}", file=sys.stderr)


DELAY = 1.0  # seconds: what is over before is not shown
EVERY = 0.25  # seconds between two looks at the clock
BAR = "{desc}: {percentage:3.0f} %|{bar:24}| {elapsed}"
PLAIN = "{desc} ... {elapsed}"


@contextlib.contextmanager
def progress(what: str, seconds: float = 0.0) -> Iterator[None]:
    """Shows what is being done while it lasts, its phases and how far they are, if a person watches
    and it takes over a second; with `seconds` by the clock. Then how long it took."""
    if not sys.stderr.isatty():
        yield
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread of its own
    start, ended = time.perf_counter(), threading.Event()
    with tqdm(total=100, desc=what, bar_format=PLAIN, leave=False, file=sys.stderr,
              dynamic_ncols=True, delay=DELAY, mininterval=0, miniters=0) as bar:  # fmt: skip

        def show(phase: str, done: float, total: float) -> None:
            bar.bar_format = BAR if total else PLAIN
            bar.desc = f"{what}: {phase}" if phase else what
            bar.update(100 * min(done / total, 1) - bar.n if total else 0)

        def watch() -> None:
            while not ended.wait(EVERY):
                if seconds:
                    show("", time.perf_counter() - start, seconds)
                else:
                    bar.update(0)  # the clock goes on

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            with heard_by(show):
                yield
        finally:
            ended.set()
            watcher.join()
    taken = time.perf_counter() - start
    if taken >= DELAY:
        print(f"{what}: {taken:.1f} s", file=sys.stderr, flush=True)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Answers for programs."""
    parser.add_argument("--json", action="store_true", help="print the answer as one line of JSON")


def answer(args: argparse.Namespace, data: Mapping[str, Any], text: str) -> None:
    """Prints what a command found, as --json asks for it or as text."""
    if args.json:
        print(json.dumps(finite(data)))
    elif text:
        print(text)


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
    status = file.stat()
    return status.st_ino, status.st_mtime_ns
