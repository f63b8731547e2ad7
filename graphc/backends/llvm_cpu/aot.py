"""Ahead of time: a program as a shared library, an object file or a module of WebAssembly.

All that a library consists of is compiled into one object file (modules.py); only functions whose
names begin with the model's own are visible outside, so several models fit into one program. A
program of open shape takes its sizes with every run, which tells those that data decides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from graphc.backends.cfamily.names import prefix
from graphc.backends.llvm_cpu.archive import archive
from graphc.backends.llvm_cpu.codegen import image_of, llvm_text, pipeline_of
from graphc.backends.llvm_cpu.dispatch_ir import dispatcher, exports_of
from graphc.backends.llvm_cpu.header import header
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.interface_ir import Interface
from graphc.backends.llvm_cpu.jit import assemble
from graphc.backends.llvm_cpu.linking import link_shared, link_wasm
from graphc.backends.llvm_cpu.modules import Weights, object_of
from graphc.backends.llvm_cpu.target import CpuTarget, cross_target, host_target
from graphc.backends.llvm_cpu.triples import Platform, platform_of
from graphc.backends.llvm_cpu.wrappers import crate, npm_package
from graphc.errors import UnsupportedError
from graphc.files import atomic, write_bytes
from graphc.ir.program import Program
from graphc.progress import tell
from graphc.provenance import Provenance
from graphc.records import dataclass

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
    tell("generating machine code")
    interface, part = _object(program, image, name, target, platform)
    _write(path, image, interface, interface.exports, [part], provenance)


def build_levels(
    programs: Sequence[tuple[str, Program]], path: Path, triple: str,
    provenance: Provenance | None = None,
) -> None:  # fmt: skip
    """As `build`, a library with code for several levels of instructions (or CPUs), by name, from
    least to most, each with its program. It takes the greatest that the processor has when it is
    called first (dispatch_ir.py). Each level has weights of its own."""
    platform = platform_of(triple)
    _check(path, platform)
    if path.suffix not in (".so", ".a"):
        raise UnsupportedError(
            f"-o {path}: code for several processors needs .so or .a; or write one for each --mcpu"
        )
    name = prefix(path.stem)
    parts, levels, images = [], [], []
    for level, program in programs:
        tell(f"generating machine code for {level}")
        target, own = cross_target(triple, level), f"{name}_{prefix(level)}"
        images.append(image_of(program, target))
        parts.append(_object(program, images[-1], own, target, platform, hidden=True)[1])
        levels.append((level, own, platform.architecture.level(level)[1]))
    largest = max(images, key=lambda image: image.arena_bytes)
    interface = Interface(largest, name, [], platform)
    exports, least = exports_of(interface), cross_target(triple, programs[0][0])
    data = bytearray(assemble([dispatcher(interface, levels)], exports, least))
    whole = _Part(f"{name}.o", data, exports)
    _write(path, largest, interface, exports, [whole, *parts], provenance, [x[0] for x in levels])


@dataclass(frozen=True)
class _Part:
    """An object file, and the functions that it gives."""

    name: str
    data: bytearray
    exports: Sequence[str]


def _object(
    program: Program, image: Image, name: str, target: CpuTarget, platform: Platform,
    hidden: bool = False,
) -> tuple[Interface, _Part]:  # fmt: skip
    """The object of a program, whose functions begin with a name; `hidden` as in object_of."""
    weights = Weights(image.constants)
    interface = Interface(image, name, weights.offsets, platform)
    code = llvm_text(program, target)
    exports, pipeline = interface.exports, pipeline_of(program)
    data = object_of(
        code, interface.text(), weights, exports, target, platform, pipeline, hidden=hidden
    )
    return interface, _Part(f"{name}.o", data, exports)


def _write(
    path: Path, image: Image, interface: Interface, exports: Sequence[str],
    parts: Sequence[_Part], provenance: Provenance | None, levels: Sequence[str] = (),
) -> None:  # fmt: skip
    beside = _beside(path, image, interface.name, interface.platform, levels)
    with tempfile.TemporaryDirectory(prefix="graphc-") as folder:
        made = _linked(parts, path, exports, interface.platform, Path(folder))
        write_bytes(path, memoryview(made))
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


def _beside(
    path: Path, image: Image, name: str, platform: Platform, levels: Sequence[str]
) -> dict[str, str]:
    """The texts that go with a library, by their names in its folder."""
    if path.suffix == ".wasm":
        return npm_package(path, image, name)
    texts = {f"{path.stem}.h": header(image, name, platform, levels)}
    return {**texts, **crate(path, image, name, platform)} if path.suffix == ".a" else texts


def _linked(
    parts: Sequence[_Part], path: Path, exports: Sequence[str], platform: Platform, folder: Path
) -> bytes | bytearray:
    """The bytes of the file, of those of its objects."""
    if path.suffix == ".a":
        return archive([(part.name, part.data, part.exports) for part in parts])
    if path.suffix in OBJECTS:
        (part,) = parts
        return part.data
    objects, output = [folder / part.name for part in parts], folder / path.name
    for file, part in zip(objects, parts):
        write_bytes(file, memoryview(part.data))
    if path.suffix == ".wasm":
        link_wasm(objects, output, exports)
    else:
        link_shared(objects, output, platform)
    return output.read_bytes()
