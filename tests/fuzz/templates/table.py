"""The table of templates, and what they share: kinds of dtypes, operands that fit."""

from __future__ import annotations

import numpy as np
from generator import AFTERWARDS, Generator, Template

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, f32
from graphc.ir.graph import Value

SMOOTH = (
    "Sigmoid", "Tanh", "Exp", "Erf", "Softplus", "Softsign", "Sin", "Cos", "Atan", "Asinh",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Celu", "Selu", "Gelu", "Mish", "Swish", "Sinh",
    "Cosh",
)  # fmt: skip

_TABLES: dict[str, list[tuple[float, bool, Template]]] = {}


def template(weight: float = 1.0, special: bool = False, family: str = ""):
    """Registers a template; `special`: fit for NaN, infinities and numbers near overflow; `family`:
    the kind of layer that it is an instance of, as large as those of models."""

    def declare(function: Template) -> Template:
        _TABLES.setdefault(family, []).append((weight, special, function))
        return function

    return declare


def families() -> tuple[str, ...]:
    return tuple(name for name in _TABLES if name not in ("", AFTERWARDS))


def choose(g: Generator, family: str = "") -> Template:
    """A random template, by weight."""
    fitting = [(w, t) for w, special, t in _TABLES[family] if special or not g.special]
    weights = np.array([w for w, _ in fitting])
    return fitting[int(g.rng.choice(len(fitting), p=weights / weights.sum()))][1]


def is_float(d: DType) -> bool:
    return d.is_float


def is_int(d: DType) -> bool:
    return d.is_integer


def is_number(d: DType) -> bool:
    return d.is_number


def anything(d: DType) -> bool:
    return True


def is_f32(d: DType) -> bool:
    return d is f32


def is_wide(d: DType) -> bool:
    return d in (f32, dtypes.f64)


def partner(g: Generator, x: Value) -> Value:
    """An operand that broadcasts with x, of its dtype."""
    shape = list(x.tensor.dims)
    mode = g.integer(0, 4)
    if mode == 0:
        shape = []
    elif mode == 1 and shape:
        shape = shape[g.integer(0, len(shape) - 1) :]
    elif mode == 2:
        shape = [1 if g.chance(0.5) else d for d in shape]
    return g.operand(x.tensor.dtype, shape)


def shuffled(g: Generator, *values: Value) -> list[Value]:
    order = g.rng.permutation(len(values))
    return [values[n] for n in order]


def positions(g: Generator, indices: np.ndarray, extent: int) -> Value:
    """Indices as a constant or as an input."""
    indices = np.asarray(indices, g.choice((np.int32, np.int64)))
    if g.chance(0.6) or len(g.inputs) >= 4:
        value = g.b.constant(indices)
        g.exact.add(value)
        return value
    value = g.input(dtypes.of(indices.dtype), indices.shape)
    g.inputs[-1] = indices
    g.pool.remove(value)  # arithmetic on it would be harmless, but not shorter extents
    return value
