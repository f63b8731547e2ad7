"""Checks before anything is built: text is UTF-8, and nodes fit the schemas of their operators."""

from __future__ import annotations

import functools

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, NodeProto, TensorProto
from onnx.helper import get_attribute_value

from graphc.errors import ModelError, warn
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


def check_node(node: NodeProto, domain: str, version: int) -> frozenset[str]:
    """The attributes of a node that mean nothing; ModelError unless its operands and the rest are
    what its operator takes.

    Quantisers and converters write attributes of later opsets. One that has its default there says
    nothing that is not so without it: a warning. ONNX Runtime refuses all that an opset lacks.
    Nodes of foreign domains and operators that do not exist in the opset are not checked.
    """
    schema = schema_of(node.op_type, domain, version)
    if schema is None:
        return IGNORED
    _check_count("operands", len(node.input), schema.min_input, schema.max_input)
    for number, (formal, name) in enumerate(zip(schema.inputs, node.input)):
        if not name and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(f"operand {number} ({formal.name}) is missing")
    _check_count("outputs", len(node.output), schema.min_output, schema.max_output)
    attributes = _attributes(schema)
    given, ignored = set(), set(IGNORED)
    for attribute in node.attribute:
        if attribute.name not in attributes and attribute.name not in IGNORED:
            _check_later(node, attribute, domain, version, sorted(attributes))
            ignored.add(attribute.name)
        if attribute.name not in ignored:
            _check_kind(attribute, attributes[attribute.name][0])
        if attribute.name in given:
            raise ModelError(f"attribute {attribute.name!r} is given twice")
        given.add(attribute.name)
    missing = [name for name, (_, required) in attributes.items() if required and name not in given]
    if missing:
        raise ModelError(f"attribute {missing[0]!r} is required in opset {version}")
    return frozenset(ignored)


def _check_count(what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        limit = f"{least}" if least == most else f"{least} to {most if most < 1 << 30 else 'many'}"
        raise ModelError(f"takes {limit} {what}, found {count}")


def _check_later(
    node: NodeProto, attribute: AttributeProto, domain: str, version: int, known: list[str]
) -> None:
    """A warning that an attribute is of a later opset, if it has its default; else ModelError."""
    name, later = attribute.name, _first_with(attribute.name, node.op_type, domain, version)
    if later is None:
        raise ModelError(f"has no attribute {name!r}; it takes {known}")
    default = later.attributes[name].default_value
    if not default.type or get_attribute_value(default) != get_attribute_value(attribute):
        raise ModelError(
            f"has no attribute {name!r} in opset {version}, but from {later.since_version} on; "
            f"it takes {known}"
        )
    warn(
        f"{node.op_type} {node.name or node.output[0]!r}: attribute {name!r} is of opset "
        f"{later.since_version}, this model of {version}; it has its default and is ignored"
    )


def _first_with(
    attribute: str, op_type: str, domain: str, version: int
) -> onnx.defs.OpSchema | None:
    """The schema of the first opset after `version` that has an attribute."""
    for later in range(version + 1, onnx.defs.onnx_opset_version() + 1):
        schema = schema_of(op_type, domain, later)
        if schema is not None and attribute in schema.attributes:
            return schema
    return None


def _check_kind(attribute: AttributeProto, required: int) -> None:
    kind = kind_of(attribute)
    if kind != required and not (attribute.ref_attr_name and kind == 0):
        names = _KIND_NAMES.get(required, "?"), _KIND_NAMES.get(kind, f"kind {kind}")
        raise ModelError(f"attribute {attribute.name!r} must be {names[0]}, found {names[1]}")
