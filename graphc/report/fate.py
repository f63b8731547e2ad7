"""What became of a layer: the rewrites that it went through, and where it is in the end."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from graphc.ir.graph import Graph
from graphc.passes.manager.base import PASSES
from graphc.passes.manager.journal import UNREAD, Change, Subject
from graphc.passes.reasons import listed, short
from graphc.passes.rewriter import RULES
from graphc.report.layers import Layer, is_read
from graphc.report.trace import Trace

TOLD = {
    "fold": "constant folding: all its operands are known, so it was computed at compile time",
    "decompose": "it is made of other operators, and was replaced by them",
    "cse": "an equal operator computes the same; the two are one",
    "sequences": "it only passes on its operand, which its readers read directly",
    "raise-scalar": "arithmetic with a number comes before the data is moved, in the kernel that "
    "makes it",
    "inline-if": "its condition is known: the branch that is taken stands in its place",
    "unroll": "the number of its trips is known: its body stands in its place, once for each",
}
GROUPING = ("fuse", "layout")  # told elsewhere


def rewrites(trace: Trace, layer: Layer) -> list[Change]:
    """The rewrites that took ops of a layer, in order, each once; those that only group or lay out
    are left out."""
    taken = (
        c for c in trace.journal.changes
        if c.rule not in (*GROUPING, UNREAD)
        and any(layer.name in s.loc and s.operator != "Constant" for s in c.taken)
    )  # fmt: skip
    return list({(c.rule, tuple(map(str, c.taken))): c for c in taken}.values())


def told(change: Change) -> str:
    """A rewrite in a sentence."""
    taken = listed(map(str, change.taken))
    made = listed(map(str, change.made))
    after = f"{taken} became {made}" if made else f"{taken} left nothing"
    if change.rule in TOLD:
        return f"{TOLD[change.rule]} ({taken}, pass {change.stage})"
    if change.rule in RULES:
        equation = RULES[change.rule].equation.split("\n\n")[0].replace("\n", " ")
        return f"rule {change.rule}: {equation} ({after}, pass {change.stage})"
    return f"{about_pass(change.rule)} ({taken}, pass {change.rule})"


def about_pass(name: str) -> str:
    """What a pass does, from its documentation."""
    text = inspect.getdoc(PASSES[name]) if name in PASSES else None
    return (text or f"rewritten by {name}").split(". ")[0].replace("\n", " ").rstrip(".")


def present(layer: Layer, members: Sequence[Subject], beside: Iterable[str]) -> str:
    """The fate of a layer that is computed at run time, by some ops; `beside` are other layers in
    their kernels."""
    operators = listed(m.operator for m in members)
    shared = [name for m in members for name in m.loc if name != layer.name]
    text = f"computed at run time as {operators}"
    if shared:
        text += f", together with {listed(map(short, shared))}"
    others = [name for name in dict.fromkeys(beside) if name not in (*shared, layer.name)]
    return text + (f", in one kernel with {listed(map(short, others))}" if others else "")


def on_host(reasons: Sequence[str]) -> str:
    """The fate of a layer that the host runs, for reasons of which the last counts."""
    return f"runs on the host: {reasons[-1]}"


def gone(trace: Trace, graph: Graph, layer: Layer) -> str:
    """The fate of a layer that no op is left of."""
    if layer.operator == "Constant":
        return "a constant: it is part of whatever reads it"
    if not is_read(graph, layer):
        return "dead code: no output of the model depends on it, so it was removed"
    took = [c for c in rewrites(trace, layer) if not any(layer.name in s.loc for s in c.made)]
    if took:
        return f"removed: {told(took[-1])}"
    if (cause := _cause(trace, layer)) is not None:
        return f"removed, as nobody reads its results after this: {told(cause)}"
    through, lost = rewrites(trace, layer), trace.lost(layer.name)
    if through:
        return f"removed, as nobody reads its remains after this: {told(through[-1])}"
    if lost:
        return f"removed in pass {lost}, {about_pass(lost)}: {_readers(graph, trace, layer)}"
    if trace.stopped:
        return f"not compiled: with random inputs, the run ended before it: {short(trace.stopped)}"
    if layer.inside:
        return (
            f"part of {layer.inside}: a branch that is not taken, or a body that is compiled apart "
            "when the host first runs it"
        )
    return f"removed while shapes were fixed: {_readers(graph, trace, layer)}"


def _cause(trace: Trace, layer: Layer) -> Change | None:
    """The rewrite after which nobody read a layer any more; None if it is not known."""
    changes, last, cause = trace.journal.changes, None, None
    for change in changes:
        if change.rule != UNREAD:
            last = change
        elif last and last.stage == change.stage and any(layer.name in s.loc for s in change.taken):
            cause = last
    return cause


def _readers(graph: Graph, trace: Trace, layer: Layer) -> str:
    """What became of those that read a layer, which nobody reads any more."""
    users = (user for op in graph.walk() if op.loc[:1] == (layer.name,)
             for value in op.outputs for user in value.users if user.loc)  # fmt: skip
    names = dict.fromkeys(user.loc[0] for user in users if user.loc[0] != layer.name)
    last = {
        name: change.rule for name in names for change in trace.journal.changes
        if change.rule not in (*GROUPING, UNREAD) and any(name in s.loc for s in change.taken)
    }  # fmt: skip
    by = [f"{name} (by {last[name]})" if name in last else name for name in names]
    return f"{listed(by) or 'nobody'} needs no more of it than its shape, or is computed already"
