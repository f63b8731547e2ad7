"""The crash directory that graphc leaves when it fails itself: a directory from which one command
replays it.

It holds the command, the traceback, versions, and a copy of every file the command read. Weights
and data are drawn anew in it (weightless.py), unless GRAPHC_CRASH_WEIGHTS=1 asks for them. What is
large, has its data in other files, or is of another kind stays where it is, and is named in full.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import traceback
from importlib import metadata
from pathlib import Path

from graphc import config
from graphc.cli import weightless
from graphc.distribution import NAME

COMMAND, TRACEBACK, VERSIONS = "command.json", "traceback.txt", "versions.txt"
LARGEST_COPY = 64 << 20  # bytes
TEXTS = (".gir", ".log", ".py", ".txt")  # kinds that are copied as they are
OUTPUTS = ("-o", "--output", "--dump-to")
PACKAGES = (NAME, "numpy", "onnx", "onnxruntime", "llvmlite", "ml_dtypes")


def leave_replay(error: BaseException, argv: list[str]) -> str:
    """Writes the directory; returns what to tell the user, in one line."""
    kind = type(error).__name__
    summary = f"internal error: {kind}: {str(error).strip() or 'no message'}"
    try:
        folder = _directory()
        (folder / TRACEBACK).write_text("".join(traceback.format_exception(error)))
        (folder / VERSIONS).write_text(_versions())
        command = {"argv": _kept(argv, folder), "environment": _settings()}
        (folder / COMMAND).write_text(json.dumps(command, indent=1) + "\n")
    except OSError as problem:
        return f"{summary} (no replay could be written: {problem})"
    kept = (
        ""
        if config.keeps_weights()
        else " (weights are not in it; GRAPHC_CRASH_WEIGHTS=1 keeps them)"
    )
    return f"{_short(summary)}; replay it{kept} with: graphc replay {folder}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."


def _directory() -> Path:
    here = Path.cwd()
    where = here if os.access(here, os.W_OK) else Path(tempfile.gettempdir())
    made = tempfile.mkdtemp(prefix="graphc-crash-", dir=where)
    return Path(os.path.relpath(made)) if where == here else Path(made)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("GRAPHC_")}


def _versions() -> str:
    lines = [f"python {platform.python_version()}", f"platform {platform.platform()}"]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} not installed")
    return "\n".join(lines) + "\n"


def _kept(argv: list[str], folder: Path) -> list[str]:
    """The arguments, with files that are read replaced by copies in the folder."""
    kept = []
    for position, argument in enumerate(argv):
        name, equals, path = argument.rpartition("=")
        if path.startswith("@"):  # --set NAME=@FILE.npy
            equals, path = "=@", path[1:]
        previous = argv[position - 1] if position else ""
        if previous in OUTPUTS or name in OUTPUTS or not Path(path).is_file():
            kept.append(argument)
        else:
            kept.append(name + equals + _copy(Path(path), folder, position))
    return kept


def _copy(path: Path, folder: Path, number: int) -> str:
    if path.stat().st_size > LARGEST_COPY or _has_external_data(path):
        return str(path.resolve())
    target = folder / f"{number}-{path.name}"
    beside = path.with_name(path.name + ".npz")
    pairs = [(path, target), (beside, target.with_name(target.name + ".npz"))]
    for source, copy in pairs if beside.is_file() else pairs[:1]:
        if not _copied(source, copy):
            return str(path.resolve())
    return target.name


def _copied(path: Path, target: Path) -> bool:
    """Copies a file, if that can be done without its weights, or they are asked for."""
    if config.keeps_weights() or path.suffix in TEXTS:
        shutil.copyfile(path, target)
        return True
    if path.suffix not in weightless.KINDS:
        return False
    try:
        weightless.copy(path, target)
    except Exception:  # whatever is wrong with the file: it may be what graphc failed on
        target.unlink(missing_ok=True)
        return False
    return True


def _has_external_data(path: Path) -> bool:
    if path.suffix != ".onnx":
        return False
    import onnx
    from onnx.external_data_helper import uses_external_data

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # whatever is wrong with the file, a copy of it shows it
        return False
    return any(uses_external_data(tensor) for tensor in model.graph.initializer)
