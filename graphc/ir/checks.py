"""Checks of what data holds: indices within bounds, lengths within extents, known categories.

The body of an operator says what must hold by `must_lie(value, low, high, message)`, while it is
being built; what it says is collected beside the body (`collected`). A check is over all values of
the indices that its value depends on, whatever else the body does, and no part of the body: that
keeps memory safe by itself, by clamping. So checks cost a pass over the indices, not a branch per
element, and kernels know nothing of them.

A compiled graph has an op `graphc.InRange` per check (ops/in_range.py), which gives one u64, the
*key*: the largest distance of a value above `low`, modulo 2^64. All values are in range exactly if
the key is at most `high - low`; else `low` plus the key is one that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import i64, u64
from graphc.records import dataclass

if TYPE_CHECKING:
    from graphc.ir.expr import Expr
    from graphc.ir.types import Dim

VALUE = "{value}"
"""What stands in a message for the offending value."""
KEYS = "checks"  # the output of a program that holds the keys of all its checks
WHOLE = 1 << 64


@dataclass(frozen=True)
class Condition:
    """What a body asks for: `value`, at all its indices, in low..high, which may be made of
    sizes. `what` says what the value is ("index"), or, with VALUE in it, what to say of one that is
    not."""

    value: Expr
    low: Dim
    high: Dim
    what: str


@dataclass(frozen=True)
class Check:
    """A check of a program: the range, and what to say, with VALUE for the offending value."""

    low: int
    high: int
    message: str

    @property
    def most(self) -> int:
        """The largest key of values in range."""
        return self.high - self.low

    def offender(self, key: int) -> int:
        """The value that a key stands for."""
        value = (self.low + key) % WHOLE
        return value - WHOLE if value >= WHOLE // 2 else value

    def error(self, key: int) -> ModelError:
        """The error of a run whose key is too large."""
        return ModelError(self.message.replace(VALUE, str(self.offender(key))))


def sentence(what: str, name: str, low: Dim, high: Dim) -> str:
    """What to say of a value out of range: `what` itself if it has VALUE in it."""
    if VALUE in what:
        return what
    span = f"at least {low}" if high == i64.max else f"in {low}..{high}"
    return f"{what} {VALUE}{f' of {name}' if name else ''} must be {span}"


def judge(checks: Sequence[Check], keys: Sequence[int]) -> None:
    """ModelError says which check does not hold, if one does not."""
    for check, key in zip(checks, keys):
        if int(key) > check.most:
            raise check.error(int(key))


def judged(checks: Sequence[Check], outputs: list) -> list:
    """The outputs of a program but the keys of its checks. ModelError says which does not hold."""
    if checks:
        judge(checks, np.asarray(outputs.pop()).tolist())
    return outputs


def key_of(value: Expr, low: int) -> Expr:
    """The distance of a value above `low`, modulo 2^64."""
    from graphc.ir.expr import Const, cast  # running code needs no expressions

    return cast(value, u64) - Const(low, u64)


# ---------------------------------------------------------------- collecting

_collecting: ContextVar[list[Condition] | None] = ContextVar("collecting", default=None)


@contextmanager
def collected() -> Iterator[list[Condition]]:
    """Collects what bodies that are built within ask for."""
    conditions: list[Condition] = []
    token = _collecting.set(conditions)
    try:
        yield conditions
    finally:
        _collecting.reset(token)


NOWHERE = -(1 << 62)  # a number that no index is, for ranges that may be empty


def closed(value: Expr, low: Dim, high: Dim) -> tuple[Expr, int, int]:
    """A value and a range of integers in which it lies exactly if another lies in low..high: what
    does not is left as it is, all else is one number that always lies there, or lies nowhere."""
    if isinstance(low, int) and isinstance(high, int):
        return value, low, high
    from graphc.ir.expr import Const, as_expr, select
    from graphc.ir.simplify import bounds

    first, last = as_expr(low, i64), as_expr(high, i64)
    usual = low if isinstance(low, int) else 0
    lies = (value >= first) & (value <= last)
    if bounds(first)[1] > usual or bounds(last)[0] < usual:
        usual = NOWHERE
        value = select(value.eq(usual), value + 1, value)
    return select(lies, Const(usual, i64), value), usual, usual


def must_lie(value: Expr, low: Dim, high: Dim, what: str = "index") -> None:
    """Has a run fail unless an integer lies in low..high wherever its indices take it.

    What only matters under a condition is given as a value in range where that does not hold:
    `select(matters, value, low)`.
    """
    conditions = _collecting.get()
    if conditions is None:
        return
    from graphc.ir.expr import cast
    from graphc.ir.extents import is_of_sizes

    if not (is_of_sizes(low) and is_of_sizes(high)):
        return

    condition = Condition(cast(value, i64), low, high, what)
    if condition not in conditions:
        conditions.append(condition)
