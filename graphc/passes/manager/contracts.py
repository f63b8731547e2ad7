"""What passes require of a graph, establish and destroy: properties, and how they are checked.

A property is either a phase that the graph has reached, which the passes that ran decide, or
something that the graph itself shows. A pass that `destroys` a property may do so: where the graph
shows the property, it is looked up when somebody requires it. Phases are never taken back, so that
a graph that is printed goes on where it was; what was destroyed since is kept by the manager.

An order of passes that cannot work is refused before the first of them runs, by a ModelError that
names the pass, what it requires, which pass destroyed that, and which one establishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import ClassVar, Protocol

from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.ir.wide_graphs import is_made_of_others
from graphc.records import dataclass

Makers = Callable[[str], Sequence[str]]  # the passes that establish a property


class Contract(Protocol):
    """What has a contract: a pass."""

    name: ClassVar[str]
    requires: ClassVar[Sequence[str]]
    establishes: ClassVar[Sequence[str]]
    destroys: ClassVar[Sequence[str]]


@dataclass(frozen=True)
class Property:
    """What a graph can be: `meaning` completes "a graph ..."; `holds` as far as the graph tells;
    `shown` if the graph tells all, and no pass needs to be asked."""

    meaning: str
    holds: Callable[[Graph], bool]
    shown: bool = False


def _is_decomposed(graph: Graph) -> bool:
    return not any(map(is_made_of_others, graph.ops))


PROPERTIES = {
    "typed": Property("all values have types", lambda g: g.reached("typed")),
    "original": Property("the operators are those of the model", lambda g: not g.is_optimised),
    "unfused": Property("no groups of ops are fused yet", lambda g: not g.reached("fused")),
    "canonical": Property("no canonical rule applies", lambda g: g.reached("canonical")),
    "decomposed": Property("no operator is made of others", _is_decomposed, shown=True),
    "laid_out": Property("the layouts of values are chosen", lambda g: g.reached("laid_out")),
    "fused": Property("groups of ops are fused", lambda g: g.reached("fused")),
}


@dataclass
class Ledger:
    """The properties of one graph, as the passes that ran have made them: `destroyed` tells by
    which pass each was lost."""

    held: set[str] = field(default_factory=set)
    destroyed: dict[str, str] = field(default_factory=dict)

    def ran(self, step: Contract) -> None:
        """Notes what a pass has destroyed, and then what it has established."""
        self.destroyed.update((name, step.name) for name in step.destroys)
        for name in step.establishes:
            self.destroyed.pop(name, None)
            self.held.add(name)

    def lacks(self, name: str, graph: Graph) -> bool:
        """Whether a graph does not have a property."""
        wanted = PROPERTIES[name]
        lost = name in self.destroyed and not wanted.shown
        return lost or not wanted.holds(graph)

    def require(self, step: Contract, graph: Graph, makers: Makers) -> None:
        """ModelError if a graph lacks what a pass requires."""
        for name in step.requires:
            if self.lacks(name, graph):
                raise _refusal(step, name, self.destroyed.get(name), makers)


def check_order(steps: Sequence[Contract], makers: Makers, graph: Graph | None = None) -> None:
    """ModelError if passes cannot run in this order: on this graph, or on any if it is None."""
    ledger = Ledger()
    for step in steps:
        for name in step.requires:
            lost = ledger.destroyed.get(name)
            missing = graph is not None and not PROPERTIES[name].holds(graph)
            known = not PROPERTIES[name].shown
            if known and (lost or missing and name not in ledger.held):
                raise _refusal(step, name, lost, makers)
        ledger.ran(step)


def _refusal(step: Contract, name: str, destroyer: str | None, makers: Makers) -> ModelError:
    able = makers(name)
    if destroyer:
        history = f"pass {destroyer}, which comes before it, destroys that"
    else:
        history = "no pass before it establishes that"
    remedy = f"pass {' or '.join(able)} does" if able else "no pass does"
    if destroyer:
        remedy = f"pass {able[0]} establishes it again" if able else f"put {step.name} first"
    return ModelError(
        f"{step.name} requires a graph that is {name} ({PROPERTIES[name].meaning}): "
        f"{history}; {remedy}"
    )
