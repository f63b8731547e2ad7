"""Outputs whose shape data decides, cut to what a run has told of their sizes.

Such an output is an array of the largest shape; the code writes its elements one after the other
from the start, as an array of the true shape has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphc.backends.llvm_cpu.image import Image
from graphc.ir.types import TensorType

if TYPE_CHECKING:
    from graphc.ir.expr import Sym


MOST_KEPT = 16  # times its own memory that a result keeps; less is copied


class Cut:
    """Cuts the outputs of an image. Dims are an integer, the number of a size, or an expression."""

    def __init__(self, image: Image):
        self.sizes = (*image.sizes, *image.counts)
        numbers = {size: n for n, size in enumerate(self.sizes)}
        self.shapes = {
            number: [(dim, numbers.get(dim)) for dim in type.dims]  # type: ignore[call-overload]
            for number, (_, type) in enumerate(image.outputs)
            if image.counts and _is_counted(type, image.counts)
        }

    def __call__(self, outputs: list[np.ndarray], values: Sequence[int]) -> list[np.ndarray]:
        """The outputs of a run with these values of all sizes."""
        for number, dims in self.shapes.items():
            shape = tuple([self._extent(dim, place, values) for dim, place in dims])
            whole = outputs[number].reshape(-1)
            part = whole[: math.prod(shape)].reshape(shape)
            is_small = MOST_KEPT * part.size < whole.size
            outputs[number] = part.copy() if is_small else part
        return outputs

    def _extent(self, dim: object, place: int | None, values: Sequence[int]) -> int:
        if place is not None:
            return values[place]
        if isinstance(dim, int):
            return dim
        from graphc.ir.dtypes import i64
        from graphc.ir.expr import Const
        from graphc.ir.types import at

        return int(at(dim, {s: Const(v, i64) for s, v in zip(self.sizes, values)}))  # type: ignore[arg-type]


def _is_counted(type: TensorType, counts: Sequence[Sym]) -> bool:
    """Whether data decides a dim of a type."""
    from graphc.ir.expr import symbols

    return any(symbols(dim) & set(counts) for dim in type.dims if not isinstance(dim, int))
