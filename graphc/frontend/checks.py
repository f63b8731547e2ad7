"""Checks before anything is built: text is UTF-8, and nodes fit the schemas of their operators."""

from __future__ import annotations

import functools

import onnx
from google.protobuf.message import Message
from onnx import NodeProto, TensorProto

from graphc.errors import ModelError
from graphc.frontend.tensors import kind_of
from graphc.frontend.upgrade import IGNORED

_KIND_NAMES = {number: name.lower() for name, number in onnx.AttributeProto.AttributeType.items()}


@functools.cache
def schema_of(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """The schema of an operator in an opset, or None if ONNX has none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _attributes(schema: onnx.defs.OpSchema) -> dict[str, tuple[int, bool]]:
    kinds = {name: int(a.type) for name, a in schema.attributes.items()}  # type: ignore[call-overload]
    return {name: (kind, schema.attributes[name].required) for name, kind in kinds.items()}


def is_variadic(op_type: str, domain: str, version: int) -> bool:
    """Whether an operator has as many outputs as its node lists."""
    schema = schema_of(op_type, domain, version)
    return schema is not None and schema.max_output > len(schema.outputs)


def check_text(message: Message, where: str = "the model") -> None:
    """ModelError if a name anywhere in a message is not UTF-8 (protobuf hands it out as bytes)."""
    if isinstance(message, TensorProto):  # its fields can be large, and hold few names
        if not isinstance(message.name, str):
            raise ModelError(f"{where}: the name of a tensor is not UTF-8 text: {message.name!r}")
        for entry in message.external_data:
            check_text(entry, where)
        return
    for field, value in message.ListFields():
        single = isinstance(value, (Message, str, bytes))
        if field.type == field.TYPE_MESSAGE:
            for item in (value,) if single else value:
                check_text(item, where)
        elif field.type == field.TYPE_STRING:
            for item in (value,) if single else value:
                if not isinstance(item, str):
                    raise ModelError(f"{where}: {field.name} is not UTF-8 text: {item!r}")


def check_node(node: NodeProto, domain: str, version: int) -> None:
    """ModelError unless operands and attributes of a node are what its operator takes.

    Nodes of foreign domains and operators that do not exist in the opset are not checked.
    """
    schema = schema_of(node.op_type, domain, version)
    if schema is None:
        return
    _check_count("operands", len(node.input), schema.min_input, schema.max_input)
    for number, (formal, name) in enumerate(zip(schema.inputs, node.input)):
        if not name and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(f"operand {number} ({formal.name}) is missing")
    _check_count("outputs", len(node.output), schema.min_output, schema.max_output)
    attributes = _attributes(schema)
    found = set()
    for attribute in node.attribute:
        _check_attribute(attribute, attributes)
        if attribute.name in found:
            raise ModelError(f"attribute {attribute.name!r} is given twice")
        found.add(attribute.name)
    missing = [name for name, (_, required) in attributes.items() if required and name not in found]
    if missing:
        raise ModelError(f"attribute {missing[0]!r} is required in opset {version}")


def _check_count(what: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        limit = f"{least}" if least == most else f"{least} to {most if most < 1 << 30 else 'many'}"
        raise ModelError(f"takes {limit} {what}, found {found}")


def _check_attribute(attribute, known: dict[str, tuple[int, bool]]) -> None:
    if attribute.name in IGNORED:
        return
    if attribute.name not in known:
        raise ModelError(f"has no attribute {attribute.name!r}; it takes {sorted(known)}")
    kind, required = kind_of(attribute), known[attribute.name][0]
    if kind != required and not (attribute.ref_attr_name and kind == 0):
        names = _KIND_NAMES.get(required, "?"), _KIND_NAMES.get(kind, f"kind {kind}")
        raise ModelError(f"attribute {attribute.name!r} must be {names[0]}, found {names[1]}")
