"""Layers that are equal but for the numbers in them: bounds, factors, scales, zero points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, f32
from graphc.ir.graph import Value
from templates.layers_quantised import through_bytes
from templates.quantised import BYTES, exact, weights_in_bytes
from templates.table import template

FAMILY = "numbered"
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.5, 0.1, 1e-3, 100.0)
WHOLE = (0, 1, -1, 2, 3, 7, 8, 100, -100)
STRANGE = (np.inf, -np.inf, np.nan)
LARGE = (1 << 31, -(1 << 31), (1 << 31) - 1, (1 << 40) + 7, -(1 << 40), 1 << 62)
Layer = Callable[[Generator, Value], Value]


def number(g: Generator, dtype: DType) -> Value:
    if dtype.is_float:
        drawn = g.choice(STRANGE if g.chance(0.05) else FLOATS)
    else:
        drawn = g.choice(WHOLE if dtype.bits < 64 or g.chance(0.6) else LARGE)
        drawn = min(max(drawn, dtype.min), dtype.max)
    g.for_onnxruntime &= drawn not in (*STRANGE, *LARGE)  # it has other extremes of those
    value = g.b.constant(drawn, dtype)
    g.exact.add(value)
    return value


def arithmetic(g: Generator, name: str) -> Layer:
    turned = g.chance(0.3)

    def layer(g: Generator, x: Value) -> Value:
        c = number(g, x.tensor.dtype)
        return g.emit(name, *((c, x) if turned else (x, c)), keeps=name in ("Max", "Min"))

    return layer


def compared(g: Generator, name: str) -> Layer:
    def layer(g: Generator, x: Value) -> Value:
        if x not in g.exact:
            raise Decline
        mask = g.emit(name, x, number(g, x.tensor.dtype), keeps=True)
        return g.emit("Where", mask, x, number(g, x.tensor.dtype), keeps=True)

    return layer


def clipped(g: Generator) -> Layer:
    def layer(g: Generator, x: Value) -> Value:
        return g.emit("Clip", x, number(g, x.tensor.dtype), number(g, x.tensor.dtype), keeps=True)

    return layer


def activated(g: Generator) -> Layer:
    name, names = g.choice(
        (("LeakyRelu", ("alpha",)), ("Elu", ("alpha",)), ("HardSigmoid", ("alpha", "beta")),
         ("Selu", ("alpha", "gamma")), ("Celu", ("alpha",)))
    )  # fmt: skip

    def layer(g: Generator, x: Value) -> Value:
        return g.emit(name, x, **{attr: g.choice((0.25, 0.5, 1.5, 2.0)) for attr in names})

    return layer


def divided(g: Generator) -> Layer:
    def layer(g: Generator, x: Value) -> Value:
        return g.emit("Div", x, g.b.constant(g.choice((1.0, 2.0, 3.0, 0.5, 5.0)), x.tensor.dtype))

    return layer


@template(3, family=FAMILY)
def simple(g: Generator) -> None:
    """Several layers of one kind beside or behind each other."""
    dtype = g.choice((f32, f32, f32, dtypes.f64, dtypes.f16))
    dims = tuple(g.extent(1, 65) for _ in range(g.integer(1, 2)))
    makers: list[Layer] = [
        arithmetic(g, g.choice(("Add", "Mul", "Sub", "Max", "Min"))),
        divided(g), compared(g, g.choice(("Less", "Greater"))), clipped(g), activated(g),
    ]  # fmt: skip
    kinds = [g.choice(makers) for _ in range(g.integer(1, 3))]
    inputs = [g.data(*dims, dtype=dtype) for _ in range(g.integer(1, 3))]
    for n in range(g.integer(2, 5)):
        x = inputs[n % len(inputs)]
        for layer in kinds:
            x = layer(g, x)
        g.emit("Transpose", x, perm=list(reversed(range(x.tensor.rank))), keeps=True)


@template(1.5, family=FAMILY)
def whole(g: Generator) -> None:
    """Integers, of which those of 64 bits may be beyond 32."""
    dtype = g.choice(tuple(map(dtypes.of, ("i64", "i64", "i32", "i8", "u8"))))
    names = ("Add", "Mul", "Sub", "Max", "Min")
    g.for_onnxruntime &= dtype.bits > 8
    kinds: list[Layer] = []
    for _ in range(g.integer(1, 3)):
        kinds.append(g.choice((arithmetic(g, g.choice(names)), compared(g, "Less"), clipped(g))))
    first = g.data(g.extent(1, 129), dtype=dtype)
    for _ in range(g.integer(2, 4)):
        x = first
        for layer in kinds:
            x = layer(g, x)
            g.exact.add(x)


def sum_in_bytes(g: Generator, x: Value, y: Value, kind: DType) -> None:
    """A sum in steps of which it is never halfway between two: the runtime rounds those up."""
    scale = np.array(g.choice((0.1123456, 0.2876543, 0.3712345)), np.float32)
    zero = np.array(g.choice((0, 3, 100)), kind.np)
    z = g.emit("QuantizeLinear", exact(g, g.emit("Add", x, y)), scale, zero, keeps=True)
    g.emit("DequantizeLinear", z, scale, zero, keeps=True)


@template(2, family=FAMILY)
def in_bytes(g: Generator) -> None:
    """Quantised layers of one shape, each with scales and zero points of its own."""
    kind = g.choice(BYTES)
    channels, side = g.choice((3, 8, 16, 17)), g.extent(1, 9)
    y = through_bytes(g, g.data(1, channels, side, side), kind)
    k = g.choice((1, 3))
    depthwise = g.chance(0.3)
    group = channels if depthwise else 1
    added = g.chance(0.6)
    for _ in range(g.integer(2, 4)):
        w = weights_in_bytes(g, (channels, channels // group, k, k), 0)
        bias = (g.rng.integers(-16, 16, channels) / 8).astype(np.float32)
        z = exact(g, g.emit("Conv", y, w, bias, group=group, pads=[k // 2] * 4))
        z = through_bytes(g, z, kind, 1)
        if added:
            sum_in_bytes(g, z, y, kind)
        y = z


@template(1, family=FAMILY)
def rescaled_bytes(g: Generator) -> None:
    """From one quantisation to others."""
    kind = g.choice(BYTES)
    y = through_bytes(g, g.data(g.extent(1, 33), g.extent(1, 65)), kind)
    for _ in range(g.integer(2, 4)):
        z = through_bytes(g, y, g.choice((kind, kind, *BYTES)))
        if g.chance(0.4):
            sum_in_bytes(g, y, z, kind)
        if g.chance(0.5):
            y = z
