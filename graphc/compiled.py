"""A compiled model as the user sees it: specialised to the shapes (and small values) it is given.

`CompiledModel.run` looks up an executable for the shapes of its inputs, and makes one the first time.
When a type depends on the contents of inputs (a Reshape's shape), those inputs join the key and the
graph is specialised to their values. When it depends on data computed inside, or an op has to run on
the host (strings, sequences, control flow on data), the graph is cut there: the part before runs,
then the rest is a model of its own, specialised in turn when its inputs are known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from graphc.errors import ModelError, NeedsValue
from graphc.ir import control, dtypes
from graphc.ir.graph import Graph, Op, Region, Value, clone_graph
from graphc.ir.interp import run_op
from graphc.ir.types import OptionalType, SequenceType, TensorType, Type
from graphc.passes.specialise import cut, needed_inputs, specialise
from graphc.passes.structure import has_body

MAX_BOUND_ELEMENTS = 1024  # inputs up to this size may be specialised on by value
MAX_SPECIALISATIONS = 64  # the least recently used executable is dropped beyond this

Executable = Callable[[Sequence[Any]], list[Any]]
CompileStatic = Callable[[Graph], Executable]


@dataclass(frozen=True)
class Spec:
    """An input or output: its name and type; dims may be symbols, or unknown for outputs."""

    name: str
    type: Type | None

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype.np if isinstance(self.type, TensorType) else np.dtype(object)

    @property
    def shape(self) -> tuple | None:
        return self.type.shape if isinstance(self.type, TensorType) else None


class CompiledModel:
    """A model ready to run. Safe to use from several threads."""

    def __init__(self, graph: Graph, compile_static: CompileStatic, native: Callable[[Op], bool]):
        self.graph, self._compile, self._native = graph, compile_static, native
        self._bound: dict[str, None] = {}  # inputs specialised on by value, in order found
        self._cache: OrderedDict[tuple, Executable] = OrderedDict()
        self._lock = RLock()
        self.inputs = [Spec(p.name, p.type) for p in graph.params]
        self.outputs = [Spec(n, v.type) for n, v in zip(graph.output_names, graph.results)]
        self._names = [p.name for p in graph.params]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """run(...) with arrays by position or name."""
        return self.run(kwargs if kwargs else args[0] if len(args) == 1 else list(args))

    def run(self, feeds: Mapping[str, Any] | Sequence[Any] | np.ndarray) -> list[Any]:
        """Outputs as numpy arrays (lists for sequences) for inputs by name or in order."""
        values = self._values(feeds)
        key = self._key(values)
        executable = self._cache.get(key)
        if executable is None:
            executable = self._specialised(values)
        return executable(values)

    def prepare(self) -> bool:
        """Compiles now if the shapes of the inputs are fixed; whether the model is ready to run.

        False: something depends on what the inputs hold, and is compiled at the first run.
        """
        types = [spec.type for spec in self.inputs]
        if not all(isinstance(t, TensorType) and t.is_static for t in types):
            return False
        with self._lock:
            key = tuple([t.static_shape for t in types])  # type: ignore[union-attr]
            if key in self._cache:
                return True
            try:
                graph = specialise(self.graph)
            except NeedsValue:
                return False
            if not all(self._native(op) for op in graph.ops):
                return False
            self._cache[key] = self._compile(graph)
        return True

    # ---------------------------------------------------------------- inputs

    def _values(self, feeds: Any) -> list[Any]:
        if isinstance(feeds, Mapping):
            names = self._names
            if len(feeds) != len(names) or any(n not in feeds for n in names):
                _explain_names(names, feeds)
            feeds = [feeds[n] for n in names]
        elif isinstance(feeds, np.ndarray):
            feeds = [feeds]
        if len(feeds) != len(self.inputs):
            raise ModelError(f"expected {len(self.inputs)} inputs {self._names}, found {len(feeds)}")
        return [
            v if type(v) is np.ndarray and v.dtype is spec.dtype else checked(v, spec)
            for v, spec in zip(feeds, self.inputs)
        ]

    def _key(self, values: list[Any]) -> tuple:
        key = tuple([v.shape if type(v) is np.ndarray else _shape_key(v) for v in values])
        if self._bound:
            contents = [_contents_key(values[self._names.index(n)]) for n in self._bound]
            return (key, *contents)
        return key

    # ---------------------------------------------------------------- specialising

    def _specialised(self, values: list[Any]) -> Executable:
        with self._lock:
            key = self._key(values)
            found = self._cache.get(key)
            if found is None:
                found = self._build(values)
                self._cache[self._key(values)] = found
                while len(self._cache) > MAX_SPECIALISATIONS:
                    self._cache.popitem(last=False)
            return found

    def _build(self, values: list[Any]) -> Executable:
        while True:
            bound = {n: values[self._names.index(n)] for n in self._bound}
            shapes = {n: _shape_of(v) for n, v in zip(self._names, values)}
            try:
                graph = specialise(self.graph, shapes, bound)
            except NeedsValue as error:
                if self._bind(error, values):
                    continue
                return self._staged(error.graph, _operand_producer(error))  # type: ignore[attr-defined]
            obstacle = next((op for op in graph.ops if not self._native(op)), None)
            if obstacle is None:
                return self._compile(graph)
            return self._around(graph, obstacle)

    def _bind(self, error: NeedsValue, values: list[Any]) -> bool:
        """Adds the inputs that a needed value comes from to those specialised on, if they can be."""
        if not isinstance(error.value, Value) or not getattr(error, "contents", True):
            return False
        wanted = [p.name for p in needed_inputs(error.graph, error.value)]  # type: ignore[attr-defined]
        new = [n for n in wanted if n not in self._bound]
        if not new or any(not _bindable(values[self._names.index(n)]) for n in new):
            return False
        self._bound.update(dict.fromkeys(new))
        return True

    def _staged(self, graph: Graph, value: Value) -> Executable:
        """Runs the part that yields `value`, then a model of the rest."""
        producer = value.producer
        if producer is not None and not self._native(producer):
            return self._around(graph, producer)
        first, rest = cut(graph, value)
        return Stages(self._model(first), self._model(rest))

    def _around(self, graph: Graph, op: Op) -> Executable:
        """Runs what `op` needs, the op itself on the host, then a model of the rest."""
        return HostStep.make(graph, op, self._model)

    def _model(self, graph: Graph) -> CompiledModel:
        return CompiledModel(graph, self._compile, self._native)


def _operand_producer(error: NeedsValue) -> Value:
    assert isinstance(error.value, Value)
    return error.value


@dataclass
class Stages:
    """Two models in turn: the second gets the inputs and the results of the first."""

    first: CompiledModel
    rest: CompiledModel

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        return self.rest.run([*values, *self.first.run(list(values))])


@dataclass
class HostStep:
    """An op that runs on the host, between a model of what it needs and a model of the rest."""

    before: CompiledModel
    op: Op
    operands: list[int | None]
    kept: int
    after: CompiledModel
    bodies: dict[Region, CompiledModel]

    @staticmethod
    def make(graph: Graph, op: Op, model: Callable[[Graph], CompiledModel]) -> HostStep:
        graph = clone_with(graph, op)
        op = graph.marked  # type: ignore[attr-defined]
        needed = list(dict.fromkeys(v for v in op.inputs if v is not None))
        position = graph.ops.index(op)
        earlier = _ancestors(needed)
        crossing = [
            v for o in graph.ops[:position] if o in earlier for v in o.outputs
            if v.constant is None and any(u is not op and u not in earlier for u in v.users)
            or v in needed
        ]  # fmt: skip
        crossing = list(dict.fromkeys([*needed, *crossing]))
        before = _subgraph(graph, [o for o in graph.ops if o in earlier], [], crossing)
        rest_ops = [o for o in graph.ops if o not in earlier and o is not op]
        constants = [o for o in graph.ops if o in earlier and o.name == "Constant"]
        extra = [v for v in crossing if v.constant is None] + list(op.outputs)
        after = _subgraph(graph, [*constants, *rest_ops], extra, graph.results)
        after.output_names = list(graph.output_names)
        operands = [None if v is None else crossing.index(v) for v in op.inputs]
        bodies = {r: model(region_graph(r)) for r in op.regions}
        step = HostStep(model(before), op, operands, 0, model(after), bodies)
        step.passed = [n for n, v in enumerate(crossing) if v.constant is None]  # type: ignore
        return step

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        crossing = self.before.run(list(values))
        arguments = [None if n is None else crossing[n] for n in self.operands]
        if self.op.defn.form == "region":
            results = control.RUN[self.op.name](self.op, arguments, self._run_region)
        else:
            results = run_op(self.op, arguments)
        passed = [crossing[n] for n in self.passed]  # type: ignore[attr-defined]
        return self.after.run([*values, *passed, *results])

    def _run_region(self, region: Region, arguments: Sequence[Any]) -> list[Any]:
        return self.bodies[region].run(list(arguments))


def clone_with(graph: Graph, op: Op) -> Graph:
    """A copy of a graph; `copy.marked` is the copy of `op`."""
    position = graph.ops.index(op)
    copy = clone_graph(graph)
    copy.marked = copy.ops[position]  # type: ignore[attr-defined]
    return copy


def _ancestors(values: Sequence[Value]) -> set[Op]:
    found: set[Op] = set()
    stack = list(values)
    while stack:
        producer = stack.pop().producer
        if producer is not None and producer not in found:
            found.add(producer)
            stack.extend(v for v in producer.inputs if v is not None)
    return found


def _subgraph(graph: Graph, ops: Sequence[Op], extra: Sequence[Value], results) -> Graph:
    """A graph of copies of some ops; `extra` values become parameters after the graph's own."""
    from graphc.ir.graph import copy_ops
    from graphc.passes.dce import remove_dead

    part = Graph(graph.name)
    part.phase = graph.phase
    mapping = {p: part.add_param(p.type, p.name) for p in graph.params}
    for number, value in enumerate(extra):
        mapping[value] = part.add_param(_open_type(value.type), f"{value.name or 'v'}.carried{number}")
    source = Region()
    source.ops = list(ops)
    copy_ops(source, part, mapping)
    part.set_results([mapping[v] for v in results])
    part.output_names = [f"result{n}" for n in range(len(results))]
    remove_dead(part)
    return part


def _open_type(type: Type | None) -> Type | None:
    """The type of a value that is carried into a later stage, its dims left open."""
    return TensorType(type.dtype, None) if isinstance(type, TensorType) else type


def region_graph(region: Region) -> Graph:
    """A region of a control flow op as a graph."""
    from graphc.ir.graph import clone_region

    graph = Graph("body")
    clone_region(region, graph)
    for number, param in enumerate(graph.params):
        param.name = param.name or f"p{number}"
        param.type = _open_type(param.type)
    names = [p.name for p in graph.params]
    if len(set(names)) < len(names):
        for number, param in enumerate(graph.params):
            param.name = f"p{number}.{param.name}"
    graph.output_names = [f"result{n}" for n in range(len(graph.results))]
    return graph


# ---------------------------------------------------------------- values


def checked(value: Any, spec: Spec) -> Any:
    """An input as its declared type asks for; ModelError says what was required and found."""
    type_ = spec.type
    if isinstance(type_, OptionalType):
        return None if value is None else checked(value, Spec(spec.name, type_.element))
    if isinstance(type_, SequenceType):
        if not isinstance(value, (list, tuple)):
            raise ModelError(f"input {spec.name!r} takes a list of arrays, found {type(value).__name__}")
        return [checked(v, Spec(spec.name, type_.element)) for v in value]
    if type_ is None:
        return value if isinstance(value, list) or value is None else np.asarray(value)
    if value is None:
        raise ModelError(f"input {spec.name!r} is required, found None")
    array = np.asarray(value)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != type_.dtype.np:
        if isinstance(value, np.ndarray) or array.dtype.kind == "O":
            raise ModelError(f"input {spec.name!r} takes {type_.dtype.np}, found {array.dtype}")
        array = array.astype(type_.dtype.np)
    shape = type_.shape
    if shape is not None and (
        len(shape) != array.ndim
        or any(isinstance(d, int) and d != e for d, e in zip(shape, array.shape))
    ):
        raise ModelError(f"input {spec.name!r} takes shape {list(map(str, shape))}, found {array.shape}")
    return array if array.dtype is spec.dtype else array.view(spec.dtype)


def _explain_names(names: list[str], feeds: Mapping[str, Any]) -> None:
    missing = [n for n in names if n not in feeds]
    unknown = [n for n in feeds if n not in names]
    parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
    raise ModelError(f"inputs are {names}: {', '.join(parts)}")


def _shape_of(value: Any) -> Any:
    if value is None:
        return None
    return [_shape_of(v) for v in value] if isinstance(value, list) else np.shape(value)


def _shape_key(value: Any) -> Any:
    if isinstance(value, list):
        return ("seq", *(_shape_key(v) for v in value))
    if value is None:
        return None
    return (np.shape(value), dtypes.of(np.asarray(value).dtype).name)


def _contents_key(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_contents_key(v) for v in value)
    if value is None:
        return None
    array = np.asarray(value)
    return tuple(array.reshape(-1)) if array.dtype.kind == "O" else array.tobytes()


def _bindable(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size <= MAX_BOUND_ELEMENTS


def natively(op: Op) -> bool:
    """Whether an op can be part of a native program."""
    if op.name == "Constant":
        return isinstance(op.output.type, TensorType) and op.output.type.dtype.kind != "string"
    tensors = all(
        isinstance(v.type, TensorType) and v.type.dtype.kind not in ("string", "complex")
        for v in (*op.outputs, *(x for x in op.inputs if x is not None))
    )
    if op.defn.form == "imperative":
        return tensors and "bounded" not in op.defn.traits
    return tensors and (op.defn.form == "composite" or has_body(op))
