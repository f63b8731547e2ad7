"""Compiles CUDA C with nvcc, to machine code (cubin) or to PTX."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from graphc.errors import InternalError, ModelError, UnsupportedError

FORMS = ("cubin", "ptx")


def find_nvcc() -> str | None:
    """The path of nvcc: $NVCC, or what the PATH has."""
    return shutil.which(os.environ.get("NVCC") or "nvcc")


def nvcc_version() -> str:
    """Like 13.0.88."""
    return _version(find_nvcc() or "")


@lru_cache
def _version(nvcc: str) -> str:
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"V(\d[\d.]*)", said)
    return version[1] if version else said


def architectures() -> list[str]:
    """The architectures that nvcc makes code for (sm_75, ...); none without nvcc."""
    return list(_architectures(find_nvcc()))


@lru_cache
def _architectures(nvcc: str | None) -> tuple[str, ...]:
    if nvcc is None:
        return ()
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    known = [line.replace("compute_", "sm_") for line in listed.split()]
    return with_features(known, _version(nvcc))


def with_features(known: Sequence[str], version: str) -> tuple[str, ...]:
    """Architectures that a compiler lists, and the one with features of its own (sm_90a) that it
    makes code for without listing it, since CUDA 12."""
    architectures, major = list(known), re.match(r"\d+", version)
    if "sm_90" in architectures and "sm_90a" not in architectures and major and int(major[0]) >= 12:
        architectures.insert(architectures.index("sm_90") + 1, "sm_90a")
    return tuple(architectures)


def compile_cuda(text: str, arch: str, form: str = "cubin", strict: bool = False) -> bytes:
    """The `form` of a CUDA file for an architecture (sm_80). `strict`: warnings are errors.

    UnsupportedError without nvcc, ModelError for an architecture it does not know, InternalError,
    with what nvcc says, if it rejects the text.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise UnsupportedError("nvcc was not found; install the CUDA toolkit, or set NVCC")
    if arch not in architectures():
        raise ModelError(f"nvcc makes no code for {arch}; it does for {', '.join(architectures())}")
    if form not in FORMS:
        raise ModelError(f"form {form!r} is not one of {', '.join(FORMS)}")
    with tempfile.TemporaryDirectory(prefix="graphc-cuda-") as folder:
        source, target = Path(folder, "kernels.cu"), Path(folder, f"kernels.{form}")
        source.write_text(text)
        command = [nvcc, f"-arch={arch}", f"-{form}", "-o", str(target), str(source)]
        command += ["-Werror=all-warnings"] if strict else []
        done = subprocess.run(command, capture_output=True, text=True)
        said = (done.stdout + done.stderr).strip()
        if done.returncode:
            raise InternalError(f"nvcc -arch={arch} failed:\n{said[:4000]}")
        return target.read_bytes()
