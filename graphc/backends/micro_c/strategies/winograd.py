"""Winograd's minimal filtering F(2x2, 3x3), in integers: windows of three by three, moved by one.

Four outputs of a channel take 16 products instead of 36 (S. Winograd, Arithmetic Complexity of
Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016):

    y = At [(G w Gt) * (Bt d B)] A      d: 4 x 4 elements of the image, w: 3 x 3 weights

    Bt = 1  0 -1  0    G = 2  0  0      At = 1  1  1  0
         0  1  1  0        1  1  1           0  1 -1 -1
         0 -1  1  0        1 -1  1
         0  1  0 -1        0  0  2

With twice the usual G, sums are four times y, exactly: a shift by two bits loses nothing. Elements
of 8 bits less their zero point become 11 bits, weights 12 bits, so that pairs of them are
multiplied at once (dot4_wide). Weights are transformed at compile time, and take 32 bytes for 9.

Two rows of outputs are computed at a time, a few tiles of two columns after another. The rows of
the image are transformed downwards into `down`, these along the row into `image`, where all
channels of one of the 16 products follow each other. Two tiles by two channels are then multiplied
into `totals`, transformed back, and given to the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphc.ir.addresses import unflatten_loads
from graphc.ir.dtypes import i16, i32, i64
from graphc.ir.expr import TRUE, Call, Const, Expr, Index, Load, call, free_indices, loads, select
from graphc.ir.instructions import LANES, dot4_wide
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, index_of
from graphc.passes.analysis.core import Core, Role, core_of, stride
from graphc.passes.analysis.factors import Centred, centred, is_below_a_byte
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums, store_outputs
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.schedule.steps import Schedule, Tile, misfit

NAME = "winograd"
TAPS, SIDE, STEP = 3, 4, 2  # of a window, of what a tile reads, of what it gives
PLACES = SIDE * SIDE
STACK = 8192  # bytes
IMAGE_BYTES = 4096  # of the transformed image that is kept at a time
PAIR = 2  # tiles, and channels, that are multiplied together
LEAST = 8  # channels on either side, below which transforming takes longer than it saves
MOST = 255  # of a byte less a zero point
LARGEST_SUM = 1 << 29  # which times four fits int32


@dataclass
class Windows:
    """A sum over windows: its core; the element of the image, of the output's `rows` and `columns`,
    summed over `depth` and `taps` downwards and along; `channel` is the output's."""

    core: Core
    element: Centred
    weight: Expr
    positions: tuple[Index, Index]
    taps: tuple[Index, Index]
    depth: Index
    channel: Index


class IntegerWinograd(Scheduled[Windows]):
    """Convolutions of bytes in fewer products.

    tile(places, 2)     a tile has 2 x 2 outputs
    tile(rows, T)       the image is transformed for T tiles at a time
    """

    name = NAME
    takes = "a convolution that the algorithm is for"

    def match(self, computation: Computation) -> Windows | str:
        return match_windows(computation)

    def proposals(self, windows: Windows) -> Iterator[Schedule]:
        most = most_tiles(windows)
        for tiles in reversed(_tiles(windows)):
            if tiles <= most:
                yield Schedule(self.name, (Tile("places", STEP), Tile("rows", tiles)))

    def emitted(self, windows: Windows, schedule: Schedule) -> Lowered:
        side, tiles = (schedule.the(Tile, index).size for index in ("places", "rows"))
        if side != STEP:
            raise misfit(schedule, f"a tile of {STEP} places", side)
        if tiles not in _tiles(windows):
            listed = ", ".join(map(str, _tiles(windows)))
            raise misfit(schedule, f"a tile of so many rows: {listed}", tiles)
        return _Emitter(windows, tiles).lowered()


def match_windows(computation: Computation) -> Windows | str:
    """The convolution that a computation holds, if it can be computed so."""
    if len(computation.outputs) != 1:
        return f"{NAME}: it must have one output, found {len(computation.outputs)}"
    core = core_of(computation, NAME, flat=True)
    if isinstance(core, str):
        return core
    if core.hole.factors is None or core.hole.dtype is not i32 or len(core.hole.axes) != 3:
        return f"{NAME}: it must sum products of integers over channels and two taps"
    a, b = core.hole.factors
    a, b = (a, b) if core.is_constant(b) else (b, a)
    element = centred(a)
    if not core.is_constant(b) or core.is_constant(a) or element is None or centred(b) is None:
        return f"{NAME}: it must sum products of bytes and constant bytes"
    if is_below_a_byte(b, computation):
        return f"{NAME}: weights must have whole bytes, found several in a byte"
    return _classified(core, element, b)


def _classified(core: Core, element: Centred, weight: Expr) -> Windows | str:
    read = [x for x in loads(element.byte)]
    if len(read) != 1 or not isinstance(element.zero, Const) or element.padding is None:
        return f"{NAME}: it must read bytes less one zero point"
    core.a, core.b = element.byte, weight
    channel = core.indices[-1]
    rows = [x for x in core.indices if core.role(x) is Role.ROW and isinstance(x.extent, int)]
    pairs = [(x, t) for x in rows for t in core.hole.axes
             if t.extent == TAPS and _move_alike(element.byte, x, t)]  # fmt: skip
    pairs.sort(key=lambda pair: -(stride(read[0], pair[0]) or 0))
    depth = [k for k in core.hole.axes if k not in [t for _, t in pairs]]
    if len(pairs) != 2 or len(depth) != 1 or core.role(channel) is not Role.COLUMN:
        return f"{NAME}: windows must be three by three and move by one, channels lie innermost"
    (y, ky), (x, kx) = pairs
    if free_indices(weight) - {channel, *core.hole.axes}:
        return f"{NAME}: weights must depend on channels and taps alone"
    windows = Windows(core, element, weight, (y, x), (ky, kx), depth[0], channel)
    return _unfit(windows) or windows


def _move_alike(element: Expr, position: Index, tap: Index) -> bool:
    """Whether a step of a position is a step of a tap."""
    where = Index("where", 1 << 30)
    moved = simplify(element, {tap: where - position})
    return position in free_indices(element) and position not in free_indices(moved)


def _unfit(windows: Windows) -> str:
    """Why tiles do not divide a convolution, or are not worth it."""
    (y, x), deep, channels = windows.positions, windows.depth.extent, windows.channel.extent
    if not isinstance(deep, int) or not isinstance(channels, int):
        return f"{NAME}: the numbers of channels must be known"
    if deep % LANES or channels % PAIR or min(deep, channels) < LEAST:
        return f"{NAME}: channels must be {LEAST} or more, in fours, found {deep} and {channels}"
    if y.count % STEP or x.count % (STEP * PAIR):
        return f"{NAME}: outputs must be in tiles of 2 x 4, found {y.count} x {x.count}"
    if deep * TAPS * TAPS * MOST * MOST > LARGEST_SUM:
        return f"{NAME}: sums over {deep} channels do not fit"
    needed = sum(_stack(windows, most_tiles(windows)))
    return f"{NAME}: it needs {needed} bytes of stack" if needed > STACK else ""


def _stack(windows: Windows, tiles: int) -> tuple[int, int]:
    """The bytes of `down` and of `image`, of so many tiles."""
    place_bytes = windows.depth.count * i16.size
    return place_bytes * SIDE * STEP * (tiles + 1), place_bytes * PLACES * tiles


def _differences(d: Sequence[Expr]) -> list[Expr]:
    """Bt d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _weighed(place: Expr, w: Sequence[Expr]) -> Expr:
    """One of G w."""
    sides = w[0] + w[2]
    others = select(place.eq(1), sides + w[1], select(place.eq(2), sides - w[1], w[2] * 2))
    return select(place.eq(0), w[0] * 2, others)


def _summed(m: Sequence[Expr]) -> list[Expr]:
    """At m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _tiles(windows: Windows) -> list[int]:
    """How many tiles may be transformed at a time: even numbers that divide a row."""
    tiles = windows.positions[1].count // STEP
    counts = [n for n in range(PAIR, tiles + 1, PAIR) if tiles % n == 0]
    return [n for n in counts if n == PAIR or sum(_stack(windows, n)) <= STACK]


def most_tiles(windows: Windows) -> int:
    """The largest of these whose image has its bytes."""
    room = IMAGE_BYTES // (PLACES * i16.size * windows.depth.count)
    return max(n for n in _tiles(windows) if n <= max(room, PAIR))


class _Emitter:
    """Emits the loops of a convolution."""

    def __init__(self, windows: Windows, tiles: int):
        self.windows, self.core, self.tiles = windows, windows.core, tiles
        self.k = KernelBuilder()
        self.deep = windows.depth.count
        self.weights, self.packed = self._pack()

    def lowered(self) -> Lowered:
        core, windows = self.core, self.windows
        (y, x), whole = windows.positions, core.computation
        rest = core.epilogue_loads()
        inplace = in_place_of_epilogue(whole, core.offset, rest, [windows.element.byte])
        outer = [i for i in core.indices if i not in (y, x, windows.channel)]
        columns = STEP * self.tiles
        sizes = [size // i16.size for size in _stack(windows, self.tiles)]
        down, image = (self.k.alloc(i16, (size,), "stack", name)
                       for size, name in zip(sizes, ("down", "image")))  # fmt: skip
        with self.k.loops(*(i.extent for i in outer), y.count // STEP, x.count // columns) as at:
            *others, row, part = at
            here = dict(zip(outer, others))
            first = simplify(row * STEP), simplify(part * columns)
            self._transform_down(down, first, here)
            self._transform_along(down, image)
            self._multiply(image, first, here)
        read = (*rest, windows.element.byte)
        kernel = kernel_of_sums(NAME, self.k, whole, read, [self.weights])
        work = 2 * y.count * x.count * windows.channel.count * self.deep * TAPS * TAPS
        return Lowered(kernel, [self.packed], [self.weights], inplace=inplace, flops=work)

    # ---------------------------------------------------------------- weights

    def _pack(self) -> tuple[Buffer, Computation]:
        """The transformed weights: by pairs of output channels, products, four channels each."""
        windows, whole = self.windows, self.core.computation
        shape = (windows.channel.count // PAIR, PLACES, self.deep // LANES, PAIR, LANES)
        index = index_of(shape)
        pair, place, group, lane, within = index
        ky, kx = windows.taps
        at = {windows.channel: pair * PAIR + lane, windows.depth: group * LANES + within}
        taps = [
            [
                simplify(windows.weight, {**at, ky: Const(r, i64), kx: Const(s, i64)})
                for s in range(TAPS)
            ]
            for r in range(TAPS)
        ]
        rows = [_weighed(place % SIDE, row) for row in taps]
        value = unflatten_loads(_weighed(place // SIDE, rows), shapes_of(whole.inputs))
        return whole.copied("weights", index, value.cast(i16))

    # ---------------------------------------------------------------- the image

    def _transform_down(self, down: Buffer, first: tuple[Expr, Expr], here: dict) -> None:
        """Columns of four elements; those outside of the image are zero."""
        columns = STEP * self.tiles + STEP
        with self.k.loop(columns) as column:
            read = [self._element(first[0] + n, first[1] + column, here) for n in range(SIDE)]
            guards = [x.args[0] for x in read if isinstance(x, Call)]
            inside: Expr = TRUE
            for guard in guards:
                inside = call("and", inside, guard)
            plain = [x.args[1] if isinstance(x, Call) else x for x in read]
            with self.k.where(simplify(inside)):
                self._store_down(down, column, plain)
            if inside is not TRUE:
                with self.k.otherwise():
                    self._store_down(down, column, read)

    def _element(self, row: Expr, column: Expr, here: dict) -> Expr:
        """A byte of the image: a load, or a choice between one and padding."""
        (y, x), (ky, kx) = self.windows.positions, self.windows.taps
        zero = Const(0, i64)
        return simplify(self.windows.element.byte, {**here, y: row, x: column, ky: zero, kx: zero})

    def _store_down(self, down: Buffer, column: Expr, read: list[Expr]) -> None:
        columns, zero = STEP * self.tiles + STEP, self.windows.element.zero
        with self.k.loop(self.deep) as channel:
            d = [self.k.let(simplify(x, {self.windows.depth: channel}).cast(i32)) for x in read]
            for n, value in enumerate(_differences(d)):
                value = value - zero * 2 if n == 1 else value
                place = (columns * n + column) * self.deep + channel
                self.k.store(down, simplify(place), value.cast(i16))

    def _transform_along(self, down: Buffer, image: Buffer) -> None:
        columns = STEP * self.tiles + STEP
        with self.k.loops(SIDE, self.tiles) as (n, tile), self.k.loop(self.deep) as channel:
            start = (columns * n + tile * STEP) * self.deep + channel
            read = [down[simplify(start + s * self.deep)].cast(i32) for s in range(SIDE)]
            d = [self.k.let(x) for x in read]
            for s, value in enumerate(_differences(d)):
                place = ((n * SIDE + s) * self.tiles + tile) * self.deep + channel
                self.k.store(image, simplify(place), value.cast(i16))

    # ---------------------------------------------------------------- products

    def _multiply(self, image: Buffer, first: tuple[Expr, Expr], here: dict) -> None:
        """Two tiles by two channels at a time."""
        totals = self.k.alloc(i32, (PAIR * PAIR * PLACES,), "stack", "totals")
        with self.k.loops(self.windows.channel.count // PAIR, self.tiles // PAIR) as (pair, tile):
            with self.k.loop(PLACES) as place:
                self._products(image, totals, pair, tile, place)
            with self.k.loops(PAIR, PAIR) as (t, u):
                at = {**here, self.windows.channel: pair * PAIR + u}
                corner = first[0], simplify(first[1] + (tile * PAIR + t) * STEP)
                self._finish(totals, (t * PAIR + u) * PLACES, corner, at)

    def _products(self, image: Buffer, totals: Buffer, pair: Expr, tile: Expr, place: Expr) -> None:
        sums = [[self.k.var(i32, 0) for _ in range(PAIR)] for _ in range(PAIR)]
        groups = self.deep // LANES
        unroll = 2 if groups % 2 == 0 else 1
        with self.k.loop(groups // unroll) as several:
            for group in (several * unroll + n for n in range(unroll)):
                for t, row in enumerate(sums):
                    start = (place * self.tiles + tile * PAIR + t) * self.deep + group * LANES
                    for u, total in enumerate(row):
                        where = ((pair * PLACES + place) * groups + group) * PAIR + u
                        weight = Load(self.weights.name, (simplify(where * LANES),), i16)
                        self.k.emit(dot4_wide(total[()], image[simplify(start)], weight))
        for t, row in enumerate(sums):
            for u, total in enumerate(row):
                cell = (t * PAIR + u) * PLACES
                self.k.store(totals, simplify(place + cell), total[()])

    def _finish(self, totals: Buffer, cell: Expr, corner: tuple[Expr, Expr], at: dict) -> None:
        """The four outputs of a tile."""
        (y, x), core = self.windows.positions, self.core
        m = [[totals[simplify(cell + SIDE * r + s)] for s in range(SIDE)] for r in range(SIDE)]
        across = [[self.k.let(v) for v in _summed(column)] for column in zip(*m)]
        for r in range(STEP):
            for s, value in enumerate(_summed([column[r] for column in across])):
                total = self.k.let(value >> 2)
                place = {**at, y: simplify(corner[0] + r), x: simplify(corner[1] + s)}
                here = {**place, core.hole: total}
                store_outputs(self.k, core.computation.outputs, core.offset, core.exprs, here)
