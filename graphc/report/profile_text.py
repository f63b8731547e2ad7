"""A profile as people read it, and as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphc.analysis.report import layers
from graphc.analysis.text import duration, quantity, table
from graphc.report.profile import KINDS, Profile, StepTime
from graphc.runtime.readings import Counter, Reading

COLUMNS: tuple[str, ...] = (
    "layer", "kernel", "calls", "time", "share", "at least", "bound by", "times", "GFLOP/s", "GB/s",
)  # fmt: skip
TELLING = 0.05  # part of a run by which sums may be off without a word


def table_of(steps: Sequence[StepTime], top: int | None = None) -> str:
    """The steps that take longest (`top`: at most so many), and what they add up to."""
    rows, total = [COLUMNS], sum(step.seconds for step in steps)
    ordered = sorted(steps, key=lambda step: -step.seconds)
    rows += [_row(step, total) for step in ordered[:top]]
    lines = [table(rows, left=2)]
    rest = ordered[top:] if top is not None else []
    if rest:
        time = sum(step.seconds for step in rest)
        share = 100 * time / total if total else 0.0
        lines.append(f"... and {len(rest)} more, {duration(time)} ({share:.1f}%); see --all")
    return "\n".join(lines)


def _row(step: StepTime, total: float) -> tuple[str, ...]:
    least = "" if step.least is None else duration(step.least)
    factor = "" if step.factor is None else f"x{step.factor:.3g}"
    return (
        layers(step.layers) or step.kernel or step.kind, step.kernel or f"({step.kind})",
        f"{step.calls:g}", duration(step.seconds),
        f"{100 * step.seconds / total if total else 0.0:.1f}%", least, step.bound, factor,
        f"{step.rate(step.flops) / 1e9:.3g}" if step.flops else "",
        f"{step.rate(step.nbytes) / 1e9:.3g}" if step.nbytes else "",
    )  # fmt: skip


def regimes(steps: Sequence[StepTime]) -> str:
    """How the time is shared by what bounds steps."""
    parts, total = [], sum(step.seconds for step in steps)
    for bound in dict.fromkeys(step.bound for step in steps if step.bound):
        mine = [step for step in steps if step.bound == bound]
        seconds, least = sum(s.seconds for s in mine), sum(s.least or 0 for s in mine)
        share = 100 * seconds / total if total else 0.0
        times = f", x{seconds / least:.3g} of the least" if least else ""
        parts.append(f"{bound} {share:.0f}% ({len(mine)} steps{times})")
    return f"bound by: {'; '.join(parts)}" if parts else ""


def run_text(profile: Profile) -> list[str]:
    """Whole runs, and how far steps and runs can be compared."""
    order = [f"{name} {duration(value)}" for name, value in profile.latencies.items()]
    lines = [
        f"{profile.rounds} runs: {', '.join(order)}; {profile.per_second:.4g} runs/s",
        f"steps add up to {duration(profile.total)} (a run takes {duration(profile.processor)} of "
        f"the processor), and in a timed run to {100 * profile.inside:.1f}% of its time; the rest "
        "is outside the compiled code",
        f"{profile.readings:g} readings of {profile.reading * 1e9:.0f} ns a run, "
        f"{100 * profile.overhead:.2g}% of it, are subtracted; timed runs took "
        f"{100 * profile.added:+.1f}% by turns with others",
    ]
    if profile.total < (1 - TELLING) * profile.inside * profile.run:
        lines.append(
            "runs were disturbed: the median of each step is less than its part of the median run; "
            "other programs had the processor in between"
        )
    return lines


def events_text(events: Mapping[str, float] | str) -> str:
    """What the processor counted in a run, or why it did not."""
    if isinstance(events, str):
        return f"no hardware counters: {events}"
    per_cycle = events["instructions"] / events["cycles"] if events["cycles"] else 0.0
    told = [f"{quantity(value)} {name.replace('_', ' ')}" for name, value in events.items()]
    told.append(f"{per_cycle:.2f} instructions a cycle")
    return f"in a run, on the calling thread: {', '.join(told)}"


# ---------------------------------------------------------------- traces


def chrome_trace(
    readings: Sequence[Reading], counter: Counter, about: dict[str, Any]
) -> dict[str, Any]:
    """The Trace Event Format: a track for each thread, a slice for each step; microseconds."""
    start = min((reading.begin for reading in readings), default=0)
    tracks = {t: n for n, t in enumerate(dict.fromkeys(r.thread for r in readings))}
    events: list[dict[str, Any]] = [_named("process_name", 0, str(about.get("model", "model")))]
    events += [_named("thread_name", n, f"stream {n}") for n in tracks.values()]
    for number, reading in enumerate(readings):
        track, at = tracks[reading.thread], reading.begin
        last = int(reading.log[-1][1]) if len(reading.log) else at
        events.append(_slice(reading.timed.program.name, "run", track, start, at, last, counter))
        for step, end in reading.log.tolist():
            slice = _slice("", "", track, start, at, end, counter)
            events.append({**slice, **_told(reading, step), "args": _args(reading, step, number)})
            at = end
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}


def _slice(
    name: str, category: str, track: int, start: int, at: int, end: int, counter: Counter
) -> dict[str, Any]:
    scale = 1e6 / counter.rate
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": track,
            "ts": (at - start) * scale, "dur": (end - at) * scale}  # fmt: skip


def _told(reading: Reading, number: int) -> dict[str, str]:
    step = reading.timed.steps[number]
    kernel = getattr(step, "kernel", "")
    kind = KINDS[type(step)]
    return {"name": layers(step.loc) or kernel or kind, "cat": kind}


def _args(reading: Reading, number: int, run: int) -> dict[str, Any]:
    step = reading.timed.steps[number]
    return {"layers": list(step.loc), "kernel": getattr(step, "kernel", ""), "run": run}
