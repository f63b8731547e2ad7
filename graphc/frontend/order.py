"""Nodes in an order in which they can be computed.

ONNX asks for that order, but ONNX Runtime takes any, and its own tools write graphs (converters to
float16 among them) whose new nodes come last. Here nodes move up to where they are first needed;
the others stay in order. Nodes that wait for one another are left as they are: the importer then
names the missing value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto


def in_order(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """The nodes, each after those that it reads from; as they are if there is no such order."""
    needs = _needs(nodes)
    if all(other < position for position, some in enumerate(needs) for other in some):
        return nodes
    placed: dict[int, None] = {}
    for position in range(len(nodes)):
        if not _place(position, needs, placed):
            return nodes
    return [nodes[position] for position in placed]


def _needs(nodes: Sequence[NodeProto]) -> list[list[int]]:
    """The positions of the nodes that each reads from."""
    makers: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in node.output:
            makers.setdefault(name, position)
    return [sorted({makers[n] for n in _reads(node) if n in makers}) for node in nodes]


def _place(first: int, needs: list[list[int]], placed: dict[int, None]) -> bool:
    """Places a node after all that it needs, unless it is; False if that is itself."""
    waiting, open_ = [first], set()
    while waiting:
        position = waiting[-1]
        missing = [n for n in needs[position] if n not in placed]
        if position in placed or not missing:
            placed.setdefault(waiting.pop())
            continue
        if position in open_:
            return False
        open_.add(position)
        waiting += reversed(missing)
    return True


def _reads(node: NodeProto) -> Iterator[str]:
    """The names that a node reads, those that its sub-graphs capture included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from _captures(graph)


def _captures(graph: GraphProto) -> set[str]:
    """The names that a sub-graph reads and does not define."""
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own.update(name for node in graph.node for name in node.output)
    read = {name for node in graph.node for name in _reads(node)}
    return (read | {value.name for value in graph.output}) - own
