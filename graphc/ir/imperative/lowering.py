"""Kernels of imperative operators: the one place that says how such an operator meets its buffers.

Inside the function of an `@imperative` operator `f(k, operands..., *, attrs)`

* an operand is a `Buffer` of its row-major shape, named in0, in1, ... by its position; its dims are
  integers, or expressions over sizes: a function that needs integers cannot be lowered then;
* an operand declared Known is its contents, a numpy array, and no parameter of the kernel;
* an omitted operand is None, and no parameter either;
* `k.outputs` are Buffers out0, out1, ..., one for each output asked for (maybe fewer than the
  operator has); every element within the true sizes must be stored;
* what elements do with one another is said by the methods of `Collectives`, which targets build in
  their own ways.

With the trait "bounded" the dims of the outputs are upper bounds, and the kernel has a last
parameter `sizes`, an i64 buffer with one cell per dim of every output, in order. The cells hold the
bounds already; the function overwrites those of the dims that data decides (`store_size`). The true
output is the leading corner of the buffer: `true_shapes` says how large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphc.errors import InternalError, ModelError
from graphc.ir.binding import bind
from graphc.ir.checks import Condition, collected
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr
from graphc.ir.graph import Op
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.infer import blaming
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder, without_unread
from graphc.ir.types import Shape, TensorType

SIZES = "sizes"


def imperative_kernel(op: Op, builder: Callable[..., Collectives] = Collectives) -> Kernel:
    """The kernel of a typed imperative op, as a target builds it.

    Parameters: the operands that are neither Known nor omitted, the outputs, then `sizes` for a
    bounded op. ModelError or UnsupportedError if the op's own function rejects its arguments.
    """
    if op.defn.form != "imperative" or op.defn.function is None:
        raise InternalError(f"{op.where()} is {op.defn.form}, not imperative")
    inputs: list[Buffer] = []

    def operand(position: int, type: TensorType) -> Buffer:
        inputs.append(Buffer(f"in{position}", type.dtype, type.dims, "in"))
        return inputs[-1]

    types = [None if v is None else v.type for v in op.inputs]
    constants = [None if v is None else v.constant for v in op.inputs]
    bound = bind(op.defn, types, op.attrs, constants, wrap=operand)
    outputs = tuple(
        Buffer(f"out{n}", v.tensor.dtype, v.tensor.dims, "out") for n, v in enumerate(op.outputs)
    )
    sizes = _sizes_buffer(op, outputs)
    k = builder(outputs, sizes)
    for cell, extent in enumerate(d for b in outputs for d in b.shape) if sizes else ():
        k.store(sizes, cell, extent)  # type: ignore[arg-type]
    with blaming(op), collected() as op.memo["conditions"]:
        op.defn.function(k, *bound.positional, **bound.keywords)
    params = (*inputs, *outputs, *((sizes,) if sizes else ()))
    return Kernel(op.name, params, without_unread(k.body()), comment=op.where())


def imperative_conditions(op: Op) -> list[Condition]:
    """What a typed imperative op asks of its operands, whose buffers are in0, in1, ..."""
    if "conditions" not in op.memo:
        imperative_kernel(op)
    return op.memo["conditions"]


def _sizes_buffer(op: Op, outputs: Sequence[Buffer]) -> Buffer | None:
    if not is_bounded(op):
        return None
    return Buffer(SIZES, i64, (sum(b.rank for b in outputs),), "out")


def is_bounded(op: Op) -> bool:
    """Whether the output dims of an op are upper bounds, the true ones known once it has run."""
    return "bounded" in op.defn.traits


def store_size(k: KernelBuilder, output: int, dim: int, size: Expr | int) -> None:
    """Stores the true size of a dim of an output; nothing if that output was not asked for."""
    if output >= len(k.outputs):
        return
    assert k.sizes is not None
    k.store(k.sizes, sum(b.rank for b in k.outputs[:output]) + dim, size)


def true_shapes(op: Op, sizes: np.ndarray) -> list[tuple[int, ...]]:
    """The shapes of the outputs of a bounded op, given what it stored into `sizes`."""
    shapes, start = [], 0
    for value in op.outputs:
        rank = value.tensor.rank
        shapes.append(tuple(int(d) for d in sizes[start : start + rank]))
        start += rank
    return shapes


def corner(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The leading part of a bounded output that holds its true contents, contiguous."""
    part = array[tuple(slice(0, extent) for extent in shape)]
    return np.array(part, order="C").reshape(shape)


def numel(shape: Shape) -> int:
    """Number of elements of a static shape. ModelError if one is open."""
    total = 1
    for extent in shape:
        if not isinstance(extent, int):
            raise ModelError(f"the number of elements of {list(shape)} is not known")
        total *= extent
    return total
