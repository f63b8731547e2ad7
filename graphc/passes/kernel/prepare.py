"""The last step before a kernel is printed: operations and types that a machine lacks are expressed
by those that it has.

After `prepare_kernel` no buffer, variable or expression has a type among those that the machine
`lacks` (ir/scalar/narrow.py says how elements are stored), and of the scalar operations only those
remain that backends spell: modulo and powers are expanded, sign becomes comparisons, and exp, log
and their kind become polynomials. A backend says what its machine lacks and spells the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from graphc.ir.dtypes import DType
from graphc.ir.expr import Expr, Ref
from graphc.ir.kernel import (
    Alloc,
    Buffer,
    Kernel,
    Let,
    Stmt,
    Store,
    map_body,
    map_nested,
    walk_stmts,
)
from graphc.ir.scalar.arithmetic import LACKED_BY_C, expand_arithmetic
from graphc.ir.scalar.functions import POLYNOMIALS, Functions, expand_math, sign_as_select
from graphc.ir.scalar.narrow import BELOW_BYTES, Narrow


def prepare_kernel(
    kernel: Kernel, lacks: Collection[DType] = BELOW_BYTES, functions: Functions = POLYNOMIALS
) -> Kernel:
    """The kernel for a machine without the types in `lacks`, its functions as polynomials.

    Buffers keep their sizes in bytes, so that it is called as the original.
    """
    kernel = lower_narrow(kernel, Narrow(lacks))

    def expand(root: Expr) -> Expr:
        return expand_math(sign_as_select(expand_arithmetic(root)), functions)

    return replace(kernel, body=map_body(kernel.body, expand))


def for_c(kernel: Kernel, names: Collection[str] = LACKED_BY_C) -> Kernel:
    """The kernel for C, which spells all operations of the scalar table but a few; only those in
    `names` are expanded."""
    return replace(kernel, body=map_body(kernel.body, lambda e: expand_arithmetic(e, names)))


def lower_narrow(kernel: Kernel, narrow: Narrow) -> Kernel:
    """The kernel with buffers, variables and expressions in storage form."""
    allocated = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]
    kinds = {b.name: b.dtype for b in (*kernel.params, *allocated)}

    def declare(buffer: Buffer) -> Buffer:
        return replace(buffer, dtype=narrow.storage(buffer.dtype))

    def rewrite(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Let):
            ref, storage = stmt.ref, narrow.storage(stmt.ref.dtype)
            return Let(ref if storage is ref.dtype else Ref(ref.name, storage), stmt.value)
        if isinstance(stmt, Store):
            return replace(stmt, value=narrow.stored(stmt.value, kinds[stmt.buffer]))
        if isinstance(stmt, Alloc):
            return replace(stmt, buffer=declare(stmt.buffer))
        return map_nested(stmt, lambda inner: tuple(map(rewrite, inner)))

    body = tuple(map(rewrite, map_body(kernel.body, narrow.lower)))
    return replace(kernel, params=tuple(map(declare, kernel.params)), body=body)
