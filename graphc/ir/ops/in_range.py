"""The operator of checks, `graphc.InRange`, which pass `checks` puts beside what it checks.

What it computes comes with it as the text of an expression, as the body of another operator asked
for it (ir/checks.py). It has an effect: no pass removes it, and the runner checks its result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.checks import Check, closed, key_of, sentence
from graphc.ir.conditions import Asked
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Expr, Index, Load, Sym, cast, loads, reduce
from graphc.ir.extents import is_of_sizes
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.opdef import Any_, OutIndex, op
from graphc.ir.text.expr_parser import parse_expr
from graphc.ir.types import Dim

NAME, DOMAIN = "InRange", "graphc"
EFFECT = "effect"  # the trait of what is run though nobody reads it


@op(NAME, domain=DOMAIN, infer=lambda *operands: (), traits=(EFFECT,))
def in_range(
    i: OutIndex, *operands: Any_, value: str, extents: tuple = (), low: int, high: int,
    message: str, sizes: tuple = (),
) -> Expr:  # fmt: skip
    """The largest distance above `low`, modulo 2^64, of a value, an expression over $0, $1, ...
    (the operands), indices i0, i1, ... of these extents, and sizes."""
    axes = tuple(Index(f"c{n}", extent) for n, extent in enumerate(extents))
    parsed = _parsed(value, axes, tuple(x.dtype for x in operands), tuple(sizes))
    for load in loads(parsed):
        if len(load.index) != operands[int(load.source)].rank:
            raise ModelError(f"reads {load}, found {operands[int(load.source)].type}")
    key = key_of(parsed, low)
    return reduce("max", key, axes) if axes else key


def require(
    b: Builder, value: Value, low: Dim, high: Dim, what: str = "index",
    extents: tuple[Dim, ...] = (),
) -> None:  # fmt: skip
    """Has a run of a composite fail unless the elements of an integer tensor, of `extents` from the
    first on (default: all), lie in low..high. `what` as for checks.Condition."""
    dims = extents or value.tensor.dims
    if 0 in dims or high == -1 or not all(map(is_of_sizes, (low, high))):
        return
    name = getattr(b.region, "name", "")
    where = f'{name} "{b.loc[0]}"' if b.loc else name
    element = Load("0", [Index(f"i{n}", x) for n, x in enumerate(dims)], value.tensor.dtype)
    lies = closed(cast(element, i64), low, high)
    if lies is None:
        return
    said = sentence(what, repr(value.name) if value.name else "", low, high)
    asked = Asked(lies[0], tuple(dims), Check(*lies[1:], f"{where}: {said}"))
    b.op(NAME, value, domain=DOMAIN, **attrs_of(asked))


def attrs_of(asked: Asked) -> dict[str, Any]:
    """The attributes of an op that checks what is asked."""
    check = asked.check
    attrs = {"value": str(asked.value), "extents": asked.extents, "low": check.low,
             "high": check.high, "message": check.message}  # fmt: skip
    return {**attrs, "sizes": asked.sizes} if asked.sizes else attrs


@lru_cache(maxsize=1024)
def _parsed(
    text: str, axes: tuple[Index, ...], types: tuple[DType, ...], sizes: tuple[Sym, ...]
) -> Expr:
    names: dict[str, Expr] = {size.name: size for size in sizes}
    names |= {f"i{n}": axis for n, axis in enumerate(axes)}
    return parse_expr(text, names, {str(n): dtype for n, dtype in enumerate(types)})


def check_of(op: Op) -> Check:
    """What an InRange op checks."""
    return Check(op.attrs["low"], op.attrs["high"], op.attrs["message"])


def is_check(op: Op | None) -> bool:
    """Whether an op checks something."""
    return op is not None and op.name == NAME and op.defn.domain == DOMAIN


def maker_of(value: Value) -> Op | None:
    """The op that a value is of, perhaps inside a fused one."""
    op = value.producer
    if op is None or op.name != "fused":
        return op
    return maker_of(op.regions[0].results[value.index])


def own_results(graph: Graph) -> list[tuple[str, Value]]:
    """The outputs of a model by name, without the checks that a pass has put after them."""
    return [(name, value) for name, value in graph.named_results() if not is_check(maker_of(value))]
