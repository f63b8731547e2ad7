"""Boards that QEMU emulates: their processors and memories, and what firmware for them needs.

`firmware_files` makes an image of a bundle's test: start-up code, a linker script and a Makefile.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as resources

from graphc.backends.micro_c.cpus import CPUS

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"


@dataclass(frozen=True)
class Board:
    """A machine of QEMU: its processor, and its memories as a linker script has them."""

    name: str
    cpu: str
    memory: str

    def emulator(self) -> list[str]:
        """The command that runs an image, less the image's name."""
        return [
            EMULATOR, "-M", self.name, "-display", "none", "-monitor", "none", "-serial", "none",
            "-semihosting-config", "enable=on,target=native", "-kernel",
        ]  # fmt: skip


_MPS2 = "VECTORS : ORIGIN = 0, LENGTH = 1K  ROM : ORIGIN = 1K, LENGTH = 4M - 1K" \
        "  RAM : ORIGIN = {}, LENGTH = 16M"  # fmt: skip
_MPS3 = "VECTORS : ORIGIN = 0x10000000, LENGTH = 4K  ROM : ORIGIN = 0x70000000, LENGTH = 64M" \
        "  RAM : ORIGIN = 0x74000000, LENGTH = 64M"  # fmt: skip
BOARDS = {
    board.name: board
    for board in (
        Board("mps2-an386", "cortex-m4", _MPS2.format("0x21000000")),
        Board("mps2-an500", "cortex-m7", _MPS2.format("0x60000000")),
        Board("mps3-an547", "cortex-m55", _MPS3),
    )
}


def missing_tools() -> list[str]:
    """Programs that boards need and this machine lacks."""
    return [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]


def resource(name: str) -> str:
    """The text of a file of this package."""
    return (resources(__package__) / name).read_text()


def linker_script(board: Board) -> str:
    """Memories and sections."""
    return f"MEMORY {{ {board.memory} }}\n{resource('sections.ld')}"


MAKEFILE = """\
# make: the test as an image for {board}; make run: in QEMU
CC = {compiler}
CFLAGS = {flags} -std=c99 -O2 -ffunction-sections -I. -Iboard

{name}.elf: {sources} $(wildcard board/* *.h *.bin)
{tab}$(CC) $(CFLAGS) --specs=rdimon.specs -nostartfiles -Wl,--gc-sections \\
{tab}    -T board/board.ld {sources} -lm -o $@

run: {name}.elf
{tab}{emulator} $<

.PHONY: run
"""


def firmware_files(board: Board, name: str, sources: Sequence[str]) -> dict[str, str]:
    """What turns the test of a bundle, NAME_test.c and `sources`, into firmware for a board."""
    files = ["board/startup.c", "board/test_main.c", f"{name}_test.c", *sources]
    makefile = MAKEFILE.format(
        board=board.name, compiler=COMPILER, name=name, tab="\t", sources=" ".join(files),
        flags=" ".join(CPUS[board.cpu].flags), emulator=" ".join(board.emulator()),
    )  # fmt: skip
    own = {f"board/{file}": resource(file) for file in ("startup.c", "board.h", "test_main.c")}
    return {**own, "board/board.ld": linker_script(board), "Makefile": makefile}
