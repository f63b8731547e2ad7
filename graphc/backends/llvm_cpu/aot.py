"""Ahead of time: a program as a shared library, an object file or a module of WebAssembly.

All that a library consists of is compiled into one object file (modules.py); only functions whose
names begin with the model's own are visible outside, so several models fit into one program. A
program of open shape takes its sizes with every run, which tells those that data decides.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from graphc.backends.cfamily.names import prefix
from graphc.backends.llvm_cpu.archive import archive
from graphc.backends.llvm_cpu.codegen import image_of, llvm_text
from graphc.backends.llvm_cpu.header import header
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.interface_ir import Interface
from graphc.backends.llvm_cpu.linking import link_shared, link_wasm
from graphc.backends.llvm_cpu.modules import Weights, object_of
from graphc.backends.llvm_cpu.target import CpuTarget, host_target
from graphc.backends.llvm_cpu.triples import Platform, platform_of
from graphc.backends.llvm_cpu.wrappers import crate, npm_package
from graphc.errors import UnsupportedError
from graphc.files import atomic, write_bytes
from graphc.ir.program import Program
from graphc.progress import tell
from graphc.provenance import Provenance

OBJECTS = (".o", ".obj")
LINKED = (".so", ".wasm")
SUFFIXES = (*LINKED, *OBJECTS, ".a")


def build(
    program: Program, path: Path, target: CpuTarget | None = None,
    provenance: Provenance | None = None,
) -> None:  # fmt: skip
    """Writes `path`, whose suffix is one of SUFFIXES, and beside it what callers need, which tells
    the provenance: a C header, for .a a Rust crate too, for .wasm a package for JavaScript.

    UnsupportedError says which tool is missing, or that the platform has no such files.
    """
    target = target or host_target()
    platform = platform_of(target.triple)
    _check(path, platform)
    name = prefix(path.stem)
    image = image_of(program, target)
    weights = Weights(image.constants)
    interface = Interface(image, name, weights.offsets, platform)
    code = llvm_text(program, target)
    tell("generating machine code")
    data = object_of(code, interface.text(), weights, interface.exports, target, platform)
    beside = _beside(path, image, name, platform)
    with tempfile.TemporaryDirectory(prefix="graphc-") as folder:
        made = _linked(data, path, interface, platform, Path(folder))
        with atomic(path) as whole:
            write_bytes(whole, memoryview(made))
    for name, text in beside.items():
        stamped = text if provenance is None else provenance.stamped(name, text)
        (path.parent / name).parent.mkdir(exist_ok=True)
        with atomic(path.parent / name) as file:
            file.write_text(stamped, encoding="utf-8")


def _check(path: Path, platform: Platform) -> None:
    """UnsupportedError if a platform has no files of this suffix."""
    is_wasm = platform.format == "WebAssembly"
    if (path.suffix == ".wasm") != is_wasm and path.suffix != ".o":
        wanted = ".wasm or .o" if is_wasm else ".so, .a or .o"
        raise UnsupportedError(f"-o {path}: for {platform.name} write {wanted}")
    if path.suffix == ".a" and platform.format != "ELF":
        raise UnsupportedError(
            f"-o {path}: for {platform.name} write {path.stem}{platform.object_suffix}"
        )


def _beside(path: Path, image: Image, name: str, platform: Platform) -> dict[str, str]:
    """The texts that go with a library, by their names in its folder."""
    if path.suffix == ".wasm":
        return npm_package(path, image, name)
    texts = {f"{path.stem}.h": header(image, name, platform)}
    return {**texts, **crate(path, image, name, platform)} if path.suffix == ".a" else texts


def _linked(
    data: bytearray, path: Path, interface: Interface, platform: Platform, folder: Path
) -> bytes | bytearray:
    """The bytes of the file, of those of the object."""
    if path.suffix == ".a":
        return archive(f"{interface.name}.o", data, interface.exports)
    if path.suffix in OBJECTS:
        return data
    part, output = folder / "model.o", folder / path.name
    write_bytes(part, memoryview(data))
    if path.suffix == ".wasm":
        link_wasm([part], output, interface.exports)
    else:
        link_shared([part], output, platform)
    return output.read_bytes()
