"""State that a bundle keeps from one run to the next (--state): inputs that outputs replace.

Names of inputs and outputs are paired before lowering (`paired`), which places the state in a
structure of the caller's and has each run replace it (passes/lower/state.py). NAME_reset fills it
with what stands for zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphc.backends.micro_c.model import Model
from graphc.backends.micro_c.quantisation import quantisation
from graphc.errors import ModelError, UnsupportedError, did_you_mean
from graphc.ir.graph import Graph
from graphc.ir.program import Quantisation
from graphc.ir.types import TensorType

Parameters = Mapping[tuple[str, int], Quantisation]


def pairs(text: str) -> dict[str, str]:
    """The outputs that replace inputs, from `h_in=h_out,c_in=c_out`."""
    outputs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, output = part.strip().partition("=")
        if not (equals and name and output):
            raise ModelError(f"--state {text}: expected INPUT=OUTPUT, found {part.strip()!r}")
        if name in outputs or output in outputs.values():
            raise ModelError(f"--state {text}: an input and an output of a pair belong to it alone")
        outputs[name] = output
    return outputs


def paired(graph: Graph, text: str, typed: bool = True) -> dict[int, int]:
    """The numbers of the inputs that are state, and of the outputs that replace them; ModelError if
    there are none of the names, or, in a `typed` graph, their types differ."""
    inputs = {param.name: n for n, param in enumerate(graph.params)}
    outputs = {name: n for n, (name, _) in enumerate(graph.named_results())}
    numbers = {}
    for name, output in pairs(text).items():
        for what, wanted, known in (("input", name, inputs), ("output", output, outputs)):
            if wanted not in known:
                near = did_you_mean(wanted, known)
                there = f"the {what}s are {list(known)}"
                raise ModelError(f"--state: there is no {what} {wanted!r}; {there}{near}")
        given, result = graph.params[inputs[name]].type, graph.results[outputs[output]].type
        if typed and not _alike(given, result):
            raise ModelError(
                f"--state {name}={output}: the output replaces the input, so both need one fixed "
                f"type; found {given} and {result}"
            )
        numbers[inputs[name]] = outputs[output]
    return numbers


def _alike(given: object, result: object) -> bool:
    if not isinstance(given, TensorType) or not isinstance(result, TensorType):
        return False
    plain = given.with_layout(None), result.with_layout(None)
    return plain[0] == plain[1] and given.is_static


def moved(
    parameters: Parameters, numbers: Mapping[int, int]
) -> dict[tuple[str, int], Quantisation]:
    """How inputs, outputs and state are quantised, by their numbers in the program; ModelError if
    an input and the output that replaces it are quantised differently."""
    for given, result in numbers.items():
        ways = parameters.get(("input", given)), parameters.get(("output", result))
        if None not in ways and ways[0] != ways[1]:
            raise ModelError(
                f"--state: input {given} has (scale, zero point) {ways[0]}, the output that "
                f"replaces it {ways[1]}; they must be equal"
            )
    state, gone = list(numbers), {"input": set(numbers), "output": set(numbers.values())}
    renumbered = {}
    for (side, number), way in parameters.items():
        if number not in gone[side]:
            before = sum(other < number for other in gone[side])
            renumbered[side, number - before] = way
        elif side == "input":
            renumbered["state", state.index(number)] = way
    return renumbered


def zeroed(graph: Graph, feeds: Mapping[str, Any], kept: Mapping[int, int]) -> dict[str, Any]:
    """Contents of inputs, with state as NAME_reset leaves it."""
    parameters = quantisation(graph)
    made = dict(feeds)
    for number in kept:
        name = graph.params[number].name
        zero = parameters.get(("input", number), (1.0, 0))[1]
        made[name] = np.full_like(feeds[name], zero)
    return made


def zero_byte(quantisation: Quantisation | None, size: int) -> int:
    """The byte that state of this kind starts as, over and over."""
    zero = 0 if quantisation is None else quantisation[1]
    if zero and size != 1:
        raise UnsupportedError(f"--state: a zero point of {zero} in elements of {size} bytes")
    return zero & 255


STRUCTURE = """\
/* What lasts from one run to the next; {name}_reset has it start again. Each stream has one of its
 * own. Its bytes may be saved, and loaded again. */
typedef struct {{
{fields}
}} {name}_state;

/* Has the state start from zeros. Call it before the first run, and where a new stream begins. */
void {name}_reset({name}_state *state);

"""
DEFINES = """\
/* Bytes of the state, and its alignment. */
#define {macro}_STATE_SIZE {size}
#define {macro}_STATE_ALIGN {alignment}
"""


def reset(model: Model) -> str:
    """NAME_reset, in NAME.c."""
    lines = [
        f"    memset(state->{t.field}, {zero_byte(t.quantisation, t.type.dtype.size)}, "
        f"sizeof state->{t.field});"
        for t in model.state
    ]
    return "\n".join(["", f"void {model.name}_reset({model.name}_state *state)", "{", *lines, "}"])
