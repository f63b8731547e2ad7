"""The graph IR: mutable SSA over tensors.

A `Region` has parameters, a list of `Op`s in execution order and a terminator whose operands are
its results. It is isolated from above: ops use only values of their own region, so an outer value
that a sub-graph needs is an operand of its op and a parameter of its region. A `Graph` is the
outermost region with a name and named dimension symbols.

Invariant kept by every method here: `value.uses` lists exactly the (op, operand number) pairs
that refer to the value, and each op of a region knows its region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from graphc.errors import InternalError
from graphc.ir import dtypes
from graphc.ir.expr import Sym
from graphc.ir.opdef import CONSTANT, YIELD, OpDef, lookup
from graphc.ir.phases import PHASES
from graphc.ir.types import Layout, TensorType, Type, described

SIZES = "Sizes"  # of domain graphc: the operator that gives dimensions
NEAR = 512  # places around the last known one where an op is looked for before all are numbered


class Value:
    """An SSA value: result `index` of `producer`, or a parameter of a region (producer None).

    `uses` has (op, operand number) pairs for keys, in order of first use: a weight that all layers
    share loses one of them as fast as any other value.
    """

    __slots__ = ("type", "producer", "index", "uses", "name")

    def __init__(
        self, type: Type | None, producer: Op | None = None, index: int = 0, name: str = ""
    ):
        self.type, self.producer, self.index, self.name = type, producer, index, name
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def tensor(self) -> TensorType:
        """The type, known to be a tensor's."""
        if not isinstance(self.type, TensorType):
            raise InternalError(f"%{self.name} is {self.type}, not a tensor")
        return self.type

    @property
    def is_ranked(self) -> bool:
        """Whether this is a tensor of known rank; not while its type is not known."""
        return isinstance(self.type, TensorType) and self.type.shape is not None

    @property
    def is_static(self) -> bool:
        """Whether this is a tensor of which all dims are known; not while its type is not."""
        return isinstance(self.type, TensorType) and self.type.is_static

    @property
    def layout(self) -> Layout | None:
        """The layout of a tensor; None if it is row-major, or no tensor."""
        return self.type.layout if isinstance(self.type, TensorType) else None

    @property
    def constant(self) -> np.ndarray | None:
        """The contents if this is a constant."""
        producer = self.producer
        if producer is None or producer.name != "Constant":
            return None
        return producer.attrs["value"]

    @property
    def known(self) -> np.ndarray | None:
        """The contents as far as types may depend on them: those of a constant, or dimensions,
        which may be expressions (ir/ops/sizes.py)."""
        producer = self.producer
        if producer is None or producer.name != SIZES:
            return self.constant
        dims = np.empty(len(producer.attrs["dims"]), object)
        dims[:] = producer.attrs["dims"]
        return dims.reshape(producer.attrs["shape"])

    @property
    def users(self) -> list[Op]:
        """The distinct ops that use the value, in order of first use."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def replace_uses(self, new: Value) -> None:
        """Makes every use of this value a use of `new`."""
        for op, position in list(self.uses):
            op.set_input(position, new)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Op:
    """One operation. `inputs` may hold None for an omitted optional operand.

    `loc` names the ONNX nodes this op came from, through every rewrite. `memo` keeps what others
    derive from the definition and the operands (its body); it is forgotten when these change.
    `schedule`, where there is one, is how its kernel is to be made (passes/schedule/steps.py).
    """

    __slots__ = (
        "defn", "inputs", "outputs", "attrs", "regions", "loc", "region", "memo", "schedule",
        "_place",
    )  # fmt: skip

    def __init__(
        self,
        defn: OpDef,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any] | None = None,
        outputs: int = 1,
        regions: Sequence[Region] = (),
        loc: tuple[str, ...] = (),
    ):
        self.defn, self.attrs, self.loc = defn, dict(attrs or {}), tuple(loc)
        self.inputs: list[Value | None] = []
        self.outputs = [Value(None, self, k) for k in range(outputs)]
        self.regions = list(regions)
        self.region: Region | None = None
        self.memo: dict = {}
        self.schedule = ""
        self._place = 0  # where it was last seen in its region: see Region.place
        for region in self.regions:
            region.owner = self
        for value in inputs:
            self.add_input(value)

    @property
    def name(self) -> str:
        return self.defn.name

    def operand(self, position: int) -> Value:
        """An operand that is known to be there."""
        value = self.inputs[position]
        assert value is not None, f"operand {position} of {self.name} is omitted"
        return value

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    @property
    def is_typed(self) -> bool:
        """Whether the types of all operands and results are known: else nothing is derived."""
        for value in self.outputs:  # a generator takes longer, and this is asked very often
            if value.type is None:
                return False
        return not any([v is not None and v.type is None for v in self.inputs])

    def add_input(self, value: Value | None) -> None:
        """One more operand, after the others; None if it is left out."""
        self.inputs.append(value)
        if value is not None:
            value.uses[self, len(self.inputs) - 1] = None
        self.memo.clear()

    def set_input(self, position: int, value: Value | None) -> None:
        """Another operand in a position that there is."""
        old = self.inputs[position]
        if old is not None:
            del old.uses[self, position]
        self.inputs[position] = value
        if value is not None:
            value.uses[self, position] = None
        if not _is_alike(old, value):
            self.memo.clear()

    def set_inputs(self, values: Sequence[Value | None]) -> None:
        """Replaces all operands."""
        self.drop_inputs()
        for value in values:
            self.add_input(value)

    def drop_inputs(self) -> None:
        """Takes all operands away, and so the uses of these values."""
        for position, value in enumerate(self.inputs):
            if value is not None:
                del value.uses[self, position]
        self.inputs = []
        self.memo.clear()

    def erase(self) -> None:
        """Removes the op; its outputs must have no uses left."""
        if any(v.uses for v in self.outputs):
            raise InternalError(f"cannot erase {self}: its results are still used")
        self.drop_inputs()
        if self.region is not None:
            del self.region.ops[self.region.place(self)]
            self.region = None

    def where(self) -> str:
        """The op for messages, by the user's own names: `Conv "conv1"`."""
        return f'{self.name} "{self.loc[0]}"' if self.loc else self.name

    def __repr__(self) -> str:
        outs = ", ".join(f"%{v.name}" for v in self.outputs)
        ins = ", ".join("none" if v is None else f"%{v.name}" for v in self.inputs)
        return f"{outs} = {self.name}({ins})"


class Region:
    """Parameters, ops in execution order, and results (the operands of the terminator)."""

    def __init__(self, params: Iterable[Value] = ()):
        self.params: list[Value] = list(params)
        self.ops: list[Op] = []
        self.owner: Op | None = None
        self.terminator = Op(YIELD, (), outputs=0)
        self.terminator.region = self

    @property
    def results(self) -> list[Value]:
        """The values that the region returns, in order."""
        return self.terminator.inputs  # type: ignore[return-value]

    def set_results(self, values: Sequence[Value]) -> None:
        """Other results, in place of all there were."""
        self.terminator.set_inputs(values)

    def add_param(self, type: Type | None, name: str = "") -> Value:
        """A new last parameter; None if its type is not known."""
        value = Value(type, None, len(self.params), name)
        self.params.append(value)
        return value

    def append(self, op: Op) -> Op:
        """Adds an op, which is in no region, at the end; returns it."""
        op.region, op._place = self, len(self.ops)
        self.ops.append(op)
        return op

    def place(self, op: Op) -> int:
        """The position of an op in `ops`; ValueError if it is not there.

        An op remembers where it was seen last and is looked for near there; if changes have moved
        it farther, all ops are told their places. That takes so many changes that a change costs
        little in graphs of any size.
        """
        ops, last = self.ops, op._place
        if not (last < len(ops) and ops[last] is op):
            try:
                op._place = ops.index(op, max(0, last - NEAR), last + NEAR)
            except ValueError:
                for place, member in enumerate(ops):
                    member._place = place
        return op._place if ops[op._place] is op else ops.index(op)

    def after(self, op: Op) -> Op | None:
        """The op that follows another; None if that is the last."""
        place = self.place(op) + 1
        return self.ops[place] if place < len(self.ops) else None

    def insert_before(self, anchor: Op | None, op: Op) -> Op:
        """Inserts before `anchor` (None, or the terminator: at the end)."""
        if anchor is None or anchor is self.terminator:
            return self.append(op)
        op.region, op._place = self, self.place(anchor)
        self.ops.insert(op._place, op)
        anchor._place = op._place + 1
        return op

    def walk(self) -> Iterator[Op]:
        """Every op, sub-regions included, outer before inner."""
        for op in list(self.ops):
            yield op
            for region in op.regions:
                yield from region.walk()

    def values(self) -> Iterator[Value]:
        """Parameters and results of ops of this region alone."""
        yield from self.params
        for op in self.ops:
            yield from op.outputs


class Graph(Region):
    """The outermost region: `params` are the model's inputs, `results` its outputs.

    `output_names` are the names of the outputs for the user (the SSA name of a result may differ,
    e.g. when one value is returned twice). `symbols` are its dimension symbols. `phase` is one
    of `phases.PHASES`.
    """

    def __init__(self, name: str = "main", params: Iterable[Value] = ()):
        super().__init__(params)
        self.name = name
        self.symbols: dict[str, Sym] = {}
        self.output_names: list[str] = []
        self.output_types: list[Type | None] = []
        self.phase = "imported"

    def reached(self, phase: str) -> bool:
        """Whether it is in this phase or a later one."""
        return PHASES.index(self.phase) >= PHASES.index(phase)

    @property
    def is_optimised(self) -> bool:
        """Whether passes have taken it beyond the phase `typed`."""
        return self.phase != "typed" and self.reached("typed")

    def __deepcopy__(self, memo: Any) -> Graph:
        return clone_graph(self)

    def __reduce__(self) -> Any:
        """As text and large constants, so that pickling does not recurse as deep as ops go."""
        from graphc.ir.text.parser import parse_graph
        from graphc.ir.text.printer import graph_constants  # which takes them apart

        return parse_graph, (str(self), graph_constants(self))

    @property
    def inputs(self) -> list[Value]:
        """The model's inputs: the parameters of the region."""
        return self.params

    @property
    def outputs(self) -> list[Value]:
        """The model's outputs: the results of the region."""
        return self.results

    def named_results(self) -> list[tuple[str, Value]]:
        """The outputs by name. Those of a graph that names none go by the names of their values,
        made distinct."""
        names = self.output_names
        for position, value in enumerate(self.results[len(names) :]):
            wish = value.name or f"output{position}"
            number = 0
            while (name := f"{wish}.{number}" if number else wish) in names:
                number += 1
            names = [*names, name]
        return list(zip(names, self.results))

    def __repr__(self) -> str:
        """In one line; `str` is the whole text."""
        ins = ", ".join(described(param.name, param.type) for param in self.params)
        outs = ", ".join(described(name, value.type) for name, value in self.named_results())
        return f"<graphc.Graph {self.name} of {len(self.ops)} ops: ({ins}) -> ({outs})>"

    def __str__(self) -> str:
        from graphc.ir.text.printer import print_graph  # which takes them apart

        return print_graph(self)

    def __eq__(self, other: object) -> bool:
        from graphc.ir.text.printer import print_graph  # which takes them apart

        if not isinstance(other, Graph):
            return NotImplemented
        return print_graph(self) == print_graph(other) and _constants_equal(self, other)

    __hash__ = object.__hash__


def _constants_equal(a: Region, b: Region) -> bool:
    left = [op.attrs["value"] for op in a.walk() if op.name == "Constant"]
    right = [op.attrs["value"] for op in b.walk() if op.name == "Constant"]
    return len(left) == len(right) and all(same_array(x, y) for x, y in zip(left, right))


def same_array(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal dtype, shape and bits (so that NaN equals NaN, and 0 differs from -0)."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind == "O":
        return bool((x == y).all())
    return x is y or x.tobytes() == y.tobytes()


def clone_region(region: Region, into: Region | None = None) -> Region:
    """A deep copy, with its own values (array constants are shared)."""
    copy = into if into is not None else Region()
    mapping: dict[Value, Value] = {}
    for param in region.params:
        mapping[param] = copy.add_param(param.type, param.name)
    copy_ops(region, copy, mapping)
    copy.set_results([mapping[v] for v in region.results])
    return copy


def copy_ops(
    source: Region, target: Region, mapping: dict[Value, Value], before: Op | None = None
) -> None:
    """Copies the ops of `source` into `target`; `mapping` maps values, and is extended."""
    for op in source.ops:
        copy_op(op, target, mapping, before)


def copy_op(op: Op, target: Region, mapping: dict[Value, Value], before: Op | None = None) -> Op:
    """A copy of an op in `target`; `mapping` maps its operands, and is extended."""
    inputs = [None if v is None else mapping[v] for v in op.inputs]
    regions = [clone_region(r) for r in op.regions]
    new = Op(op.defn, inputs, op.attrs, len(op.outputs), regions, op.loc)
    new.schedule = op.schedule
    for old_value, new_value in zip(op.outputs, new.outputs):
        new_value.type, new_value.name = old_value.type, old_value.name
        mapping[old_value] = new_value
    if all(map(_is_alike, op.inputs, inputs)):
        new.memo.update(op.memo)
    target.insert_before(before, new)
    return new


def _is_alike(one: Value | None, other: Value | None) -> bool:
    """Whether the same can be derived from two operands: they have one type and, if they are known,
    the same contents."""
    if one is other or one is None or other is None:
        return one is other
    return one.type == other.type and one.known is other.known


def clone_graph(graph: Graph) -> Graph:
    """A deep copy of a graph (array constants are shared, not copied)."""
    copy = Graph(graph.name)
    clone_region(graph, copy)
    copy.symbols, copy.phase = dict(graph.symbols), graph.phase
    copy.output_names, copy.output_types = list(graph.output_names), list(graph.output_types)
    return copy


def constant_op(array: np.ndarray, name: str = "", loc: tuple[str, ...] = ()) -> Op:
    """A Constant op that holds `array` (its output typed)."""
    array = np.asarray(array)
    op = Op(CONSTANT, (), {"value": array}, loc=loc)
    op.output.type = TensorType(dtypes.of(array.dtype), tuple(map(int, array.shape)))
    op.output.name = name
    return op


def sizes_op(dims: np.ndarray, name: str = "", loc: tuple[str, ...] = ()) -> Op:
    """An op that gives an array of dimensions, integers and expressions (its output typed)."""
    attrs = {"dims": tuple(dims.reshape(-1)), "shape": dims.shape}
    op = Op(lookup(SIZES, "graphc"), (), attrs, loc=loc)
    op.output.type = TensorType(dtypes.i64, dims.shape)
    op.output.name = name
    return op
