"""Products of all shapes, with what stands around them."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import f16, f32
from graphc.ir.graph import Value
from templates.table import template

MOST_PRODUCTS = 4 << 20


@template(3, family="products")
def product(g: Generator) -> None:
    """Batches on either side, broadcast; transposed operands; a bias, a residual."""
    m, n, k = g.extent(0 if g.chance(0.03) else 1), g.extent(), g.extent(1, 1025)
    lead = g.choice(((), (), (2,), (3, 2)))
    if m * n * k * int(np.prod(lead)) > MOST_PRODUCTS:
        raise Decline
    dtype = g.choice((f32, f32, f32, f16))
    lead_a = tuple(d if g.chance(0.8) else 1 for d in lead)
    lead_b = lead[g.integer(0, len(lead)) :]
    a = side(g, lead_a, m, k, dtype, False)
    b = side(g, lead_b, k, n, dtype, True)
    y = g.emit("MatMul", a, b)
    if g.chance(0.5):
        y = g.emit("Add", y, g.constant(dtype, (n,)))
    if g.chance(0.4):
        y = g.emit(g.choice(("Relu", "Gelu", "Sigmoid", "Tanh")), y)
    if g.chance(0.3):
        g.emit("Add", y, g.data(*y.tensor.dims, dtype=dtype))


def side(g: Generator, lead: tuple, m: int, k: int, dtype, constant: bool) -> Value:
    make = g.weights if constant and g.chance(0.7) else g.data
    which = g.integer(0, 3)
    if which == 0:
        perm = [*range(len(lead)), len(lead) + 1, len(lead)]
        return g.emit("Transpose", make(*lead, k, m, dtype=dtype), perm=perm)
    if which == 1 and lead:
        x = make(m, *lead, k, dtype=dtype)
        return g.emit("Transpose", x, perm=[*range(1, len(lead) + 1), 0, len(lead) + 1])
    x = make(*lead, m, k, dtype=dtype)
    if which == 2:
        x = g.emit(g.choice(("Relu", "Sigmoid", "Neg")), x)
    return x


@template(1, family="products")
def gemm(g: Generator) -> None:
    m, n, k = g.extent(), g.extent(), g.extent(1, 1025)
    if m * n * k > MOST_PRODUCTS:
        raise Decline
    turned_a, turned_b = g.integer(0, 1), g.integer(0, 1)
    a = g.data(*((k, m) if turned_a else (m, k)))
    b = g.weights(*((n, k) if turned_b else (k, n)))
    c = g.choice((None, (n,), (1, n), (m, 1), (m, n), ()))
    g.emit("Gemm", a, b, None if c is None else g.constant(f32, c), transA=turned_a,
           transB=turned_b, alpha=g.choice((1.0, 0.5)), beta=g.choice((1.0, 2.0)))  # fmt: skip


@template(1, family="products")
def several_of_one(g: Generator) -> None:
    """One operand times several matrices, and what is done with the results."""
    m, k = g.extent(), g.choice((8, 32, 33, 64))
    x = g.data(g.integer(1, 2), m, k)
    gate, up = (g.emit("MatMul", x, g.weights(k, 48)) for _ in range(2))
    y = g.emit("Mul", g.emit("Mul", gate, g.emit("Sigmoid", gate)), up)
    y = g.emit("MatMul", y, g.weights(48, k))
    y = g.emit("Add", x, y)
    g.emit("LayerNormalization", y, g.constant(f32, (k,)), g.constant(f32, (k,)), axis=-1)


@template(1, family="products")
def einsum(g: Generator) -> None:
    b, i, j, k = g.integer(1, 3), g.extent(1, 65), g.extent(1, 65), g.extent(1, 65)
    if b * i * j * k > MOST_PRODUCTS // 4:
        raise Decline
    extents = {"b": b, "i": i, "j": j, "k": k, "h": g.integer(1, 3)}
    equation = g.choice((
        "bij,bkj->bik", "bhij,bhkj->bhik", "bihj,bkhj->bhik", "ij,bjk->bik", "bij,jk->bki",
        "bij,bik->bjk", "bhik,bkhj->bihj", "ij,ik->jk", "bij,bij->bi", "hbi,hbj->bij",
    ))  # fmt: skip
    parts = equation.split("->")[0].split(",")
    g.emit("Einsum", *(g.data(*(extents[c] for c in part)) for part in parts), equation=equation)
