"""WebAssembly of 32 bits with vectors (SIMD128), as all current engines have it; relaxed vectors,
whose products may be rounded once or twice, as an option."""

from graphc.backends.llvm_cpu.processors.table import FUSED, Architecture, Level

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
_SIMD = _MVP | {"simd128"}

WASM32 = Architecture(
    "wasm32",
    {
        "scalar": Level(_MVP, 0, 16),
        "simd128": Level(_SIMD, 128, 16),
        "relaxed-simd": Level(_SIMD | {"relaxed-simd"}, 128, 16),
    },
    {"generic": "simd128"},
    "simd128",
    {"relaxed-simd": (FUSED,)},
)
