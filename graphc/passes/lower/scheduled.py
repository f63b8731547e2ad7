"""Strategies whose choices are schedules."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Generic, TypeVar

from graphc.passes.analysis.computation import Computation
from graphc.passes.lower.lowered import Lowered
from graphc.passes.schedule.steps import Schedule, misfit

Match = TypeVar("Match")


class Scheduled(ABC, Generic[Match]):
    """A strategy that proposes schedules, and applies any that suits a computation. Called as other
    strategies are, it takes its first proposal."""

    name: ClassVar[str]
    takes: ClassVar[str]  # what it is for, in an error

    def match(self, computation: Computation) -> Match | str:
        """What a computation is to the strategy, which may be changed; or why it is nothing."""
        raise NotImplementedError

    def proposals(self, match: Match) -> Iterable[Schedule] | str:
        """Schedules for a match, as `propose` gives them."""
        raise NotImplementedError

    def emitted(self, match: Match, schedule: Schedule) -> Lowered:
        """What the schedule makes of a match. ModelError if the schedule does not suit it."""
        raise NotImplementedError

    def propose(self, computation: Computation) -> Iterable[Schedule] | str:
        """Schedules for a computation, at least one, those first that should be fastest; or the
        reason why there are none. Only those are made that are asked for."""
        match = self.match(computation)
        return match if isinstance(match, str) else self.proposals(match)

    def made(self, computation: Computation, schedule: Schedule) -> Lowered:
        """What the schedule makes of a computation. ModelError if it does not suit it."""
        match = self.match(computation)
        if isinstance(match, str):
            raise misfit(schedule, self.takes, match)
        return self.emitted(match, schedule)

    def apply(self, computation: Computation, schedule: Schedule) -> Lowered:
        """As `made`, with a note of how."""
        lowered = self.made(computation, schedule)
        return replace(lowered, strategy=self.name, schedule=schedule)

    def __call__(self, computation: Computation) -> Lowered | str:
        proposals = self.propose(computation)
        if isinstance(proposals, str):
            return proposals
        return self.apply(computation, next(iter(proposals)))
