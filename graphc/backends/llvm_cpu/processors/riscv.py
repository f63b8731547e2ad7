"""RISC-V of 64 bits: scalar, and with version 1.0 of the vector extension.

Code for vectors of 128 bits runs on every processor whose registers (VLEN) are as long or longer;
code of a level with longer ones asks for that.
"""

from graphc.backends.llvm_cpu.processors.table import ALWAYS, FUSED, Architecture, Level

_GC = frozenset(["64bit", "m", "a", "f", "d", "c", "zicsr", "zifencei"])


def _vectors(bits: int) -> Level:
    lengths = {f"zvl{size}b" for size in (128, 256, 512) if size <= bits}
    return Level(_GC | {"v"} | lengths, bits, 32, cpu="generic-rv64")


RISCV64 = Architecture(
    "riscv64",
    {
        "rv64gc": Level(_GC, 0, 32, cpu="generic-rv64"),
        "rv64gcv": _vectors(128),
        "rv64gcv-zvl256b": _vectors(256),
        "rv64gcv-zvl512b": _vectors(512),
    },
    {
        "generic-rv64": "rv64gc", "rocket-rv64": "rv64gc", "sifive-u54": "rv64gc",
        "sifive-u74": "rv64gc", "sifive-p550": "rv64gc", "sifive-p670": "rv64gcv",
        "sifive-x280": "rv64gcv-zvl512b", "spacemit-x60": "rv64gcv-zvl256b",
    },
    "rv64gcv",
    {ALWAYS: (FUSED,)},
)  # fmt: skip
