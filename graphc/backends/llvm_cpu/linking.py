"""Linkers of other software, which make libraries and programs of object files.

For each platform there are several that would do; the first that is installed is taken, and one
that fails gives way to the next.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from graphc.backends.llvm_cpu.target import host_target
from graphc.backends.llvm_cpu.triples import Platform, platform_of
from graphc.errors import ModelError, UnsupportedError

WASM_STACK = 1 << 20  # bytes
_DEBIAN = {  # packages with GNU's tools
    "aarch64-linux-gnu-": "gcc-aarch64-linux-gnu", "riscv64-linux-gnu-": "gcc-riscv64-linux-gnu",
    "arm-linux-gnueabihf-": "gcc-arm-linux-gnueabihf", "x86_64-linux-gnu-": "gcc-x86-64-linux-gnu",
}  # fmt: skip


def link_shared(parts: Sequence[Path], output: Path, platform: Platform) -> None:
    """Makes a shared library. UnsupportedError says what to install."""
    if platform.system != "linux" and not _is_host(platform):
        raise UnsupportedError(
            f"-o {output}: a shared library for {platform.name} needs the tools of its system; "
            f"make an object file, {output.stem}{platform.object_suffix}, and link that there"
        )
    options = ["-shared", "-o", str(output), *map(str, parts), "-lm", "-pthread"]
    _run(_compilers(platform), options, f"-o {output}", _advice(platform))


def link_program(parts: Sequence[Path], output: Path, platform: Platform) -> None:
    """Makes a program that needs no libraries. UnsupportedError says what to install."""
    static = [] if _is_host(platform) else ["-static"]
    options = [*static, "-o", str(output), *map(str, parts), "-lm", "-pthread"]
    _run(_compilers(platform), options, "a run on another processor", _advice(platform))


def link_wasm(parts: Sequence[Path], output: Path, exports: Sequence[str]) -> None:
    """Makes a module of WebAssembly that exports functions, its memory, and where the memory that
    it does not use begins. UnsupportedError says what to install."""
    options = [
        "--no-entry", "--gc-sections", "--strip-all", "--stack-first",
        "-z", f"stack-size={WASM_STACK}", "--export=__heap_base",
        *(f"--export={name}" for name in exports), "-o", str(output), *map(str, parts),
    ]  # fmt: skip
    advice = "LLVM's linker: apt-get install lld, or pip install ziglang"
    _run(_wasm_linkers(), options, f"-o {output}", advice)


def _run(commands: Sequence[Sequence[str]], options: Sequence[str], what: str, advice: str) -> None:
    said = ""
    for command in commands:
        done = subprocess.run([*command, *options], capture_output=True, text=True)
        if done.returncode == 0:
            return
        said = said or f"{' '.join(command)} failed: {done.stderr.strip()[:2000]}"
    if said:
        raise UnsupportedError(f"{what}: {said}")
    raise UnsupportedError(
        f"{what} needs a linker, and none was found; install {advice}; an object file needs none"
    )


def _compilers(platform: Platform) -> list[list[str]]:
    """The compilers that are installed and link for a platform."""
    names = ["cc", "gcc", "clang"] if _is_host(platform) else []
    if platform.gcc:
        names.append(f"{platform.gcc}gcc")
    commands = [[name] for name in names if shutil.which(name)]
    if not _is_host(platform) and shutil.which("clang") and shutil.which("ld.lld"):
        commands.append(["clang", f"--target={platform.llvm}", "-fuse-ld=lld"])
    zig = _zig()
    if zig:
        arch = platform.architecture.name.replace("armv7", "arm")
        commands.append([*zig, "cc", "-target", "-".join([arch, *platform.name.split("-")[1:]])])
    return commands


def _wasm_linkers() -> list[list[str]]:
    names = ["wasm-ld", *(f"wasm-ld-{version}" for version in range(22, 12, -1))]
    commands = [[name] for name in names if shutil.which(name)]
    zig = _zig()
    if zig:
        commands.append([*zig, "wasm-ld"])
    if shutil.which("rust-lld"):
        commands.append(["rust-lld", "-flavor", "wasm"])
    return commands


def _zig() -> list[str]:
    """The command of Zig, from PyPI or of the system; empty if there is none."""
    if shutil.which("zig"):
        return ["zig"]
    return [sys.executable, "-m", "ziglang"] if importlib.util.find_spec("ziglang") else []


@lru_cache
def _is_host(platform: Platform) -> bool:
    try:
        return platform_of(host_target().triple) == platform
    except ModelError:
        return False


def _advice(platform: Platform) -> str:
    if _is_host(platform):
        return "a C compiler (cc, gcc or clang)"
    package = _DEBIAN.get(platform.gcc)
    gcc = f"{platform.gcc}gcc (apt-get install {package}), " if package else ""
    return f"{gcc}clang with lld, or Zig (pip install ziglang)"
