"""Times of layers as people read them, and as data."""

from __future__ import annotations

from typing import Any

from graphc.analysis.text import duration, nbytes, quantity, table
from graphc.backends.micro_c.timing.measure import OUTSIDE, LayerTime, Timing

COLUMNS = ("layer", "kernel", "instructions", "cycles", "of these flash", "time", "share")


def text(timing: Timing, top: int | None = None) -> str:
    """The layers that take longest, all of them together, and how far off that can be."""
    ordered = sorted(timing.layers, key=lambda layer: -layer.cycles.total)
    total = timing.cycles or 1.0
    rows = [COLUMNS, *(_row(timing, layer, total) for layer in ordered[:top])]
    lines = [f"time on {_machine(timing)}: {timing.how}", table(rows, left=2)]
    if top is not None and len(ordered) > top:
        lines.append(f"... and {len(ordered) - top} more")
    least, most = bounds(timing)
    seconds = timing.seconds(timing.cycles)
    lines.append(f"{quantity(timing.cycles)} cycles, {duration(seconds)} "
                 f"({duration(least)} to {duration(most)})")  # fmt: skip
    if timing.reason:
        lines.append(f"an estimate, as {timing.reason}")
    if timing.chip is None:
        lines.append("reads of flash take no time here: --chip says how long one makes wait")
    if timing.code is not None:
        lines.append(f"code: {nbytes(timing.code)}, compiled (libm and libgcc apart)")
    return "\n".join(lines)


def bounds(timing: Timing) -> tuple[float, float]:
    """The shortest and the longest time to expect, in seconds."""
    seconds = timing.seconds(timing.cycles)
    return seconds / (1 + timing.error), seconds * (1 + timing.error)


def _machine(timing: Timing) -> str:
    on = f" ({timing.chip.name})" if timing.chip else ""
    return f"a {timing.cpu}{on} at {timing.mhz:g} MHz"


def _row(timing: Timing, layer: LayerTime, total: float) -> tuple[str, ...]:
    cycles = layer.cycles
    return (
        layer.name, layer.kernel, quantity(cycles.instructions), quantity(cycles.total),
        quantity(cycles.waiting), duration(timing.seconds(cycles.total)),
        f"{100 * cycles.total / total:.1f}%",
    )  # fmt: skip


def data(timing: Timing) -> dict[str, Any]:
    """What `text` tells."""
    least, most = bounds(timing)
    return {
        "cpu": timing.cpu,
        "mhz": timing.mhz,
        "chip": timing.chip.name if timing.chip else None,
        "counted": not timing.reason,
        "how": timing.how,
        "reason": timing.reason,
        "cycles": round(timing.cycles),
        "seconds": timing.seconds(timing.cycles),
        "seconds_least": least,
        "seconds_most": most,
        "error": timing.error,
        "code_bytes": timing.code,
        "layers": [
            {
                "layer": None if layer.name == OUTSIDE else layer.name,
                "kernel": layer.kernel,
                "instructions": layer.cycles.instructions,
                "cycles": round(layer.cycles.total),
                "cycles_flash": round(layer.cycles.waiting),
                "seconds": timing.seconds(layer.cycles.total),
                "classes": dict(sorted(layer.cycles.classes.items())),
            }
            for layer in timing.layers
        ],
    }
