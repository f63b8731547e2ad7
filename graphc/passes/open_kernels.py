"""Kernels of imperative operators over open sizes.

The function of such an operator builds its kernel with extents that may be expressions. It can
choose by an extent, so the kernel is compared with that of the operator at some sizes: if the two
are not the same text, by what they make of random operands.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.dtypes import DType
from graphc.ir.graph import Op
from graphc.ir.imperative.lowering import imperative_kernel
from graphc.ir.kernel import Kernel, map_body, sized, with_sizes
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.simplify import simplify
from graphc.passes.at_sizes import Sizes

MOST_RUN = 1 << 14  # elements of operands and results that kernels are interpreted on


def why_other_kernel(op: Op, twin: Op, sizes: Sizes) -> str:
    """Why the kernel of an op over open sizes is not that of its `twin` at some of them; empty if
    it is."""
    try:
        whole = sized(imperative_kernel(op))
    except GraphcError as error:
        return str(error)
    values = [int(sizes[size].value) for size in whole.sizes]  # type: ignore[attr-defined]
    own, other = (
        _simple(kernel) for kernel in (with_sizes(whole, values), imperative_kernel(twin))
    )
    if own.params != other.params:
        return "its kernel has other parameters"
    if own.body == other.body:
        return ""
    if sum(int(np.prod(b.shape)) for b in own.params) > MOST_RUN:
        return "its kernel is too large to be compared"
    one, two = _run(own), _run(other)
    same = all(np.array_equal(one[n], two[n], equal_nan=one[n].dtype.kind == "f") for n in one)
    return "" if same else "it computes something else"


def _simple(kernel: Kernel) -> Kernel:
    return Kernel("kernel", kernel.params, map_body(kernel.body, simplify))


def _run(kernel: Kernel) -> dict[str, np.ndarray]:
    """What a kernel makes of random operands, the same every time."""
    rng = np.random.default_rng(0)
    arrays = {b.name: _drawn(rng, b.dtype, b.shape, b.access) for b in kernel.params}
    run_kernel(kernel, arrays)
    return {b.name: arrays[b.name] for b in kernel.params if b.access != "in"}


def _drawn(rng: np.random.Generator, dtype: DType, shape: tuple, access: str) -> np.ndarray:
    if access != "in":
        return np.zeros(shape, dtype.np)
    return rng.integers(0, 4, shape).astype(dtype.np)
