"""What limits a model, in sentences, and what would make it faster or smaller, the cheapest first.

Everything is read off the data of a report. A gain is the part of the time that a remedy saves at
most, by the roofline or by what was measured; what saves less than a fiftieth is not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphc.analysis.text import duration, nbytes
from graphc.passes.reasons import short
from graphc.report.gathered import Data
from graphc.report.profile_text import TELLING

OPTION, DATA, WORK = range(3)  # effort: another option; a command with data; work on the model
LEAST = 0.02  # gains that are named
NAMED = 3
FAR = 2.0  # times the least from which a step is far from the roofline
BOUNDS = {
    "compute": "arithmetic (the peak operations a second)",
    "memory": "the bandwidth of memory",
    "cache": "the bandwidth of the cache",
    "overhead": "starting kernels",
}


@dataclass(frozen=True)
class Remedy:
    """What to do, why, the effort, and the part of something that it saves at most."""

    title: str
    text: str
    effort: int
    gain: float
    of: str = "time"


def told(report: Data) -> Data:
    """Limits and remedies of a report, as data for it."""
    facts = Facts(report)
    remedies = [r for make in REMEDIES for r in make(facts) if r.gain >= LEAST]
    remedies.sort(key=lambda r: (r.effort, -r.gain))
    by_title: dict[str, Remedy] = {}  # each by its largest gain
    for remedy in remedies:
        by_title.setdefault(remedy.title, remedy)
    return {
        "limits": [*_time(facts), *_outside(facts), *_memory(facts)],
        "remedies": [
            {"title": r.title, "text": r.text, "gain": r.gain, "of": r.of}
            for r in list(by_title.values())[:NAMED]
        ],
    }  # fmt: skip


class Facts:
    """Sums that several sentences rest on. Times are measured ones, else the least."""

    def __init__(self, report: Data):
        self.report, self.about = report, report["about"]
        self.steps: Sequence[Data] = report["steps"]
        self.measured = any(step["seconds"] is not None for step in self.steps)
        self.total = sum(map(self.time, self.steps))
        self.least = sum(step["least"] or 0.0 for step in self.steps)
        run = self.about.get("measured") or {}
        self.run = run.get("run") or self.total
        self.outside = self.run * (1 - run["inside"]) if run else 0.0
        self.disturbed = max(self.run - self.outside - self.total, 0.0)
        self.whole = max(self.run, self.total)  # of which remedies save a part

    def time(self, step: Data) -> float:
        return (step["seconds"] if self.measured else step["least"]) or 0.0

    def bound(self, *names: str) -> float:
        """The seconds of steps of these bounds."""
        return sum(self.time(step) for step in self.steps if step["bound"] in names)

    def name(self, step: Data) -> str:
        loc = step["loc"]
        more = f" and {len(loc) - 1} more" if len(loc) > 1 else ""
        return f"{short(loc[0])}{more}" if loc else step["name"] or step["kind"]


# ---------------------------------------------------------------- limits


def _time(facts: Facts) -> Iterator[str]:
    if not facts.total:
        yield "Times are not known: give the machine's peaks with --machine GFLOPS,GB/S."
        return
    shares = {name: facts.bound(name) / facts.total for name in BOUNDS}
    top = max(shares, key=lambda name: shares[name])
    told = "time" if facts.about.get("times") else "measured time"
    kind = told if facts.measured else "least time by the roofline"
    yield (
        f"{100 * shares[top]:.0f}% of the {kind} ({duration(facts.total)}) is in steps that are "
        f"bound by {BOUNDS[top]}."
    )
    longest = max(facts.steps, key=facts.time)
    yield (
        f"The longest step is {facts.name(longest)}: {duration(facts.time(longest))}, "
        f"{100 * facts.time(longest) / facts.total:.0f}% of it."
    )
    if facts.measured and facts.total > facts.least > 0:
        yield (
            f"All steps together take {facts.total / facts.least:.2g} times what the roofline "
            f"says they take at the least ({duration(facts.least)})."
        )


def _outside(facts: Facts) -> Iterator[str]:
    if facts.outside > LEAST * facts.run:
        yield (
            f"{duration(facts.outside)} of a run ({100 * facts.outside / facts.run:.0f}%) is "
            "outside the compiled steps: the call itself, and what the host runs."
        )
    if facts.disturbed > TELLING * facts.run:
        yield (
            "Runs were disturbed: other programs had the processor in between, so that steps take "
            f"{duration(facts.disturbed)} less than their part of a run."
        )


def _memory(facts: Facts) -> Iterator[str]:
    for arena in facts.report["arenas"]:
        if not arena["live"]:
            continue
        peak = arena["live"].index(max(arena["live"]))
        live = [t for t in arena["tensors"] if t[2] <= peak <= t[3]]
        names = " and ".join(
            list(dict.fromkeys(short((t[4] or ["an input"])[0]) for t in live))[:2]
        )
        yield (
            f"The arena of {nbytes(arena['bytes'])} is fullest at step {peak}, where the results "
            f"of {names or 'nothing'} are live; constants take {nbytes(arena['constants'])}."
        )


# ---------------------------------------------------------------- remedies


def _threads(facts: Facts) -> Iterator[Remedy]:
    cores, used = facts.about.get("cores") or 1, facts.about.get("threads") or 1
    if facts.about["target"] == "cpu" and used < cores:
        parallel = facts.bound("compute", "cache") / (facts.whole or 1)
        yield Remedy(
            f"--threads {cores}", f"The model ran on {used} of {cores} cores; steps that are "
            "bound by arithmetic or the cache can be shared by all.", OPTION,
            parallel * (1 - used / cores),
        )  # fmt: skip


def _batch(facts: Facts) -> Iterator[Remedy]:
    dims = [name for name, size in facts.about.get("open_dims", {}).items() if size == 1]
    fixed = facts.bound("overhead") + facts.outside
    if dims and facts.run:
        yield Remedy(
            f"--dim {dims[0]}=8", "Starting kernels and calling the model cost the same for "
            "several samples as for one.", OPTION, fixed / facts.whole * 7 / 8,
        )  # fmt: skip


def _quantise(facts: Facts) -> Iterator[Remedy]:
    """Bytes become a quarter of those of float32."""
    if not facts.total or facts.about.get("quantised"):
        return
    bound = facts.bound("memory", "cache")
    yield Remedy(
        "graphc quantise MODEL --data DATA -o q.onnx", "Weights and activations of 8 bits are a "
        "quarter of the bytes of float32, and these bound the steps. Measure what it costs in "
        "accuracy with graphc compare.", DATA, bound / facts.whole * 3 / 4,
    )  # fmt: skip


def _narrow(facts: Facts) -> Iterator[Remedy]:
    """Peaks of instructions on 8-bit integers are higher than those on floats."""
    peaks, int8 = facts.about.get("peaks"), facts.about.get("int8_flops")
    if not peaks or not int8 or facts.about.get("quantised") or not facts.total:
        return
    slow = [s for s in facts.steps if s["bound"] == "compute" and s["peak"] == peaks["flops"]]
    part = sum(map(facts.time, slow)) / facts.whole
    yield Remedy(
        "graphc quantise MODEL --data DATA -o q.onnx", "This machine multiplies integers of 8 "
        f"bits {int8 / peaks['flops']:.2g} times as fast as floats, and arithmetic bounds the "
        "steps. Measure what it costs in accuracy with graphc compare.", DATA,
        part * max(1 - peaks["flops"] / int8, 0.0),
    )  # fmt: skip


def _far(facts: Facts) -> Iterator[Remedy]:
    """Kernels whose steps take much longer than by the roofline."""
    kernels: dict[int, list[Data]] = {}
    for step in facts.steps if facts.measured else ():
        if step["least"] and step.get("kernel") is not None:
            kernels.setdefault(step["kernel"], []).append(step)
    for steps in kernels.values():
        taken, least = sum(map(facts.time, steps)), sum(step["least"] for step in steps)
        longest = max(steps, key=facts.time)
        if taken >= FAR * least:
            declined = longest["declined"]
            why = f" {declined[0][0]} did not make it, as {declined[0][1]}." if declined else ""
            several = f" in {len(steps)} steps" if len(steps) > 1 else ""
            yield Remedy(
                f"Look at {facts.name(longest)}", f"Its kernel {longest['name']} takes "
                f"{taken / least:.2g} times its least time{several}.{why}", WORK,
                (taken - least) / facts.whole,
            )  # fmt: skip


def _apart(facts: Facts) -> Iterator[Remedy]:
    """Groups of their own that move data and compute little."""
    groups = facts.report["groups"]
    for number, group in enumerate(groups):
        steps = [facts.steps[n] for n in group["steps"]]
        time = sum(map(facts.time, steps))
        light = all(s["bound"] in ("memory", "cache", "overhead") for s in steps)
        reasons = [n for n in group["neighbours"] if n[0] == "reads" and "model" not in n[2]]
        if steps and light and len(group["holds"]) == 1 and reasons and facts.total:
            name = short(group["loc"][0]) if group["loc"] else f"group {number}"
            yield Remedy(
                f"Let {name} be fused", f"It is a kernel of its own, which only moves data, since "
                f"it reads {reasons[0][1]}: {reasons[0][2]}.", WORK, time / facts.whole,
            )  # fmt: skip


def _host(facts: Facts) -> Iterator[Remedy]:
    hosted = [x for x in facts.report["layers"] if x["fate"].startswith("runs on the host")]
    if hosted and facts.run:
        layer = hosted[0]
        yield Remedy(
            f"Replace {layer['operator']} {short(layer['name'])}",
            f"It {layer['fate']}; the model is cut there.", WORK,
            max(facts.outside / facts.whole, LEAST),
        )  # fmt: skip


def _small(facts: Facts) -> Iterator[Remedy]:
    """Memory of a microcontroller."""
    if facts.about["target"] != "c":
        return
    if not facts.about.get("quantised"):
        yield Remedy(
            "graphc quantise MODEL --data DATA --integers -o q.onnx", "Constants and tensors of 8 "
            "bits are a quarter of those in float32, and integers need no floating-point unit.",
            DATA, 3 / 4, "memory",
        )  # fmt: skip
    held = sum(arena["bytes"] for arena in facts.report["arenas"])
    own = facts.about["interface"]["bytes"]
    if held and facts.about.get("io") == "caller":
        yield Remedy(
            "--io arena", "Inputs and outputs then lie in the arena, where they share memory with "
            "other tensors.", OPTION, own / (own + held), "RAM",
        )  # fmt: skip


REMEDIES = (_small, _threads, _batch, _quantise, _narrow, _far, _apart, _host)
