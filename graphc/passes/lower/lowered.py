"""What a strategy gives: the lowered form of a computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from graphc.ir.addresses import flatten_index
from graphc.ir.expr import Expr, Load, loads
from graphc.ir.kernel import Alloc, Buffer, For, Kernel, KernelBuilder, Let, Stmt, Store
from graphc.ir.kernel import buffers_read as names_read
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, Output, buffers_read, flat_buffer
from graphc.passes.schedule.steps import Schedule
from graphc.records import dataclass


@dataclass
class Lowered:
    """What a strategy returns: computations to run first (each filling a temporary), and a kernel.

    The outputs of `prepare`, in order, are the first of `temporaries`, which later preparations may
    read; a preparation that reads only constants is done at compile time. Other temporaries are
    filled by the kernels of `before`, which run after the preparations, in order. `inplace` lists
    (output, input) buffers that may share their memory. `flops`, and `read`, at most how many
    elements of a buffer are read, where that is known, are for rooflines. `strategy` made it, after
    others `declined`, each for a reason; by a `schedule`, if its choices are one.
    """

    kernel: Kernel
    prepare: list[Computation] = field(default_factory=list)
    temporaries: list[Buffer] = field(default_factory=list)
    before: list[Kernel] = field(default_factory=list)
    inplace: list[tuple[str, str]] = field(default_factory=list)
    flops: int = 0
    read: Mapping[str, int] = field(default_factory=dict)
    strategy: str = ""
    declined: tuple[tuple[str, str], ...] = ()
    schedule: Schedule | None = None


def kernel_of_sums(
    name: str, k: KernelBuilder, computation: Computation, read: Iterable[Expr],
    packed: Iterable[Buffer],
) -> Kernel:  # fmt: skip
    """The kernel that has been emitted: over those inputs that expressions read, over what is
    packed for it, and over all outputs."""
    own = [*buffers_read(computation.inputs, read), *packed]
    params = map(flat_buffer, (*own, *(o.buffer for o in computation.outputs)))
    return Kernel(name, tuple(params), k.body(), computation.label)


def store_outputs(
    k: KernelBuilder, outputs: Iterable[Output], offset: Expr, exprs: Iterable[Expr],
    at: Mapping[Expr, Expr],
) -> None:  # fmt: skip
    """The epilogue of a sum: stores what outputs make of it, given what sum and indices are `at`
    this place; once all have been computed, as outputs may lie over what is read."""
    values = [simplify(expr, at) for expr in exprs]
    if len(values) > 1:
        values = [k.let(value) for value in values]
    place = simplify(offset, at)
    for output, value in zip(outputs, values):
        k.store(flat_buffer(output.buffer), place, value)


def in_place(part: Computation) -> list[tuple[str, str]]:
    """As `in_place_together`, for kernels that store each output of an element when it is known:
    none if there are several."""
    return in_place_together(part) if len(part.outputs) == 1 else []


def in_place_together(part: Computation) -> list[tuple[str, str]]:
    """Inputs that are read only at the very element that is being stored, by all outputs.

    An output of the same element size may then take the input's place, in a kernel that stores what
    is at an element once all of it has been computed.
    """
    pairs = []
    for output in part.outputs:
        if output.extents != part.outputs[0].extents:
            return []
    reads: dict[str, list[tuple[Load, Expr]]] = {}
    for output in part.outputs:
        here = flatten_index(output.index, output.extents)
        for load in loads(output.expr):
            reads.setdefault(load.source, []).append((load, here))
    for output in part.outputs:
        for buffer in part.inputs:
            own = reads.get(buffer.name, ())
            if buffer.dtype.size == output.buffer.dtype.size and all(
                flatten_index(load.index, buffer.shape) is here for load, here in own
            ):
                pairs.append((output.buffer.name, buffer.name))
    return pairs


def in_place_of_copies(kernel: Kernel) -> list[tuple[str, str]]:
    """(Output, input) of a kernel that begins by copying an input whole and does not read it again:
    in the same memory that is no copy, and an operator that changes some elements changes these."""
    start = [stmt for stmt in kernel.body if not isinstance(stmt, Let | Alloc)]
    params = {buffer.name: buffer for buffer in kernel.params}
    stmt: Stmt | None = start[0] if start else None
    while isinstance(stmt, For) and len(stmt.body) == 1:
        stmt = stmt.body[0]
    if not isinstance(stmt, Store) or not isinstance(stmt.value, Load):
        return []
    out, into = params.get(stmt.buffer), params.get(stmt.value.source)
    rest = tuple(other for other in kernel.body if other is not start[0])
    is_copy = (
        out is not None and into is not None
        and (out.shape, out.dtype) == (into.shape, into.dtype)
        and stmt.index == stmt.value.index and into.name not in names_read(rest)
    )  # fmt: skip
    return [(stmt.buffer, stmt.value.source)] if is_copy else []


def in_place_of_epilogue(
    computation: Computation, offset: Expr, epilogue: Iterable[Expr], operands: Iterable[Expr]
) -> list[tuple[str, str]]:
    """As `in_place`, of flat loads: inputs that an epilogue alone reads, not the operands that it
    is of, at the very offset that is stored."""
    here, read = simplify(offset), [x for e in epilogue for x in loads(e)]
    sources = {x.source for e in operands for x in loads(e)}
    pairs = []
    for output in computation.outputs:
        for buffer in computation.inputs:
            own = [simplify(x.index[0]) for x in read if x.source == buffer.name]
            alone = own and all(x is here for x in own) and buffer.name not in sources
            if alone and buffer.dtype.size == output.buffer.dtype.size:
                pairs.append((output.buffer.name, buffer.name))
    return pairs
