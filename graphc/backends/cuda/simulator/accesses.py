"""Reports in text what memory accesses of a GPU's kernels cost."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.analysis.report import layers
from graphc.analysis.text import nbytes, quantity, table
from graphc.backends.cuda.simulator.profile import KernelProfile, Traffic

COALESCED = 0.8  # of sectors, below which an access is listed
CONFLICTS = 0.1  # of wavefronts, above which it is


def accesses(profiles: Sequence[KernelProfile], top: int | None = None) -> str:
    """Tables of kernels, those first that move most bytes in vain, and of accesses in them that
    are not coalesced or have bank conflicts (`top`: at most so many lines each)."""
    moved = sum(len(kernel.steps) * kernel.moved for kernel in profiles)
    wasted = sum(kernel.wasted for kernel in profiles)
    share = 100 * wasted / moved if moved else 0.0
    lines = [
        f"blocks of {len(profiles)} kernels move {nbytes(moved)} of global memory, "
        f"{nbytes(wasted)} ({share:.1f}%) in sectors' parts that they do not use",
        _kernels(profiles, top),
    ]
    worst = _worst(profiles, top)
    return "\n".join([*lines, "", worst] if worst else lines)


def _kernels(profiles: Sequence[KernelProfile], top: int | None) -> str:
    rows = [("kernel", "layer", "launches", "moved", "wasted", "coalesced", "conflicts")]
    for kernel in sorted(profiles, key=lambda p: (-p.wasted, -p.moved))[:top]:
        step = kernel.steps[0]
        rows.append(
            (step.function, layers(step.nodes), str(len(kernel.steps)),
             nbytes(len(kernel.steps) * kernel.moved), nbytes(kernel.wasted), *_rates(kernel.total))
        )  # fmt: skip
    rest = len(profiles) + 1 - len(rows)
    return "\n".join([table(rows, left=2), *([f"... and {rest} more"] if rest else [])])


def _worst(profiles: Sequence[KernelProfile], top: int | None) -> str:
    """Single accesses, by the sectors and wavefronts they cost beyond the fewest."""
    wasteful = [
        (
            len(kernel.steps) * (x.sectors - x.least_sectors + x.wavefronts - x.least_wavefronts),
            s,
            x,
        )
        for kernel in profiles
        for s, x in kernel.sites.items()
        if x.coalescing < COALESCED or x.conflicts > CONFLICTS
    ]
    if not wasteful:
        return ""
    rows = [("kernel", "access", "requests", "coalesced", "conflicts")]
    for _, site, traffic in sorted(wasteful, key=lambda f: -f[0])[:top]:
        rows.append((site.kernel, site.element, quantity(traffic.requests), *_rates(traffic)))
    return table(rows, left=2)


def _rates(traffic: Traffic) -> tuple[str, str]:
    coalesced = f"{100 * traffic.coalescing:.0f}%" if traffic.sectors else ""
    return coalesced, f"{100 * traffic.conflicts:.0f}%" if traffic.wavefronts else ""
