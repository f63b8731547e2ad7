"""AArch64, and ARMv7 with its application profile.

A CPU with SVE runs code for NEON: vectors have 128 bits. On ARMv7 NEON takes subnormal numbers for
zeros (Arm Architecture Reference Manual, ARMv7-A, A2.7.4).
"""

from graphc.backends.llvm_cpu.processors.table import (
    ALWAYS,
    FUSED,
    HALVES,
    SIGNED_DOTS,
    Architecture,
    Level,
)

_V8 = frozenset(("fp-armv8", "neon"))
_DOTS = _V8 | {"dotprod", "fullfp16", "lse", "rdm"}
_I8MM = _DOTS | {"i8mm"}

AARCH64 = Architecture(
    "aarch64",
    {
        "neon": Level(_V8, 128, 32),
        "dotprod": Level(_DOTS, 128, 32),
        "i8mm": Level(_I8MM, 128, 32, 1 << 20),
        "bf16": Level(_I8MM | {"bf16"}, 128, 32, 1 << 20),
    },
    {
        "generic": "neon", "cortex-a35": "neon", "cortex-a53": "neon", "cortex-a57": "neon",
        "cortex-a72": "neon", "cortex-a73": "neon", "cortex-a55": "dotprod",
        "cortex-a75": "dotprod", "cortex-a76": "dotprod", "cortex-a77": "dotprod",
        "cortex-a78": "dotprod", "cortex-x1": "dotprod", "neoverse-n1": "dotprod",
        "neoverse-e1": "dotprod", "ampere1": "dotprod", "cortex-a510": "bf16",
        "cortex-a520": "bf16", "cortex-a710": "bf16", "cortex-a715": "bf16",
        "cortex-a720": "bf16", "cortex-x2": "bf16", "cortex-x3": "bf16", "cortex-x4": "bf16",
        "neoverse-n2": "bf16", "neoverse-v1": "bf16", "neoverse-v2": "bf16", "grace": "bf16",
        "apple-a13": "dotprod", "apple-a14": "dotprod", "apple-m1": "dotprod",
        "apple-m2": "bf16", "apple-m3": "bf16", "apple-m4": "bf16",
    },
    "neon",
    {ALWAYS: (FUSED, HALVES), "dotprod": (SIGNED_DOTS,)},
)  # fmt: skip

_VFP3 = frozenset(("armv7-a", "neon", "vfp3", "d32", "thumb2", "v7", "dsp"))
_VFP4 = _VFP3 | {"vfp4", "fp16", "hwdiv", "hwdiv-arm"}

ARMV7 = Architecture(
    "armv7",
    {
        "neon-vfpv3": Level(_VFP3, 128, 16, 256 << 10),
        "neon-vfpv4": Level(_VFP4, 128, 16, 512 << 10),
    },
    {
        "cortex-a8": "neon-vfpv3", "cortex-a9": "neon-vfpv3", "cortex-a5": "neon-vfpv4",
        "cortex-a7": "neon-vfpv4", "cortex-a15": "neon-vfpv4", "cortex-a17": "neon-vfpv4",
        "cortex-a53": "neon-vfpv4", "cortex-a72": "neon-vfpv4",
    },
    "neon-vfpv4",
    {"vfp4": (FUSED,)},
)  # fmt: skip
