"""One forward walk that types every op, and folds on the way what types depend on.

When an op is reached its operands are typed and as constant as they will get. So the integer
arithmetic on shapes that exporters leave in graphs is gone by the time something depends on it:
small constants are folded (fold.py), If on a constant is replaced by its branch, loops with a known
number of trips are unrolled (control_flow.py), sequences of known structure are taken apart
(sequences.py), and recurrent layers of very many steps become loops.

An op whose type depends on something that is not known stays untyped, and so does what follows
from it; the rest is typed all the same. `needs` lists, in order, what would have to be known.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import zip_longest

import numpy as np

from graphc.errors import GraphcError, ModelError, NeedsValue, UnsupportedError, together
from graphc.ir.graph import Op, Region, Value, clone_region, constant_op
from graphc.ir.infer import infer_op
from graphc.ir.ops.control import split_captures
from graphc.ir.ops.counts import is_corner, is_count
from graphc.ir.ops.failing import DEFERRED, fail_instead, fail_with_types, failure
from graphc.ir.ops.long_recurrent import holds_loop
from graphc.ir.types import OptionalType, SequenceType, TensorType
from graphc.ir.wide_graphs import expand_in_place
from graphc.passes import branches, control_flow, sequences
from graphc.passes.dimensions import Dimensions
from graphc.passes.fold import Contents, FoldPolicy, is_static, operands_read
from graphc.passes.manager.context import Context
from graphc.records import dataclass

UNROLL_ANYWAY = 256  # ops that an unrolled loop may have although its types do not ask for it


@dataclass
class Need:
    """An op that could not be typed, and why."""

    op: Op
    error: NeedsValue


class TypeInference:
    """The walk over one region. With `retype` False, ops that have types keep them and are only
    folded. `ctx`, if given, counts each replacement as a rewrite. `members` are the types of the
    members of sequences that are parameters. With `symbolic`, dims of the parameters may be
    symbols: an op that cannot be typed for all their values stays untyped, whatever the reason.
    With `dimensions`, arithmetic on these is done. `checked` as of Contents.
    """

    def __init__(
        self,
        policy: FoldPolicy | None = None,
        retype: bool = True,
        ctx: Context | None = None,
        outer: TypeInference | None = None,
        members: dict[Value, list[TensorType]] | None = None,
        symbolic: bool = False,
        dimensions: Dimensions | None = None,
        checked: bool = False,
    ):
        self.symbolic: bool = outer.symbolic if outer else symbolic
        self.retype, self.ctx, self.dimensions = retype, ctx, dimensions
        self.contents: Contents = outer.contents if outer else Contents(policy, checked)
        # values whose dims are upper bounds, the true ones being known at run time
        self.inexact: set[Value] = outer.inexact if outer else set()
        # types of the members of sequences that are inputs
        self.members: dict[Value, list[TensorType]] = members or {}
        self.needs: list[Need] = []
        self.untyped: dict[Op, str] = {}  # and why
        # at the top: errors of ops that are not supported, told together
        self.refused: list[UnsupportedError] | None = None if outer else []
        self.changed = False
        self.position = 0

    def region(self, region: Region) -> bool:
        """Treats all ops of a region whose parameters are typed; returns whether any changed."""
        self.position = 0
        while self.position < len(region.ops):
            op = region.ops[self.position]
            if op.name != "Constant" and self.replace(op):
                self.changed = True
            else:
                self.position += 1
        if self.refused:
            raise together(self.refused)
        return self.changed

    def replace(self, op: Op) -> bool:
        """Types one op. True if it was replaced by others, which now start at the position."""
        if self.may_rewrite and (sequences.forward(op) or _forward_identity(op)):
            return self.rewritten("sequences", op)
        if op.defn.form == "region":
            return self.control(op)
        params = op.defn.params
        for number in range(len(op.inputs)):
            if params and params[min(number, len(params) - 1)].accepts.known:
                self.make_constant(op, number)
        if self.retype or any(v.type is None for v in op.outputs):
            self.enter_body(op)
            self.infer(op)
        if self.may_rewrite and holds_loop(op):
            expand_in_place(op)
            return self.rewritten("decompose", op)
        if self.symbolic and _is_empty_of_open(op):
            return False  # until its operands are found to be right at all sizes
        results = self.known_results(op) if self.may_rewrite else None
        if results is None:
            return self.became_dimensions(op)
        become_constants(op, self.position, results)
        return self.rewritten("fold", op)

    def known_results(self, op: Op) -> list[np.ndarray] | None:
        """The contents of an op's results, if they should become constants."""
        if op.name == "SequenceLength" and op.inputs[0] in self.members:
            return [np.array(len(self.members[op.inputs[0]]), np.int64)]
        return self.contents.fold(op)

    def became_dimensions(self, op: Op) -> bool:
        """Whether an op was arithmetic on dimensions, and has been replaced by its result."""
        if self.dimensions is None or any(v.type is None for v in op.outputs):
            return False
        made = self.dimensions.replacement(op)
        if made is None:
            return False
        assert op.region is not None
        op.region.insert_before(op, made)
        op.output.replace_uses(made.output)
        op.erase()
        return self.rewritten("dimensions", op)

    def member_type(self, op: Op) -> TensorType | None:
        """The type of a member of a sequence that is a parameter."""
        if op.name != "SequenceAt" or op.inputs[0] not in self.members:
            return None
        members, position = self.members[op.inputs[0]], op.inputs[1]
        if position is None or position.constant is None:
            return None
        number = int(position.constant.reshape(-1)[0])
        return members[number] if -len(members) <= number < len(members) else None

    @property
    def may_rewrite(self) -> bool:
        return self.ctx is None or not self.ctx.exhausted

    def rewritten(self, rule: str, op: Op) -> bool:
        """Counts a rewrite; always true."""
        if self.ctx is not None:
            self.ctx.spend(rule, op)
        return True

    def make_constant(self, op: Op, number: int) -> bool:
        """Makes an operand a constant if its contents are known; whether it is one now."""
        value = op.inputs[number] if number < len(op.inputs) else None
        if value is None or not self.contents.known(value):
            return False
        if value.constant is None:
            contents = self.contents.of(value)
            assert contents is not None and op.region is not None
            new = constant_op(contents, value.name, op.loc)
            op.region.insert_before(op, new)
            self.position += 1
            op.set_input(number, new.output)
        return True

    def infer(self, op: Op) -> bool:
        """Types an op; if that is not possible, leaves it untyped and notes what is needed."""
        member = self.member_type(op)
        if member is not None:
            op.output.type = member
            return True
        inexact = next((v for v in op.inputs if v is not None and v in self.inexact), None)
        if is_count(op) or is_corner(op):  # which tell the true shape
            inexact = None
        try:
            if inexact is not None:
                message = f"{op.where()}: the shape of %{inexact.name} is not known"
                raise NeedsValue(message, inexact)
            self.infer_types(op)
        except NeedsValue as error:
            self.leave_untyped(op, error)
            return False
        except UnsupportedError as error:
            if self.refused is None:
                raise
            self.refused.append(error)
            self.untyped[op] = str(error)
            for value in op.outputs:
                value.type = None
            return False
        if "bounded" in op.defn.traits:
            self.inexact.update(op.outputs)
        return True

    def infer_types(self, op: Op) -> None:
        """As infer_op. NeedsValue too if dims that are symbols leave a type open."""
        try:
            infer_op(op)
            if self.symbolic:
                _check_broadcast(op)
        except NeedsValue:
            raise
        except (ModelError, UnsupportedError) as error:
            if not self.symbolic:
                raise
            raise NeedsValue(str(error)) from error

    def leave_untyped(self, op: Op, error: NeedsValue) -> None:
        """Takes the types of an op's results away. A need of no value: known once it has run."""
        for value in op.outputs:
            value.type = None
        self.untyped[op] = str(error)
        if isinstance(error.value, Value):
            error.contents = error.value not in self.inexact and error.value.type is not None
            self.needs.append(Need(op, error))

    # ---------------------------------------------------------------- control flow

    def control(self, op: Op) -> bool:
        """Inlines or unrolls a region op if that is possible and worth it; otherwise types it."""
        decisive = {"If": (0,), "Loop": (0, 1)}.get(op.name, ())
        known = all([self.make_constant(op, n) for n in decisive])
        if op.name == "If" and known and self.may_rewrite:
            return control_flow.inline_if(op) and self.rewritten("inline-if", op)
        if op.name == "Loop" and self.may_rewrite and control_flow.never_runs(op):
            if control_flow.unroll_loop(op):
                return self.rewritten("unroll", op)
        self.sink_constants(op)
        already = not self.retype and all(v.type is not None for v in op.outputs)
        typed = self.enter(op, already)
        if op.name == "If":
            return not typed and self.sinks_users(op)
        if not self.may_rewrite:
            return False
        limit = UNROLL_ANYWAY if typed else control_flow.LIMIT
        if not _UNROLL[op.name](op, limit):
            return False
        self.needs = [need for need in self.needs if need.op is not op]
        return self.rewritten("unroll", op)

    def sinks_users(self, op: Op) -> bool:
        """Puts what follows an If into its branches, if these have results of different types."""
        if not self.may_rewrite or not branches.differ(op):
            return False
        if not branches.sink_users(op):
            return False
        self.untyped.pop(op, None)
        self.needs = [need for need in self.needs if need.op is not op]
        return self.rewritten("sink-users", op)

    def sink_constants(self, op: Op) -> None:
        """Gives the regions of an op their own copies of the constants they capture."""
        own, captures = split_captures(op)
        for number in range(len(op.inputs) - len(captures), len(op.inputs)):
            value = op.inputs[number]
            if value in self.contents.lazy and 0 < value.tensor.size <= self.contents.policy.small:  # type: ignore[union-attr]
                self.make_constant(op, number)
        control_flow.sink_constants(op)

    def enter(self, op: Op, already: bool) -> bool:
        """Types and folds inside the regions of an op, then types its results; whether it could.

        If not, a loop gets its body back as it was: what was folded held for the first trip only.
        """
        saved = [] if already or op.name == "If" else [clone_region(r) for r in op.regions]
        if any(value in self.inexact for value in op.inputs if value is not None):
            return self.infer(op)
        if op.name == "If":
            for region in op.regions:
                for param, value in zip(region.params, op.inputs[1:]):
                    param.type = None if value is None else value.type
        elif not already:
            with suppress(NeedsValue, *self.deferred(op)):
                self.infer_types(op)  # types the parameters; fails if shapes are computed inside
        missing = [self.enter_region(op, region) for region in op.regions]
        self.settle_failures(op)
        if already:
            return True
        try:
            if any(missing):
                raise next(error for error in missing if error is not None)
            self.infer_types(op)
        except NeedsValue as error:
            if op.name == "If" and error.value is None:
                error.value = op.inputs[0]
            self.leave_untyped(op, error)
            self.restore(op, saved)
            return False
        return True

    def enter_body(self, op: Op) -> None:
        """Types and folds inside the graph that a composite op is about."""
        for region in op.regions if not self.symbolic else ():
            for param, value in zip(region.params, op.inputs):
                param.type = None if value is None or value in self.inexact else value.type
            if not any(map(_is_unknown, region.params)):
                inner = TypeInference(None, self.retype, self.ctx, outer=self)
                self.changed |= inner.region(region)

    def deferred(self, op: Op) -> tuple[type[GraphcError], ...]:
        """The errors that a region of an op may have if it is not run: it may not be."""
        return DEFERRED if op.name == "If" or not control_flow.surely_runs(op) else ()

    def settle_failures(self, op: Op) -> None:
        """Types regions that only fail, as far as what is around them tells; raises the error if
        each region does, and one is run."""
        failed = [region for region in op.regions if failure(region)]
        others = [region for region in op.regions if region not in failed]
        if failed and op.name == "If" and not others:
            raise failure(failed[0])  # type: ignore[misc]
        for region in failed:
            known = [v.type for v in others[0].results] if others else None
            fail_with_types(region, known or control_flow.types_without_trips(op))

    def restore(self, op: Op, regions: list[Region]) -> None:
        """Gives an op these regions instead of those it has."""
        for old, new in zip(op.regions, regions):
            old.set_results([])
            new.owner = op
        op.regions = regions or op.regions

    def enter_region(self, op: Op, region: Region) -> NeedsValue | None:
        """Treats a region of an op; what its results' types need that is known only outside."""
        if failure(region) or any(_is_unknown(param) for param in region.params):
            return None  # typing the op says what is needed
        inner = TypeInference(None, self.retype, self.ctx, self, dimensions=self.dimensions)
        outer_values = list(zip(reversed(region.params), reversed(op.inputs)))[: _captured(op)]
        if self.dimensions is not None:
            self.dimensions.enter(region, outer_values)
        inner.members = {p: self.members[v] for p, v in outer_values if v in self.members}  # type: ignore[index]
        try:
            self.changed |= inner.region(region)
        except NeedsValue:
            raise
        except self.deferred(op) as wrong:
            fail_instead(region, wrong, [v.name for v in region.results])
            return None
        inexact = [v for v in region.results if v in self.inexact]
        if self.symbolic and inner.untyped and not inner.needs:
            return NeedsValue(next(iter(inner.untyped.values())))
        if not inner.needs and not inexact:
            return None
        message = str(inner.needs[0].error) if inner.needs else "a result's shape depends on data"
        wanted = inner.needs[0].error.value if inner.needs else None
        captures = dict(outer_values)
        error = NeedsValue(message, captures.get(wanted) if isinstance(wanted, Value) else None)
        error.located = True
        return error


def _check_broadcast(op: Op) -> None:
    """ModelError if operands are broadcast by dims that differ, and any of which may be 1."""
    if op.defn.form != "elementwise" and op.name != "MatMul":
        return
    shapes = [v.tensor.dims for v in op.inputs if v is not None]
    if op.name == "MatMul":
        shapes = [shape[:-2] for shape in shapes]
    for dims in zip_longest(*map(reversed, shapes), fillvalue=1):
        unknown = list(dict.fromkeys(d for d in dims if not isinstance(d, int)))
        if len(unknown) > 1 and all(d == 1 for d in dims if isinstance(d, int)):
            raise ModelError(f"{op.where()}: one of {', '.join(map(str, unknown))} may be 1")


def _forward_identity(op: Op) -> bool:
    """Replaces the copy of a sequence or optional by the original."""
    if op.name != "Identity" or not isinstance(op.inputs[0].type, (SequenceType, OptionalType)):  # type: ignore[union-attr]
        return False
    op.output.replace_uses(op.inputs[0])  # type: ignore[arg-type]
    op.erase()
    return True


def _is_empty_of_open(op: Op) -> bool:
    """Whether the results of an op are empty, and it reads an operand of open size."""
    if not is_static(op) or any(v.tensor.size for v in op.outputs):
        return False
    read = [op.inputs[number] for number in operands_read(op)]
    return any(v is not None and v.is_ranked and not v.tensor.is_static for v in read)


def _captured(op: Op) -> int:
    return len(split_captures(op)[1])


def _is_unknown(value: Value) -> bool:
    return value.type is None or (isinstance(value.type, TensorType) and value.type.shape is None)


def become_constants(op: Op, position: int, arrays: list[np.ndarray]) -> None:
    """Puts constants in the place of an op."""
    region = op.region
    assert region is not None
    made = []
    for value, array in zip(op.outputs, arrays):
        constant = constant_op(array, value.name, op.loc)
        if value.layout is not None:
            constant.output.type = constant.output.tensor.with_layout(value.layout)
        constant.region = region
        value.replace_uses(constant.output)
        made.append(constant)
    op.drop_inputs()
    op.region = None
    region.ops[position : position + 1] = made


_UNROLL = {
    "Loop": control_flow.unroll_loop,
    "Scan": control_flow.unroll_scan,
    "SequenceMap": control_flow.unroll_sequence_map,
}
