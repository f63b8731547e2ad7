"""Operands of matrix cores in shared memory: how they are copied, and read as fragments.

A panel holds some positions of the side and some of the depth, in one of two orders:

    by side     a row of words along the depth for each position of the side
    by depth    a row of elements along the side for each position of the depth

The order is that in which the operand can be copied 16 bytes at a time; one that cannot be copied
is put together word by word, by side. Fragments are loaded by ldmatrix, which transposes panels of
16-bit types that are by depth. Rows are padded so that what a warp loads at once lies in different
banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from graphc.backends.cuda.strategies.operands import Operand, strided
from graphc.backends.cuda.strategies.words import CHUNK, Kind, Words
from graphc.ir.dtypes import i64, u32
from graphc.ir.expr import Const, Expr
from graphc.ir.kernel import Buffer, Intrin, KernelBuilder
from graphc.ir.simplify import simplify

FRAGMENT = 8  # positions of the side in a fragment
STEP = 8  # words along the depth in a fragment


@dataclass(frozen=True)
class Panel:
    """`stages` panels of an operand: `sides` positions, a multiple of two fragments, by `deep`
    elements, a multiple of STEP words. `paired`: a fragment of TF32 has words 2 q and 2 q + 1 of a
    step in place of q and q + 4. `left`: it is a first operand, which is by side."""

    name: str
    operand: Operand
    kind: Kind
    sides: int
    deep: int
    stages: int
    paired: bool = False
    left: bool = False

    @cached_property
    def along(self) -> Words:
        """The operand as words along its depth."""
        return Words(self.operand, self.kind)

    @cached_property
    def across(self) -> Words:
        """The operand as words along its side."""
        turned = Operand(self.operand.expr, self.operand.depth, self.operand.side)
        return Words(turned, self.kind)

    @cached_property
    def by_side(self) -> bool:
        return self.left or self.along.copies() or not self.across.copies()

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows, and the words of each but for padding."""
        per_word = self.kind.per_word
        if self.by_side:
            return self.sides, self.deep // per_word
        return self.deep, self.sides // per_word

    @cached_property
    def buffer(self) -> Buffer:
        """The shared memory of all stages."""
        rows, words = self.shape
        single = self.kind.per_word == 1 and not self.by_side
        padding = FRAGMENT if single else CHUNK  # which is what a warp's rows must differ by
        return Buffer(self.name, u32, (self.stages, rows, words + padding), "local")

    # ---------------------------------------------------------------- filling

    def fetch(
        self,
        k: KernelBuilder,
        threads: int,
        thread: Expr,
        fixed: dict[Expr, Expr],
        first: tuple[Expr, Expr],
        stage: Expr,
    ) -> None:
        """All threads of a block fill a stage from (side, depth) `first` on; zeros outside."""
        if not self.along.copies() and self.by_side:
            self._put_together(k, threads, thread, fixed, first, stage)
            return
        words = self.along if self.by_side else self.across
        position, deep = first if self.by_side else first[::-1]
        rows, per_row = self.shape[0], self.shape[1] // CHUNK
        with strided(k, rows * per_row, threads, thread) as at:
            row, word = simplify(at // per_row), simplify(at % per_row * CHUNK)
            start = simplify(deep + word * self.kind.per_word)
            source, valid = words.copy(fixed, simplify(position + row), start)
            none = Const(words.padding, u32)
            k.emit(Intrin("copy16", (self.buffer[stage, row, word], source, valid, none)))

    def _put_together(self, k, threads, thread, fixed, first, stage) -> None:
        """Word by word; neighbouring threads read neighbouring positions of the side."""
        rows, per_row = self.shape
        with strided(k, rows * per_row, threads, thread) as at:
            row, word = simplify(at % rows), simplify(at // rows)
            deep = simplify(first[1] + word * self.kind.per_word)
            value = self.along.word(fixed, simplify(first[0] + row), deep)
            k.store(self.buffer, (stage, row, word), value)

    # ---------------------------------------------------------------- fragments

    def load(
        self, k: KernelBuilder, lane: Expr, stage: Expr, pair: Expr, step: Expr, into: Buffer
    ) -> None:
        """Both words of the fragments 2 `pair` and 2 `pair` + 1 at a step of the depth."""
        words = [into[Const(n, i64)] for n in range(4)]
        matrix, line = simplify(lane // 8), simplify(lane % 8)
        if self.by_side and not self.paired:
            side = simplify(pair * 16 + matrix // 2 * 8 + line)
            place = self.buffer[stage, side, simplify(step * STEP + matrix % 2 * 4)]
            k.emit(Intrin("load_matrices", (*words, place)))
        elif self.kind.per_word == 2:
            deep = simplify(step * 16 + matrix % 2 * 8 + line)
            place = self.buffer[stage, deep, simplify(pair * 8 + matrix // 2 * 4)]
            k.emit(Intrin("load_matrices_transposed", (*words, place)))
        else:
            with k.loop(4, "unroll") as n:
                side = simplify(pair * 16 + n // 2 * 8 + lane // 4)
                deep = self._word_of_lane(lane, step, simplify(n % 2))
                row, word = (side, deep) if self.by_side else (deep, side)
                k.store(into, n, self.buffer[stage, row, word])

    def load_left(
        self, k: KernelBuilder, lane: Expr, first: Expr, step: Expr, words: list[Expr]
    ) -> None:
        """The words of a fragment of 16 rows of a first operand at a step of the depth."""
        matrix, row = simplify(lane // 8), simplify(lane % 8)
        side = simplify(first + matrix % 2 * 8 + row)
        deep = simplify(step * STEP + matrix // 2 * 4)
        k.emit(Intrin("load_matrices", (*words, self.buffer[Const(0, i64), side, deep])))

    def _word_of_lane(self, lane: Expr, step: Expr, half: Expr) -> Expr:
        quad = simplify(lane % 4)
        word = quad * 2 + half if self.paired else quad + half * 4
        return simplify(step * STEP + word)
