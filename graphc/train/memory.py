"""What a training step takes of memory, and keeping it to a limit (recompute.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.train.recompute import fitted, kept
from graphc.train.step_graph import Made

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
ROWS = 12  # layers that are printed


@dataclass(frozen=True)
class Again:
    """How many values are computed again, and by how many operations, if each is computed by
    itself. No choice that frees as many bytes takes fewer than `bound`; `forward` are the
    operations of the forward pass."""

    values: int = 0
    operations: int = 0
    bound: int = 0
    forward: int = 0

    def __str__(self) -> str:
        if not self.values:
            return ""
        share = 100 * self.operations / max(self.forward, 1)
        above = 100 * (self.operations / max(self.bound, 1) - 1)
        best = "the fewest" if self.operations <= self.bound else f"{above:.1f}% above a bound"
        return (
            f"\n{self.values} values are computed again by {self.operations:.3g} operations "
            f"({best}), {share:.1f}% of the forward pass"
        )


@dataclass(frozen=True)
class Memory:
    """Bytes that a step takes: `parameters` with running statistics, `optimizer` state, and the
    `temporaries` of the compiled step, in which activations and gradients share their places.
    `activations` are what the forward pass keeps for the backward pass, by layer; `again` is what
    is computed again there to keep to a limit. Sizes that are open count as the largest."""

    parameters: int
    optimizer: int
    temporaries: int
    activations: Mapping[str, int]
    again: Again = Again()

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.optimizer + self.temporaries

    def __str__(self) -> str:
        from graphc.analysis.text import nbytes, table

        largest = sorted(self.activations.items(), key=lambda pair: -pair[1])
        rows = [("layer", "kept for the backward pass")]
        rows += [(name, nbytes(size)) for name, size in largest[:ROWS]]
        rest = largest[ROWS:]
        if rest:
            rows.append((f"{len(rest)} others", nbytes(sum(size for _, size in rest))))
        total = (
            f"parameters {nbytes(self.parameters)}, optimiser {nbytes(self.optimizer)}, "
            f"temporaries {nbytes(self.temporaries)}, of which activations are kept of "
            f"{nbytes(sum(self.activations.values()))}: {nbytes(self.total)}"
        )
        return f"{table(rows, left=1)}\n{total}{self.again}"


def parsed(memory: int | str) -> int:
    """Bytes, from a number or a text such as "2GiB", "512M" or "1.5 GB"; K is 1024."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    text = memory.strip() if isinstance(memory, str) else ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None or not float(match[1]):
        raise ModelError(f"memory must be bytes, or a text such as '2GiB', found {memory!r}")
    return int(float(match[1]) * (1 << UNITS[match[2].upper()]))


def within(made: Made, rest: int, limit: int, precision: str = "f32") -> tuple[Made, Again]:
    """A step whose temporaries, beside `rest` bytes, keep to a limit: part of the forward pass is
    computed again in the backward pass, if need be. ModelError says how much it needs."""
    if rest >= limit:
        raise ModelError(
            f"parameters and the optimiser's state take {rest:,} bytes; the limit is {limit:,}"
        )
    done = fitted(made.graph, _loss(made), limit - rest, partial(_arena, precision))
    again = Again(len(done.values), done.operations, done.bound, done.forward)
    return replace(made, graph=done.graph), again


def taken(
    made: Made, again: Again, parameters: int, optimizer: int, precision: str = "f32"
) -> Memory:
    """What a step takes."""
    layers: dict[str, int] = {}
    for value in kept(made.graph, _loss(made)):
        assert value.producer is not None
        layer = value.producer.loc[0] if value.producer.loc else value.producer.name
        layers[layer] = layers.get(layer, 0) + value.tensor.most_bytes
    temporaries = _arena(precision, clone_graph(made.graph))
    return Memory(parameters, optimizer, temporaries, layers, again)


def nbytes_of(arrays: Mapping[str, np.ndarray]) -> int:
    """The bytes of arrays."""
    return sum(array.nbytes for array in arrays.values())


def _loss(made: Made) -> Value:
    return made.graph.results[made.numbers.index("loss")]


def _arena(precision: str, graph: Graph) -> int:
    """The bytes of temporaries of a graph as this machine runs it; the graph is changed."""
    from graphc.driver import program_for

    return program_for(graph, precision=precision).arena_bytes
