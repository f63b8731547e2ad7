"""Rooflines of GPUs, from the figures of their architectures (machines.py)."""

from __future__ import annotations

from graphc.analysis.roofline import Peaks
from graphc.backends.cuda import warpgroup_instructions as warpgroup
from graphc.backends.cuda.machines import DEFAULT_ARCH, machine

VALUES = {"f16": 2, "bf16": 2, "tf32": 1}  # of a word; bytes: 4


def gpu_machine(arch: str = "") -> Peaks:
    """The GPU that kernels are planned for: of an architecture, or of the first of several."""
    gpu = machine(arch or DEFAULT_ARCH)
    products = (name for name in sorted(gpu.instructions) if name.startswith("mma_"))
    warps = {name: name.removeprefix("mma_") for name in products}
    groups = {name: type for name, (type, _) in warpgroup.PRODUCTS.items()}
    groups |= dict.fromkeys(warpgroup.HELD, "tf32")
    peaks = {
        name: gpu.peak(2 * rate * VALUES.get(type, 4))
        for rate, types in ((gpu.core_rate, warps), (gpu.group_rate, groups))
        for name, type in types.items()
        if rate
    }
    return Peaks(
        gpu.peak(2 * gpu.float_rate), gpu.bandwidth * 1e9, gpu.peak(gpu.cache_rate),
        gpu.launch_seconds, int(gpu.cache_mib * (1 << 20)), peaks,
        f"NVIDIA {gpu.gpu} ({gpu.arch})",
    )  # fmt: skip
