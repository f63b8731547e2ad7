"""Parameters by layer: those of the last layers of a model, or those that patterns name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Value
from graphc.train.parameters import discovered

LAST = re.compile(r"last(?:\s+(\d+))?\s+layers?", re.IGNORECASE)


def layers(graph: Graph) -> list[list[str]]:
    """The names of the parameters of each layer, in the order of the graph. A weight of two
    dimensions or more begins a layer; those of fewer belong to the layer before."""
    parameters = {op.output: name for name, op in discovered(graph).items()}
    groups: list[list[str]] = []
    for op in graph.ops:
        own = [value for value in op.inputs if value in parameters]
        if any(_is_weight(value) for value in own) or own and not groups:
            groups.append([])
        for value in own:
            assert value is not None
            groups[-1].append(parameters.pop(value))
    return [names for names in groups if names]


def _is_weight(value: Value | None) -> bool:
    """Whether a parameter has two dimensions of more than one element."""
    return value is not None and sum(d != 1 for d in value.tensor.dims) > 1


def chosen(graph: Graph, text: str) -> list[str]:
    """The names of the parameters that a user asks to train: `last 2 layers`, `all`, or shell
    patterns of names with commas between. ModelError if there are none such."""
    last = LAST.fullmatch(text.strip())
    if last:
        groups, count = layers(graph), int(last[1] or 1)
        if not 0 < count <= len(groups):
            raise ModelError(f"{text!r}: the model has {len(groups)} layers with parameters")
        return [name for names in groups[-count:] for name in names]
    patterns = ["*"] if text.strip() == "all" else [p.strip() for p in text.split(",")]
    return list(discovered(graph, _known(graph, patterns)))


def _known(graph: Graph, patterns: Sequence[str]) -> list[str]:
    """The names that patterns match, each as a pattern of its own."""
    names = list(discovered(graph))
    matched = []
    for pattern in patterns:
        own = [name for name in names if fnmatchcase(name, pattern)]
        if not own:
            raise ModelError(
                f"no parameter matches {pattern!r}; there are {', '.join(names)}; or give "
                "`last 2 layers`, or `all`"
            )
        matched += own
    return [exactly(name) for name in dict.fromkeys(matched)]


def exactly(name: str) -> str:
    """A shell pattern that matches this name alone."""
    return re.sub(r"([*?[])", r"[\1]", name)
