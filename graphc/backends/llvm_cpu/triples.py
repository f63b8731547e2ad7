"""Platforms that code can be made for: a triple names an architecture, a system and an ABI.

`platform_of` takes the spellings of LLVM, GCC, Debian and Rust: a vendor that says nothing is left
out, and an architecture may have any of its names.
"""

from __future__ import annotations

import re

from graphc.backends.llvm_cpu.processors import ALIASES, ARCHITECTURES
from graphc.backends.llvm_cpu.processors.table import Architecture
from graphc.errors import ModelError, near_or_all
from graphc.records import dataclass

_ELF, _COFF, _MACHO, _WASM = "ELF", "COFF", "Mach-O", "WebAssembly"


@dataclass(frozen=True)
class Platform:
    """Where code runs. `name` is the triple as graphc spells it, `llvm` as LLVM does; `format` is
    that of its objects, `system` what is below it: "linux", "macos", "windows" or "none"; and `gcc`
    begins the names of GNU's tools for it."""

    name: str
    llvm: str
    system: str
    format: str
    gcc: str = ""

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.name.split("-")[0].replace("arm64", "aarch64")]

    @property
    def pointer_bits(self) -> int:
        return 32 if self.architecture.name in ("armv7", "wasm32") else 64

    @property
    def has_threads(self) -> bool:
        """Whether there are POSIX threads."""
        return self.system in ("linux", "macos")

    @property
    def has_libc(self) -> bool:
        """Whether C's library can be asked for memory and for functions of floats."""
        return self.system != "none"

    @property
    def object_suffix(self) -> str:
        return ".obj" if self.system == "windows" else ".o"


PLATFORMS = {
    p.name: p
    for p in (
        Platform("x86_64-linux-gnu", "x86_64-unknown-linux-gnu", "linux", _ELF,
                 "x86_64-linux-gnu-"),
        Platform("x86_64-linux-musl", "x86_64-unknown-linux-musl", "linux", _ELF,
                 "x86_64-linux-musl-"),
        Platform("x86_64-none-elf", "x86_64-unknown-none-elf", "none", _ELF, "x86_64-elf-"),
        Platform("x86_64-windows-msvc", "x86_64-pc-windows-msvc", "windows", _COFF),
        Platform("x86_64-windows-gnu", "x86_64-pc-windows-gnu", "windows", _COFF,
                 "x86_64-w64-mingw32-"),
        Platform("x86_64-apple-macos", "x86_64-apple-macos11", "macos", _MACHO),
        Platform("aarch64-linux-gnu", "aarch64-unknown-linux-gnu", "linux", _ELF,
                 "aarch64-linux-gnu-"),
        Platform("aarch64-linux-musl", "aarch64-unknown-linux-musl", "linux", _ELF,
                 "aarch64-linux-musl-"),
        Platform("aarch64-linux-android", "aarch64-unknown-linux-android24", "linux", _ELF),
        Platform("aarch64-none-elf", "aarch64-none-elf", "none", _ELF, "aarch64-none-elf-"),
        Platform("aarch64-windows-msvc", "aarch64-pc-windows-msvc", "windows", _COFF),
        Platform("arm64-apple-macos", "arm64-apple-macos11", "macos", _MACHO),
        Platform("armv7-linux-gnueabihf", "armv7-unknown-linux-gnueabihf", "linux", _ELF,
                 "arm-linux-gnueabihf-"),
        Platform("armv7-none-eabihf", "armv7-none-eabihf", "none", _ELF, "arm-none-eabi-"),
        Platform("riscv64-linux-gnu", "riscv64-unknown-linux-gnu", "linux", _ELF,
                 "riscv64-linux-gnu-"),
        Platform("riscv64-linux-musl", "riscv64-unknown-linux-musl", "linux", _ELF,
                 "riscv64-linux-musl-"),
        Platform("riscv64-none-elf", "riscv64-unknown-elf", "none", _ELF,
                 "riscv64-unknown-elf-"),
        Platform("wasm32-unknown-unknown", "wasm32-unknown-unknown", "none", _WASM),
    )
}  # fmt: skip


def platform_of(triple: str) -> Platform:
    """The platform of a triple; ModelError tells which there are."""
    own = _usual(triple)
    if own not in PLATFORMS:
        raise ModelError(
            f"triple {triple!r}: no platform is called so{near_or_all(own, PLATFORMS)}"
        )
    return PLATFORMS[own]


def _usual(triple: str) -> str:
    """A triple as graphc spells it."""
    arch, *rest = triple.lower().split("-")
    arch = ALIASES.get(arch, arch)
    if arch == "wasm32":
        return "-".join([arch, *rest]) if len(rest) > 1 else f"{arch}-unknown-unknown"
    rest = [part for part in rest if part not in ("unknown", "pc")]
    rest = [re.sub(r"^(darwin|macosx|macos|android)[\d.]*$", r"\1", part) for part in rest]
    rest = ["macos" if part in ("darwin", "macosx") else part for part in rest]
    if "apple" in rest and arch == "aarch64":
        arch = "arm64"
    if rest == ["none"] or rest == ["elf"]:
        rest = ["none", "elf"]
    return "-".join([arch, *rest])
