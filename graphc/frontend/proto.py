"""Arrays, types and attribute values as ONNX messages: the reverse of `tensors`."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.expr import Sym
from graphc.ir.types import MapType, OptionalType, SequenceType, TensorType, Type

_KINDS = AttributeProto


def tensor_proto(array: np.ndarray, name: str = "") -> TensorProto:
    """An array as a tensor."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def type_proto(type: Type) -> TypeProto:
    """A type; dims that are neither numbers nor symbols are left open."""
    if isinstance(type, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type.element))
    if isinstance(type, OptionalType):
        return helper.make_optional_type_proto(type_proto(type.element))
    if isinstance(type, MapType):
        value = helper.make_tensor_type_proto(type.value.onnx, ())
        return helper.make_map_type_proto(type.key.onnx, value)
    shape = None if type.shape is None else [_dim(d) for d in type.shape]
    return helper.make_tensor_type_proto(type.dtype.onnx, shape)


def _dim(dim: Any) -> int | str | None:
    return dim.name if isinstance(dim, Sym) else dim if isinstance(dim, int) else None


def attribute_proto(name: str, value: Any, kinds: dict[str, int], where: str) -> AttributeProto:
    """An attribute, of the kind that `kinds` (from the schema) asks for where it is ambiguous;
    ModelError if it has none of that name or kind."""
    kind = kinds.get(name)
    if kind is None and kinds:
        raise ModelError(f"{where}: attribute {name!r} does not exist in ONNX")
    if isinstance(value, np.ndarray):
        value = tensor_proto(value)
    elif isinstance(value, (TensorType, SequenceType, OptionalType)):
        value = type_proto(value)
    elif isinstance(value, dtypes.DType):
        value = value.onnx
    elif isinstance(value, (bool, np.bool_)):
        value = int(value)
    elif isinstance(value, tuple):
        value = [tensor_proto(v) if isinstance(v, np.ndarray) else v for v in value]
    try:
        if kind == _KINDS.FLOAT:
            value = float(value)
        elif kind == _KINDS.FLOATS:
            value = [float(v) for v in value]
        return helper.make_attribute(name, value, attr_type=kind)
    except (TypeError, ValueError, AssertionError) as error:
        wanted = AttributeProto.AttributeType.Name(kind or 0).lower()
        raise ModelError(f"{where}: attribute {name!r} is {value!r}, expected {wanted}") from error
