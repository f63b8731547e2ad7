"""Fusion groups: what a kernel's op holds, and for each neighbour why it is not in the group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphc.ir.graph import Graph, Op
from graphc.passes.manager.journal import Subject, subject
from graphc.passes.reasons import listed, short
from graphc.report.trace import Trace

MOST = 2  # pairs of ops whose reasons are told, of two kernels
LATER = "one of the two was made after operators were fused"


@dataclass(frozen=True)
class Neighbour:
    """What a group reads, or what reads it, and why the two are apart."""

    side: str  # reads, or is read by
    name: str
    reason: str


@dataclass(frozen=True)
class Group:
    """The ops of a kernel, and its neighbours."""

    holds: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]


def members(op: Op) -> list[Subject]:
    """What a fused op holds, but constants; another op itself."""
    inner = op.regions[0].ops if op.name == "fused" else [op]
    return [subject(m) for m in inner if m.name != "Constant"]


def group(trace: Trace, graph: Graph, op: Op) -> Group:
    """The group of an op of an optimised graph."""
    holds = tuple(dict.fromkeys(map(str, members(op))))
    return Group(holds, tuple(dict.fromkeys([*_read(trace, op), *_readers(trace, graph, op)])))


def _read(trace: Trace, op: Op) -> Iterator[Neighbour]:
    """The neighbours before a group."""
    for value in op.inputs:
        if value is None or value.constant is not None:
            continue
        if value.producer is None:
            yield Neighbour("reads", value.name, "an input of the model")
        else:
            reason = _reason(trace, op, value.producer)
            yield Neighbour("reads", _told(value.producer), reason)


def _readers(trace: Trace, graph: Graph, op: Op) -> Iterator[Neighbour]:
    """The neighbours after it."""
    for value in op.outputs:
        for user in (u for u in value.users if u.name != "yield"):
            yield Neighbour("is read by", _told(user), _reason(trace, user, op))
        if value in graph.results:
            yield Neighbour("is read by", value.name, "an output of the model")


def _told(op: Op) -> str:
    """An op of a kernel by its layers."""
    return listed(map(short, op.loc)) if len(op.loc) > 1 else listed(map(str, members(op)))


def _reason(trace: Trace, reader: Op, maker: Op) -> str:
    """Why what reads and what makes a value are two kernels."""
    readers, makers = set(members(reader)), set(members(maker))
    texts = [
        d.text for d in trace.journal.decisions
        if d.other in makers and d.of in readers and d.about == "fuse"
    ]  # fmt: skip
    if texts:
        texts = list(dict.fromkeys(texts))
        more = f"; and {len(texts) - MOST} more such pairs" if len(texts) > MOST else ""
        return "; ".join(texts[:MOST]) + more
    fuses = any(stage == "fuse" for run in trace.runs for stage, _ in run.stages)
    for op in (reader, maker):
        if op.defn.form in ("region", "host", "imperative", "core") and op.name != "fused":
            return f"{_told(op)} is {op.defn.form}: it is no expression per element"
    return LATER if fuses else "no pass of this pipeline fuses operators"
