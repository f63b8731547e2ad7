"""Rewrite rules, and the pass that applies them until none fires.

    @rule("cancel-transposes", P.Transpose(P.Transpose(x)))
    def cancel(rw, inner, outer, x):
        '''transpose(transpose(x, p), q) == transpose(x, p o q).'''
        ...
        return rw.Transpose(x, perm=...)

The function's parameters are the rewriter; then the matched ops, in the order of execution; then
the pattern's variables by name. It returns the value (or list of values) that replaces the results
of the root, or `rw.skip(reason)`: reasons are kept if there is a journal (`--explain`). Ops are
built by name on the rewriter, before the root and with the locations of all matched ops; what turns
out constant is folded. A worklist visits every op, and again all ops near a change.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from graphc.errors import GraphcError, InternalError, ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.opdef import OpDef
from graphc.ir.ops.relayout import is_relayout, relaid
from graphc.ir.types import Dim
from graphc.passes.dce import is_dead
from graphc.passes.fold import Contents, FoldPolicy
from graphc.passes.infer_types import become_constants
from graphc.passes.manager.base import Pass, file_of, made_here, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.manager.journal import UNREAD, subject
from graphc.passes.pattern import Match, OpPattern, attribute
from graphc.passes.reasons import Reason
from graphc.records import dataclass

FEW = 8  # uses of a value up to which rules may look at them: all its users are near a change
MANY = 64  # rewrites per op of the graph after which the rules are taken not to terminate


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite rule; `equation` is its function's docstring."""

    name: str
    pattern: OpPattern
    function: Callable
    group: str
    op_parameters: int

    @property
    def equation(self) -> str:
        """What the rule claims: the docstring of its function."""
        return inspect.getdoc(self.function) or ""

    def error(self, fault: str) -> GraphcError:
        """The error of a faulty rule: a ModelError if a plugin has it, whose author can fix it."""
        text = f"rule {self.name}{fault}"
        if made_here(self.function):
            return InternalError(text)
        return ModelError(f"{text} (by {self.function.__name__} of {file_of(self.function)})")


RULES: dict[str, Rule] = {}


def rule(name: str, pattern: OpPattern, group: str = "canonical") -> Callable:
    """Declares a rewrite rule. Rules of the group "canonical" are applied by `canonicalise`."""

    def declare(function: Callable) -> Callable:
        parameters = list(inspect.signature(function).parameters)[1:]
        variables = set(pattern.names())
        ops = [p for p in parameters if p not in variables]
        made = Rule(name, pattern, function, group, len(ops))
        if parameters[: len(ops)] != ops:
            raise made.error(": its ops must come before its variables")
        missing = variables - set(parameters)
        if missing:
            raise made.error(f": variable {sorted(missing)[0]} is no parameter")
        RULES[name] = made
        return function

    return declare


class Rewriter(Builder):
    """What a rule sees: a builder that inserts before the root, and facts about values."""

    match: Match
    this: Rule
    ctx: Context
    made: list[Op]
    taken: list[Op]
    declined: bool

    def __init__(self, match: Match, this: Rule, ctx: Context):
        root = match.ops[-1]
        locations = dict.fromkeys(where for op in match.ops for where in op.loc)
        assert root.region is not None
        super().__init__(root.region, root, loc=tuple(locations))
        self.match, self.this, self.ctx = match, this, ctx
        self.taken = list(match.ops)
        self.made, self.declined = [], False

    def op(self, name: str, *operands: Any, **options: Any) -> Any:
        """Adds an op (see Builder.op), noting that it was made here."""
        result = super().op(name, *operands, **options)
        first = result[0] if isinstance(result, tuple) else result
        assert first.producer is not None
        self.made.append(first.producer)
        return result

    def again(self, op: Op, *operands: Any) -> Any:
        """Adds an op like one that there is, of other operands."""
        count, domain = len(op.outputs), op.defn.domain
        return self.op(op.name, *operands, outputs=count, domain=domain, **op.attrs)

    def constant(self, value: Any, dtype: DType | None = None) -> Value:
        """A constant (see Builder.constant)."""
        result = super().constant(value, dtype)
        assert result.producer is not None
        self.made.append(result.producer)
        return result

    def dims(self, dims: Sequence[Dim] | np.ndarray) -> Value:
        """Dimensions (see Builder.dims)."""
        result = super().dims(dims)
        assert result.producer is not None
        self.made.append(result.producer)
        return result

    def takes(self, ops: Iterable[Op]) -> None:
        """What is built from here on also stands for these ops, beside those of the pattern."""
        self.taken = list(dict.fromkeys((*ops, *self.taken)))
        self.loc = tuple(dict.fromkeys((*self.loc, *(n for op in self.taken for n in op.loc))))

    def skip(self, text: str, *parts: object) -> Any:
        """Declines, and keeps the reason, whose braces stand for the parts (see Reason); None."""
        self.declined = True
        self.ctx.decline(self.this.name, self.match.ops[-1], Reason(text, *parts))
        return None

    def all_const(self, *values: Value | None) -> bool:
        """Whether all values that are there are constants."""
        return all(v is None or v.constant is not None for v in values)

    def attr(self, op: Op, name: str) -> Any:
        """An attribute of an op, or its default."""
        return attribute(op, name)

    def scalar(self, value: Value | None) -> Any:
        """The element of a constant whose elements are all equal; None for anything else."""
        array = None if value is None else value.constant
        if array is None or array.size == 0 or array.dtype.kind == "O":
            return None
        flat = array.reshape(-1)
        return flat[0] if (flat == flat[0]).all() else None

    def apply(self) -> list[Value] | None:
        """Runs the rule; the replacements of the root's results, or None."""
        ops = self.match.ops
        skip = len(ops) - self.this.op_parameters
        replacement = self.this.function(
            self, *(ops[skip:] if skip >= 0 else ops), **self.match.values
        )
        if replacement is None:
            return None
        results = list(replacement) if isinstance(replacement, (list, tuple)) else [replacement]
        for result in results:
            if not isinstance(result, Value):
                raise TypeError(f"gave {result!r} for a value")
        return results


# ---------------------------------------------------------------- the driver


class _Worklist:
    """Ops still to be visited, each at most once, in order."""

    def __init__(self) -> None:
        self.ops: OrderedDict[Op, None] = OrderedDict()  # gives its first in constant time

    def add(self, op: Op | None) -> None:
        if op is not None and op.region is not None and op.name not in ("Constant", "yield"):
            self.ops[op] = None

    def pop(self) -> Op:
        return self.ops.popitem(last=False)[0]


class _Driver:
    def __init__(self, rules: Sequence[Rule], ctx: Context, policy: FoldPolicy | None):
        self.rules = rules
        self.of_definition: dict[OpDef, list[Rule]] = {}
        self.ctx = ctx
        self.contents = Contents(policy or ctx.options.get("fold_policy"))
        self.work = _Worklist()
        self.changed = False

    def run(self, region: Region) -> bool:
        ops = list(region.walk())
        for op in ops:
            self.work.add(op)
        budget = MANY * (len(ops) + 1)
        start = self.ctx.rewrites
        while self.work.ops:
            op = self.work.pop()
            if op.region is not None and not self.ctx.exhausted:
                self.visit(op)
            if self.ctx.rewrites - start > budget:
                self.refuse_endless([r.rule for r in self.ctx.diagnostics.log[-6:]])
        return self.changed

    def refuse_endless(self, recent: list[str]) -> NoReturn:
        """ModelError, or InternalError, saying which rules have gone on for too long."""
        foreign = (RULES[n] for n in recent if n in RULES and not made_here(RULES[n].function))
        fault = f"rewriting does not end; the last rules were {', '.join(recent)}"
        suspect = next(foreign, None)
        raise InternalError(fault) if suspect is None else suspect.error(f": {fault}")

    def visit(self, op: Op) -> None:
        if is_dead(op):
            self.remove(op)
            return
        if self.folded(op):
            return
        rules = self.of_definition.get(op.defn)
        if rules is None:
            admitted = (rule for rule in self.rules if rule.pattern.admits(op.defn))
            rules = [] if is_relayout(op) else list(admitted)
            self.of_definition[op.defn] = rules
        for rule in rules:
            for match in rule.pattern.match_op(op):
                if self.fire(rule, match):
                    return

    def folded(self, op: Op) -> bool:
        if any(v.type is None for v in op.outputs):
            return False
        arrays = self.contents.fold(op)
        if arrays is None:
            return False
        self.ctx.spend("fold", op)
        self.changed = True
        users = [user for v in op.outputs for user in v.users]
        sources = [v.producer for v in op.inputs if v is not None]
        assert op.region is not None
        become_constants(op, op.region.place(op), arrays)
        for user in users:
            self.work.add(user)
        self.remove_dead(sources)
        return True

    def fire(self, rule: Rule, match: Match) -> bool:
        root = match.ops[-1]
        rewriter = Rewriter(match, rule, self.ctx)
        try:
            results = rewriter.apply()
        except (GraphcError, TypeError, ValueError) as error:
            if all(map(_is_static, match.ops)):
                raise rule.error(f" at {root.where()}: {error}") from error
            results = rewriter.skip("its shapes are not static: {}", error)
        except Exception as error:
            if made_here(rule.function):
                raise
            what = f"{type(error).__name__}: {error}"
            raise rule.error(f" at {root.where()}: {what}") from error
        if results is None and not rewriter.declined:
            rewriter.skip("the rule gives no reason")
        made = rewriter.made
        if results is None or not _may_replace(root, results):
            self.remove_dead(made)
            return False
        stand = [v.producer for v in results if v.producer is not None]
        self.ctx.spend(rule.name, root, rewriter.taken, stand)
        self.changed = True
        self.substitute(root, results, rule)
        for op in made:
            self.work.add(op)
        return True

    def substitute(self, root: Op, results: list[Value], rule: Rule) -> None:
        """Replaces the results of the root, and queues what is near."""
        if len(results) < len(root.outputs) and any(v.uses for v in root.outputs[len(results) :]):
            raise rule.error(f" at {root.where()}: replaced too few results")
        for old, new in zip(root.outputs, results):
            if old.uses and old.layout != new.layout:
                new = relaid(new, old.layout, root)
            if old.uses and old.type != new.type:
                raise rule.error(f" at {root.where()}: replaced {old.type} by {new.type}")
            if new.producer is not None and not new.name:
                new.name = old.name
            for user in old.users:
                self.work.add(user)
            old.replace_uses(new)
            self.add_users(new)
        self.remove(root)

    def remove(self, op: Op) -> None:
        """Erases an op without uses, and what only it used."""
        if self.ctx.journal is not None:
            self.ctx.journal.change(UNREAD, [subject(op)])
        sources = [v.producer for v in op.inputs if v is not None]
        op.erase()
        self.changed = True
        self.remove_dead(sources)

    def remove_dead(self, ops: Sequence[Op | None]) -> None:
        for op in dict.fromkeys(reversed(ops)):
            if op is None or op.region is None:
                continue
            if not is_dead(op):
                self.work.add(op)
                for value in op.outputs:
                    self.add_users(value)
            elif op.outputs:
                self.remove(op)

    def add_users(self, value: Value) -> None:
        """Queues the users of a value that has got others; not a crowd, which would be queued as
        often as it has members."""
        if len(value.uses) <= FEW:
            for user in value.users:
                self.work.add(user)


def _is_static(op: Op) -> bool:
    """Whether all types of an op are static."""
    types = [v.type for v in (*op.inputs, *op.outputs) if v is not None]
    return all(type is not None and type.is_static for type in types)


def _may_replace(root: Op, results: list[Value]) -> bool:
    """False if a result has another type than what it replaces because types are not static."""
    same = all(old.type == new.type for old, new in zip(root.outputs, results) if old.uses)
    return same or _is_static(root)


def apply_rules(
    region: Region, rules: Sequence[Rule], ctx: Context, policy: FoldPolicy | None = None
) -> bool:
    """Applies rules to a typed region, and the regions inside, until none fires.

    A rule declines where it needs static shapes and finds none.
    What becomes constant is folded, as `policy` says (default: that of the context).
    """
    return _Driver(rules, ctx, policy).run(region)


def rules_of(group: str) -> list[Rule]:
    """The rules of a group, in the order they were declared."""
    return [rule for rule in RULES.values() if rule.group == group]


@register_pass
@dataclass
class Rewrite(Pass):
    """Applies the rules named in `rules`, or else those of a group, except `without`."""

    rules: tuple[str, ...] = ()
    group: str = "canonical"
    without: tuple[str, ...] = ()
    name = "rewrite"
    requires = ("typed",)
    destroys = ("original", "canonical", "decomposed")
    symbolic = True

    def chosen(self) -> list[Rule]:
        unknown = [n for n in (*self.rules, *self.without) if n not in RULES]
        if unknown:
            raise InternalError(f"there is no rule {unknown[0]!r}")
        chosen = [RULES[n] for n in self.rules] or rules_of(self.group)
        return [rule for rule in chosen if rule.name not in self.without]

    def run(self, graph: Graph, ctx: Context) -> bool:
        return apply_rules(graph, self.chosen(), ctx)


@register_pass
@dataclass
class Canonicalise(Rewrite):
    """Brings a graph into the form that later passes expect: folded, by all canonical rules."""

    name = "canonicalise"
    establishes = ("canonical",)
