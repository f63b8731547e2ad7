"""Models over windows of time as steps of one hop: `graphc.stream`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from graphc.driver import load_graph, typed
from graphc.errors import GraphcError, ModelError, near_or_all
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, Value
from graphc.passes.streaming.step import Step, Work
from graphc.passes.streaming.tracks import START, WINDOW, Tracks
from graphc.records import dataclass

SINCE = (WINDOW, START)
MOST_DOUBLINGS = 5  # of the length of a signal that is tried


@dataclass
class Streamed:
    """A model as a step. `graph` takes the frames of one `hop` for each moving input, and the
    state; it gives what the model gives, and the new state. `state` maps inputs to the outputs that
    replace them; it starts as zeros (of quantised state: as its zero point). `window` is how many
    frames of the input results depend on at most, or None since the start of the signal. `work`
    tells what a step computes and keeps of each operator."""

    graph: Graph
    state: dict[str, str]
    hop: int
    window: int | None
    state_bytes: int
    work: list[Work] = field(default_factory=list)

    @property
    def pairs(self) -> str:
        """The state as the option --state of target c has it."""
        return ",".join(f"{name}={output}" for name, output in self.state.items())


def stream(
    source: Any,
    dim: str,
    hop: int | None = None,
    since: str = WINDOW,
    recompute: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Streamed:
    """A model over a window of time as a step function over one hop.

    `source` is what `graphc.compile` takes, with `shapes`, `dims` and `values` to pin it. `dim` is
    time: a dimension that the model names, or an axis of an input, as `input:1`. Each step takes
    the next `hop` frames (default: as few as strides allow) and gives what the model gives for the
    last frames, as many as its window has; once so many have been given, results are the model's
    (to the bit for integers). What comes before is not: state starts as zeros. Of outputs that have
    frames of their own a step gives the newest.

    With `since="start"` there is no window: a step gives what the model gives for all frames since
    the first one. Recurrent layers go on, and padding before the first frame is the state that
    convolutions start from.

    Frames near the borders of a window that has padding inside differ from window to window, and
    recurrent layers start anew in each. Such a model is refused, unless `recompute` has them
    computed anew: results are the same as ever, and a step takes longer.

    ModelError names what is wrong with the arguments; UnsupportedError the operator that cannot be
    streamed, and why.
    """
    if since not in SINCE:
        raise ModelError(f"since must be one of {', '.join(SINCE)}, found {since!r}")
    if hop is not None and (not isinstance(hop, int) or hop < 1):
        raise ModelError(f"hop must be a positive number of frames, found {hop!r}")
    graph = load_graph(source)
    axes = _axes(graph, dim)
    if since == START and _is_open(graph, dim, shapes, dims):
        step, hop = _for_any_length(graph, dim, axes, hop, recompute, shapes, dims, values)
    else:
        step, hop = _step(
            typed(graph, shapes=shapes, dims=dims, values=values), axes, hop, since, recompute
        )
    window = step.tracks.length if since == WINDOW else None
    return Streamed(step.graph, step.state, hop, window, step.bytes, step.work)


def _axes(graph: Graph, dim: str) -> dict[str, int]:
    """The inputs that have frames, and the axis of these."""
    names = {p.name: p for p in graph.params}
    name, colon, place = dim.rpartition(":")
    if colon and name in names:
        rank = names[name].tensor.rank if names[name].is_ranked else 0
        if not place.isdecimal() or int(place) >= rank:
            raise ModelError(f"dim {dim!r}: input {name!r} has axes 0 to {rank - 1}, not {place!r}")
        return {name: int(place)}
    axes = {}
    for param in graph.params:
        for axis, extent in enumerate(param.tensor.dims if param.is_ranked else ()):
            if isinstance(extent, Sym) and extent.name == dim:
                axes[param.name] = axis
    if not axes:
        known = [*graph.symbols, *(f"{p.name}:{d}" for p in graph.params if p.is_ranked
                                   for d in range(p.tensor.rank))]  # fmt: skip
        raise ModelError(f"dim {dim!r}: no input has such a dimension{near_or_all(dim, known)}")
    return axes


def _is_open(graph: Graph, dim: str, shapes: Any, dims: Any) -> bool:
    return dim in graph.symbols and dim not in (dims or {}) and not shapes


def _for_any_length(
    graph: Graph, dim: str, axes: dict[str, int], hop: int | None, recompute: bool,
    shapes: Any, dims: Any, values: Any,
) -> tuple[Step, int]:  # fmt: skip
    """A step for a signal of open length: that of some length, which is tried, long enough that
    every layer has frames that no border is near to."""
    length, error = 4 * (hop or 1), None
    for _ in range(MOST_DOUBLINGS):
        try:
            pinned = typed(graph, shapes=shapes, dims={**(dims or {}), dim: length}, values=values)
            return _step(pinned, axes, hop, START, recompute)
        except GraphcError as failure:
            length, error = 2 * length, failure
    assert error is not None
    raise error


def _step(
    graph: Graph, axes: dict[str, int], hop: int | None, since: str, recompute: bool
) -> tuple[Step, int]:
    moving = [param for param in graph.params if param.name in axes]
    length = _length(moving, axes)
    tracks = Tracks(graph, length, since)
    for param in moving:
        tracks.add_input(param, axes[param.name])
    tracks.follow()
    least = tracks.least_hop()
    hop = hop or least
    if hop % least:
        raise ModelError(f"hop {hop}: strides along time ask for a multiple of {least} frames")
    if since == WINDOW and hop > length:
        raise ModelError(f"hop {hop}: the window has {length} frames, and all would be new")
    if since == START and (length % hop or length < 2 * hop):
        raise ModelError(
            f"hop {hop}: since the start of a signal, the model is read at a length of several "
            f"hops; found {length} frames"
        )
    step = Step(tracks, hop, recompute)
    step.made()
    return step, hop


def _length(moving: list[Value], axes: dict[str, int]) -> int:
    """How many frames the inputs have."""
    lengths = {param.tensor.extent(axes[param.name]) for param in moving}
    if len(lengths) != 1:
        raise ModelError(f"the moving inputs have {sorted(lengths)} frames; they must share time")
    return lengths.pop()
