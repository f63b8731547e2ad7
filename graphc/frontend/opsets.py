"""Which opset an exported model needs.

`lowest` finds the lowest version in which all nodes mean what they mean in graphc's opset: an
operator may be dated back over changes that only added types or attributes with a default, but not
over one that `upgrade` has to rewrite, nor to a schema that lacks an attribute or operand in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
from onnx import NodeProto

from graphc.frontend.checks import schema_of
from graphc.frontend.functions import defaults
from graphc.frontend.upgrade import EVERY, LIFTS, OPSETS
from graphc.ir.graph import Op

FLOOR = 21  # the oldest opset stamped: element types are nearly complete from there on


def newest(domain: str) -> int:
    """The version of a domain that graphc speaks."""
    return OPSETS.get(domain, 1)


def in_use(name: str, domain: str) -> int:
    """The newest version of a domain, of those graphc speaks, that has not deprecated an op."""
    for version in range(newest(domain), 0, -1):
        schema = schema_of(name, domain, version)
        if schema is None or not schema.deprecated:
            return version
    return newest(domain)


def schema(op: Op) -> onnx.defs.OpSchema | None:
    """The ONNX schema of an op, or None if ONNX has none."""
    return schema_of(op.name, op.defn.domain, in_use(op.name, op.defn.domain))


def stamp(domain: str, nodes: Iterable[NodeProto]) -> int:
    """The newest version of a domain other than ai.onnx in which no node is deprecated."""
    return min(in_use(node.op_type, domain) for node in nodes if node.domain == domain)


def attribute_kinds(op: Op) -> dict[str, int]:
    """The kinds of the attributes that ONNX knows of an op; none if it does not know the op."""
    known = schema(op)
    if known is None:
        return {}
    return {name: int(a.type) for name, a in known.attributes.items()}  # type: ignore[call-overload]


def optional_outputs(op: Op) -> set[int]:
    """The numbers of the outputs that a node may leave out."""
    known: Any = schema(op)
    kinds = [output.option.name for output in known.outputs] if known else []
    return {n for n, kind in enumerate(kinds) if kind == "Optional"}


def least_outputs(op: Op) -> int:
    """How many outputs a node has to have, be they used or not."""
    return 3 if op.name == "BatchNormalization" and op.attrs.get("training_mode") else 1


def body_defaults(op: Op) -> dict[str, Any]:
    """Defaults to write out: ONNX looks into a fixed function body without filling them in."""
    known: Any = schema(op)
    return defaults(known) if known and known.has_function else {}


def lowest(nodes: Iterable[NodeProto], floor: int = FLOOR) -> int:
    """The lowest opset of ai.onnx, from `floor` on, that gives all nodes their present meaning."""
    return max((_lowest(node, floor) for node in nodes if not node.domain), default=floor)


def _lowest(node: NodeProto, floor: int) -> int:
    changes = [version for version, _ in LIFTS.get(("", node.op_type), ()) if version != EVERY]
    least = max([floor, *changes])
    for version in range(least, newest("")):
        schema = schema_of(node.op_type, "", version)
        if schema is not None and _takes(schema, node):
            return version
    return newest("")


def _takes(schema: onnx.defs.OpSchema, node: NodeProto) -> bool:
    attributes = all(a.name in schema.attributes for a in node.attribute)
    return (
        attributes and len(node.input) <= schema.max_input and len(node.output) <= schema.max_output
    )
