"""TensorFlow Lite files as plain data: tensors, operators and their options.

The accessors of package tflite follow offsets without a look at the file's end. They stay in
Python, so one that leads astray raises, or gives nonsense. Here every read may fail, in a
ModelError; what is read in all, vectors counted by their elements, is limited by the file's size,
so that a small file with vectors that claim to be long, or are shared by many, takes no time.
Whatever refers to something else by its number is checked.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from graphc.distribution import install
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.external_data import model_file
from graphc.frontend.tensors import checked_dims
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.records import dataclass

IDENTIFIER = b"TFL3"
SUFFIX = ".tflite"
FAULTS = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError)
READS = 4  # of each byte of a file, at most
TYPES = {
    "FLOAT32": dtypes.f32, "FLOAT16": dtypes.f16, "FLOAT64": dtypes.f64, "INT4": dtypes.i8,
    "INT8": dtypes.i8, "UINT8": dtypes.u8, "INT16": dtypes.i16, "UINT16": dtypes.u16,
    "INT32": dtypes.i32, "UINT32": dtypes.u32, "INT64": dtypes.i64, "UINT64": dtypes.u64,
    "BOOL": dtypes.boolean,
}  # fmt: skip


@dataclass(frozen=True)
class Quantisation:
    """real = (value - zero) * scale, along `axis` if there are several."""

    scale: np.ndarray  # float32
    zero: np.ndarray  # int64
    axis: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file. `dtype` is None for types that graphc lacks, `contents` for what is not
    constant; 4 bits are unpacked."""

    number: int
    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: DType | None
    quantisation: Quantisation | None
    contents: np.ndarray | None
    is_variable: bool

    @property
    def where(self) -> str:
        return f"tensor {self.number} {self.name!r}"


@dataclass(frozen=True)
class Operator:
    """An operator of a file; a tensor that is left out has number -1."""

    kind: str
    number: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any  # an object of package tflite, or None

    def option(self, name: str, default: Any = 0) -> Any:
        """An option by its name in the schema; the default if the operator has none."""
        if self.options is None:
            return default
        try:
            return getattr(self.options, name)()
        except FAULTS as error:
            raise ModelError(f"its option {name} cannot be read: {error}") from error

    def numbers(self, name: str) -> tuple[int, ...]:
        """An option that is a vector of integers."""
        vector = self.option(f"{name}AsNumpy")
        return tuple(map(int, vector)) if isinstance(vector, np.ndarray) else ()


@dataclass(frozen=True)
class Contents:
    """What a file holds: the main subgraph's tensors, operators, inputs and outputs."""

    name: str
    tensors: list[Tensor]
    operators: list[Operator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def schema() -> ModuleType:
    """Package tflite; UnsupportedError if it is not installed."""
    try:
        import tflite
    except ImportError as error:
        raise UnsupportedError(
            f"reading TensorFlow Lite files needs the package tflite: {install('tflite')}"
        ) from error
    return tflite


def is_tflite(data: memoryview) -> bool:
    """Whether bytes look like a TensorFlow Lite file: a place inside, then the identifier."""
    return bytes(data[4:8]) == IDENTIFIER and int.from_bytes(data[:4], "little") < len(data)


def read(source: str | os.PathLike | bytes | bytearray | memoryview) -> Contents:
    """What a file, or bytes, hold; ModelError if they are damaged or hold no model."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _Reader(memoryview(source).cast("B"), "the model").contents()
    path = Path(os.fspath(source))
    return _Reader(model_file(path), str(path)).contents()


def _names(enumeration: type) -> dict[int, str]:
    return {n: name for name, n in vars(enumeration).items() if isinstance(n, int)}


class _Reader:
    """Reads one file."""

    def __init__(self, data: memoryview, what: str):
        self.data, self.what, self.left = data, what, READS * len(data) + 1024
        self.schema = schema()
        self.types = _names(self.schema.TensorType)
        self.kinds = _names(self.schema.BuiltinOperator)
        self.option_kinds = _names(self.schema.BuiltinOptions)

    def contents(self) -> Contents:
        if not is_tflite(self.data):
            raise ModelError(
                f"{self.what}: not a TensorFlow Lite model: it lacks the identifier TFL3"
            )
        try:
            return self._contents()
        except FAULTS as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{self.what}: the file is damaged: {error}") from error

    def _contents(self) -> Contents:
        model = self.schema.Model.GetRootAsModel(self.data, 0)
        if model.Version() != 3:
            raise ModelError(f"{self.what}: schema version {model.Version()}, expected 3")
        codes = self.many(model.OperatorCodesLength(), model.OperatorCodes)
        if not self.many(model.SubgraphsLength(), lambda n: n):
            raise ModelError(f"{self.what}: not a model: it has no subgraph")
        graph = model.Subgraphs(0)
        tensors = self.many(graph.TensorsLength(), lambda n: self.tensor(model, graph, n))
        operators = self.many(
            graph.OperatorsLength(), lambda n: self.operator(codes, graph.Operators(n), n)
        )
        ends = self.ints(graph.InputsAsNumpy()), self.ints(graph.OutputsAsNumpy())
        for number in (*ends[0], *ends[1]):
            if not 0 <= number < len(tensors):
                raise ModelError(f"{self.what}: input or output {number} is no tensor's number")
        for op in operators:
            wrong = [n for n in (*op.inputs, *op.outputs) if not -1 <= n < len(tensors)]
            if wrong:
                raise ModelError(
                    f"{self.what}: operator {op.number} {op.kind} refers to tensor {wrong[0]}, "
                    f"there are {len(tensors)}"
                )
        return Contents(self.text(graph.Name()), tensors, operators, *ends)

    # ------------------------------------------------------------ parts

    def spend(self, count: int) -> None:
        """Counts elements that are read."""
        self.left -= count
        if self.left < 0:
            raise ModelError(f"{self.what}: the file is damaged: vectors are longer than the file")

    def many(self, length: int, part: Callable[[int], Any]) -> list:
        """The parts of a vector."""
        self.spend(length)
        return [part(n) for n in range(length)]

    def ints(self, array: Any) -> tuple[int, ...]:
        """A vector of integers; none if it is left out."""
        return tuple(map(int, self.numbers(array)))

    def numbers(self, array: Any) -> np.ndarray:
        """A vector of numbers; an empty one if it is left out."""
        if not isinstance(array, np.ndarray):
            return np.zeros(0)
        self.spend(array.size)
        return array

    def text(self, raw: bytes | None) -> str:
        """A name, which must be UTF-8."""
        self.spend(len(raw or b""))
        try:
            return (raw or b"").decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.what}: a name is not UTF-8 text: {raw!r}") from error

    def operator(self, codes: list, op: Any, number: int) -> Operator:
        self.spend(1)
        if not 0 <= op.OpcodeIndex() < len(codes):
            raise ModelError(
                f"{self.what}: operator {number} is of kind {op.OpcodeIndex()}, there are "
                f"{len(codes)}"
            )
        code = codes[op.OpcodeIndex()]
        value = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        kind = self.kinds.get(value, f"number {value}")
        if kind == "CUSTOM":
            kind = f"custom {self.text(code.CustomCode())!r}"
        options, name = None, self.option_kinds.get(op.BuiltinOptionsType(), "NONE")
        table = op.BuiltinOptions()
        if name != "NONE" and table is not None:
            options = getattr(self.schema, name)()
            options.Init(table.Bytes, table.Pos)
        return Operator(
            kind, number, self.ints(op.InputsAsNumpy()), self.ints(op.OutputsAsNumpy()), options
        )

    def tensor(self, model: Any, graph: Any, number: int) -> Tensor:
        tensor = graph.Tensors(number)
        name = self.text(tensor.Name())
        where = f"{self.what}: tensor {number} {name!r}"
        shape = checked_dims(self.ints(tensor.ShapeAsNumpy()), where)
        kind = self.types.get(tensor.Type(), f"type {tensor.Type()}")
        dtype = TYPES.get(kind)
        buffer = tensor.Buffer()
        if not 0 <= buffer < max(model.BuffersLength(), 1):
            raise ModelError(f"{where}: its buffer {buffer} is none of {model.BuffersLength()}")
        contents = None
        if buffer and not tensor.IsVariable():
            contents = self.array(model.Buffers(buffer), kind, dtype, shape, where)
        if tensor.Sparsity() is not None:
            raise UnsupportedError(f"{where}: sparse tensors are not supported; store it dense")
        return Tensor(
            number, name, shape, kind, dtype, self.quantisation(tensor, shape, where), contents,
            bool(tensor.IsVariable()),
        )  # fmt: skip

    def array(
        self, buffer: Any, kind: str, dtype: DType | None, shape: tuple[int, ...], where: str
    ) -> np.ndarray | None:
        """The contents of a tensor; None if its buffer is empty: it is computed."""
        data: Any = buffer.DataAsNumpy()
        if buffer.Offset() > 1:  # of large models: behind the flatbuffer
            start, size = buffer.Offset(), buffer.Size()
            if start + size > len(self.data):
                raise ModelError(f"{where}: its contents lie behind the end of the file")
            data = np.frombuffer(self.data[start : start + size], np.uint8)
        if not isinstance(data, np.ndarray) or not data.size:
            return None
        if dtype is None:
            raise UnsupportedError(f"{where}: constants of type {kind} are not supported")
        count = math.prod(shape)
        need = (count + 1) // 2 if kind == "INT4" else count * dtype.np.itemsize
        if data.size != need:
            raise ModelError(
                f"{where}: shape {list(shape)} of {kind} needs {need} bytes, its buffer has "
                f"{data.size}"
            )
        if kind == "INT4":
            return _unpacked(data, count).reshape(shape)
        if kind == "BOOL":
            return (data != 0).reshape(shape)
        return (
            np.frombuffer(data.tobytes(), dtype.np.newbyteorder("<"))
            .astype(dtype.np)
            .reshape(shape)
        )

    def quantisation(self, tensor: Any, shape: tuple[int, ...], where: str) -> Quantisation | None:
        parameters = tensor.Quantization()
        if parameters is None:
            return None
        scale = self.numbers(parameters.ScaleAsNumpy()).astype(np.float32)
        zero = self.numbers(parameters.ZeroPointAsNumpy()).astype(np.int64)
        if not scale.size:
            return None
        if parameters.DetailsType():
            raise UnsupportedError(f"{where}: quantisation of a custom kind is not supported")
        if not zero.size:
            zero = np.zeros(scale.size, np.int64)
        axis = parameters.QuantizedDimension()
        if zero.size not in (1, scale.size):
            raise ModelError(f"{where}: {scale.size} scales, but {zero.size} zero points")
        if not (np.isfinite(scale).all() and (scale >= 0).all()):
            raise ModelError(f"{where}: its scales are not numbers from 0 on")
        if scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size):
            raise ModelError(
                f"{where}: {scale.size} scales do not belong to dimension {axis} of {list(shape)}"
            )
        return Quantisation(scale, np.broadcast_to(zero, scale.shape), axis)


def _unpacked(data: np.ndarray, count: int) -> np.ndarray:
    """Signed integers of 4 bits, the lower half of a byte first."""
    halves = np.stack([data << 4, data & 0xF0], -1).reshape(-1)[:count]
    return halves.astype(np.uint8).view(np.int8) >> 4
