"""Scratch memory: large local arrays of kernels move into the arena, as stacks are small. So do
arrays that kernels ask for as scratch, whatever their size.

Arrays local to the iterations of parallel loops stay, as each iteration has its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphc.ir.kernel import Alloc, Body, Buffer, For, Kernel, map_nested, walk_stmts

MOST_LOCAL = 1 << 14  # bytes of an array on the stack


def with_scratch(kernel: Kernel) -> tuple[Kernel, list[Buffer]]:
    """The kernel with its large local arrays as parameters, after the others, and these."""
    names = [s.buffer.name for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]
    arrays: dict[str, Buffer] = {}
    body = _hoisted(kernel.body, {n for n in names if names.count(n) == 1}, arrays)
    if not arrays:
        return kernel, []
    scratch = list(arrays.values())
    return replace(kernel, params=(*kernel.params, *scratch), body=body), scratch


def _hoisted(body: Body, names: set[str], arrays: dict[str, Buffer]) -> Body:
    """A body less its large arrays of these names, which are added to `found`."""
    kept = []
    for stmt in body:
        if isinstance(stmt, Alloc) and stmt.buffer.name in names and _is_for_arena(stmt):
            arrays[stmt.buffer.name] = replace(stmt.buffer, access="out")
            continue
        if not (isinstance(stmt, For) and stmt.kind != "serial"):
            stmt = map_nested(stmt, lambda inner: _hoisted(inner, names, arrays))
        kept.append(stmt)
    return tuple(kept)


def _is_for_arena(stmt: Alloc) -> bool:
    size = math.prod(map(int, stmt.buffer.shape)) * stmt.buffer.dtype.size  # type: ignore[arg-type]
    return stmt.scope == "scratch" or size > MOST_LOCAL
