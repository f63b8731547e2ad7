"""Boards that QEMU emulates: their processors and memories, and what firmware for them needs.

`firmware_files` makes an image of a bundle's main, as its test has one: start-up code,
a linker script and a Makefile.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as resources

from graphc.backends.micro_c.cpus import CPUS


@dataclass(frozen=True)
class Tools:
    """What makes and runs images: a compiler, its options (`stdio`: those of a C library whose
    stdio is semihosting), an emulator, and Debian's packages of them."""

    compiler: str
    emulator: str
    packages: str
    options: tuple[str, ...] = ()
    stdio: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """The programs that this machine lacks."""
        return [tool for tool in (self.compiler, self.emulator) if shutil.which(tool) is None]


ARM = Tools(
    "arm-none-eabi-gcc", "qemu-system-arm",
    "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm", stdio=("--specs=rdimon.specs",),
)  # fmt: skip
RISCV = Tools(
    "riscv64-unknown-elf-gcc", "qemu-system-riscv32",
    "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc",
    ("--specs=picolibc.specs",), ("--oslib=semihost",),
)  # fmt: skip


@dataclass(frozen=True)
class Board:
    """A machine of QEMU: its processor, its memories as a linker script has them, and QEMU's
    options for it."""

    name: str
    cpu: str
    memory: str
    machine: tuple[str, ...]
    tools: Tools = ARM

    def emulator(self) -> list[str]:
        """The command that runs an image, less the image's name."""
        return [
            self.tools.emulator, *self.machine, "-display", "none", "-monitor", "none",
            "-serial", "none", "-semihosting-config", "enable=on,target=native", "-kernel",
        ]  # fmt: skip

    def compiler(self) -> list[str]:
        """The command that compiles for its processor, and links without start-up code."""
        flags = CPUS[self.cpu].flags
        return [self.tools.compiler, *flags, *self.tools.options, "-std=c99", "-nostartfiles"]


_MPS2 = "VECTORS : ORIGIN = 0, LENGTH = 1K  ROM : ORIGIN = 1K, LENGTH = 4M - 1K" \
        "  RAM : ORIGIN = {}, LENGTH = 16M"  # fmt: skip
_MPS2_SECURE = "VECTORS : ORIGIN = 0x10000000, LENGTH = 1K  ROM : ORIGIN = 0x10000400, " \
               "LENGTH = 4M - 1K  RAM : ORIGIN = 0x80000000, LENGTH = 16M"  # fmt: skip
_MPS3 = "VECTORS : ORIGIN = 0x10000000, LENGTH = 4K  ROM : ORIGIN = 0x70000000, LENGTH = 64M" \
        "  RAM : ORIGIN = 0x74000000, LENGTH = 64M"  # fmt: skip
_VIRT = "VECTORS : ORIGIN = 0x80000000, LENGTH = 4K  ROM : ORIGIN = 0x80001000, LENGTH = 64M - 4K" \
        "  RAM : ORIGIN = 0x84000000, LENGTH = 64M"  # fmt: skip


def _arm(name: str, cpu: str, memory: str) -> Board:
    return Board(name, cpu, memory, ("-M", name))


BOARDS = {
    board.name: board
    for board in (
        _arm("mps2-an386", "cortex-m4", _MPS2.format("0x21000000")),
        _arm("mps2-an500", "cortex-m7", _MPS2.format("0x60000000")),
        _arm("mps2-an505", "cortex-m33", _MPS2_SECURE),
        _arm("mps3-an547", "cortex-m55", _MPS3),
        Board("riscv32-virt", "rv32", _VIRT,
              ("-M", "virt", "-cpu", "rv32,f=off,d=off", "-bios", "none"), RISCV),
    )
}  # fmt: skip


def resource(name: str) -> str:
    """The text of a file of this package."""
    return (resources(__package__) / name).read_text()


def linker_script(board: Board) -> str:
    """Memories and sections."""
    return f"MEMORY {{ {board.memory} }}\n{resource('sections.ld')}"


MAKEFILE = """\
# make: {main} as an image for {board}; make run: in QEMU
CC = {compiler}
CFLAGS = -O2 -ffunction-sections -I. -Iboard

{name}.elf: {sources} $(wildcard board/* *.h *.bin)
{tab}$(CC) $(CFLAGS) {stdio} -Wl,--gc-sections \\
{tab}    -T board/board.ld {sources} -lm -o $@

run: {name}.elf
{tab}{emulator} $<

.PHONY: run
"""


def firmware_files(board: Board, name: str, main: str, sources: Sequence[str]) -> dict[str, str]:
    """What turns a main of a bundle, its test say, and `sources` into firmware for a board."""
    files = ["board/startup.c", "board/test_main.c", main, *sources]
    makefile = MAKEFILE.format(
        board=board.name, main=main, compiler=" ".join(board.compiler()), name=name, tab="\t",
        sources=" ".join(files), stdio=" ".join(board.tools.stdio),
        emulator=" ".join(board.emulator()),
    )  # fmt: skip
    own = {f"board/{file}": resource(file) for file in ("startup.c", "board.h", "test_main.c")}
    return {**own, "board/board.ld": linker_script(board), "Makefile": makefile}
