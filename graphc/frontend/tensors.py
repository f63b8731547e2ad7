"""ONNX tensors, types and attributes as numpy arrays, graphc types and Python values.

Every array that leaves this module is unpacked (one element per item, ml_dtypes for the narrow
types) and has exactly the declared shape; the declared size is compared with the bytes that are
present *before* anything is allocated, so that a tiny file cannot ask for a huge array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.types import OptionalType, SequenceType, Shape, TensorType, Type

MAX_ELEMENTS = 1 << 40


def dtype_of(number: int, where: str) -> DType:
    """The dtype with this ONNX number; ModelError if there is none."""
    found = dtypes.BY_ONNX.get(number)
    if found is None:
        raise ModelError(f"{where}: {number} is not an ONNX element type")
    return found


def checked_dims(dims, where: str) -> tuple[int, ...]:
    """Dimensions that are not negative and whose product can be addressed."""
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{where}: negative dimension in shape {list(shape)}")
    if math.prod(d for d in shape if d) > MAX_ELEMENTS:
        raise ModelError(f"{where}: shape {list(shape)} has more than 2^40 elements")
    return shape


def to_array(tensor: TensorProto, where: str) -> np.ndarray:
    """The contents of a tensor whose data lie in the message itself."""
    dtype = dtype_of(tensor.data_type, where)
    shape = checked_dims(tensor.dims, where)
    _check_payload(tensor, dtype, math.prod(shape), where)
    try:
        return numpy_helper.to_array(tensor).reshape(shape)
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ModelError(f"{where}: tensor cannot be read: {error}") from error


def packed_bytes(dtype: DType, count: int) -> int:
    """Bytes that `count` elements take in a file, where narrow integers and floats are packed."""
    bits = 8 if dtype.kind == "bool" or dtype.name.startswith("f6") else dtype.bits
    return (count * bits + 7) // 8


_FIELDS = {
    **dict.fromkeys(("f32", "c64"), "float_data"),
    **dict.fromkeys(("f64", "c128"), "double_data"),
    "i64": "int64_data",
    **dict.fromkeys(("u32", "u64"), "uint64_data"),
    "string": "string_data",
}


def _check_payload(tensor: TensorProto, dtype: DType, count: int, where: str) -> None:
    if tensor.HasField("raw_data"):
        need, found, unit = packed_bytes(dtype, count), len(tensor.raw_data), "bytes of raw_data"
        if dtype is dtypes.string:
            raise ModelError(f"{where}: strings cannot be stored as raw_data")
    else:
        field = _FIELDS.get(dtype.name, "int32_data")
        per_item = 8 // dtype.bits if dtype.is_number and dtype.bits in (2, 4) else 1
        per_element = 2 if dtype.kind == "complex" else 1
        need = -(-count * per_element // per_item)
        found, unit = len(getattr(tensor, field)), f"items of {field}"
    if found != need:
        shape = list(tensor.dims)
        raise ModelError(f"{where}: {dtype}{shape} needs {need} {unit}, found {found}")


def to_dense(sparse: onnx.SparseTensorProto, where: str, limit: int = 1 << 28) -> np.ndarray:
    """A sparse tensor as a dense array; its size may not pass `limit` elements."""
    shape = checked_dims(sparse.dims, where)
    if math.prod(shape) > limit:
        raise UnsupportedError(f"{where}: sparse tensor of shape {list(shape)} is too large")
    values = to_array(sparse.values, where)
    indices = to_array(sparse.indices, where).astype(np.int64)
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 2 and indices.shape != (values.size, len(shape)):
        raise ModelError(f"{where}: sparse indices have shape {list(indices.shape)}")
    if indices.ndim not in (1, 2) or len(indices) != values.size:
        raise ModelError(f"{where}: {values.size} sparse values, {len(indices)} indices")
    try:
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        elif indices.size and (indices.min() < 0 or indices.max() >= dense.size):
            raise ValueError("index out of range")
    except ValueError as error:
        raise ModelError(f"{where}: sparse tensor: {error}") from error
    dense.reshape(-1)[indices] = values.reshape(-1)
    return dense


def to_type(proto: onnx.TypeProto, where: str, dim=None) -> Type:
    """A graphc type; `dim(dimension, position)` turns each dimension into an int or a symbol."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        dtype = dtype_of(proto.tensor_type.elem_type, where)
        return TensorType(dtype, _shape(proto.tensor_type, where, dim))
    if kind == "sequence_type":
        return SequenceType(to_type(proto.sequence_type.elem_type, where, None))
    if kind == "optional_type":
        return OptionalType(to_type(proto.optional_type.elem_type, where, None))  # type: ignore
    raise UnsupportedError(f"{where}: values of kind {kind} are not supported")


def _shape(proto: onnx.TypeProto.Tensor, where: str, dim) -> Shape | None:
    if not proto.HasField("shape"):
        return None
    if dim is not None:
        return tuple(dim(d, n) for n, d in enumerate(proto.shape.dim))
    if not all(d.HasField("dim_value") for d in proto.shape.dim):
        return None
    return checked_dims((d.dim_value for d in proto.shape.dim), where)


def to_python(attribute: AttributeProto, where: str) -> Any:
    """The value of an attribute that holds no graph: numbers, strings, tuples, arrays, types."""
    where = f"{where}, attribute {attribute.name!r}"
    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return float(attribute.f)
    if kind == AttributeProto.INT:
        return int(attribute.i)
    if kind == AttributeProto.STRING:
        return text(attribute.s, where)
    if kind == AttributeProto.FLOATS:
        return tuple(map(float, attribute.floats))
    if kind == AttributeProto.INTS:
        return tuple(map(int, attribute.ints))
    if kind == AttributeProto.STRINGS:
        return tuple(text(s, where) for s in attribute.strings)
    if kind == AttributeProto.TENSOR:
        return to_array(attribute.t, where)
    if kind == AttributeProto.TENSORS:
        return tuple(to_array(t, where) for t in attribute.tensors)
    if kind == AttributeProto.SPARSE_TENSOR:
        return to_dense(attribute.sparse_tensor, where)
    if kind == AttributeProto.TYPE_PROTO:
        return to_type(attribute.tp, where)
    raise UnsupportedError(f"{where}: attributes of kind {kind} are not supported")


def text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: not UTF-8 text: {error}") from error
