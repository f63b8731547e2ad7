"""Kernels in the form that programs call: flat buffers only, and no inputs that are not read."""

from __future__ import annotations

import math
from dataclasses import replace

from graphc.ir.addresses import flatten_index, flatten_loads
from graphc.ir.kernel import (
    Alloc,
    For,
    Kernel,
    Stmt,
    Store,
    buffers_read,
    map_body,
    map_nested,
    walk_stmts,
)


def without_unread_inputs(kernel: Kernel) -> Kernel:
    """A kernel less the inputs it does not read, such as weights it reads in packed form only."""
    read = buffers_read(kernel.body)
    params = tuple(b for b in kernel.params if b.access != "in" or b.name in read)
    return kernel if len(params) == len(kernel.params) else replace(kernel, params=params)


def flat_kernel(kernel: Kernel) -> Kernel:
    """The same kernel with buffers of one dimension (scalars: none)."""
    shapes = {b.name: b.shape for b in kernel.params}
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, Alloc):
            shapes[stmt.buffer.name] = stmt.buffer.shape
    ranked = {n: s for n, s in shapes.items() if len(s) != 1}

    def flat(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer in ranked and ranked[stmt.buffer]:
            return replace(stmt, index=(flatten_index(stmt.index, ranked[stmt.buffer]),))
        if isinstance(stmt, Alloc) and len(stmt.buffer.shape) > 1:
            return replace(stmt, buffer=replace(stmt.buffer, shape=(math.prod(stmt.buffer.shape),)))
        return map_nested(stmt, lambda inner: tuple(map(flat, inner)))

    loads = {n: s for n, s in ranked.items() if s}
    body = map_body(kernel.body, lambda e: flatten_loads(e, loads))
    params = tuple(
        replace(b, shape=(math.prod(b.shape),) if b.shape else ()) for b in kernel.params
    )
    return replace(kernel, params=params, body=tuple(map(flat, body)))


def in_order(kernel: Kernel, outermost: bool = False) -> Kernel:
    """The same kernel with parallel loops outermost only, or (`outermost`) not even there; the
    others run in order."""

    def put(stmt: Stmt, inside: bool) -> Stmt:
        if isinstance(stmt, For) and stmt.kind == "parallel" and inside:
            stmt = replace(stmt, kind="serial")
        below = inside or isinstance(stmt, For) and stmt.kind != "parallel"
        return map_nested(stmt, lambda body: tuple(put(inner, below) for inner in body))

    return replace(kernel, body=tuple(put(stmt, outermost) for stmt in kernel.body))
