"""TensorFlow Lite files made in tests, by the builders of package tflite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

KINDS = {
    np.dtype(np.float32): "FLOAT32", np.dtype(np.int8): "INT8", np.dtype(np.uint8): "UINT8",
    np.dtype(np.int16): "INT16", np.dtype(np.int32): "INT32", np.dtype(np.int64): "INT64",
    np.dtype(np.bool_): "BOOL",
}  # fmt: skip
OPTIONS = {  # by operator, where the name of the options is not that of the operator
    "CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions", "MAX_POOL_2D": "Pool2DOptions",
    "BATCH_MATMUL": "BatchMatMulOptions", "MEAN": "ReducerOptions", "SUM": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
}  # fmt: skip
RELU, RELU6 = 1, 3
SAME, VALID = 0, 1


@dataclass
class T:
    """A tensor: its shape and element type, or its contents; scales and zero points."""

    shape: Sequence[int] = ()
    dtype: Any = np.int8
    scale: Any = ()
    zero: Any = 0
    data: np.ndarray | None = None
    axis: int = 0
    name: str | None = None
    kind: str = ""
    variable: bool = False

    def __post_init__(self) -> None:
        if self.data is not None:
            self.data = np.asarray(self.data)
            self.shape, self.dtype = self.data.shape, self.data.dtype
        self.scale = np.atleast_1d(np.asarray(self.scale, np.float32))
        self.kind = self.kind or KINDS[np.dtype(self.dtype)]


@dataclass
class Op:
    """An operator on tensors, by their places; options by their names in the schema."""

    kind: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    custom: str = ""


def tflite_model(
    tensors: Sequence[T], ops: Sequence[Op], inputs: Sequence[int], outputs: Sequence[int]
) -> bytes:
    """The bytes of a file with one subgraph."""
    b = flatbuffers.Builder(1024)
    buffers, made = [_buffer(b, None)], []
    for number, tensor in enumerate(tensors):
        if tensor.data is not None:
            buffers.append(_buffer(b, tensor.data))
        place = len(buffers) - 1 if tensor.data is not None else 0
        made.append(_tensor(b, tensor, number, place))
    codes = list(dict.fromkeys((op.kind, op.custom) for op in ops))
    code_tables = [_code(b, *code) for code in codes]
    op_tables = [_operator(b, op, codes.index((op.kind, op.custom))) for op in ops]
    parts = [_vector(b, tflite.SubGraphStartTensorsVector, made)]
    parts += [_ints(b, inputs), _ints(b, outputs)]
    parts += [_vector(b, tflite.SubGraphStartOperatorsVector, op_tables), b.CreateString("main")]
    tflite.SubGraphStart(b)
    for name, part in zip(("Tensors", "Inputs", "Outputs", "Operators", "Name"), parts):
        getattr(tflite, f"SubGraphAdd{name}")(b, part)
    graphs = _vector(b, tflite.ModelStartSubgraphsVector, [tflite.SubGraphEnd(b)])
    code_vector = _vector(b, tflite.ModelStartOperatorCodesVector, code_tables)
    buffer_vector = _vector(b, tflite.ModelStartBuffersVector, buffers)
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, code_vector)
    tflite.ModelAddSubgraphs(b, graphs)
    tflite.ModelAddBuffers(b, buffer_vector)
    b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
    return bytes(b.Output())


def _vector(b: Any, start: Any, tables: Sequence[int]) -> int:
    start(b, len(tables))
    for table in reversed(tables):
        b.PrependUOffsetTRelative(table)
    return b.EndVector()


def _ints(b: Any, numbers: Sequence[int]) -> int:
    return b.CreateNumpyVector(np.asarray(numbers, np.int32))


def _buffer(b: Any, data: np.ndarray | None) -> int:
    raw = None
    if data is not None:
        raw = b.CreateNumpyVector(np.frombuffer(data.tobytes(), np.uint8))
    tflite.BufferStart(b)
    if raw is not None:
        tflite.BufferAddData(b, raw)
    return tflite.BufferEnd(b)


def _tensor(b: Any, tensor: T, number: int, place: int) -> int:
    name = b.CreateString(f"t{number}" if tensor.name is None else tensor.name)
    shape, quantisation = _ints(b, tensor.shape), None
    if tensor.scale.size:
        scale = b.CreateNumpyVector(tensor.scale)
        zeros = np.broadcast_to(np.asarray(tensor.zero, np.int64), tensor.scale.shape)
        zero = b.CreateNumpyVector(np.ascontiguousarray(zeros))
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scale)
        tflite.QuantizationParametersAddZeroPoint(b, zero)
        tflite.QuantizationParametersAddQuantizedDimension(b, tensor.axis)
        quantisation = tflite.QuantizationParametersEnd(b)
    tflite.TensorStart(b)
    tflite.TensorAddName(b, name)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, getattr(tflite.TensorType, tensor.kind))
    tflite.TensorAddBuffer(b, place)
    tflite.TensorAddIsVariable(b, tensor.variable)
    if quantisation is not None:
        tflite.TensorAddQuantization(b, quantisation)
    return tflite.TensorEnd(b)


def _code(b: Any, kind: str, custom: str) -> int:
    name = b.CreateString(custom) if custom else None
    number = getattr(tflite.BuiltinOperator, kind)
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(number, 127))
    tflite.OperatorCodeAddBuiltinCode(b, number)
    tflite.OperatorCodeAddVersion(b, 3 if "CONV" in kind else 1)
    if name is not None:
        tflite.OperatorCodeAddCustomCode(b, name)
    return tflite.OperatorCodeEnd(b)


def _operator(b: Any, op: Op, code: int) -> int:
    named = "".join(word.capitalize() for word in op.kind.lower().split("_")) + "Options"
    name, table = OPTIONS.get(op.kind, named), None
    if op.options:
        vectors = {key: _ints(b, v) for key, v in op.options.items() if isinstance(v, list)}
        getattr(tflite, f"{name}Start")(b)
        for key, value in op.options.items():
            getattr(tflite, f"{name}Add{key}")(b, vectors.get(key, value))
        table = getattr(tflite, f"{name}End")(b)
    inputs, outputs = _ints(b, op.inputs), _ints(b, op.outputs)
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, code)
    tflite.OperatorAddInputs(b, inputs)
    tflite.OperatorAddOutputs(b, outputs)
    if table is not None:
        tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, name))
        tflite.OperatorAddBuiltinOptions(b, table)
    return tflite.OperatorEnd(b)


# ---------------------------------------------------------------- models of one operator


def one(
    kind: str, tensors: Sequence[T], inputs: int = 1, order: Sequence[int] | None = None,
    **options: Any,
) -> bytes:  # fmt: skip
    """A model of one operator: its operands, of which the first `inputs` are the model's, and its
    result, which comes last. `order` is that of the operands, if not theirs here."""
    last = len(tensors) - 1
    op = Op(kind, range(last) if order is None else order, [last], options)
    return tflite_model(tensors, [op], range(inputs), [last])
