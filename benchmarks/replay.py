"""The code that graphc emits for a set of models on every target, and what changed in it.

    python benchmarks/replay.py write OUT              # the code of the graphc that is checked out
    python benchmarks/replay.py diff OLD NEW           # two such folders, file by file
    python benchmarks/replay.py compare REV [REV]      # both, for two commits (default: the files
                                                       # as they are against REV)

The models are those of models/ and tests/models_wild/, and of --directory (or $GRAPHC_MODELS). They
are compiled by the command line, which any two commits share. A refactoring changes nothing; what
else changes is listed by target and model, and shown with --lines. The exit code of `diff` and
`compare` is 1 if anything changed. Code for the CPU depends on the machine's own vectors, so both
folders have to be written on one machine.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx

import models

ROOT = Path(__file__).resolve().parent.parent
HERE = ("models", "tests/models_wild")
TARGETS: dict[str, Sequence[str]] = {
    "cpu": ("--emit", "llvm"),
    "cpu-program": ("--emit", "program"),
    "c-plain": ("--emit", "c"),
    "c-generic": ("--target", "c", "-o", "OUT"),
    "c-cortex-m4": ("--target", "c", "--cpu", "cortex-m4", "-o", "OUT"),
    "c-cortex-m55": ("--target", "c", "--cpu", "cortex-m55", "-o", "OUT"),
    "cuda-f32-sm_80": ("--target", "cuda", "--arch", "sm_80", "--emit", "cuda"),
    "cuda-f16-sm_90a": (
        "--target", "cuda", "--arch", "sm_90a", "--precision", "f16", "--emit", "cuda",
    ),
    "cuda-program": ("--target", "cuda", "--arch", "sm_80", "--emit", "program"),
}  # fmt: skip
"""What is compiled, by name: arguments of `graphc compile`. OUT stands for a folder."""
LARGEST = 4 << 20  # of larger files (constants) only the digest is kept


# ---------------------------------------------------------------- writing


def write(folder: Path, paths: Sequence[Path], targets: Sequence[str], code: Path) -> None:
    """Writes FOLDER/TARGET/MODEL/FILE for every model, compiled by the graphc in `code`."""
    with tempfile.TemporaryDirectory() as scratch:
        jobs = []
        for path in paths:
            model = Path(scratch, path.name)
            proto = onnx.load(path)
            onnx.save(models.filled(proto), model)
            for target in targets:
                jobs.append((code, model, _pins(proto), target, folder / target / path.stem))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done, job in enumerate(pool.map(lambda job: _compile(*job), jobs), 1):
                _progress(f"{done} of {len(jobs)}: {job}")
    _progress("")


def _pins(model: onnx.ModelProto) -> list[str]:
    """Options that fix the open dimensions of a model's inputs."""
    shapes = (value.type.tensor_type.shape for value in model.graph.input)
    names = {d.dim_param: None for shape in shapes for d in shape.dim if d.dim_param}
    sizes = {name: models.extent_of(name) for name in names}
    return [text for name, size in sizes.items() for text in ("--dim", f"{name}={size}")]


def _compile(code: Path, model: Path, pins: Sequence[str], target: str, folder: Path) -> str:
    """Compiles one model for one target into a folder. What is refused has its error as code."""
    folder.mkdir(parents=True, exist_ok=True)
    options = [str(folder) if text == "OUT" else text for text in TARGETS[target]]
    argv = [sys.executable, "-m", "graphc", "compile", model.name, *pins, *options]
    environment = {**os.environ, "PYTHONPATH": str(code), "GRAPHC_CACHE_DIR": "off"}
    ended = subprocess.run(argv, cwd=model.parent, env=environment, capture_output=True)
    if ended.returncode:
        (folder / "error.txt").write_bytes(ended.stderr)
    elif "OUT" not in TARGETS[target]:
        (folder / "code.txt").write_bytes(ended.stdout)
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > LARGEST:
            path.write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    return f"{target} {model.stem}"


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- comparing


def diff(old: Path, new: Path, lines: int = 0) -> bool:
    """Prints which files of two folders differ, and up to `lines` lines of each difference;
    whether any does."""
    files = [{p.relative_to(f) for p in f.rglob("*") if p.is_file()} for f in (old, new)]
    changed = 0
    for name in sorted(files[0] | files[1]):
        before, after = (_lines(folder / name) for folder in (old, new))
        if before == after:
            continue
        changed += 1
        if before is None or after is None:
            print(f"{name}: only in {new if before is None else old}")
            continue
        delta = list(difflib.unified_diff(before, after, "old", "new", n=1, lineterm=""))[2:]
        counts = [sum(line.startswith(sign) for line in delta) for sign in "-+"]
        print(f"{name}: {counts[0]} lines removed, {counts[1]} added")
        for line in itertools.islice(delta, lines):
            print(f"    {line}")
    print(f"{changed} of {len(files[0] | files[1])} files differ")
    return changed > 0


def _lines(path: Path) -> list[str] | None:
    return path.read_text(errors="replace").splitlines() if path.is_file() else None


def compare(revisions: Sequence[str], args: argparse.Namespace) -> bool:
    """Writes the code of two commits (one: it and the files as they are), and compares them."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for number, revision in enumerate([*revisions, ""][:2]):
            code = Path(scratch, f"code{number}") if revision else ROOT
            if revision:
                _git("worktree", "add", "--quiet", "--detach", str(code), revision)
            folders.append(Path(scratch, revision.replace("/", "-") or "now"))
            try:
                write(folders[-1], _paths(args), args.targets, code)
            finally:
                if revision:
                    _git("worktree", "remove", "--force", str(code))
        return diff(*folders, args.lines)


def _git(*argv: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *argv], check=True)


def _paths(args: argparse.Namespace) -> list[Path]:
    """The models asked for; SystemExit if there is none."""
    folders = [ROOT / name for name in HERE] + ([Path(args.directory)] if args.directory else [])
    paths = sorted(path for folder in folders for path in folder.rglob("*.onnx"))
    chosen = [path for path in paths if not args.models or path.stem in args.models]
    if not chosen:
        raise SystemExit(f"no such models in {', '.join(map(str, folders))}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("write", "diff", "compare"))
    parser.add_argument("what", nargs="+", help="a folder, two folders, or one or two commits")
    parser.add_argument("--models", nargs="+", help="names of models; default: all")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--directory", default=os.environ.get("GRAPHC_MODELS"))
    parser.add_argument("--lines", type=int, default=0, help="of each difference to show")
    args = parser.parse_args()
    expected = {"write": (1, 1), "diff": (2, 2), "compare": (1, 2)}[args.action]
    if not expected[0] <= len(args.what) <= expected[1]:
        parser.error(f"{args.action} takes {' to '.join(map(str, sorted(set(expected))))} names")
    if args.action == "write":
        write(Path(args.what[0]), _paths(args), args.targets, ROOT)
        return 0
    if args.action == "diff":
        return int(diff(Path(args.what[0]), Path(args.what[1]), args.lines))
    return int(compare(args.what, args))


if __name__ == "__main__":
    sys.exit(main())
