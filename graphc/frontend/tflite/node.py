"""An operator that is being imported: its tensors as values of the graph, and what they become.

TensorFlow Lite stores images with channels last, graphc's operators on windows name the channels
before the spatial dims. A value in that order is called an image here. It is the same tensor seen
through a Transpose, which layouts make free; most operators between two convolutions take images as
well, so there are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.arithmetic import round_away
from graphc.frontend.tflite.reader import Operator, Quantisation, Tensor
from graphc.frontend.tflite.rescaling import Limits
from graphc.frontend.tflite.values import TO_IMAGE, Values
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Value

RANK = 4  # of images
ACTIVATIONS = {  # limits by their number in the schema
    0: (None, None), 1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0),
}  # fmt: skip
ACTIVATION = "FusedActivationFunction"
QUANTISED = (dtypes.i8, dtypes.i16)


@dataclass
class Node:
    """One operator. Operands and results go by their position."""

    made: Values
    op: Operator

    @property
    def b(self) -> Builder:
        return self.made.b

    @property
    def count(self) -> int:
        """How many operands it has, those left out at the end excepted."""
        return max((n + 1 for n, i in enumerate(self.op.inputs) if i >= 0), default=0)

    def has(self, position: int) -> bool:
        return position < len(self.op.inputs) and self.op.inputs[position] >= 0

    def tensor(self, position: int = 0) -> Tensor:
        """An operand, which must be there."""
        if not self.has(position):
            raise ModelError(f"operand {position} is missing")
        return self.made.tensors[self.op.inputs[position]]

    def result(self, position: int = 0) -> Tensor:
        if position >= len(self.op.outputs) or self.op.outputs[position] < 0:
            raise ModelError(f"result {position} is missing")
        return self.made.tensors[self.op.outputs[position]]

    def dtype(self, position: int = 0) -> DType:
        """The element type of an operand."""
        return self.made.dtype(self.tensor(position))

    def result_dtype(self, position: int = 0) -> DType:
        return self.made.dtype(self.result(position))

    def option(self, name: str, default: Any = 0) -> Any:
        return self.op.option(name, default)

    def known(self, position: int) -> np.ndarray:
        """The contents of an operand, which must be constant."""
        tensor = self.tensor(position)
        if tensor.contents is None:
            raise UnsupportedError(f"operand {position} ({tensor.where}) must be constant")
        return tensor.contents

    def known_ints(self, position: int) -> tuple[int, ...]:
        """The contents of an operand that is a vector of integers, or one."""
        array = self.known(position)
        if array.dtype.kind not in "iu":
            raise ModelError(f"operand {position} must hold integers, found {array.dtype}")
        return tuple(map(int, array.reshape(-1)))

    # ------------------------------------------------------------ values

    def value(self, position: int = 0) -> Value:
        return self.made.value(self.tensor(position).number)

    def image(self, position: int = 0) -> Value:
        """An operand with the channels before the spatial dims."""
        tensor = self.tensor(position)
        if len(tensor.shape) != RANK:
            raise ModelError(
                f"operand {position} must have {RANK} dims, found {list(tensor.shape)}"
            )
        return self.made.image(tensor.number)

    def define(self, value: Value, position: int = 0) -> None:
        self.made.define(self.result(position), value)

    def define_image(self, value: Value, position: int = 0) -> None:
        self.made.define_image(self.result(position), value)

    def together(self, positions: Sequence[int]) -> tuple[list[Value], bool]:
        """Operands of an operator that works element by element, and whether they are images: if
        one was made as an image, and the others are as well, or constants."""
        tensors = [self.tensor(n) for n in positions]
        of_rank = [t for t in tensors if len(t.shape) == RANK]
        made = any(t.number in self.made.images for t in of_rank)
        rest = [t for t in tensors if len(t.shape) != RANK]
        if made and len(self.result().shape) == RANK:
            if all(t.contents is not None and len(t.shape) < RANK for t in rest):
                return [self._as_image(t) for t in tensors], True
        return [self.made.value(t.number) for t in tensors], False

    def _as_image(self, tensor: Tensor) -> Value:
        if len(tensor.shape) == RANK:
            return self.made.image(tensor.number)
        assert tensor.contents is not None
        wide = tensor.contents.reshape((1,) * (RANK - len(tensor.shape)) + tensor.shape)
        return self.b.constant(np.ascontiguousarray(wide.transpose(TO_IMAGE)))

    def define_either(self, value: Value, is_image: bool) -> None:
        if is_image:
            self.define_image(value)
        else:
            self.define(value)

    # ------------------------------------------------------------ quantisation

    def quantisation(self, tensor: Tensor) -> Quantisation:
        """How the integers of a tensor are to be read, with positive scales."""
        quantisation = tensor.quantisation
        if quantisation is None or not (quantisation.scale > 0).all():
            raise ModelError(f"{tensor.where} is {tensor.kind} and needs a scale above 0")
        return quantisation

    def scale(self, tensor: Tensor) -> float:
        """The only scale of a tensor."""
        scales = self.quantisation(tensor).scale
        if scales.size != 1:
            raise UnsupportedError(f"{tensor.where} has {scales.size} scales, expected one")
        return float(scales[0])

    def zero_point(self, tensor: Tensor) -> int:
        """The only zero point of a tensor."""
        self.scale(tensor)
        zero = int(self.quantisation(tensor).zero[0])
        dtype = self.made.dtype(tensor)
        if not dtype.min <= zero <= dtype.max:
            raise ModelError(f"{tensor.where}: its zero point {zero} is no {dtype}")
        return zero

    def same_scales(self) -> None:
        """ModelError unless the first operand and the result are quantised alike."""
        x, y = self.tensor(), self.result()
        if self.dtype() not in QUANTISED or x.quantisation is None and y.quantisation is None:
            return
        mine, other = (self.scale(x), self.zero_point(x)), (self.scale(y), self.zero_point(y))
        if abs(mine[0] - other[0]) > 1e-6 or mine[1] != other[1]:
            raise UnsupportedError(
                f"its operand and its result are quantised differently: {mine} and {other}"
            )

    def activation(self) -> tuple[float | None, float | None]:
        """The limits of the activation that is fused into the operator."""
        fuses = hasattr(self.op.options, ACTIVATION)
        number = self.option(ACTIVATION) if fuses else 0
        if number not in ACTIVATIONS:
            raise UnsupportedError(
                f"its activation is number {number}; there are Relu, Relu6 and Relu_n1_to_1"
            )
        return ACTIVATIONS[number]

    def limits(self) -> Limits:
        """Those of a quantised result: of its type, and of the activation."""
        tensor, dtype = self.result(), self.result_dtype()
        scale, zero = np.float32(self.scale(tensor)), self.zero_point(tensor)
        ends = [int(dtype.min), int(dtype.max)]
        for n, real in enumerate(self.activation()):
            if real is not None:
                code = zero + round_away(float(np.float32(real) / scale))
                ends[n] = max(ends[0], code) if n == 0 else min(ends[1], code)
        if ends[0] > ends[1]:
            raise ModelError(f"{tensor.where}: no value lies within its activation's limits")
        return Limits(zero, ends[0], ends[1], dtype)

    def activated(self, value: Value) -> Value:
        """A result of floats, or of plain integers, within the limits of the activation."""
        low, high = self.activation()
        dtype = value.tensor.dtype
        if (low, high) == (0.0, None):
            return self.b.Relu(value)
        if low is not None:
            value = self.b.Max(value, self.b.constant(low, dtype))
        return value if high is None else self.b.Min(value, self.b.constant(high, dtype))
