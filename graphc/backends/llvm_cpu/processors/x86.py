"""x86-64: the levels of its psABI, and those with instructions for bytes and bfloat16."""

from graphc.backends.llvm_cpu.processors.table import (
    BYTE_DOTS,
    EVEN_PRODUCTS,
    FUSED,
    HALVES,
    PAIRS,
    SCALES,
    Architecture,
    Level,
)

_SSE = frozenset(
    [
        "cmov",
        "cx16",
        "cx8",
        "fxsr",
        "mmx",
        "popcnt",
        "sahf",
        "sse",
        "sse2",
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
    ]
)
_AVX2 = _SSE | set(["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"])
_AVX512 = _AVX2 | set(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])

X86 = Architecture(
    "x86_64",
    {
        "x86-64-v2": Level(_SSE, 128, 16, 256 << 10, "x86-64-v2"),
        "x86-64-v3": Level(_AVX2, 256, 16, 512 << 10, "x86-64-v3"),
        "avxvnni": Level(_AVX2 | {"avxvnni"}, 256, 16, 1 << 20, "x86-64-v3"),
        "x86-64-v4": Level(_AVX512, 512, 32, 1 << 20, "x86-64-v4"),
        "avx512vnni": Level(_AVX512 | {"avx512vnni"}, 512, 32, 1 << 20, "x86-64-v4"),
        "avx512bf16": Level(
            _AVX512 | {"avx512vnni", "avx512bf16"}, 512, 32, 1 << 20, "x86-64-v4"
        ),
    },
    {
        "nehalem": "x86-64-v2", "westmere": "x86-64-v2", "sandybridge": "x86-64-v2",
        "ivybridge": "x86-64-v2", "silvermont": "x86-64-v2", "goldmont": "x86-64-v2",
        "tremont": "x86-64-v2", "haswell": "x86-64-v3", "broadwell": "x86-64-v3",
        "skylake": "x86-64-v3", "znver1": "x86-64-v3", "znver2": "x86-64-v3",
        "znver3": "x86-64-v3", "gracemont": "avxvnni", "alderlake": "avxvnni",
        "raptorlake": "avxvnni", "lunarlake": "avxvnni", "arrowlake": "avxvnni",
        "skylake-avx512": "x86-64-v4", "cascadelake": "avx512vnni",
        "icelake-client": "avx512vnni", "icelake-server": "avx512vnni",
        "tigerlake": "avx512vnni", "rocketlake": "avx512vnni", "cooperlake": "avx512bf16",
        "sapphirerapids": "avx512bf16", "emeraldrapids": "avx512bf16",
        "graniterapids": "avx512bf16", "znver4": "avx512bf16", "znver5": "avx512bf16",
    },
    "x86-64-v3",
    {
        "fma": (FUSED,), "f16c": (HALVES,), "sse2": (PAIRS,), "avxvnni": (BYTE_DOTS,),
        "avx512vnni": (BYTE_DOTS,), "avx512vl": (SCALES, EVEN_PRODUCTS),
    },
)  # fmt: skip
