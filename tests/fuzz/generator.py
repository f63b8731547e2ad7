"""Random graphs: operators drawn from templates, with shapes, dtypes and contents that provoke.

Every template takes operands from the values made so far, or makes constants, and adds one operator
or a short idiom. Values are `exact` if every backend must get the same bits: operators that jump
(Round, comparisons, ArgMax ...) are applied to exact values only, since elsewhere a last-bit
difference is allowed to become a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Graph, Value
from graphc.ir.types import TensorType

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 100, 130)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-40, 2.5, -3.5)
INTEGERS = tuple(map(dtypes.of, ("i32", "i64", "i8", "u8", "i16", "u16", "u32", "u64")))
MAX_ELEMENTS = 6000
LAYER_ELEMENTS = 1 << 18
AFTERWARDS = "afterwards"  # the family of operators that stand behind layers
BORDERS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 257,
           1023, 1025)  # fmt: skip
MOST_CONTENTS = 1 << 20
FOREIGN = "not for ONNX Runtime"  # where an operator comes from that it takes otherwise
Template = Callable[["Generator"], None]


class Decline(Exception):
    """A template finds no fitting operand."""


@dataclass
class Case:
    """A graph and the contents of its inputs. `special`: NaN, infinities and the like are there."""

    graph: Graph
    inputs: list[np.ndarray]
    seed: int
    special: bool = False


@dataclass
class Generator:
    """The state of making one graph."""

    rng: np.random.Generator
    graph: Graph
    special: bool
    pool: list[Value] = field(default_factory=list)
    exact: set[Value] = field(default_factory=set)
    inputs: list[np.ndarray] = field(default_factory=list)
    final: list[Value] = field(default_factory=list)  # may be results only
    coarse: bool = False  # contents that every precision holds exactly
    strange: bool = False  # a few NaNs and infinities in what goes into layers
    limit: int = 8 * MAX_ELEMENTS  # of elements of a result
    for_onnxruntime: bool = True  # a template clears it if the runtime deviates on its operators

    def __post_init__(self) -> None:
        self.b = Builder(self.graph)

    # ---------------------------------------------------------------- random choices

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """low..high inclusive"""
        return int(self.rng.integers(low, high + 1))

    def extent(self, least: int = 1, most: int = 129) -> int:
        """An extent at the border of a tile, or near one."""
        return self.choice([n for n in BORDERS if least <= n <= most] or [least])

    def shape(self, rank: int | None = None, limit: int = MAX_ELEMENTS) -> tuple[int, ...]:
        """Extents with a product of at most `limit`."""
        rank = self.choice((0, 1, 1, 2, 2, 3, 3, 4, 4, 5)) if rank is None else rank
        out: list[int] = []
        left = limit
        for _ in range(rank):
            fitting = [e for e in EXTENTS if e <= max(1, left)]
            small = self.chance(0.6) and len(fitting) > 6
            out.append(self.choice(fitting[:6] if small else fitting))
            left //= out[-1]
        self.rng.shuffle(out)
        return tuple(out)

    # ---------------------------------------------------------------- contents

    def array(self, dtype: DType, shape: Sequence[int], *, small: bool = False) -> np.ndarray:
        """Random contents of a type; special ones in graphs of that kind, unless `small`."""
        rng, shape = self.rng, tuple(shape)
        if math.prod(shape) > MOST_CONTENTS:  # weights between long dims
            raise Decline
        if dtype is dtypes.boolean:
            return np.asarray(rng.random(shape) < 0.5)
        if dtype.is_integer:
            low, high = (max(-9, dtype.min), 9) if small else (max(-100, dtype.min), 100)
            return np.asarray(rng.integers(low, high + 1, shape), dtype.np)
        values = rng.standard_normal(shape) * (1 if small else self.choice((0.3, 1, 1, 3, 20)))
        if self.chance(0.2):
            values = np.round(values * 4) / 4  # ties
        if self.special and not small:
            mask = rng.random(shape) < 0.3
            values = np.where(mask, rng.choice(SPECIAL, shape), values)
        if self.coarse:
            values = np.clip(np.round(values * 4), -15, 15) / 4
        with np.errstate(all="ignore"):
            return np.asarray(values, np.float64).astype(dtype.np)

    def float_type(self) -> DType:
        return self.choice((dtypes.f32,) * 7 + (dtypes.f64, dtypes.f16))

    def any_type(self) -> DType:
        if self.chance(0.7):
            return self.float_type()
        return self.choice((*INTEGERS, dtypes.i64, dtypes.boolean))

    def input(self, dtype: DType, shape: Sequence[int]) -> Value:
        value = self.graph.add_param(TensorType(dtype, tuple(shape)), f"x{len(self.inputs)}")
        self.inputs.append(self.array(dtype, shape))
        self.keep(value, True)
        return value

    def constant(self, dtype: DType, shape: Sequence[int], *, small: bool = True) -> Value:
        value = self.b.constant(self.array(dtype, shape, small=small))
        self.exact.add(value)
        return value

    def operand(self, dtype: DType, shape: Sequence[int]) -> Value:
        """A value of a type: one there is, a constant, or (where few) a new input."""
        shape = tuple(shape)
        found = [v for v in self.pool if v.tensor.dtype is dtype and v.tensor.dims == shape]
        if found and self.chance(0.6):
            return self.choice(found)
        if len(self.inputs) < 4 and self.chance(0.5):
            return self.input(dtype, shape)
        return self.constant(dtype, shape)

    def data(self, *shape: int, dtype: DType = dtypes.f32) -> Value:
        """An input of a layer."""
        value = self.input(dtype, shape)
        if self.strange and dtype.is_float and value.tensor.size:
            places = self.rng.integers(value.tensor.size, size=self.integer(0, 3))
            self.inputs[-1].reshape(-1)[places] = self.choice((np.nan, np.inf, -np.inf))
        return value

    def weights(self, *shape: int, dtype: DType = dtypes.f32) -> Value:
        """Weights of a layer: a constant, rarely an input. Sums over all but the first extent keep
        about the size of what they are multiplied with."""
        if self.chance(0.15):
            return self.input(dtype, shape)
        value = self.constant(dtype, shape)
        if dtype.is_float and not self.coarse:
            shrunk = value.constant / np.sqrt(max(1, math.prod(shape[1:])))
            value = self.b.constant(shrunk.astype(dtype.np))
        return value

    # ---------------------------------------------------------------- operands

    def keep(self, value: Value, exact: bool) -> None:
        self.pool.append(value)
        if exact:
            self.exact.add(value)

    def pick(
        self,
        kind: Callable[[DType], bool] = lambda d: d.is_float,
        rank: tuple[int, int] = (0, 9),
        exact: bool = False,
        filled: bool = False,
    ) -> Value:
        """A value, the latest more often; a new input if none fits. Raises Decline."""
        fitting = [
            v for v in self.pool
            if kind(v.tensor.dtype) and rank[0] <= v.tensor.rank <= rank[1]
            and (not exact or v in self.exact) and (not filled or 0 not in v.tensor.dims)
        ]  # fmt: skip
        if not fitting:
            return self.fitting_input(kind, rank)
        recent = fitting[-4:]
        return self.choice(recent if self.chance(0.7) else fitting)

    def fitting_input(self, kind: Callable[[DType], bool], rank: tuple[int, int]) -> Value:
        """A new input, while there are few; Decline otherwise."""
        types = [d for d in (dtypes.f32, dtypes.f64, dtypes.boolean, *INTEGERS) if kind(d)]
        if len(self.inputs) >= 4 or not types:
            raise Decline
        dtype = dtypes.f32 if dtypes.f32 in types else self.choice(types)
        return self.input(dtype, self.shape(self.integer(rank[0], min(rank[1], 4)), 2000))

    def emit(self, name: str, *operands: Any, keeps: bool = False, final: bool = False,
             outputs: int = 1, **attrs: Any) -> Any:  # fmt: skip
        """Adds an operator. `keeps`: it is exact on exact operands."""
        result = self.b.op(name, *operands, outputs=outputs, **attrs)
        values = result if isinstance(result, tuple) else (result,)
        given = [v for v in operands if isinstance(v, Value)]
        exact = keeps and all(v in self.exact for v in given)
        for value in values:
            if value.tensor.size > self.limit:
                raise Decline
            if final:
                self.final.append(value)
            else:
                self.keep(value, exact)
        return result

    def axis(self, value: Value) -> int:
        """An axis of a value, counted from either end."""
        if value.tensor.rank == 0:
            raise Decline
        return self.integer(-value.tensor.rank, value.tensor.rank - 1)


def families() -> tuple[str, ...]:
    """The kinds of layers of which there are larger graphs."""
    from templates import families

    return families()


def generate(seed: int, family: str = "", size: int | None = None) -> Case:
    """The case of a seed: any operators, or a layer of a family between simple operators."""
    from templates import choose

    rng = np.random.default_rng(seed)
    graph = Graph("fuzz")
    if family:
        return generate_layer(
            Generator(rng, graph, special=False, limit=LAYER_ELEMENTS), family, seed
        )
    g = Generator(rng, graph, special=bool(rng.random() < 0.15))
    for _ in range(g.integer(1, 2)):
        shape = g.shape()
        if g.chance(0.03) and shape:
            shape = (*shape[:-1], 0)
        g.input(g.any_type(), shape)
    wanted = g.integer(1, 10) if size is None else size
    made = attempts = 0
    while made < wanted and attempts < 20 * wanted:
        attempts += 1
        made += attempt(g, choose(g))
    finish(g)
    if g.chance(0.15):
        loosen(g)
    return Case(graph, g.inputs, seed, g.special)


def generate_layer(g: Generator, family: str, seed: int) -> Case:
    """A layer of a family, and perhaps a few operators on what it gives."""
    from templates import choose

    g.coarse = g.chance(0.4)
    g.strange = not g.coarse and g.chance(0.15)
    while not attempt(g, choose(g, family)):
        g.graph, g.inputs, g.pool, g.exact = Graph("fuzz"), [], [], set()
        g.__post_init__()
    for _ in range(g.choice((0, 0, 1, 2, 3))):
        attempt(g, choose(g, AFTERWARDS))
    finish(g)
    return Case(g.graph, g.inputs, seed, g.strange)


def loosen(g: Generator) -> None:
    """Small integer constants (shapes, axes, pads ...) become inputs, known only at run time."""
    for op in list(g.graph.ops):
        small = op.name == "Constant" and op.output.tensor.dtype is dtypes.i64
        if small and op.attrs["value"].size <= 8 and len(g.inputs) < 12 and g.chance(0.5):
            param = g.graph.add_param(op.output.tensor, f"known{len(g.inputs)}")
            g.inputs.append(op.attrs["value"])
            op.output.replace_uses(param)
            op.erase()


def attempt(g: Generator, template: Template) -> bool:
    """Applies a template; undoes what it did if it declines or the operator refuses."""
    ops, final = len(g.graph.ops), len(g.final)
    g.for_onnxruntime = True
    try:
        template(g)
        if not g.for_onnxruntime:
            for op in g.graph.ops[ops:]:
                op.loc = (FOREIGN,)
        return True
    except (Decline, ModelError, UnsupportedError):
        for op in reversed(g.graph.ops[ops:]):
            op.erase()
        made = set(g.graph.params) | {v for op in g.graph.ops for v in op.outputs}
        g.pool = [v for v in g.pool if v in made]
        g.final[final:] = []
        return False


def finish(g: Generator) -> None:
    """Results: what nothing uses, and a few values on the way."""
    leaves = [v for v in g.pool if not v.uses and v.producer is not None]
    middle = [v for v in g.pool if v.uses and v.producer is not None and g.chance(0.15)]
    results = list(dict.fromkeys([*leaves, *middle, *g.final])) or g.graph.params[:1]
    g.graph.set_results(results)
    g.graph.output_names = [f"y{n}" for n in range(len(results))]
    g.graph.output_types = [v.type for v in results]
    for op in reversed(list(g.graph.ops)):
        if not any(v.uses for v in op.outputs):
            op.erase()
