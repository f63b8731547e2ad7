"""Traces of runs: the CRC-32 of every result of a layer, and its range and mean where logged.

Equal CRCs are equal bytes. Different CRCs are a fault, except for floats and layers behind them,
since processors round floats differently: those are compared by least, largest and mean element.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graphc.errors import ModelError
from graphc.ir.compare import TINY

Summary = tuple[float, float, float]
"""Least, largest and mean element."""


@dataclass(frozen=True)
class Trace:
    """One result of a layer; layer -1 are the inputs."""

    layer: int
    crc: int
    name: str
    summary: Summary | None = field(default=None, compare=False)
    is_float: bool = field(default=False, compare=False)

    def where(self) -> str:
        """What it is a result of."""
        return f"layer {self.layer}, {self.name}" if self.layer >= 0 else f"input {self.name}"


def read_traces(text: str) -> list[Trace]:
    """The traces in a log: `trace LAYER CRC NAME`, `summary LAYER LEAST MOST MEAN NAME`; anywhere
    in a line; CRCs in hexadecimal, numbers in decimal or (after 0x) as their bits."""
    traces: list[Trace] = []
    for line in text.splitlines():
        trace, summary = _after(line, "trace ", 2), _after(line, "summary ", 4)
        try:
            if trace:
                traces.append(Trace(int(trace[0]), int(trace[1], 16), trace[2]))
            elif summary and traces and traces[-1].layer == int(summary[0]):
                least, most, mean = map(_number, summary[1:4])
                traces[-1] = replace(traces[-1], summary=(least, most, mean))
        except ValueError:
            continue
    return traces


def _after(line: str, word: str, count: int) -> list[str]:
    """So many words after a word, and the rest of the line; nothing if there are fewer."""
    words = line.partition(word)[2].split(maxsplit=count)
    return [*words, ""][: count + 1] if len(words) >= count else []


def _number(text: str) -> float:
    if text.lower().startswith("0x"):
        return struct.unpack("<f", struct.pack("<I", int(text, 16) & 0xFFFFFFFF))[0]
    return float(text)


@dataclass
class Comparison:
    """How a device's trace compares with the host's: what is wrong first (empty if nothing is), and
    how many results are equal or differ in rounding, by at most `error` of their range."""

    problem: str = ""
    equal: int = 0
    rounded: int = 0
    error: float = 0.0


def compared(host: Sequence[Trace], device: Sequence[Trace], rtol: float) -> Comparison:
    """Compares up to the first fault. ModelError if the layers are not those of the model."""
    comparison = Comparison()
    for ours, theirs in zip(host, device):
        if ours.layer != theirs.layer:
            raise ModelError(
                f"layer {theirs.layer} where {ours.layer} is expected: is it the log of one run of "
                "this model, for the same --cpu, --opt and --io?"
            )
        if ours.crc == theirs.crc:
            comparison.equal += 1
            continue
        comparison.problem = _problem(ours, theirs, comparison, rtol)
        if comparison.problem:
            return comparison
    if len(device) < len(host):
        comparison.problem = f"the log ends before {host[len(device)].where()}"
    return comparison


def _problem(ours: Trace, theirs: Trace, so_far: Comparison, rtol: float) -> str:
    """What is wrong with a result of another CRC; nothing, but a count, if it is rounding."""
    crcs = f"{ours.where()}: the device has CRC {theirs.crc:08x}, the host {ours.crc:08x}"
    if ours.layer < 0 or not (ours.is_float or so_far.rounded):
        return crcs
    if ours.summary is None or theirs.summary is None:
        return (
            f"{crcs}; it holds floats, which the device may only round otherwise: build with "
            "-DNAME_SUMMARY too, and log `summary` lines, to compare by range and mean"
        )
    extent = max(abs(ours.summary[0]), abs(ours.summary[1]), TINY)
    error = max(_difference(a, b) for a, b in zip(ours.summary, theirs.summary)) / extent
    if error <= rtol or not ours.is_float and error * extent <= 1:
        so_far.rounded, so_far.error = so_far.rounded + 1, max(so_far.error, error)
        return ""
    least, most, mean = theirs.summary
    return (
        f"{ours.where()}: the device has {least:g} to {most:g}, mean {mean:g}; the host "
        f"{ours.summary[0]:g} to {ours.summary[1]:g}, mean {ours.summary[2]:g}"
    )


def _difference(a: float, b: float) -> float:
    """The distance of two numbers; of what is none, none from another such, else no end."""
    if a == b or a != a and b != b:
        return 0.0
    distance = abs(a - b)
    return distance if distance == distance else float("inf")
