"""Calls of a program that is C, compiled for this machine: what it gets, and what it gives.

Outputs whose shape data decides have room for the largest one; their elements follow one another
from the start, and the sizes that the run has written say how many there are.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr
from graphc.ir.program import Program
from graphc.ir.sizes import sizes_of
from graphc.ir.types import TensorType, at, largest


class Call:
    """The arrays of a call: inputs as C takes them, room for outputs, and the sizes, those that the
    run writes last; None if the program has no sizes. ModelError if the inputs have other shapes or
    dtypes than the program."""

    def __init__(
        self, program: Program, inputs: Sequence[np.ndarray],
        outputs: Sequence[tuple[str, TensorType]],
    ):  # fmt: skip
        if len(inputs) != len(program.inputs):
            raise ModelError(f"takes {len(program.inputs)} inputs, found {len(inputs)}")
        shapes = [np.shape(array) for array in inputs]
        sizes = sizes_of(program.sizes, program.inputs, shapes) if program.sizes else ()
        known: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(program.sizes, sizes)}
        self.inputs = [_checked(t, a, known) for t, a in zip(program.inputs, inputs)]
        most = dict(known)
        most.update((size, Const(largest(size), i64)) for size in program.counts)
        self.outputs = [np.empty(_shape(type, most), type.dtype.np) for _, type in outputs]
        values = (*sizes, *[0] * len(program.counts))
        self.sizes = (ctypes.c_int64 * len(values))(*values) if values else None

    def results(self, program: Program) -> list[np.ndarray]:
        """The outputs, once the run has written all."""
        return shaped(program, self.outputs, tuple(self.sizes or ()))


def shaped(
    program: Program, outputs: Sequence[np.ndarray], sizes: Sequence[int]
) -> list[np.ndarray]:
    """The outputs of a run, given the memory of each and the values of all sizes."""
    known: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(program.all_sizes, sizes)}
    shapes = [_shape(type, known) for _, type in program.own_outputs]
    return [_first(y, shape) for y, shape in zip(outputs, shapes)]


def _first(array: np.ndarray, shape: list[int]) -> np.ndarray:
    """As many of the first elements of an array as the shape takes."""
    if array.shape == tuple(shape):
        return array
    return array.reshape(-1)[: math.prod(shape)].reshape(shape).copy()


def pointers(arrays: Sequence[np.ndarray]) -> Any:
    """An array of pointers, or the fields of a structure of pointers."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))


def _shape(type: TensorType, sizes: Mapping[Expr, Expr]) -> list[int]:
    return [int(at(dim, sizes)) for dim in type.dims]  # type: ignore[arg-type]


def _checked(
    spec: tuple[str, TensorType], array: np.ndarray, sizes: Mapping[Expr, Expr]
) -> np.ndarray:
    name, type = spec
    if array.dtype != type.dtype.np or array.shape != tuple(at(d, sizes) for d in type.dims):
        raise ModelError(f"input {name} takes {type}, found {array.dtype}{list(array.shape)}")
    return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])
