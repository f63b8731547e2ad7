"""From kernels to launches: what the threads of a grid do, and how large the grid is.

A kernel is cut at its top level, because nothing but the end of a launch orders all threads of a
grid. Each piece is one of

    blocks    `block` loop holding shared arrays and one `thread` loop: as the strategy planned it
    elements  `parallel` loops, perfectly nested: one thread per iteration, the innermost fastest
    serial    anything else: one thread

Neighbouring serial statements share a launch, and so do neighbouring loops over elements that touch
nothing the other one writes. A kernel whose pieces share local scalars or arrays
cannot be cut and is run by one thread.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TypeGuard

from graphc.backends.cuda.machines import KIB, STATIC_SHARED, VECTOR_BYTES
from graphc.backends.cuda.signatures import written
from graphc.backends.cuda.tensor_maps import TensorMap, maps_of
from graphc.errors import InternalError
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Index, Ref, as_expr, minimum, walk
from graphc.ir.extents import as_dim, ceil_divided, is_of_sizes, most
from graphc.ir.kernel import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    exprs,
    map_nested,
    substitute_body,
    walk_stmts,
)
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of

THREADS = 256  # of a block, where a kernel does not say
MAX_BLOCKS = 1 << 16  # of a launch whose threads loop over elements


@dataclass(frozen=True)
class Launch:
    """A `__global__` function in the making: its kernel, blocks in the grid (an expression over the
    kernel's sizes, if it has any), threads in a block, and how many blocks a multiprocessor should
    hold at once (0: as many as can be)."""

    kernel: Kernel
    grid: Dim
    block: int
    resident: int = 0

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The maps that it takes after its pointers and sizes."""
        return maps_of(self.kernel)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that are asked for at the launch; 0 where what every kernel may
        declare is enough."""
        end = 0
        for stmt in walk_stmts(self.kernel.body):
            if _is_shared(stmt):
                end = shared_place(stmt.buffer, end) + stmt.buffer.size * stmt.buffer.dtype.size
        return end if end > STATIC_SHARED else 0


def _is_shared(stmt: Stmt) -> TypeGuard[Alloc]:
    return isinstance(stmt, Alloc) and stmt.scope == "shared"


def alignment(buffer: Buffer) -> int:
    """Of an array in shared memory: that of vectors, or a KiB if it is so many whole ones, which
    products of warp groups need of panels."""
    return VECTOR_BYTES if buffer.size * buffer.dtype.size % KIB else KIB


def shared_place(buffer: Buffer, end: int) -> int:
    """Where an array starts in shared memory, after others that end there."""
    return -(-end // alignment(buffer)) * alignment(buffer)


def launches(kernel: Kernel, max_blocks: int = MAX_BLOCKS) -> list[Launch]:
    """The launches of a kernel, in order; none for a kernel that does nothing."""
    pieces = _pieces(kernel.body)
    if len(pieces) > 1 and _share_locals(pieces):
        pieces = [_serial(kernel.body)]
    launches = [_launch(kernel, piece, max_blocks) for piece in _together(pieces)]
    launches = [launch for launch in launches if launch.grid != 0]
    if len(launches) == 1:
        return [replace(launches[0], kernel=replace(launches[0].kernel, name=kernel.name))]
    return [
        replace(launch, kernel=replace(launch.kernel, name=f"{kernel.name}_{part}"))
        for part, launch in enumerate(launches)
    ]


def _pieces(body: Body) -> list[Body]:
    """The body cut before and after every loop over a grid."""
    pieces: list[list[Stmt]] = []
    joins = False
    for stmt in body:
        wide = isinstance(stmt, For) and stmt.kind in ("parallel", "block")
        if not joins or wide:
            pieces.append([])
        pieces[-1].append(stmt)
        joins = not wide
    return [tuple(piece) for piece in pieces]


def _together(pieces: list[Body]) -> list[Body]:
    """The pieces, of which neighbouring loops over elements are one where that makes no
    difference."""
    joined: list[Body] = []
    for piece in pieces:
        before, loop = _elements(joined[-1]) if joined else None, _elements(piece)
        if before is None or loop is None or _depend(before, loop):
            joined.append(piece if loop is None else (loop,))
        else:
            joined[-1] = (_one_loop(before, loop),)
    return joined


def _elements(piece: Body) -> For | None:
    """The loop over elements that a piece is, if it is one of constant extent and has any."""
    only = piece[0] if len(piece) == 1 else None
    loop = _flat(only) if isinstance(only, For) and only.kind == "parallel" else None
    return loop if loop is not None and isinstance(loop.extent, int) and loop.extent else None


def _depend(first: For, second: For) -> bool:
    """Whether a loop touches a parameter that another one writes."""
    changed = [_written(loop) for loop in (first, second)]
    local = [
        {s.buffer.name for s in walk_stmts((loop,)) if isinstance(s, Alloc)}
        for loop in (first, second)
    ]
    touched = [_names_used((loop,)) - own for loop, own in zip((first, second), local)]
    return bool((changed[0] - local[0]) & touched[1] or (changed[1] - local[1]) & touched[0])


def _written(loop: For) -> set[str]:
    names: set[str] = set()
    for stmt in walk_stmts((loop,)):
        names |= {stmt.buffer} if isinstance(stmt, Store) else set()
        names |= written(stmt) if isinstance(stmt, Intrin) else set()
    return names


def _one_loop(first: For, second: For) -> For:
    """A loop over the elements of both, those of the first before those of the second."""
    start, count = first.var.count, second.var.count
    inside = list(walk_stmts((first, second)))
    taken = {s.ref.name for s in inside if isinstance(s, Let)}
    taken |= {s.var.name for s in inside if isinstance(s, For)}
    names = (name for n in itertools.count() if (name := f"element{n}") not in taken)
    at = Index("element", start + count)
    here, there = Ref(next(names), i64, 0, start - 1), Ref(next(names), i64, 0, count - 1)
    then = (Let(here, at), *substitute_body(first.body, {first.var: here}))
    orelse = (Let(there, simplify(at - start)), *substitute_body(second.body, {second.var: there}))
    return For(at, (If(at < start, then, orelse),), "parallel")


def _share_locals(pieces: list[Body]) -> bool:
    """Whether a piece uses a scalar or an array that another one declares."""
    for number, piece in enumerate(pieces):
        declared = {s.ref.name for s in piece if isinstance(s, Let)}
        declared |= {s.buffer.name for s in piece if isinstance(s, Alloc)}
        rest = tuple(s for later in pieces[number + 1 :] for s in later)
        if declared & _names_used(rest):
            return True
    return False


def _names_used(body: Body) -> set[str]:
    names: set[str] = set()
    for stmt in walk_stmts(body):
        names.update([stmt.buffer] if isinstance(stmt, Store) else [])
        for expr in exprs(stmt):
            names.update(_leaf_name(node) for node in walk(expr))
    return names


def _leaf_name(node: Expr) -> str:
    return node.name if isinstance(node, Ref) else getattr(node, "source", "")


def _launch(kernel: Kernel, piece: Body, max_blocks: int) -> Launch:
    only = piece[0] if len(piece) == 1 else None
    if isinstance(only, For) and only.kind == "block":
        return _planned(replace(kernel, body=piece), only)
    if isinstance(only, For) and only.kind == "parallel":
        loop = _flat(only)
        if loop is not None:
            grid = blocks_of(loop.extent)
            if most(grid) > max_blocks:
                grid = as_dim(minimum(as_expr(grid, i64), max_blocks))
            return Launch(replace(kernel, body=(loop,)), grid, THREADS)
    return Launch(replace(kernel, body=_serial(piece)), 1, 1)


def blocks_of(elements: Dim) -> Dim:
    """How many blocks have a thread for each element."""
    return ceil_divided(elements, THREADS)


def _planned(kernel: Kernel, blocks: For) -> Launch:
    """A block loop as a strategy made it; InternalError if it has not the form above."""
    *shared, threads = blocks.body
    fits = isinstance(threads, For) and threads.kind == "thread"
    fits = fits and all(map(_is_shared, shared))
    inner = walk_stmts(threads.body) if isinstance(threads, For) else ()
    if not fits or any(isinstance(s, For) and s.kind in ("block", "thread") for s in inner):
        raise InternalError(
            f"kernel @{kernel.name}: a block loop must hold shared arrays, then one thread loop"
        )
    assert isinstance(threads, For)
    if not is_of_sizes(blocks.extent) or not isinstance(threads.extent, int):
        raise InternalError(
            f"kernel @{kernel.name}: a grid must have a size that is known at the launch, and a "
            "block a constant one"
        )
    return Launch(kernel, blocks.extent, threads.extent, threads.width)


def _flat(outer: For) -> For | None:
    """Perfectly nested parallel loops as one; None if their extents are not known at the launch."""
    nest = [outer]
    while len(nest[-1].body) == 1:
        inner = nest[-1].body[0]
        if not (isinstance(inner, For) and inner.kind == "parallel"):
            break
        nest.append(inner)
    body = _serial(nest[-1].body)
    if not all(is_of_sizes(loop.extent) for loop in nest):
        return None
    if len(nest) == 1:
        return replace(outer, body=body)
    extents = tuple(loop.extent for loop in nest)
    taken = {s.var.name for s in walk_stmts((outer,)) if isinstance(s, For)}
    name = next(n for n in ("element", *(f"element{k}" for k in range(99))) if n not in taken)
    flat = Index(name, elements_of(extents))
    if flat.extent == 0:
        return For(flat, (), "parallel")
    mapping: dict[Expr, Expr] = dict(
        zip((loop.var for loop in nest), unflatten_index(flat, extents))
    )
    return For(flat, substitute_body(body, mapping), "parallel")


def _serial(body: Body) -> Body:
    """The same statements for one thread: loops over grids run in order."""
    return tuple(map(_serial_stmt, body))


def _serial_stmt(stmt: Stmt) -> Stmt:
    if isinstance(stmt, For):
        if stmt.kind in ("block", "thread") and any(
            isinstance(s, Barrier) for s in walk_stmts(stmt.body)
        ):
            raise InternalError("threads with barriers cannot be run by one thread")
        kind = "serial" if stmt.kind in ("parallel", "block", "thread") else stmt.kind
        stmt = replace(stmt, kind=kind)
    return map_nested(stmt, _serial)
