"""How code finds out, where it runs, which instructions the processor has, as LLVM IR.

What the processor, or the system, tells is some words of 64 bits. A feature is a bit of one of
them. x86-64 is asked by `cpuid` and `xgetbv` (Intel's manual, volume 2, CPUID; volume 1, 13.3);
AArch64's Linux tells it in the auxiliary vector (Documentation/arch/arm64/elf_hwcaps.rst).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.backends.llvm_cpu.processors.table import Level
from graphc.records import dataclass


@dataclass(frozen=True)
class Detection:
    """`words` is the code that computes them into %w0, %w1 and so on, with the functions that it
    calls; `bits` are the word and the bit of features; `always` are those that every processor of
    the architecture has; `states`, by the bits of a vector, what the system must keep in the first
    word for registers of that size."""

    words: Sequence[str]
    functions: str
    bits: Mapping[str, tuple[int, int]]
    always: frozenset[str]
    states: Mapping[int, int]

    def masks(self, level: Level) -> dict[int, int]:
        """The bits that must be set in each word, for code of a level."""
        masks: dict[int, int] = {}
        for feature in level.features - self.always:
            word, bit = self.bits[feature]
            masks[word] = masks.get(word, 0) | 1 << bit
        if state := self.states.get(level.vector_bits, 0):
            masks[0] = masks.get(0, 0) | state
        return masks


_CPUID = '{ i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}"'
_X86_FUNCTIONS = f"""
; A register (0: eax to 3: edx) of a leaf; 0 if the processor has no such leaf.
define internal i64 @graphc_leaf(i32 %leaf, i32 %sub, i32 %register) #0 {{
  %range = and i32 %leaf, -2147483648
  %first = call {_CPUID}(i32 %range, i32 0)
  %last = extractvalue {{ i32, i32, i32, i32 }} %first, 0
  %has = icmp ule i32 %leaf, %last
  br i1 %has, label %ask, label %none
ask:
  %told = call {_CPUID}(i32 %leaf, i32 %sub)
  %cell = alloca {{ i32, i32, i32, i32 }}
  store {{ i32, i32, i32, i32 }} %told, ptr %cell
  %place = getelementptr i32, ptr %cell, i32 %register
  %value = load i32, ptr %place
  %wide = zext i32 %value to i64
  ret i64 %wide
none:
  ret i64 0
}}

; Which registers the system keeps when it changes threads.
define internal i64 @graphc_kept_registers() #0 {{
  %flags = call i64 @graphc_leaf(i32 1, i32 0, i32 2)
  %bit = and i64 %flags, {1 << 27}
  %has = icmp ne i64 %bit, 0
  br i1 %has, label %ask, label %none
ask:
  %told = call {{ i32, i32 }} asm sideeffect "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %value = extractvalue {{ i32, i32 }} %told, 0
  %wide = zext i32 %value to i64
  ret i64 %wide
none:
  ret i64 0
}}
"""

X86 = Detection(
    [
        "%w0 = call i64 @graphc_kept_registers()",
        "%w1 = call i64 @graphc_leaf(i32 1, i32 0, i32 2)",
        "%w2 = call i64 @graphc_leaf(i32 7, i32 0, i32 1)",
        "%w3 = call i64 @graphc_leaf(i32 7, i32 0, i32 2)",
        "%w4 = call i64 @graphc_leaf(i32 7, i32 1, i32 0)",
        f"%w5 = call i64 @graphc_leaf(i32 {0x80000001 - (1 << 32)}, i32 0, i32 2)",
    ],
    _X86_FUNCTIONS,
    {
        "sse3": (1, 0), "ssse3": (1, 9), "fma": (1, 12), "cx16": (1, 13), "sse4.1": (1, 19),
        "sse4.2": (1, 20), "movbe": (1, 22), "popcnt": (1, 23), "xsave": (1, 26), "avx": (1, 28),
        "f16c": (1, 29), "bmi": (2, 3), "avx2": (2, 5), "bmi2": (2, 8), "avx512f": (2, 16),
        "avx512dq": (2, 17), "avx512cd": (2, 28), "avx512bw": (2, 30), "avx512vl": (2, 31),
        "avx512vnni": (3, 11), "avxvnni": (4, 4), "avx512bf16": (4, 5), "sahf": (5, 0),
        "lzcnt": (5, 5),
    },
    frozenset(["cmov", "cx8", "fxsr", "mmx", "sse", "sse2"]),
    {256: 0b110, 512: 0b11100110},
)  # fmt: skip

AARCH64_LINUX = Detection(
    ["%w0 = call i64 @getauxval(i64 16)", "%w1 = call i64 @getauxval(i64 26)"],
    "declare i64 @getauxval(i64)\n",
    {
        "lse": (0, 8), "fullfp16": (0, 10), "rdm": (0, 12), "dotprod": (0, 20), "i8mm": (1, 13),
        "bf16": (1, 14),
    },
    frozenset(["fp-armv8", "neon"]),
    {},
)  # fmt: skip
