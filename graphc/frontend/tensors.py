"""ONNX tensors, types and attributes as numpy arrays, graphc types and Python values.

Every array that leaves this module is unpacked (one element per item, ml_dtypes for the narrow
types) and has exactly the declared shape. The declared size is compared with the bytes that are
present before anything is allocated, so a tiny file cannot ask for a huge array.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.external_data import DataFolder
from graphc.ir import dtypes
from graphc.ir.alignment import empty_to_fill
from graphc.ir.dtypes import DType
from graphc.ir.types import (
    MAX_ELEMENTS,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    Type,
    check_rank,
)

MAX_DENSE = 1 << 28  # elements of a sparse tensor made dense

NOWHERE = DataFolder(None)


def dtype_of(number: int, where: str) -> DType:
    """The dtype with this ONNX number; ModelError if there is none."""
    dtype = dtypes.BY_ONNX.get(number)
    if dtype is None:
        raise ModelError(f"{where}: {number} is not an ONNX element type")
    return dtype


def checked_dims(dims: Iterable[int], where: str) -> tuple[int, ...]:
    """Dimensions that are not negative and whose product can be addressed."""
    shape = tuple(int(d) for d in dims)
    check_rank(shape, where)
    if any(d < 0 for d in shape):
        raise ModelError(f"{where}: negative dimension in shape {list(shape)}")
    if math.prod(d for d in shape if d) > MAX_ELEMENTS:
        raise ModelError(f"{where}: shape {list(shape)} has more than 2^46 elements")
    return shape


# ---------------------------------------------------------------- tensors


def to_array(
    tensor: TensorProto, where: str, folder: DataFolder = NOWHERE, raw: memoryview | None = None
) -> np.ndarray:
    """The contents of a tensor: in the message itself, in the model's folder, or `raw` bytes that
    were left out of the message, which are copied to where kernels can read them."""
    dtype = dtype_of(tensor.data_type, where)
    shape = checked_dims(tensor.dims, where)
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            data = folder.read(tensor, packed_bytes(dtype, math.prod(shape)), where)
            return _from_bytes(data, dtype, shape, where)
        if raw is not None:
            return _from_bytes(_copied(raw), dtype, shape, where)
        if tensor.HasField("raw_data"):
            return _from_bytes(tensor.raw_data, dtype, shape, where)
        _check_items(tensor, dtype, shape, where)
        array = np.asarray(numpy_helper.to_array(tensor)).reshape(shape)
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{where}: the tensor cannot be read: {error}") from error
    return array


def _copied(raw: memoryview) -> memoryview:
    """A copy where kernels can read it."""
    copy = empty_to_fill(len(raw)).data
    copy[:] = raw
    return copy


def packed_bytes(dtype: DType, count: int) -> int:
    """Bytes that `count` elements take in a file, where those narrower than 8 bits are packed."""
    return (count * dtype.bits + 7) // 8


def _from_bytes(
    data: bytes | memoryview, dtype: DType, shape: tuple[int, ...], where: str
) -> np.ndarray:
    count = math.prod(shape)
    if dtype is dtypes.string:
        raise ModelError(f"{where}: strings cannot be stored as raw bytes")
    need = packed_bytes(dtype, count)
    if len(data) != need:
        raise ModelError(f"{where}: {dtype}{list(shape)} needs {need} bytes, found {len(data)}")
    if dtype.bits < 8:
        packed = TensorProto(dims=shape, data_type=dtype.onnx, raw_data=bytes(data))
        return numpy_helper.to_array(packed).reshape(shape)
    if dtype is dtypes.boolean:
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    array = np.frombuffer(data, dtype.np).reshape(shape)
    return np.require(array if sys.byteorder == "little" else array.byteswap(), requirements="A")


_FIELDS = {
    **dict.fromkeys(("f32", "c64"), "float_data"),
    **dict.fromkeys(("f64", "c128"), "double_data"),
    "i64": "int64_data",
    **dict.fromkeys(("u32", "u64"), "uint64_data"),
    "string": "string_data",
}


def _check_items(tensor: TensorProto, dtype: DType, shape: tuple[int, ...], where: str) -> None:
    field = _FIELDS.get(dtype.name, "int32_data")
    packed = 8 // dtype.bits if dtype.bits in (2, 4) else 1
    need = -(-math.prod(shape) * (2 if dtype.kind == "complex" else 1) // packed)
    items = len(getattr(tensor, field))
    if items != need:
        raise ModelError(
            f"{where}: {dtype}{list(shape)} needs {need} items of {field}, found {items}"
        )


def to_dense(
    sparse: onnx.SparseTensorProto, where: str, folder: DataFolder = NOWHERE
) -> np.ndarray:
    """A sparse tensor as a dense array; UnsupportedError above MAX_DENSE elements."""
    shape = checked_dims(sparse.dims, where)
    if math.prod(shape) > MAX_DENSE:
        raise UnsupportedError(f"{where}: a sparse tensor of shape {list(shape)} is too large")
    values = to_array(sparse.values, where, folder).reshape(-1)
    indices = to_array(sparse.indices, where, folder).astype(np.int64)
    if indices.shape not in ((values.size,), (values.size, len(shape))):
        raise ModelError(
            f"{where}: {values.size} sparse values of {list(shape)} with indices of shape "
            f"{list(indices.shape)}"
        )
    dense = np.zeros(shape, values.dtype)
    try:
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        elif indices.size and (indices.min() < 0 or indices.max() >= dense.size):
            raise ValueError("index out of range")
    except ValueError as error:
        raise ModelError(f"{where}: sparse tensor: {error}") from error
    dense.reshape(-1)[indices] = values
    return dense


# ---------------------------------------------------------------- types

DimReader = Callable[[onnx.TensorShapeProto.Dimension, int], Dim]


def to_type(proto: onnx.TypeProto, where: str, dim: DimReader | None = None) -> Type:
    """A graphc type. `dim(dimension, position)` gives each dimension of a tensor; without it a
    shape that is not static is left unknown."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        dtype = dtype_of(proto.tensor_type.elem_type, where)
        return TensorType(dtype, _shape(proto.tensor_type, where, dim))
    if kind == "sequence_type":
        return SequenceType(to_type(proto.sequence_type.elem_type, where))
    if kind == "optional_type":
        return OptionalType(to_type(proto.optional_type.elem_type, where))  # type: ignore[arg-type]
    if kind == "map_type":
        return _map_type(proto.map_type, where)
    if kind is None:
        raise ModelError(f"{where}: has no type")
    raise UnsupportedError(f"{where}: values of kind {kind} are not supported")


def _map_type(proto: onnx.TypeProto.Map, where: str) -> MapType:
    value = to_type(proto.value_type, where)
    if not isinstance(value, TensorType) or value.shape:
        raise UnsupportedError(f"{where}: a map holds scalars, found {value}")
    return MapType(dtype_of(proto.key_type, where), value.dtype)


def _shape(proto: onnx.TypeProto.Tensor, where: str, dim: DimReader | None) -> Shape | None:
    if not proto.HasField("shape"):
        return None
    if dim is not None:
        shape = tuple(dim(d, n) for n, d in enumerate(proto.shape.dim))
        checked_dims((d for d in shape if isinstance(d, int)), where)
        return shape
    if not all(d.HasField("dim_value") for d in proto.shape.dim):
        return None
    return checked_dims((d.dim_value for d in proto.shape.dim), where)


# ---------------------------------------------------------------- attributes

_A = AttributeProto
_KIND_FIELDS: dict[int, str] = {
    _A.FLOAT: "f", _A.INT: "i", _A.STRING: "s", _A.TENSOR: "t", _A.GRAPH: "g",
    _A.SPARSE_TENSOR: "sparse_tensor", _A.TYPE_PROTO: "tp", _A.FLOATS: "floats", _A.INTS: "ints",
    _A.STRINGS: "strings", _A.TENSORS: "tensors", _A.GRAPHS: "graphs",
}  # fmt: skip


def kind_of(attribute: AttributeProto) -> int:
    """The type of an attribute; the first files leave it to be seen from the field in use."""
    if attribute.type != _A.UNDEFINED:
        return attribute.type
    present = {field.name for field, _ in attribute.ListFields()}
    return next((kind for kind, name in _KIND_FIELDS.items() if name in present), _A.UNDEFINED)


def to_python(attribute: AttributeProto, where: str, folder: DataFolder = NOWHERE) -> Any:
    """The value of an attribute that holds no graph: numbers, strings, tuples, arrays, types."""
    where = f"{where}, attribute {attribute.name!r}"
    kind = kind_of(attribute)
    reader = _READERS.get(kind)
    if reader is None:
        raise UnsupportedError(f"{where}: attributes of kind {kind} are not supported")
    field = _KIND_FIELDS[kind]
    if kind not in _REPEATED and not attribute.HasField(field):
        raise ModelError(f"{where}: its type says field {field!r}, which is missing")
    value = getattr(attribute, field)
    if kind in _REPEATED:
        return tuple(reader(item, where, folder) for item in value)
    return reader(value, where, folder)


def text(data: bytes, where: str) -> str:
    """UTF-8 bytes as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: not UTF-8 text: {error}") from error


_REPEATED = (_A.FLOATS, _A.INTS, _A.STRINGS, _A.TENSORS)
_READERS: dict[int, Callable[[Any, str, DataFolder], Any]] = {
    **dict.fromkeys((_A.FLOAT, _A.FLOATS), lambda value, where, folder: float(value)),
    **dict.fromkeys((_A.INT, _A.INTS), lambda value, where, folder: int(value)),
    **dict.fromkeys((_A.STRING, _A.STRINGS), lambda value, where, folder: text(value, where)),
    **dict.fromkeys((_A.TENSOR, _A.TENSORS), to_array),
    _A.SPARSE_TENSOR: to_dense,
    _A.TYPE_PROTO: lambda value, where, folder: to_type(value, where),
}
