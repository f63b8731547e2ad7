"""How the inputs and outputs of a quantised graph are read: real = (value - zero_point) * scale.

An input's parameters are those it is dequantised with, an output's those it was quantised with,
with at most movements of data in between, joined with other data or not. Inputs that are read in
different ways have none.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphc.ir.graph import Graph, Op, Value
from graphc.ir.program import Quantisation
from graphc.passes.analysis import structure
from graphc.passes.analysis.facts import choice


def quantisation(graph: Graph) -> dict[tuple[str, int], Quantisation]:
    """(scale, zero point) of inputs and outputs that have one, by ("input" or "output", number)."""
    parameters: dict[tuple[str, int], Quantisation] = {}
    for number, value in enumerate(graph.params):
        ways = {_parameters(op, "DequantizeLinear") for op in _readers(value)}
        if len(ways) == 1 and None not in ways:
            parameters["input", number] = ways.pop()  # type: ignore[assignment]
    for number, value in enumerate(graph.results):
        way = _parameters(_maker(value), "QuantizeLinear")
        if way is not None:
            parameters["output", number] = way
    return parameters


def _readers(value: Value) -> Iterator[Op]:
    """The ops that read a value, looking through movements."""
    for op in value.users:
        if structure.is_movement(op) or _is_joined(op):
            yield from _readers(op.output)
        else:
            yield op


def _is_joined(op: Op) -> bool:
    """Whether the elements of the result are those of operands, side by side."""
    known = choice(op) if op.defn.form == "indexed" and len(op.outputs) == 1 else None
    return known is not None and known.is_of_elements and not known.extreme and not known.by_data


def _maker(value: Value) -> Op | None:
    """The op that computed a value, looking through movements."""
    op = value.producer
    while op is not None and op.name != "Constant" and structure.is_movement(op):
        op = structure.moved(op)[1].producer
    return op


def _parameters(op: Op | None, name: str) -> Quantisation | None:
    if op is None or op.name != name:
        return None
    scale = op.inputs[1]
    zero = op.inputs[2] if len(op.inputs) > 2 else None
    scales = None if scale is None else scale.constant
    zeros = None if zero is None else zero.constant
    if scales is None or scales.size != 1 or (zero is not None and zeros is None):
        return None
    return float(scales.reshape(-1)[0]), 0 if zeros is None else int(zeros.reshape(-1)[0])
