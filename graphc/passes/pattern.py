"""Patterns over graphs: `P.BatchNormalization(P.Conv(x, w, opt(b)).only_use(), s, t, m, v)`.

A pattern is matched from its root op towards the operands. Variables stand for values: one that
occurs twice must meet the same value twice. A match binds variables to values, and each op of the
pattern to an op, numbered in the order of execution (operands before users).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

from graphc.ir.graph import Op, Value
from graphc.ir.opdef import OpDef
from graphc.records import dataclass

BODIES = ("elementwise", "indexed")  # forms that scalar bodies give


@dataclass
class Match:
    """Values by variable name (lists for `rest`), and the ops in the order of execution."""

    values: dict[str, Any] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def copy(self) -> Match:
        return Match(dict(self.values), list(self.ops))


@dataclass(frozen=True)
class Var:
    """Any value; with `constant`, one whose contents are known; with `optional`, also none."""

    name: str
    constant: bool = False
    optional: bool = False

    def matches(self, value: Value | None, match: Match) -> Iterator[Match]:
        if value is None and not self.optional:
            return
        if value is not None and self.constant and value.constant is None:
            return
        if self.name in match.values:
            if match.values[self.name] is value:
                yield match
            return
        bound = match.copy()
        bound.values[self.name] = value
        yield bound

    def names(self) -> list[str]:
        return [self.name]


@dataclass(frozen=True)
class Rest:
    """All operands from here on, as a list."""

    name: str

    def names(self) -> list[str]:
        return [self.name]


@dataclass(frozen=True)
class OpPattern:
    """An op by name (one of several) or, without names, one with a scalar body, of which a fact
    holds (None: any); its operands, and attributes that must have these values."""

    op_names: tuple[str, ...]
    fact: Callable[[Op], Any] | None
    operands: tuple[Any, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    single_use: bool = False
    any_order: bool = False
    result: int = 0

    def only_use(self) -> OpPattern:
        """The result must have no other use than this one."""
        return replace(self, single_use=True)

    def commutes(self) -> OpPattern:
        """The two operands may come in either order."""
        return replace(self, any_order=True)

    def output(self, number: int) -> OpPattern:
        """The value is output `number` of the op (the first by default)."""
        return replace(self, result=number)

    def when(self, fact: Callable[[Op], Any]) -> OpPattern:
        """Only an op of which a fact holds matches."""
        return replace(self, fact=fact)

    def names(self) -> list[str]:
        return [name for operand in self.operands for name in operand.names()]

    def matches(self, value: Value | None, match: Match) -> Iterator[Match]:
        """The matches of the op that makes `value`."""
        if value is None or value.producer is None or value.index != self.result:
            return
        if self.single_use and len(value.uses) != 1:
            return
        yield from self.match_op(value.producer, match)

    def match_op(self, op: Op, match: Match | None = None) -> Iterator[Match]:
        """All ways in which an op matches."""
        if not self.admits(op.defn) or not self._fact_holds(op):
            return
        if any(attribute(op, name) != wanted for name, wanted in self.attrs):
            return
        for operands in self._orders():
            for bound in _match_operands(operands, op.inputs, match or Match()):
                done = bound.copy()
                done.ops.append(op)
                yield done

    def maker(self, value: Value | None) -> Op | None:
        """The op that makes a value, if it matches."""
        match = next(self.matches(value, Match()), None)
        return None if match is None else match.ops[-1]

    def admits(self, defn: OpDef) -> bool:
        """Whether ops of a definition can match at all."""
        if not self.op_names:
            return defn.form in BODIES
        return defn.name in self.op_names and not defn.domain

    def _fact_holds(self, op: Op) -> bool:
        """Whether the fact holds; of an op with a value whose type is not known, none does."""
        return self.fact is None or op.is_typed and bool(self.fact(op))

    def _orders(self) -> list[tuple]:
        return [self.operands, self.operands[::-1]] if self.any_order else [self.operands]


def _match_operands(
    patterns: Sequence, values: Sequence[Value | None], match: Match
) -> Iterator[Match]:
    if not patterns:
        if not any(v is not None for v in values):
            yield match
        return
    first, *others = patterns
    if isinstance(first, Rest):
        bound = match.copy()
        bound.values[first.name] = list(values)
        yield bound
        return
    value, rest = (values[0], values[1:]) if values else (None, ())
    for extended in first.matches(value, match):
        yield from _match_operands(others, rest, extended)


def attribute(op: Op, name: str) -> Any:
    """An attribute of an op, or its default."""
    return op.attrs.get(name, op.defn.attrs.get(name))


class _Patterns:
    """`P.Conv(x, w)` matches a Conv; `P.one_of("Add", "Sub")(x, y)` either of two;
    `P.where(is_pointwise)(rest("xs"))` any op of which a fact of passes/analysis holds."""

    def __getattr__(self, name: str) -> Callable[..., OpPattern]:
        return self.one_of(name)

    def one_of(self, *names: str) -> Callable[..., OpPattern]:
        def build(*operands: Any, **attrs: Any) -> OpPattern:
            return OpPattern(names, None, operands, tuple(attrs.items()))

        return build

    def where(self, fact: Callable[[Op], Any]) -> Callable[..., OpPattern]:
        def build(*operands: Any, **attrs: Any) -> OpPattern:
            return OpPattern((), fact, operands, tuple(attrs.items()))

        return build


P = _Patterns()


def var(names: str) -> Any:
    """Variables, one per word: `x, y = var("x y")`."""
    made = [Var(name) for name in names.split()]
    return made[0] if len(made) == 1 else made


def const(names: str) -> Any:
    """Variables that match constants only."""
    made = [Var(name, constant=True) for name in names.split()]
    return made[0] if len(made) == 1 else made


def opt(variable: Var) -> Var:
    """A variable for an operand that may be omitted (then it is None)."""
    return replace(variable, optional=True)


def rest(name: str) -> Rest:
    """A variable for a list of all remaining operands."""
    return Rest(name)
