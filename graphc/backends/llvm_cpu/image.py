"""A compiled program: the unit that is saved, cached and loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.checks import Check
from graphc.ir.types import TensorType, largest
from graphc.records import dataclass

if TYPE_CHECKING:
    from graphc.ir.expr import Sym

INVOKE = "graphc_invoke"
"""The function that runs a program (see emit_program.py)."""
Interface = tuple[tuple[str, TensorType], ...]


@dataclass
class Kept:
    """Under which key the cache keeps an image; empty as long as it does not."""

    key: str = ""


@dataclass(frozen=True)
class Image:
    """A program in machine code together with all that a run needs. `code` is an object file for
    `target_key` (see CpuTarget.key) that exports emit_program's functions; constants are aligned
    to 64 bytes, in program order; `kernels` are the names of its functions, for people. With
    `checks`, the last output holds their keys; with `sizes`, dims of inputs and outputs are
    expressions over them, those of outputs also over `counts`, which data decides. `shared` are
    outputs with the inputs in whose memory they may lie, by number."""

    name: str
    target_key: str
    code: bytes
    inputs: Interface
    outputs: Interface
    constants: tuple[np.ndarray, ...]
    arena_bytes: int
    kernels: tuple[str, ...] = ()
    steps: int = 0
    checks: tuple[Check, ...] = ()
    sizes: tuple[Sym, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()
    counts: tuple[Sym, ...] = ()
    kept: Kept = field(default_factory=Kept, compare=False)

    @property
    def told(self) -> Interface:
        """The outputs that a caller sees: those but the keys of checks."""
        return self.outputs[:-1] if self.checks else self.outputs


MOST_MET = 1 << 10  # shapes whose sizes are remembered


class OpenShapes:
    """What an image of open shape reads and gives at shapes of inputs; those met are remembered."""

    def __init__(self, image: Image):
        self.image = image
        self._outputs: list[Any] = [(t.dims, t.dtype.np) for _, t in image.outputs]
        self._met: dict[tuple, tuple[Any, list]] = {}  # sizes and outputs, by shapes

    def takes(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether the program takes inputs of these shapes."""
        try:
            self._at(shapes)
        except ModelError:
            return False
        return True

    def _at(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Any, list]:
        """The sizes for inputs of these shapes, as the code reads them, with room for those that it
        writes, and the outputs' types, which are the largest where data decides."""
        key = tuple(shapes)
        known = self._met.get(key)
        if known is None:
            if len(self._met) >= MOST_MET:
                self._met.clear()
            known = self._met[key] = self._computed(shapes)
        return known

    def _computed(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Any, list]:
        from graphc.ir.sizes import Extents, sizes_of  # code of constant shapes needs none

        image = self.image
        values = sizes_of(image.sizes, image.inputs, shapes)
        extent_of = Extents(dict(zip(image.sizes, values)))
        outputs = [(tuple([largest(extent_of(d)) for d in dims]), t) for dims, t in self._outputs]
        return (ctypes.c_int64 * (len(values) + len(image.counts)))(*values), outputs
