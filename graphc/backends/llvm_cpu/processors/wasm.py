"""WebAssembly of 32 bits with vectors (SIMD128), as all current engines have it; and with relaxed
vectors, whose products and sums an engine rounds once where its processor can, else twice."""

from graphc.backends.llvm_cpu.processors.table import RELAXED, Architecture, Level

_MVP = frozenset(
    [
        "bulk-memory",
        "bulk-memory-opt",
        "multivalue",
        "mutable-globals",
        "nontrapping-fptoint",
        "sign-ext",
    ]
)
WASM32 = Architecture(
    "wasm32",
    {
        "scalar": Level(_MVP, 0, 16),
        "simd128": Level(_MVP | {"simd128"}, 128, 16),
        "relaxed-simd": Level(_MVP | {"simd128", "relaxed-simd"}, 128, 16),
    },
    {"generic": "simd128"},
    "simd128",
    {"relaxed-simd": (RELAXED,)},
)
