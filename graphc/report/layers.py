"""The layers of a model as its user names them: nodes of ONNX, or the tensors that they give."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Value

NEAR = 5  # names that are suggested


@dataclass(frozen=True)
class Layer:
    """A node: its name, its operators (several, if it was upgraded from an old opset), the tensors
    that it gives, and the If or loop that it is in, if it is in one."""

    name: str
    operator: str
    results: tuple[str, ...]
    inside: str = ""

    def __str__(self) -> str:
        return f'{self.operator} "{self.name}"'


def layers_of(graph: Graph) -> list[Layer]:
    """The layers of an imported graph in order, those of branches and loops included; constants
    too, if they are nodes of the model."""
    ops: dict[str, list[Op]] = {}
    for op in graph.walk():
        if op.loc:
            ops.setdefault(op.loc[0], []).append(op)
    return [_layer(name, made) for name, made in ops.items()]


def _layer(name: str, ops: Sequence[Op]) -> Layer:
    computing = [op for op in ops if op.name != "Constant"] or list(ops)
    operator = " + ".join(dict.fromkeys(op.name for op in computing))
    owner = getattr(computing[0].region, "owner", None)
    results = tuple(v.name for v in computing[-1].outputs if v.name)
    return Layer(name, operator, results, owner.where() if owner is not None else "")


def find(layers: Sequence[Layer], asked: str) -> list[Layer]:
    """The layers of a name, that of a tensor they give, or a pattern with * and ?. ModelError
    suggests names that are near."""
    matching = [x for x in layers if asked in (x.name, *x.results)]
    if not matching and any(c in asked for c in "*?"):
        matching = [x for x in layers if any(fnmatchcase(n, asked) for n in (x.name, *x.results))]
    if not matching:
        names = [name for x in layers for name in (x.name, *x.results)]
        near = _near(asked, names)
        hint = f"near are {', '.join(near)}" if near else f"the first are {', '.join(names[:NEAR])}"
        raise ModelError(f"--layer {asked}: no layer and no tensor is called so; {hint}")
    return matching


def _near(asked: str, names: Iterable[str]) -> list[str]:
    """Names that hold the text, whatever the case, or are spelt much like it."""
    unique = list(dict.fromkeys(names))
    holding = [name for name in unique if asked.strip("*?").lower() in name.lower()]
    lower = {name.lower(): name for name in unique}
    alike = difflib.get_close_matches(asked.lower(), lower, NEAR, 0.5)
    ordered = sorted(holding, key=len) if asked.strip("*?") else []
    return list(dict.fromkeys([*ordered, *(lower[name] for name in alike)]))[:NEAR]


def is_read(graph: Graph, layer: Layer) -> bool:
    """Whether an output of the model depends on a layer."""
    seen: set[Value] = set()
    waiting = list(graph.results)
    while waiting:
        value = waiting.pop()
        if value in seen or value.producer is None:
            continue
        seen.add(value)
        if value.producer.loc[:1] == (layer.name,):
            return True
        waiting += [v for v in value.producer.inputs if v is not None]
        waiting += [r for region in value.producer.regions for r in region.results]
    return False
