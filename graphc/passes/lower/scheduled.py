"""Strategies whose choices are schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from graphc.passes.analysis.computation import Computation
from graphc.passes.lower.lowered import Lowered
from graphc.passes.schedule.steps import Schedule


class Scheduled(ABC):
    """A strategy that proposes schedules, and applies any that suits a computation. Called as other
    strategies are, it takes its first proposal."""

    name: ClassVar[str]

    @abstractmethod
    def propose(self, computation: Computation) -> Iterable[Schedule] | str:
        """Schedules for a computation, at least one, those first that should be fastest; or the
        reason why there are none. Only those are made that are asked for."""

    @abstractmethod
    def made(self, computation: Computation, schedule: Schedule) -> Lowered:
        """What the schedule makes of a computation, for which there are proposals. ModelError if
        the schedule does not suit it."""

    def apply(self, computation: Computation, schedule: Schedule) -> Lowered:
        """As `made`, with a note of how."""
        lowered = self.made(computation, schedule)
        return replace(lowered, strategy=self.name, schedule=schedule)

    def __call__(self, computation: Computation) -> Lowered | str:
        proposals = self.propose(computation)
        if isinstance(proposals, str):
            return proposals
        return self.apply(computation, next(iter(proposals)))
