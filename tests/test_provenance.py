"""Files tell what made them: version, digest of the model, options and licence, and nothing that
changes from day to day."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import DIGITS, ok, refused

from graphc import __version__

DIGEST = hashlib.sha256(Path(DIGITS).read_bytes()).hexdigest()
FLAGS = ["--dim", "N=1", "--target", "c", "--cpu", "cortex-m4"]


BINARY = {"weights.bin"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("more", [[], ["--package", "zephyr"], ["--board", "mps2-an386"]])
def test_bundles_in_c(capsys, tmp_path, more):
    ok(capsys, "compile", DIGITS, *FLAGS, *more, "--name", "digits", "-o", "fw")
    files = {f.name: f.read_text() for f in Path("fw").rglob("*") if f.is_file()}
    assert {"digits.h", "digits.c", "digits_weights.c"} <= set(files)
    told = [name for name, text in files.items() if DIGEST in text]
    assert set(files) - set(told) <= {"prj.conf"}
    for name in ("digits.h", "digits.c"):
        assert files[name].startswith("/* SPDX-License-Identifier: Apache-2.0\n")
    assert files["digits_weights.c"].startswith("/* SPDX-License-Identifier: LicenseRef-Model\n")
    assert f"graphc {__version__}" in files["digits.c"]
    made = json.loads(files["report.json"])["made_by"]
    assert made["model_sha256"] == DIGEST
    words = made["options"].split()
    assert words[:6] == ["--target", "c", "--cpu", "cortex-m4", *(more or ["--name", "digits"])]
    assert not any(str(tmp_path) in text or "models/digits" in text for text in files.values())


def test_the_same_again(capsys):
    for folder in ("one", "two"):
        shutil.copy(DIGITS, f"{folder}.onnx")
        ok(capsys, "compile", f"{folder}.onnx", *FLAGS, "--name", "same", "-o", folder)
    names = sorted(f.name for f in Path("one").iterdir())
    assert names == sorted(f.name for f in Path("two").iterdir())
    assert all(Path("one", n).read_bytes() == Path("two", n).read_bytes() for n in names)


def test_folders_for_gpus(capsys):
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "--target", "cuda", "-o", "gpu")
    assert DIGEST in Path("gpu/kernels.cu").read_text()
    files = {f: f.read_bytes() for f in Path("gpu").rglob("*") if f.is_file()}
    told = {f for f, text in files.items() if DIGEST.encode() in text}
    assert {f.name for f in files if f not in told} <= BINARY | {
        f.name for f in files if f.suffix == ".cubin"
    }
    assert json.loads(files[Path("gpu/plan.json")])["made_by"]["licence"] == "Apache-2.0"
    done = subprocess.run([sys.executable, "-m", "py_compile", *Path("gpu").rglob("*.py")])
    assert done.returncode == 0


@pytest.mark.parametrize("output", ["m.c", "m.cu", "m.so"])
def test_files_of_code(capsys, output):
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "-o", output)
    text = Path(output).with_suffix(".h" if output == "m.so" else Path(output).suffix).read_text()
    assert text.startswith("/* SPDX-License-Identifier: Apache-2.0\n") and DIGEST in text
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "-o", "m.gir")  # graphc reads it again
    assert Path("m.gir").read_text().startswith("graph @")


@pytest.mark.parametrize(
    ("library", "beside"),
    [
        ("libm.a", {"Cargo.toml", "build.rs", "src/lib.rs", "libm.h"}),
        ("m.wasm", {"package.json", "index.js", "index.d.ts"}),
    ],
)
def test_packages_around_libraries(capsys, library, beside):
    platform = ["--triple", "wasm32"] if library.endswith(".wasm") else []
    Path("p").mkdir()
    ok(capsys, "compile", DIGITS, "--dim", "N=1", *platform, "-o", f"p/{library}")
    for name in beside:
        text = (Path("p") / name).read_text()
        assert DIGEST in text and "Apache-2.0" in text, name
    if "package.json" in beside:
        assert json.loads(Path("p/package.json").read_text())["main"] == "index.js"


def test_exported_models_tell_the_version(capsys):
    import onnx

    ok(capsys, "opt", DIGITS, "-o", "small.onnx")
    assert onnx.load("small.onnx").producer_version == __version__


def test_names(capsys):
    compiled = ("compile", DIGITS, *FLAGS)
    assert "found '1x'" in refused(capsys, *compiled, "-o", "f", "--name", "1x")
    assert "--name" in refused(capsys, *compiled, "--name", "x")
    assert "--name" in refused(capsys, "compile", DIGITS, "-o", "m.gcm", "--name", "x")
