"""A compiled program: the unit that is saved, cached and loaded."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from graphc.ir.checks import Check
from graphc.ir.types import TensorType
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
