"""Schedules: tuples of steps that say how a strategy computes, over the roles of indices.

    schedule = strategy ":" step ...          step = name "(" argument, ... ")"

    register_tiles: vector(columns, 16) tile(columns, 32) tile(rows, 14) pack(columns, panels) ...

A schedule is all that a strategy chooses: what `apply` makes of a computation depends on these two
alone. The roles are those of passes/analysis/core.py: `rows` are in the row operand alone,
`columns` in the column operand alone, `depth` is summed; `places` are rows at which no tile runs
along. Operands are called by the role of their index. An index may have several tiles: the first is
the innermost, and each is a part of the one after it. Text and schedule tell the same:
`parse(schedule.text)` is the schedule. The steps are those of Halide (J. Ragan-Kelley et al., 2013)
and TVM (T. Chen et al., 2018).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import ClassVar, Literal, TypeVar, get_args, get_type_hints

from graphc.errors import ModelError
from graphc.records import dataclass

Role = Literal["places", "rows", "columns", "depth"]
Operand = Literal["rows", "columns"]
LARGEST = 1 << 48  # number that a step may hold


@dataclass(frozen=True)
class Step:
    """Base of all steps. Fields are words or numbers of at least 1."""

    name: ClassVar[str] = ""

    def __str__(self) -> str:
        values = [(f, getattr(self, f.name)) for f in fields(self)]
        while values and values[-1][1] == values[-1][0].default:
            values.pop()
        return f"{self.name}({', '.join(str(value) for _, value in values)})"


@dataclass(frozen=True)
class Vector(Step):
    """So many neighbours along an index are one vector."""

    name = "vector"
    index: Role
    lanes: int


@dataclass(frozen=True)
class Tile(Step):
    """So many values of an index are computed together. What is left over at its end is in tiles of
    other sizes, or in one of this size that overlaps its neighbour."""

    name = "tile"
    index: Role
    size: int
    end: Literal["apart", "overlap"] = "apart"


@dataclass(frozen=True)
class SplitReduce(Step):
    """So many steps of a summed index are added up apart from others."""

    name = "split_reduce"
    index: Literal["depth"]
    size: int


@dataclass(frozen=True)
class Pack(Step):
    """An operand is copied before it is read: in `panels` as wide as a tile, by each of the
    `blocks` for itself, or with its padding (`padded`)."""

    name = "pack"
    operand: Operand
    order: Literal["panels", "blocks", "padded"]


@dataclass(frozen=True)
class Stage(Step):
    """What a tile reads of an operand is copied into memory that is closer."""

    name = "stage"
    operand: Operand
    memory: Literal["registers", "stack", "shared"]


@dataclass(frozen=True)
class Order(Step):
    """Loops over tiles: these indices from the outside in."""

    name = "order"
    outer: Role
    middle: Role
    inner: Role


@dataclass(frozen=True)
class Bind(Step):
    """The loop over the tiles of an index is shared among threads: in at least so many pieces, as
    far as there are others to share."""

    name = "bind"
    index: Role
    to: Literal["parallel", "block", "thread", "lane"]
    pieces: int = 1


@dataclass(frozen=True)
class Unroll(Step):
    """So many steps of a loop are written out; all of them, where there are at most `whole`."""

    name = "unroll"
    index: Role
    times: int
    whole: int = 1


Dot = Literal["dot2_wide", "dot4", "dot4_mixed"]
"""Instructions of several products."""


@dataclass(frozen=True)
class Tensorize(Step):
    """The innermost products are this instruction (ir/instructions.py), so many times in a row."""

    name = "tensorize"
    instruction: Dot
    times: int = 1


@dataclass(frozen=True)
class Epilogue(Step):
    """What is made of sums is code for a whole `tile`, or a loop over its `rows`."""

    name = "epilogue"
    at: Literal["tile", "rows"]


STEPS: dict[str, type[Step]] = {
    cls.name: cls
    for cls in (
        Vector, Tile, SplitReduce, Pack, Stage, Order, Bind, Unroll, Tensorize, Epilogue,
    )
}  # fmt: skip
S = TypeVar("S", bound=Step)


def words_of(kind: type[Step]) -> dict[str, tuple[str, ...]]:
    """By field of a step, the words that it may be; none for a number."""
    types = get_type_hints(kind)
    return {f.name: get_args(types[f.name]) for f in fields(kind)}


@dataclass(frozen=True)
class Schedule:
    """The steps that a strategy, by its name, takes."""

    strategy: str
    steps: tuple[Step, ...] = ()

    @property
    def text(self) -> str:
        """The schedule in a line, which `parse` reads."""
        return " ".join([f"{self.strategy}:", *map(str, self.steps)])

    def __str__(self) -> str:
        return self.text

    def all(self, kind: type[S], of: str = "") -> list[S]:
        """The steps of a kind, in order; those about one index or operand, if it is named."""
        steps = [step for step in self.steps if isinstance(step, kind)]
        return [x for x in steps if not of or getattr(x, fields(x)[0].name) == of]

    def get(self, kind: type[S], of: str = "") -> S | None:
        """The first such step, if there is one."""
        return next(iter(self.all(kind, of)), None)

    def the(self, kind: type[S], of: str = "") -> S:
        """The first such step. ModelError if there is none."""
        step = self.get(kind, of)
        if step is None:
            wanted = f"{kind.name}({of}, ...)" if of else f"{kind.name}(...)"
            raise misfit(self, f"a step {wanted}", "none")
        return step


def misfit(schedule: Schedule, wanted: str, given: object) -> ModelError:
    """The error of a schedule that does not suit what it is for."""
    return ModelError(f"schedule `{schedule}`: it must have {wanted}, found {given}")


# ---------------------------------------------------------------- parsing

_TOKEN = re.compile(r"\s*(?:(?P<word>[a-z][a-z0-9_]*)|(?P<number>[0-9]+)|(?P<sign>[:(),]))")


def parse(text: str) -> Schedule:
    """The schedule of a text. ModelError tells where it is none, and what was expected."""
    return _Parser(text).schedule()


class _Parser:
    """Reads a schedule token by token."""

    def __init__(self, text: str):
        self.text, self.tokens, at = text, [], 0
        while match := _TOKEN.match(text, at):
            self.tokens.append((match.start(match.lastgroup or 0), match.group().strip()))
            at = match.end()
        if text[at:].strip():
            given = text[at:].split()[0]
            self.fail("a word, a number or one of : ( ) ,", given, text.index(given, at))
        self.tokens.append((len(text), ""))

    def fail(self, wanted: str, given: str, at: int) -> None:
        shown = repr(given) if given else "the end"
        raise ModelError(
            f"schedule {self.text!r}: expected {wanted}, found {shown} at column {at + 1}"
        )

    def take(self, wanted: str, pattern: str) -> str:
        """The next token, which is to match."""
        at, token = self.tokens[0]
        if not re.fullmatch(pattern, token):
            self.fail(wanted, token, at)
        if token:
            self.tokens.pop(0)
        return token

    def schedule(self) -> Schedule:
        strategy = self.take("the name of a strategy", r"[a-z]\w*")
        self.take("':'", ":")
        return Schedule(strategy, tuple(self.steps()))

    def steps(self) -> Iterator[Step]:
        while self.tokens[0][1]:
            known = STEPS.get(self.tokens[0][1])
            if known is None:
                self.fail(f"a step ({', '.join(STEPS)})", self.tokens[0][1], self.tokens[0][0])
            self.tokens.pop(0)
            assert known is not None
            yield self.step(known)

    def step(self, kind: type[Step]) -> Step:
        """The arguments of a step, and the step; those that have a default may be left out."""
        values: dict[str, str | int] = {}
        self.take("'('", r"\(")
        for number, f in enumerate(fields(kind)):
            if self.tokens[0][1] == ")" and f.default is not MISSING:
                break
            if number:
                self.take("','", ",")
            words = words_of(kind)[f.name]
            if words:
                values[f.name] = self.take(f"the {f.name}, {listed(words)}", "|".join(words))
            else:
                values[f.name] = self.number(f.name)
        self.take("')'", r"\)")
        return kind(**values)  # type: ignore[arg-type]  # each of its own words

    def number(self, name: str) -> int:
        at, wanted = self.tokens[0][0], "a number of at least 1"
        number = int(self.take(f"the {name}, {wanted}", r"[0-9]{1,16}"))
        if not 1 <= number <= LARGEST:
            self.fail(f"the {name}, {wanted}", str(number), at)
        return number


def listed(words: tuple[str, ...]) -> str:
    """Words, of which one is to be chosen."""
    return " or ".join(words)
