"""Cutting a graph into parts that run one after the other.

Each op gets a place, in execution order:

    native   it has static types and can be compiled; at the level of its operands
    host     it runs on the host; its results are one level up
    rest     its types are known only once something before it has run

Native ops of one level make one part. Level by level, first the part runs, then the ops on the
host; the rest runs last, as a graph that is typed then. So a graph falls into as few native parts
as its host ops allow, whatever the order of its ops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field

from graphc.ir.expr import Expr, Sym, symbols
from graphc.ir.graph import Graph, Op, Region, Value, copy_ops
from graphc.ir.types import TensorType, Type
from graphc.records import dataclass


@dataclass
class Level:
    """What runs at one level: ops that are compiled together, then ops on the host, in order."""

    native: list[Op] = field(default_factory=list)
    host: list[Op] = field(default_factory=list)


@dataclass
class Partition:
    """The levels of a graph, and the ops that are left for later."""

    levels: list[Level]
    rest: list[Op]

    def level(self, number: int) -> Level:
        while len(self.levels) <= number:
            self.levels.append(Level())
        return self.levels[number]


def partition(graph: Graph, native: Callable[[Op], bool]) -> Partition:
    """Places the ops of a graph that is typed as far as possible.

    `native` tells which typed ops can be compiled. An op that has no type although its operands are
    inputs of the graph gains nothing by waiting: it runs on the host.
    """
    partition = Partition([], [])
    given = set(graph.params)
    at: dict[Value, int] = dict.fromkeys(graph.params, 0)
    for op in graph.ops:
        if op.name == "Constant":
            continue
        operands = [v for v in op.inputs if v is not None and v.constant is None]
        if any(v not in at for v in operands):
            partition.rest.append(op)
            continue
        number = max((at[v] for v in operands), default=0)
        typed = all(is_typed(v.type) for v in op.outputs)
        if typed and native(op):
            partition.level(number).native.append(op)
            at.update(dict.fromkeys(op.outputs, number))
        elif typed or op.defn.form in ("host", "region") or given.issuperset(operands):
            partition.level(number).host.append(op)
            at.update(dict.fromkeys(op.outputs, number + 1))
        else:
            partition.rest.append(op)
    return partition


def by_level(graph: Graph, hosted: Callable[[Op], bool]) -> Partition:
    """Places all ops of a graph, whether they have types or not; `hosted` are those that the host
    runs."""
    partition = Partition([], [])
    at: dict[Value, int] = {}
    for op in graph.ops:
        if op.name == "Constant":
            continue
        number = max((at.get(v, 0) for v in op.inputs if v is not None), default=0)
        is_hosted = hosted(op)
        level = partition.level(number)
        (level.host if is_hosted else level.native).append(op)
        at.update(dict.fromkeys(op.outputs, number + is_hosted))
    return partition


def is_typed(type: Type | None) -> bool:
    """Whether a type is known; that of a tensor with its shape, which may be one over sizes that
    are known once what comes before has run (counts.py)."""
    return type.shape is not None if isinstance(type, TensorType) else type is not None


def crossing(graph: Graph, ops: Sequence[Op]) -> list[Value]:
    """The values that some ops make and others, or the results of the graph, need."""
    inside, results = set(ops), set(graph.results)
    return [
        v
        for op in ops
        for v in op.outputs
        if v in results or any(user not in inside for user in v.users)
    ]


def operands_of(ops: Sequence[Op]) -> list[Value]:
    """The values that some ops read and do not make, constants apart, in order of first use."""
    inside = set(ops)
    read = (v for op in ops for v in op.inputs if v is not None)
    return [v for v in dict.fromkeys(read) if v.producer not in inside and v.constant is None]


def part_graph(
    graph: Graph, ops: Sequence[Op], params: Collection[Value], results: Sequence[Value]
) -> Graph:
    """A graph of copies of some ops. Constants that they use come along."""
    part = Graph(graph.name)
    part.phase = graph.phase
    names: set[str] = set()
    mapping = {v: part.add_param(v.type, _unused(v.name, names)) for v in params}
    inside = Region()
    inside.ops = [*_constants(ops, results), *ops]
    copy_ops(inside, part, mapping)
    part.set_results([mapping[v] for v in results])
    names.clear()
    part.output_names = [_unused(v.name, names) for v in results]
    used = symbols_in(part) if graph.symbols else set()
    part.symbols = {name: size for name, size in graph.symbols.items() if size in used}
    return part


def symbols_in(graph: Graph) -> set[Sym]:
    """The symbols that occur in a graph."""
    attrs = (attr for op in graph.walk() for attr in op.attrs.values())
    parts = (part for attr in attrs for part in (attr if isinstance(attr, tuple) else (attr,)))
    regions = (graph, *(region for op in graph.walk() for region in op.regions))
    values = (value for region in regions for value in region.values())
    dims = (d for v in values if isinstance(v.type, TensorType) for d in v.type.shape or ())
    return {s for part in (*parts, *dims) if isinstance(part, Expr) for s in symbols(part)}


def _constants(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    used = [v for op in ops for v in op.inputs if v is not None]
    makers = dict.fromkeys(v.producer for v in (*used, *results) if v.constant is not None)
    return [op for op in makers if op is not None]


def _unused(hint: str, taken: set[str]) -> str:
    """A name that no other value has; it is added to `taken`."""
    hint = hint or "value"
    name, number = hint, 0
    while name in taken:
        number += 1
        name = f"{hint}.{number}"
    taken.add(name)
    return name


def opened(graph: Graph) -> Graph:
    """The graph with the shapes of its inputs left open: it is specialised when it is run."""
    for param in graph.params:
        if isinstance(param.type, TensorType):
            param.type = TensorType(param.type.dtype, None)
    graph.symbols, graph.phase = {}, "imported"
    return graph


def region_graph(region: Region) -> Graph:
    """The region of a control flow op as a graph of its own, with open shapes."""
    graph = part_graph(Graph("body"), region.ops, region.params, region.results)
    return opened(graph)


__all__ = [
    "Level", "Partition", "by_level", "crossing", "opened", "operands_of", "part_graph",
    "partition", "region_graph",
]  # fmt: skip
