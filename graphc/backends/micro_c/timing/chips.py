"""Chips: the processor, its clock, and the flash that code and constants are read from.

A line that is in no cache takes `wait` cycles more than one that is. Numbers are those of the
vendors' reference manuals.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cache:
    """A cache: bytes in all and in a line, and ways of a set."""

    nbytes: int
    line: int
    ways: int

    def __str__(self) -> str:
        return f"{self.nbytes}/{self.line}/{self.ways}"


@dataclass(frozen=True)
class Chip:
    """A chip at its usual clock, in MHz. `code` and `data` are the caches of what is read of flash;
    without `data` constants go through that of code, and with one of no bytes each read waits."""

    name: str
    cpu: str
    mhz: float
    wait: int
    code: Cache
    data: Cache | None = None


UNCACHED = Cache(0, 1, 1)
CHIPS = {
    chip.name: chip
    for chip in (
        # RM0432: ART, 32 x 4 and 8 x 4 lines of 64 bits; 5 wait states at
        # 120 MHz; no prefetch, as after reset
        Chip("stm32l4r5", "cortex-m4", 120, 5, Cache(1024, 8, 4), Cache(256, 8, 4)),
        # nRF52840 PS: a cache of instructions alone; 2 wait states; its size is not told
        Chip("nrf52840", "cortex-m4", 64, 2, Cache(2048, 16, 2), UNCACHED),
        # nRF5340 PS: 8 KiB, 2 ways of 128 bits; 5 wait states where the cache misses
        Chip("nrf5340", "cortex-m33", 128, 5, Cache(8192, 16, 2)),
        # RM0456: ICACHE, 8 KiB, 2 ways of 128 bits; 4 wait states at 160 MHz
        Chip("stm32u575", "cortex-m33", 160, 4, Cache(8192, 16, 2)),
        # RM0455: L1 caches of 16 KiB with lines of 32 bytes, which are two words of flash; a word
        # takes 6 wait states at 280 MHz
        Chip("stm32h7a3", "cortex-m7", 280, 14, Cache(16384, 32, 2), Cache(16384, 32, 4)),
    )
}
