"""Counts of what ran, by layer: images run in QEMU under a plugin, counter.c."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path

from graphc.backends.micro_c.boards import Board
from graphc.backends.micro_c.timing.chips import Cache, Chip
from graphc.backends.micro_c.timing.disassembly import Instruction, read_disassembly
from graphc.errors import InternalError, UnsupportedError

TIMEOUT = 600  # seconds of emulation
DISASSEMBLING = dict.fromkeys(
    ("cortex-m52", "cortex-m55", "cortex-m85"), ("-m", "armv8.1-m.main")
)  # else their vectors are unknown


@dataclass(frozen=True)
class Block:
    """Code that ran from one instruction to another, how often, and how often it was left by a
    jump."""

    first: int
    last: int
    runs: int
    jumps: int


@dataclass
class Counts:
    """What a layer ran, and its reads of flash that missed: fetches of code, and reads of data."""

    blocks: list[Block] = field(default_factory=list)
    fetches: int = 0
    reads: int = 0


@dataclass(frozen=True)
class Counted:
    """Counts of a run by layer, the last being what is of none; and the image's instructions."""

    layers: list[Counts]
    code: dict[int, Instruction]


def run_counted(board: Board, image: Path, layers: int, chip: Chip | None) -> Counted:
    """Runs an image, and counts. UnsupportedError if that takes too long."""
    symbols, flash = symbols_of(board, image), _flash(board, image)
    with tempfile.TemporaryDirectory(prefix="graphc-counts-") as name:
        plugin = _plugin(Path(name), _api_version(board))
        out = Path(name) / "counts"
        told = [
            str(plugin), f"marks={symbols['marks']}", f"layers={layers}", f"out={out}",
            f"flash={flash[0]}-{flash[1]}",
        ]  # fmt: skip
        if chip:
            told.append(f"icache={chip.code}")
            told.append(_told_data(chip.data))
        command = [*board.emulator(), image.name, "-plugin", ",".join(told)]
        try:
            done = subprocess.run(
                command, cwd=image.parent, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise UnsupportedError(f"the emulator took over {TIMEOUT} s") from None
        if done.returncode:
            raise InternalError(f"{board.name}: exit status {done.returncode}: "
                                f"{(done.stdout + done.stderr)[-1000:]}")  # fmt: skip
        counts = read_counts(out.read_text(), layers)
    code = tool(board, "objdump", "-d", *DISASSEMBLING.get(board.cpu, ()), str(image))
    return Counted(counts, read_disassembly(code, "riscv" in board.tools.compiler))


def _told_data(cache: Cache | None) -> str:
    """What the plugin is told of reads of data."""
    if cache is None:
        return "data=cached"
    return f"dcache={cache}" if cache.nbytes else "data=uncached"


def read_counts(text: str, layers: int) -> list[Counts]:
    """What the plugin wrote."""
    counts = [Counts() for _ in range(layers + 1)]
    for line in text.splitlines():
        kind, layer, *numbers = line.split()
        if kind == "block":
            counts[int(layer)].blocks.append(Block(*map(int, numbers)))
        else:
            at = counts[int(layer)]
            at.fetches, at.reads = map(int, numbers)
    return counts


def tool(board: Board, name: str, *arguments: str) -> str:
    """What a tool beside the compiler prints."""
    path = board.tools.compiler.removesuffix("gcc") + name
    done = subprocess.run([path, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise InternalError(f"{path} failed: {done.stderr[:1000]}")
    return done.stdout


def symbols_of(board: Board, image: Path) -> dict[str, int]:
    """The addresses of symbols."""
    lines = (line.split() for line in tool(board, "nm", str(image)).splitlines())
    return {line[2]: int(line[0], 16) for line in lines if len(line) == 3}


def _flash(board: Board, image: Path) -> tuple[int, int]:
    """Where an image has its code and its constants."""
    for line in tool(board, "size", "-A", str(image)).splitlines():
        if line.startswith(".text "):
            _, size, address = line.split()
            return int(address), int(address) + int(size)
    raise InternalError(f"{image.name} has no code")


def _api_version(board: Board) -> int:
    """The version of plugins that the emulator takes: 2 from QEMU 9 on."""
    done = subprocess.run([board.tools.emulator, "--version"], capture_output=True, text=True)
    told = re.search(r"version (\d+)", done.stdout)
    return 2 if told and int(told[1]) >= 9 else 1


def _plugin(folder: Path, version: int) -> Path:
    """The plugin, compiled. UnsupportedError if there is no compiler for this machine."""
    compiler = host_compiler()
    if compiler is None:
        raise UnsupportedError("counting instructions takes a C compiler for this machine")
    built = folder / "counter.so"
    source = (resources(__package__) / "counter.c").read_text()
    options = ["-O2", "-shared", "-fPIC", f"-DAPI_VERSION={version}"]
    command = [compiler, *options, "-x", "c", "-", "-o", str(built)]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedError(f"the plugin that counts does not compile: {done.stderr[:1000]}")
    return built


def host_compiler() -> str | None:
    """The C compiler of this machine, if there is one."""
    named: Sequence[str | None] = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((c for c in named if c and shutil.which(c)), None)
