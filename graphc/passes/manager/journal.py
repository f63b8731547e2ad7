"""The journal of a compilation: what became of every op, and why. Kept only if somebody asks.

Passes note what they rewrite and decide; lowering notes which strategy made each kernel. Ops are
noted as `Subject`s, which outlive them. Texts are made when they are noted, as graphs change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple

from graphc.ir.graph import Op
from graphc.passes.reasons import Reason, called
from graphc.records import dataclass

UNREAD = "unread"  # the rule that removes what nobody reads

Texts = Iterable[tuple[str, "str | Reason"]]


class Subject(NamedTuple):
    """An op as it was: operator, name of its first result, and the layers it comes from."""

    operator: str
    result: str
    loc: tuple[str, ...]

    def __str__(self) -> str:
        return called(self.operator, self.loc)


def subject(op: Op) -> Subject:
    """An op as it is now; a fused one by what it holds."""
    operator = op.name
    if operator == "fused":
        inner = (m.name for m in op.regions[0].ops if m.name != "Constant")
        operator = " + ".join(dict.fromkeys(inner))
    return Subject(operator, op.outputs[0].name if op.outputs else "", op.loc)


@dataclass(frozen=True)
class Change:
    """Ops that a rule took, in a pass, and the ops that stand for them now."""

    stage: str
    rule: str
    taken: tuple[Subject, ...]
    made: tuple[Subject, ...]


@dataclass(frozen=True)
class Decision:
    """What was decided of an op: `about` a rule, "layout" or "fusion", where `other` is the op
    that it might have been fused with."""

    stage: str
    about: str
    of: Subject
    text: str
    other: Subject | None = None


@dataclass(frozen=True)
class KernelChoice:
    """The kernel of an op, or of a part of it: which strategy made it, by what schedule, and why
    those before it did not, by name. `kernel` is "" for what needs none; `note` then says why."""

    of: Subject
    kernel: str
    strategy: str = ""
    declined: tuple[tuple[str, str], ...] = ()
    note: str = ""
    schedule: str = ""


@dataclass
class Journal:
    """All that was noted, in order. `stage` is the pass that runs; `about` says what each strategy
    is for."""

    stage: str = ""
    changes: list[Change] = field(default_factory=list)
    decisions: dict[Decision, None] = field(default_factory=dict)
    kernels: list[KernelChoice] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)

    def change(self, rule: str, taken: Iterable[Subject], made: Iterable[Subject] = ()) -> None:
        """Notes that ops were rewritten, or removed."""
        self.changes.append(Change(self.stage, rule, tuple(taken), tuple(made)))

    def decide(self, about: str, of: Op, text: str | Reason, other: Op | None = None) -> None:
        """Notes a decision."""
        beside = None if other is None else subject(other)
        self.decisions[Decision(self.stage, about, subject(of), str(text), beside)] = None

    def chose(
        self, of: Op, kernel: str, strategy: str, declined: Texts, schedule: str = ""
    ) -> None:
        """Notes which strategy made a kernel, by what schedule, and why others did not."""
        reasons = tuple((name, str(reason)) for name, reason in declined)
        made = KernelChoice(subject(of), kernel, strategy, reasons, schedule=schedule)
        self.kernels.append(made)

    def spare(self, of: Op, note: str) -> None:
        """Notes why something needs no kernel."""
        self.kernels.append(KernelChoice(subject(of), "", note=note))
