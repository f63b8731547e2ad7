"""Depthwise convolutions of bytes, in rows of pairs of int16.

Where each channel has windows of its own, neighbours in memory (channels) share nothing, and what
is multiplied together does not lie together. So two channels at a time are copied into `image`, a
few rows of each, with their padding: two columns of a row, less the zero point, are one word
(pair_up of pairs.py). The weights of a channel are words of two taps, in registers. A window then
takes a product for two taps (SMLAD), and one for a tap that is left: two outputs of three by three
taps take 12 products.

Words begin at even columns. A window that begins at an odd one takes the upper half of its first
word by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphc.backends.micro_c.pairs import DOT2, HIGH_LOW, LOW_HIGH, PAIR, pair_up, product, word
from graphc.backends.micro_c.strategies.epilogues import Epilogue, epilogue
from graphc.ir.addresses import unflatten_loads
from graphc.ir.dtypes import i8, i32, i64
from graphc.ir.expr import TRUE, Call, Const, Expr, Index, Load, call, free_indices, loads
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, flat_buffer, index_of
from graphc.passes.analysis.core import Core, Role, core_of, stride
from graphc.passes.analysis.factors import Centred, centred, converted, is_below_a_byte
from graphc.passes.analysis.guards import conjuncts
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.schedule.steps import Pack, Schedule, Tile, misfit

NAME = "depthwise"
WORD = 4  # bytes
MOST_WORDS = 8  # of weights, that registers hold
OUTPUTS = 2  # of a row, computed together
FAR = 1 << 30


@dataclass(frozen=True)
class Windows:
    """Sums over windows of one channel each: `element` is that of the image, of the output's
    `positions` (row, column), `steps` apart, summed over `taps`; channels lie innermost."""

    core: Core
    element: Centred
    weight: Expr
    positions: tuple[Index, Index]
    taps: tuple[Index, Index]
    steps: tuple[int, int]
    channel: Index
    inplace: list[tuple[str, str]]

    @property
    def words(self) -> int:
        """Of a row of the padded image: those that the windows of all outputs touch."""
        columns = -(-self.positions[1].count // OUTPUTS) * OUTPUTS
        last = (columns - 1) * self.steps[1] + self.taps[1].count
        return -(-last // PAIR) + 1

    def lines(self, rows: int) -> int:
        """Rows of the image that so many rows of outputs read."""
        return (rows - 1) * self.steps[0] + self.taps[0].count

    def takes(self, rows: int) -> bool:
        """Whether bands of so many rows do."""
        extent = self.positions[0].count
        return rows <= extent and not (self.inplace and extent % rows)


@dataclass(frozen=True)
class Depthwise(Scheduled[Windows]):
    """Depthwise convolutions.

    tile(rows, R)               bands of so many rows of outputs
    pack(rows, padded)
    """

    stack: int = 2048
    name = NAME
    takes = "windows of channels apart"

    def match(self, computation: Computation) -> Windows | str:
        return windows_of(computation)

    def proposals(self, windows: Windows) -> Iterable[Schedule] | str:
        sizes = list(self._sizes(windows))
        return (
            (self._schedule(n) for n in sizes) if sizes else f"{NAME}: a row takes too much stack"
        )

    def _sizes(self, windows: Windows) -> Iterator[int]:
        """Heights of bands, the tallest that fits first: of as many bands equally high ones."""
        extent, heights = windows.positions[0].count, set()
        for bands in range(1, extent + 1):
            rows = -(-extent // bands)
            fits = windows.lines(rows) * windows.words * PAIR * WORD <= self.stack
            if fits and rows not in heights and windows.takes(rows):
                heights.add(rows)
                yield rows

    def _schedule(self, rows: int) -> Schedule:
        return Schedule(NAME, (Tile("rows", rows), Pack("rows", "padded")))

    def emitted(self, windows: Windows, schedule: Schedule) -> Lowered:
        rows = schedule.the(Tile, "rows").size
        if not windows.takes(rows):
            raise misfit(schedule, f"bands that suit {windows.positions[0].count} rows", rows)
        return _Emitter(windows, rows).lowered()


def windows_of(computation: Computation) -> Windows | str:
    """The depthwise convolution that a computation is, or why it is none."""
    if len(computation.outputs) != 1:
        return f"{NAME}: it must have one output, found {len(computation.outputs)}"
    core = core_of(computation, NAME, flat=True)
    if isinstance(core, str):
        return core
    if core.hole.factors is None or core.hole.dtype is not i32 or len(core.hole.axes) != 2:
        return f"{NAME}: it must sum products of integers over two taps"
    a, b = core.hole.factors
    a, b = (a, b) if core.is_constant(b) else (b, a)
    if not core.is_constant(b) or core.is_constant(a) or is_below_a_byte(b, computation):
        return f"{NAME}: it must sum products of bytes and constant bytes"
    element = centred(a)
    weight = converted(b)
    read = loads(a)
    if element is None or not isinstance(element.zero, Const) or len(read) != 1:
        return f"{NAME}: it must sum bytes less one zero point"
    if not isinstance(weight, Load) or weight.dtype is not i8:
        return f"{NAME}: weights must be int8"
    core.a, core.b = element.byte, b
    return _classified(core, element, weight, read[0])


def _classified(core: Core, element: Centred, weight: Load, load: Load) -> Windows | str:
    channel = core.indices[-1]
    own = channel in free_indices(weight) and stride(load, channel) == 1
    if not own or not isinstance(channel.extent, int) or channel.extent < PAIR:
        return f"{NAME}: channels must lie innermost, and have weights of their own"
    pairs = []
    for tap in core.hole.axes:
        for position in core.indices[:-1]:
            step = _step(element.byte, load, position, tap)
            if step and core.role(position) is Role.ROW:
                pairs.append((stride(load, tap) or 0, position, tap, step))
    single = [tap for tap in core.hole.axes if tap not in {pair[2] for pair in pairs}]
    if len(single) == 1:  # outputs have one row or column
        pairs.append((stride(load, single[0]) or 0, Index("only", 1), single[0], 1))
    pairs.sort(key=lambda pair: -pair[0])
    if len(pairs) != 2 or pairs[0][1] is pairs[1][1] or pairs[0][2] is pairs[1][2]:
        return f"{NAME}: windows must have rows and columns"
    (_, y, ky, down), (_, x, kx, along) = pairs
    if ky.count * (kx.count - 1) > MOST_WORDS or kx.count < PAIR:
        return f"{NAME}: windows must be of at most {MOST_WORDS} words, found {ky.count}x{kx.count}"
    if free_indices(weight) != {channel, ky, kx}:
        return f"{NAME}: weights must depend on channels and taps"
    inplace = in_place_of_epilogue(core.computation, core.offset, core.epilogue_loads(), [load])
    if inplace and channel.extent % PAIR:
        return f"{NAME}: channels must be in pairs, found {channel.extent}"
    return Windows(core, element, weight, (y, x), (ky, kx), (down, along), channel, inplace)


def _step(element: Expr, load: Load, position: Index, tap: Index) -> int:
    """How many taps a step of a position is; 0 if it is none."""
    far, near = stride(load, position), stride(load, tap)
    if not far or not near or far % near or far // near < 1 or not isinstance(position.extent, int):
        return 0
    moved = simplify(element, {tap: Index("where", FAR) - position * (far // near)})
    return 0 if position in free_indices(moved) else far // near


class _Emitter:
    """Emits the loops over bands of rows, pairs of channels, and outputs."""

    def __init__(self, windows: Windows, rows: int):
        self.windows, self.core, self.rows = windows, windows.core, rows
        self.k = KernelBuilder()
        self.lines, self.words = windows.lines(rows), windows.words
        self.weights, self.packed = self._pack()

    def _pack(self) -> tuple[Buffer, Computation]:
        """The weights, by channel and tap."""
        windows, whole = self.windows, self.core.computation
        indices = windows.channel, *windows.taps
        index = index_of(x.count for x in indices)
        value = simplify(windows.weight, dict(zip(indices, index)))
        return whole.copied("weights", index, unflatten_loads(value, shapes_of(whole.inputs)))

    def lowered(self) -> Lowered:
        core, windows, k = self.core, self.windows, self.k
        (y, x), whole = windows.positions, core.computation
        size = self.lines * self.words
        image = k.alloc(i32, (PAIR * size,), "stack", "image")
        outer = [i for i in core.indices if i not in (y, x, windows.channel)]
        pairs, bands = -(-windows.channel.count // PAIR), -(-y.count // self.rows)
        with k.loops(*(i.extent for i in outer), bands, pairs) as at:
            *others, band, pair = at
            here = dict(zip(outer, others))
            first = simplify(call("min", pair * PAIR, Const(windows.channel.count - PAIR, i64)))
            top = simplify(call("min", band * self.rows, Const(y.count - self.rows, i64)))
            self._fill(image, {**here, windows.channel: first}, top)
            with k.loop(PAIR) as lane:
                self._channel(image, lane * size, {**here, windows.channel: first + lane}, top)
        read = (*core.epilogue_loads(), windows.element.byte)
        kernel = kernel_of_sums(NAME, k, whole, read, [self.weights])
        work = 2 * points((*core.indices, *core.hole.axes))
        return Lowered(kernel, [self.packed], [self.weights], inplace=windows.inplace, flops=work)

    # ---------------------------------------------------------------- the image

    def _fill(self, image: Buffer, here: dict, top: Expr) -> None:
        """The rows of the image that a band reads, of two channels, two columns to a word."""
        k, inner = self.k, self._interior()
        with k.loop(self.lines) as line:
            row = simplify(top * self.windows.steps[0] + line)
            start = line * self.words
            inside = _guard(self._element(here, row, self._middle(inner)))
            with k.where(inside):
                self._fill_row(image, here, row, start, inner)
            if inside is not TRUE:
                with k.otherwise(), k.loop(self.words) as n:
                    for lane in range(PAIR):
                        k.store(image, simplify(start + n + lane * self.lines * self.words), 0)

    def _fill_row(
        self, image: Buffer, here: dict, row: Expr, start: Expr, inner: tuple[int, int]
    ) -> None:
        windows, k = self.windows, self.k
        zero, size = windows.element.zero, self.lines * self.words
        assert isinstance(zero, Const)
        low, high = inner
        for n in (*range(low), *range(high, self.words)):
            for lane in range(PAIR):
                at = {**here, windows.channel: here[windows.channel] + lane}
                near, far = (self._number(at, row, n * PAIR + m) for m in range(PAIR))
                k.store(image, simplify(start + n + lane * size), word(near, far))
        if high > low:
            near, far = (_plain(self._element(here, row, Const(low * PAIR + m, i64)))
                         for m in range(PAIR))  # fmt: skip
            apart = simplify(far.index[0] - near.index[0])
            assert isinstance(apart, Const)
            to, other = (image[simplify(start + low + lane * size)] for lane in range(PAIR))
            k.emit(pair_up(to, other, near, zero.value, apart.value, high - low))

    def _element(self, here: dict, row: Expr, column: Expr) -> Expr:
        """A byte of the padded image: a load, or a choice between one and padding."""
        (y, x), (ky, kx) = self.windows.positions, self.windows.taps
        none = Const(0, i64)
        at = {**here, y: none, x: none, ky: simplify(row), kx: simplify(column)}
        return simplify(self.windows.element.byte, at)

    def _number(self, here: dict, row: Expr, column: int) -> Expr:
        """An element less the zero point, in a row that is inside; 0 outside of it."""
        element = self._element(here, row, Const(column, i64))
        if not self._is_inside(column):
            return Const(0, i32)
        return _plain(element).cast(i32) - self.windows.element.zero

    def _is_inside(self, column: int) -> bool:
        """Whether a column of the padded image is one of the image."""
        x, kx = self.windows.positions[1], self.windows.taps[1]
        if column > (x.count - 1) * self.windows.steps[1] + kx.count - 1:
            return False
        where = {x: Const(0, i64), kx: Const(column, i64)}
        atoms = [simplify(atom, where) for atom in _conditions(self.windows.element.byte)
                 if {x, kx} & free_indices(atom)]  # fmt: skip
        return all(not isinstance(atom, Const) or bool(atom.value) for atom in atoms)

    def _interior(self) -> tuple[int, int]:
        """The words whose columns are both inside."""
        inside = [n for n in range(self.words)
                  if all(self._is_inside(n * PAIR + m) for m in range(PAIR))]  # fmt: skip
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _middle(self, inner: tuple[int, int]) -> Expr:
        """A column that is inside, if there is one."""
        inside = [c for c in range(self.words * PAIR) if self._is_inside(c)]
        return Const(inside[len(inside) // 2] if inside else 0, i64)

    # ---------------------------------------------------------------- sums

    def _channel(self, image: Buffer, base: Expr, here: dict, top: Expr) -> None:
        """All outputs of a channel in a band."""
        k, (_, x) = self.k, self.windows.positions
        words = self._weight_words(here)
        end = epilogue(self.core.exprs[0], self.core, here, k)
        whole, rest = divmod(x.count, OUTPUTS)
        with k.loop(self.rows) as row:
            at = {**here, self.windows.positions[0]: simplify(top + row)}
            start = base + row * (self.windows.steps[0] * self.words)
            with k.loop(whole) as several:
                self._outputs(image, start, at, several * OUTPUTS, OUTPUTS, words, end)
            if rest:
                self._outputs(image, start, at, Const(whole * OUTPUTS, i64), rest, words, end)

    def _weight_words(self, here: dict) -> list[list[Expr]]:
        """Taps n and n + 1 of every row of a window."""
        ky, kx = self.windows.taps
        start = here[self.windows.channel] * (ky.count * kx.count)
        rows = []
        for r in range(ky.count):
            places = [simplify(start + r * kx.count + c) for c in range(kx.count)]
            taps = [self.k.let(Load("weights", (place,), i8).cast(i32)) for place in places]
            rows.append([self.k.let(word(a, b)) for a, b in zip(taps, taps[1:])])
        return rows

    def _outputs(
        self, image: Buffer, start: Expr, at: dict, first: Expr, count: int,
        words: list[list[Expr]], end: Epilogue,
    ) -> None:  # fmt: skip
        """Some outputs of a row, which begin at a word."""
        k, core, (_, x) = self.k, self.core, self.windows.positions
        step, taps = self.windows.steps[1], self.windows.taps[1].count
        sums = [k.var(i32, end.start) for _ in range(count)]
        begin = simplify(start + first * step // PAIR)
        last = ((count - 1) * step + taps - 1) // PAIR
        for r, row in enumerate(words):
            read = [k.let(image[simplify(begin + (r * self.words + n))]) for n in range(last + 1)]
            for t, total in enumerate(sums):
                for name, n, w in _products(t * step, taps):
                    k.emit(product(name, total, read[n], row[w]))
        output = flat_buffer(core.computation.outputs[0].buffer)
        for t, total in enumerate(sums):
            place = {**at, x: simplify(first + t)}
            value = simplify(end.of(total[()]), place)
            k.store(output, simplify(core.offset, place), value)


def _products(first: int, taps: int) -> Iterator[tuple[str, int, int]]:
    """Of a window that begins `first` columns behind a word: products, by name, and of each the
    number of its word of the image, and of its word of weights (taps n and n + 1)."""
    tap = 0
    while tap < taps:
        word_of, half = divmod(first + tap, PAIR)
        if half:
            yield HIGH_LOW, word_of, tap
            tap += 1
        elif tap == taps - 1:
            yield LOW_HIGH, word_of, tap - 1
            tap += 1
        else:
            yield DOT2, word_of, tap
            tap += 2


def _conditions(element: Expr) -> list[Expr]:
    return conjuncts(element.args[0]) if isinstance(element, Call) else []


def _guard(element: Expr) -> Expr:
    """When an element is read."""
    return element.args[0] if isinstance(element, Call) else TRUE


def _plain(element: Expr) -> Load:
    """The load of an element, wherever it may be read."""
    load = element.args[1] if isinstance(element, Call) else element
    assert isinstance(load, Load)
    return load
