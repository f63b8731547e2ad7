"""The architectures that code can be made for, by name."""

from graphc.backends.llvm_cpu.processors.arm import AARCH64, ARMV7
from graphc.backends.llvm_cpu.processors.riscv import RISCV64
from graphc.backends.llvm_cpu.processors.wasm import WASM32
from graphc.backends.llvm_cpu.processors.x86 import X86

ARCHITECTURES = {a.name: a for a in (X86, AARCH64, ARMV7, RISCV64, WASM32)}
ALIASES = {
    "amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv7a": "armv7", "armv7l": "armv7",
    "arm": "armv7", "riscv64gc": "riscv64", "wasm": "wasm32",
}  # fmt: skip
