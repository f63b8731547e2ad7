"""Panels: slices of the operands of matrix cores in shared memory, swizzled against bank conflicts.

A panel holds several slices of an operand (its stages) as rows of 16-byte chunks, filled by
asynchronous copies (cp.async):

    deep    a row per position of the side, chunks along the depth: words as matrix cores take them
    across  a row per element of the depth, chunks along the side: for operands whose sides are
            contiguous in memory. ldmatrix transposes halves as it reads them; words of TF32 are
            read one by one

An operand that is contiguous in neither way is gathered word by word into the first form. Rows of
more than eight chunks are cut into lines of 128 bytes: the first eight chunks of all rows come
first, then the others. The swizzle stores chunk c of row r at chunk c ^ (r % 8) of its line (where
rows have fewer than eight chunks, the number of the line takes the place of r). Then neither the
eight rows of a matrix nor the chunks of a row conflict in a bank, and no memory is spent on
padding. This is the permuted layout of CUTLASS's tensor core kernels (A. Kerr et al., CUTLASS: Fast
Linear Algebra in CUDA C++, 2017) and, in whole lines, the 128-byte swizzle of wgmma. Rows that are
neither whole lines nor at most half a line are padded to an odd number of chunks instead. So are
rows across of words that are read one by one, two chunks of four rows at once: they lie in
different banks if rows are 2 chunks longer than a multiple of 4, and all addresses of a lane are
one register and constants, which a swizzle would spread over several.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.strategies.contraction.mma_operands import (
    CHUNK,
    Kind,
    Words,
    before_rounding,
)
from graphc.backends.cuda.strategies.contraction.operands import Operand, strided
from graphc.ir.dtypes import f32, i64, u32
from graphc.ir.expr import Const, Expr, Load, call
from graphc.ir.kernel import Buffer, Intrin, KernelBuilder, Store
from graphc.ir.simplify import simplify

LINE = 8  # chunks of 16 bytes that lie in different banks
PADDING = 2  # chunks beyond a multiple of 4, of rows whose words are read one by one
WORDS_AT_ONCE = 4  # that a thread puts together: more would need many registers for addresses
STEP = 8  # words of the depth that one instruction multiplies: two chunks


@dataclass
class ThreadGroup:
    """The threads of a block: a builder of what one of them does, its number, how many there are,
    and the indices that the block has fixed."""

    k: KernelBuilder
    thread: Expr
    threads: int
    fixed: dict[Expr, Expr]

    @property
    def lane(self) -> Expr:
        return simplify(self.thread % WARP)

    def strided(self, elements: int, written: int = 0) -> AbstractContextManager[Expr]:
        """A loop in which they go over elements together (see operands.py): yields the position."""
        return strided(self.k, elements, self.threads, self.thread, written)


class Panel:
    """Stages of `side` rows (of a `left` operand) or columns by `words` of its depth. `paired`: of
    the words of a step instructions take 2 q and 2 q + 1 in place of q and q + 4, for TF32."""

    is_written = False  # whether the loop over slices is written out

    def __init__(
        self,
        name: str,
        operand: Operand,
        kind: Kind,
        shape: tuple[int, int, int],
        left: bool = False,
        paired: bool = False,
    ):
        self.is_left, self.paired = left, paired
        stages, self.side, self.depth_words = shape
        self.words, self.rounds, self.kind = *_as_copied(operand, kind), kind
        self.copied = self.words.copies()
        self.across = not self.copied and self.words.copies_across()
        rows, words = self.side, self.depth_words
        if self.across:
            rows, words = words * kind.per_word, rows // kind.per_word
        self.singly = paired or (self.across and kind.per_word == 1)
        self.rows, self.chunks = rows, words // CHUNK
        self.padded = self.singly and not paired
        regular = self.chunks % LINE == 0 or self.chunks in (1, 2, 4)
        self.permuted = regular and not self.padded
        length = min(self.chunks, LINE) if self.permuted else self.chunks | 1
        if self.padded:
            length = self.chunks + (PADDING - self.chunks) % 4
        lines = rows * max(self.chunks // LINE, 1) if self.permuted else rows
        self.buffer = Buffer(name, u32, (stages, lines, length * CHUNK), "local")

    def _place(self, stage: Expr, row: Expr, chunk: Expr) -> tuple[Expr, Expr, Expr]:
        """Where the first word of a chunk lies."""
        if not self.permuted:
            return stage, row, simplify(chunk * CHUNK)
        line = row if self.chunks >= LINE else row // (LINE // self.chunks)
        if self.chunks > LINE:
            row, chunk = simplify(chunk // LINE * self.rows + row), chunk % LINE
        moved = call("bxor", simplify(chunk), simplify(line % min(self.chunks, LINE)))
        return stage, row, simplify(moved * CHUNK)

    # ---------------------------------------------------------------- where warp groups read

    @property
    def far(self) -> int:
        """Bytes from 64 positions of a row across to the next 64; 0 of rows along the depth."""
        return LINE * CHUNK * 4 * self.rows if self.across else 0

    @property
    def in_lines(self) -> bool:
        """Whether it is filled by copies into lines as products of warp groups read them."""
        across = self.across and self.kind.per_word == 2
        return (self.copied or across) and self.chunks % LINE == 0

    @property
    def is_gathered_across(self) -> bool:
        """Whether it is put together, of what is near along the side."""
        return not (self.copied or self.across) and self.words.operand.is_near_across

    def further(self, step: int) -> int:
        """Bytes from the first step to another one."""
        if self.across:
            return step * 2 * STEP * 4 * LINE * CHUNK
        part, at = divmod(step * STEP, LINE * CHUNK)
        return 4 * (part * self.rows * LINE * CHUNK + at)

    def start(self, stage: Expr, first: Expr, step: int) -> Load:
        """The first word of a step, 64 positions and more from `first` on."""
        zero = Const(0, i64)
        if self.across:
            row = simplify(first // (LINE * CHUNK * 2) * self.rows + step * STEP * 2)
            return self.buffer[stage, row, zero]
        return self.buffer[stage, first, Const(step * STEP, i64)]

    # ---------------------------------------------------------------- filling

    def fetch(self, group: ThreadGroup, first: Expr, slice: Expr, stage: Expr) -> None:
        """Brings a slice of the positions from `first` on into a stage."""
        if not (self.copied or self.across):
            self._gather(group, first, slice, stage)
            return
        other = Const(self.words.padding, u32)
        start, elements = slice * (self.depth_words * self.kind.per_word), self.words.chunk
        with group.strided(self.rows * self.chunks) as n:
            row, chunk = simplify(n // self.chunks), simplify(n % self.chunks)
            down, along = row, chunk * elements
            position, deep = (along, down) if self.across else (down, along)
            source, valid = self.words.copy(
                group.fixed, simplify(first + position), simplify(start + deep)
            )
            place = self.buffer[self._place(stage, row, chunk)]
            group.k.emit(Intrin("copy16", (place, source, valid, other)))

    def _gather(self, group: ThreadGroup, first: Expr, slice: Expr, stage: Expr) -> None:
        """Puts words together: a thread whole chunks of its own position, if what it reads for each
        is known when the kernel is compiled; else single words, along the depth."""
        if self.is_written:
            self._gather_chunks(group, first, slice, stage)
            return
        with group.strided(self.side * self.depth_words, WORDS_AT_ONCE) as n:
            row, word = simplify(n // self.depth_words), simplify(n % self.depth_words)
            deep = simplify((slice * self.depth_words + word) * self.kind.per_word)
            *place, start = self._place(stage, row, simplify(word // CHUNK))
            value = self._word(group, first + row, deep)
            group.k.store(self.buffer, (*place, simplify(start + word % CHUNK)), value)

    def _gather_chunks(self, group: ThreadGroup, first: Expr, slice: Expr, stage: Expr) -> None:
        per_word = self.kind.per_word
        with group.strided(self.side * self.chunks) as n:
            row, chunk = simplify(n % self.side), simplify(n // self.side)
            start = (slice * self.depth_words + chunk * CHUNK) * per_word
            words = [self._word(group, first + row, start + at * per_word) for at in range(CHUNK)]
            into = self.buffer[self._place(stage, row, chunk)]
            group.k.emit(Intrin("store_vector", (into, *map(group.k.let, words))))

    def _word(self, group: ThreadGroup, position: Expr, deep: Expr) -> Expr:
        return self.words.word(group.fixed, simplify(position), simplify(deep))

    # ---------------------------------------------------------------- fragments

    def round(self, group: ThreadGroup, words: list[Load]) -> None:
        """Rounds four loaded words, if that is left to be done."""
        if self.rounds:
            group.k.emit(Intrin("round_tf32", tuple(words)))

    def load(
        self, group: ThreadGroup, into: list[Load], stage: Expr, first: Expr, step: Expr | int
    ) -> None:
        """Loads the words of a step, 16 positions from `first` on, into four registers, which
        instructions take as they are: for a left operand words 0 to 3 of both 8 positions, then
        words 4 to 7; for a right one both halves of the first 8 positions, then of the others."""
        if self.singly:
            self._load_singly(group, into, stage, first, step)
            return
        lane = group.lane
        low, high = simplify(lane // 8 % 2), simplify(lane // 16)
        across_side, across_depth = (low, high) if self.is_left else (high, low)
        if self.across:
            row = simplify(step * STEP * self.kind.per_word + across_depth * 8 + lane % 8)
            chunk = simplify(first // 8 + across_side)
            name = "load_matrices_transposed"
        else:
            row = simplify(first + across_side * 8 + lane % 8)
            chunk = simplify(step * (STEP // CHUNK) + across_depth)
            name = "load_matrices"
        group.k.emit(Intrin(name, (*into, self.buffer[self._place(stage, row, chunk)])))

    def _load_singly(
        self, group: ThreadGroup, into: list[Load], stage: Expr, first: Expr, step: Expr | int
    ) -> None:
        group_id, quad = simplify(group.lane // 4), simplify(group.lane % 4)
        for n, word in enumerate(into):
            half, other = (n // 2, n % 2) if self.is_left else (n % 2, n // 2)
            deep = simplify(step * STEP + (quad * 2 + half if self.paired else quad + half * 4))
            side = simplify(first + other * 8 + group_id)
            row, at = (deep, side) if self.across else (side, deep)
            *place, start = self._place(stage, row, simplify(at // CHUNK))
            value = self.buffer[tuple([*place, simplify(start + at % CHUNK)])]
            group.k.emit(Store(word.source, word.index, value))


def _as_copied(operand: Operand, kind: Kind) -> tuple[Words, bool]:
    """The words of an operand, and whether they are to be rounded once they have been copied."""
    bare = before_rounding(operand.expr) if kind.dtype is f32 else None
    if bare is not None:
        words = Words(replace(operand, expr=bare), kind)
        if words.copies() or words.copies_across():
            return words, True
    return Words(operand, kind), False
