"""What a run of passes carries along: target, options, fuel, diagnostics. There is no other state.

Every rewrite asks `ctx.spend(rule, op)` first. With fuel n the n-th rewrite and all later ones are
refused, so that the smallest n with a wrong result names the rewrite to blame.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Protocol

from graphc import config
from graphc.ir.graph import Op
from graphc.ir.machine import Machine
from graphc.passes.manager.journal import Journal, subject
from graphc.passes.reasons import Reason
from graphc.records import dataclass


class Aim(Protocol):
    """A target, as far as it concerns passes."""

    @property
    def machine(self) -> Machine: ...


@dataclass(frozen=True)
class AnyTarget:
    """A target of which no more is known than its machine."""

    machine: Machine = Machine()


@dataclass
class Rewrite:
    """One rewrite that was done: its number (from 1), the rule, and the op it was done to."""

    number: int
    rule: str
    where: str

    def __str__(self) -> str:
        return f"rewrite {self.number}: {self.rule} at {self.where}"


@dataclass
class Diagnostics:
    """Rewrites by rule, in order, and seconds by pass."""

    fired: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    log: list[Rewrite] = field(default_factory=list)


class Context:
    """One compilation's settings and findings.

    `fuel` is the number of the first rewrite that must not happen (default: GRAPHC_FUEL; None:
    all may). `options` holds what the user set for passes, by name; passes ask `target.machine`
    what code is made for. `journal`, if there is one, takes down every decision and its reason.
    """

    def __init__(
        self,
        target: Aim = AnyTarget(),  # noqa: B008 (immutable)
        options: dict[str, Any] | None = None,
        fuel: int | None = None,
        debug: int | None = None,
        journal: Journal | None = None,
    ):
        self.journal = journal
        self.target, self.options = target, dict(options or {})
        self.fuel = config.fuel() if fuel is None else fuel
        self.debug = config.debug() if debug is None else debug
        self.diagnostics = Diagnostics()
        self.rewrites = 0

    def on(self, target: Aim) -> Context:
        """The same, for a target."""
        self.target = target
        return self

    def begin(self, stage: str) -> None:
        """Names the pass that runs from here on, for the journal."""
        if self.journal is not None:
            self.journal.stage = stage

    def noting(self) -> Context | None:
        """A context that writes to the same journal and numbers no rewrites of this one; None
        without a journal."""
        return None if self.journal is None else Context(self.target, journal=self.journal)

    @property
    def exhausted(self) -> bool:
        """Whether the fuel allows no further rewrite."""
        return self.fuel is not None and self.rewrites + 1 >= self.fuel

    def spend(
        self, rule: str, op: Op | str, taken: Sequence[Op] = (), made: Sequence[Op] = ()
    ) -> bool:
        """Whether the next rewrite may happen; if so it is counted and logged. It is one of `op`
        or, if more than one is `taken`, of these; `made` stand for them."""
        if self.exhausted:
            return False
        self.rewrites += 1
        where = op if isinstance(op, str) else op.where()
        rewrite = Rewrite(self.rewrites, rule, where)
        self.diagnostics.fired[rule] += 1
        self.diagnostics.log.append(rewrite)
        if self.journal is not None and not isinstance(op, str):
            self.journal.change(rule, map(subject, taken or [op]), map(subject, made))
        if self.debug >= 5:
            config.say(str(rewrite))
        return True

    def decline(self, rule: str, op: Op, reason: str | Reason, other: Op | None = None) -> None:
        """Notes in the journal, if there is one, that a rule, or a fusion of `op` with another,
        does not happen, and why."""
        if self.journal is not None:
            self.journal.decide(rule, op, reason, other)

    def explain(self, rule: str) -> str:
        """What happened to a rule: how often it fired and, by the journal, where it declined."""
        lines = [f"{rule}: fired {self.diagnostics.fired[rule]} times"]
        declined = self.journal.decisions if self.journal is not None else ()
        lines += dict.fromkeys(f"  {d.of}: {d.text}" for d in declined if d.about == rule)
        return "\n".join(lines)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the time spent inside to `diagnostics.seconds[what]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = self.diagnostics.seconds
            seconds[what] = seconds.get(what, 0.0) + time.perf_counter() - start
