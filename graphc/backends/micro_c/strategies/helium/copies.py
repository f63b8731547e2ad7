"""Copies of bytes to the stack, sixteen at a time."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from graphc.backends.micro_c.strategies.helium.sum_loops import Level, merged
from graphc.backends.micro_c.vectors import BYTES
from graphc.ir.addresses import element_after
from graphc.ir.dtypes import i8, i64, u8
from graphc.ir.expr import Const, Expr, Load
from graphc.ir.kernel import KernelBuilder, Store
from graphc.ir.simplify import simplify


@dataclass(frozen=True)
class Copies:
    """Emits copies; `chunks` of sixteen bytes in a row are unrolled."""

    k: KernelBuilder
    chunks: int

    def nested(self, levels: list[Level], read: Load, to: Load, zero: Const) -> None:
        """Copies what loops run through, with `zero` in place of what guards hold back."""
        level, *rest = merged(levels)
        if not rest and not level.guards and level.step == 1:
            self.run(level.count, read, to)
            return
        with self.k.loop(level.count) if level.count > 1 else nullcontext(Const(0, i64)) as x:
            there, here = element_after(read, x * level.step), element_after(to, x * level.weight)
            guard = level.guard(x)
            with self.k.when(guard) if guard is not None else nullcontext():
                if rest:
                    self.nested(rest, there, here, zero)
                else:
                    self._stored(here, there)
            if guard is not None:
                with self.k.otherwise():
                    self.run(level.weight, zero, here)

    def run(self, count: int, read: Load | Const, to: Load) -> None:
        """Copies so many neighbours, or as often a number."""
        if count == 1:
            self._stored(to, read)
            return
        whole, rest = divmod(count, BYTES)
        if whole > self.chunks:
            with self.k.loop(whole) as x:
                self._sixteen(BYTES, read, to, simplify(x * BYTES))
        else:
            for n in range(whole):
                self._sixteen(BYTES, read, to, Const(n * BYTES, i64))
        if rest:
            self._sixteen(rest, read, to, Const(whole * BYTES, i64))

    def _sixteen(self, count: int, read: Load | Const, to: Load, offset: Expr) -> None:
        with self.k.loop(count, "vector", width=BYTES) as v:
            value = element_after(read, offset + v) if isinstance(read, Load) else read
            self._stored(element_after(to, offset + v), value)

    def _stored(self, to: Load, value: Expr) -> None:
        self.k.emit(Store(to.source, to.index, signed(value)))


def signed(byte: Expr) -> Expr:
    """A byte less 128, if it is unsigned."""
    return (byte ^ Const(128, u8)).cast(i8) if byte.dtype is u8 else byte
