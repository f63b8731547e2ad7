"""Building graphs in Python.

    from graphc import dsl

    @dsl.graph
    def classify(image: dsl.f32["N", 784]):
        hidden = dsl.Relu(image @ w1 + b1)
        return {"scores": dsl.Softmax(hidden @ w2 + b2, axis=-1)}

    model = graphc.compile(classify, shapes={"image": (8, 784)})

Every operator is a function of its name, `dsl.Conv(x, w, pads=[1, 1, 1, 1])`, or of its full name,
`dsl.op("ai.onnx.ml.Scaler", x, scale=[2.0])`. Tensors have Python's operators and numpy's
indexing. Arrays and numbers may stand for tensors anywhere. Control flow is written with
functions, `cond`, `loop` and `scan`, which may use tensors from outside. Layers are named by
`name=`; without it a layer is known by the line that made it, in errors too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, get_origin

from graphc.errors import ModelError, did_you_mean
from graphc.frontend import dsl_audio as audio  # noqa: F401  (dsl.audio)
from graphc.frontend import dsl_trace as trace
from graphc.frontend.dsl_tensor import Tensor, apply, constant
from graphc.frontend.scope import share_captures
from graphc.ir import dtypes, opdef
from graphc.ir.dtypes import DType
from graphc.ir.expr import Expr, Sym
from graphc.ir.graph import Graph, Region, Value
from graphc.ir.types import OptionalType, SequenceType, TensorType, Type

op = apply

OPEN = "?"  # stands for the name of a dimension until its input is declared


# ---------------------------------------------------------------- types


class ElementType:
    """An element type; `dsl.f32[2, "N"]` is a tensor type, `dsl.f32[()]` that of a scalar.

    Extents are numbers, symbol names, `"N: 1..8"` for a bounded symbol, or None where unknown.
    """

    def __init__(self, dtype: DType):
        self.dtype = dtype

    def __getitem__(self, dims: Any) -> TensorType:
        dims = dims if isinstance(dims, tuple) else (dims,)
        return TensorType(self.dtype, tuple(_dim(d) for d in dims))

    def __repr__(self) -> str:
        return f"dsl.{self.dtype}"


if TYPE_CHECKING:  # __getattr__ makes them
    string: ElementType
    f32: ElementType
    f64: ElementType
    f16: ElementType
    bf16: ElementType
    i8: ElementType
    i16: ElementType
    i32: ElementType
    i64: ElementType
    u8: ElementType
    u16: ElementType
    u32: ElementType
    u64: ElementType
    c64: ElementType
    c128: ElementType


def _dim(dim: Any) -> int | Expr:
    if isinstance(dim, str):
        parts = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*(?::\s*(\d+)\s*\.\.\s*(\d+)\s*)?", dim)
        if parts is None:
            raise ModelError(f"{dim!r} is no dimension; write 'N' or 'N: 1..8'")
        name, low, high = parts.groups()
        return Sym(name, int(low or 0), None if high is None else int(high))
    if dim is None:
        return Sym(OPEN)
    if isinstance(dim, (int, Expr)) and not isinstance(dim, bool):
        return dim
    raise ModelError(f"{dim!r} is no dimension")


def dim(name: str, lo: int = 0, hi: int | None = None) -> Sym:
    """A symbolic dimension of lo..hi (hi None: unbounded), for use in types."""
    return Sym(name, lo, hi)


def sequence(element: Type) -> SequenceType:
    """The type of a sequence."""
    return SequenceType(element)


def optional(element: TensorType | SequenceType) -> OptionalType:
    """The type of a value that may be absent."""
    return OptionalType(element)


# ---------------------------------------------------------------- graphs


class Building:
    """A graph being built; see `building`."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def input(self, name: str, type: Type | ElementType) -> Tensor:
        """A new input."""
        if isinstance(type, ElementType):
            type = type[()]
        if not isinstance(type, (TensorType, SequenceType, OptionalType)):
            raise ModelError(f"input {name!r} needs a type such as dsl.f32[2, 3], found {type!r}")
        if any(p.name == name for p in self.graph.params):
            raise ModelError(f"there is an input {name!r} already")
        frame = trace.current()
        if frame.region is not self.graph:
            raise ModelError(f"input {name!r} is declared inside a branch or loop")
        return Tensor(frame.add_param(self._registered(type, name), name))

    def _registered(self, type: Type, owner: str) -> Type:
        """The type with its symbols entered into the graph's table."""
        if not isinstance(type, TensorType):
            return type
        dims = []
        for position, dim in enumerate(type.dims):
            if isinstance(dim, Sym):
                if dim.name == OPEN:
                    dim = Sym(f"{owner}_dim{position}")
                known = self.graph.symbols.setdefault(dim.name, dim)
                if known is not dim and (dim.lo, dim.hi) != (0, None):
                    raise ModelError(f"dimension {dim.name} has two different bounds")
                dim = known
            dims.append(dim)
        return type.with_shape(dims)

    def output(self, **tensors: Any) -> None:
        """Adds outputs by name."""
        for name, tensor in tensors.items():
            if name in self.graph.output_names:
                raise ModelError(f"there is an output {name!r} already")
            value = _value(tensor)
            if (
                not value.name
                or value.producer is not None
                and value.producer.loc[:1] != (value.name,)
            ):
                value.name = name
            self.graph.terminator.add_input(value)
            self.graph.output_names.append(name)


@contextmanager
def building(name: str = "main") -> Iterator[Building]:
    """`with dsl.building("stem") as g:` builds `g.graph`, by `g.input(...)` and `g.output(...)`."""
    graph = Graph(name)
    with trace.inside(graph, nested=False):
        yield Building(graph)
    if not graph.results:
        raise ModelError(f"graph {name!r} has no outputs")


def graph(function: Callable | None = None, *, name: str = "", outputs: Sequence[str] = ()) -> Any:
    """Decorator that makes a function a Graph. Its parameters are the inputs, annotated with types;
    it returns a tensor, several, or a dict of named ones. `outputs` names those without names.

    What type checkers take for the type of a parameter is `Annotated[dsl.Tensor, dsl.f32["N", 4]]`;
    here it is the same as `dsl.f32["N", 4]`."""
    if function is None:
        return lambda f: graph(f, name=name, outputs=outputs)
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    with building(name or function.__name__) as made:
        arguments = []
        for parameter in parameters:
            if parameter.annotation is parameter.empty:
                raise ModelError(f"parameter {parameter.name!r} of {function.__name__} has no type")
            arguments.append(made.input(parameter.name, _declared(parameter.annotation)))
        made.output(**_named(function(*arguments), outputs))
    return made.graph


def _declared(annotation: Any) -> Any:
    """The type that an annotation gives, also as metadata of Annotated."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kinds = (ElementType, TensorType, SequenceType, OptionalType)
    return next((m for m in annotation.__metadata__ if isinstance(m, kinds)), annotation)


def _named(result: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    tensors = _as_tuple(result)
    names = list(names) or (["y"] if len(tensors) == 1 else [f"y{n}" for n in range(len(tensors))])
    if len(names) != len(tensors):
        raise ModelError(f"{len(tensors)} outputs, but {len(names)} names for them")
    return dict(zip(names, tensors))


def _as_tuple(result: Any) -> tuple:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _value(tensor: Any) -> Value:
    """A result as a value of the innermost region."""
    if not isinstance(tensor, Tensor):
        tensor = constant(tensor)
    return trace.current().local(tensor.value)


# ---------------------------------------------------------------- control flow


def cond(
    predicate: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any], name: str = ""
) -> Any:
    """What `then()` returns where the predicate holds, otherwise what `otherwise()` returns."""
    frames = []
    for branch in (then, otherwise):
        with trace.inside(Region()) as frame:
            frame.region.set_results([_value(t) for t in _as_tuple(branch())])
            frames.append(frame)
    counts = [len(frame.region.results) for frame in frames]
    if counts[0] != counts[1]:
        raise ModelError(f"the branches of cond return {counts[0]} and {counts[1]} tensors")
    return _control("If", [predicate], frames, counts[0], {}, name)


def loop(
    body: Callable[..., Any],
    *state: Any,
    trips: Any = None,
    while_: Callable[..., Tensor] | None = None,
    name: str = "",
) -> Any:
    """Runs `body(i, *state)` over and over; it returns the new state, then tensors to stack.

    At most `trips` times, and as long as `while_(*state)` holds. Returns the last state and the
    stacks, whose first dimension counts the trips.
    """
    if trips is None and while_ is None:
        raise ModelError(f"a loop needs trips= or while_= (at {trace.user_line()})")
    start = [s if isinstance(s, Tensor) else constant(s) for s in state]
    going = while_(*start) if while_ is not None else None if start else constant(True)
    with trace.inside(Region()) as frame:
        counter = Tensor(frame.add_param(TensorType(dtypes.i64, ()), "i"))
        condition = Tensor(frame.add_param(TensorType(dtypes.boolean, ()), "going"))
        carried = [Tensor(frame.add_param(s.type, s.value.name)) for s in start]
        results = _results("loop", body(counter, *carried), len(start))
        on = condition if while_ is None else while_(*results[: len(start)])
        frame.region.set_results([_value(t) for t in (on, *results)])
    limit = trips if trips is None or isinstance(trips, Tensor) else constant(trips, dtypes.i64)
    return _control("Loop", [limit, going, *start], [frame], len(results), {}, name)


def scan(
    body: Callable[..., Any],
    *state: Any,
    over: Tensor | Sequence[Tensor],
    axes: Sequence[int] | None = None,
    reverse: Sequence[bool] | bool = False,
    name: str = "",
) -> Any:
    """Runs `body(*state, *slices)` along an axis of the tensors `over` (axis 0, or `axes`).

    The body returns the new state, then tensors to stack. Returns the last state and the stacks.
    """
    start = [s if isinstance(s, Tensor) else constant(s) for s in state]
    tensors = [over] if isinstance(over, Tensor) else list(over)
    along = list(axes) if axes is not None else [0] * len(tensors)
    back = [bool(reverse)] * len(tensors) if isinstance(reverse, bool) else list(reverse)
    if not len(tensors) == len(along) == len(back) or not tensors:
        raise ModelError(f"scan needs tensors, and an axis for each (at {trace.user_line()})")
    with trace.inside(Region()) as frame:
        carried = [Tensor(frame.add_param(s.type, s.value.name)) for s in start]
        slices = [Tensor(frame.add_param(_row(t, axis), "row")) for t, axis in zip(tensors, along)]
        results = _results("scan", body(*carried, *slices), len(start))
        frame.region.set_results([_value(t) for t in results])
    attrs: dict[str, Any] = {"num_scan_inputs": len(tensors)}
    if any(along):
        attrs["scan_input_axes"] = tuple(along)
    if any(back):
        attrs["scan_input_directions"] = tuple(map(int, back))
        attrs["scan_output_directions"] = (int(all(back)),) * (len(results) - len(start))
    return _control("Scan", [*start, *tensors], [frame], len(results), attrs, name)


def _row(tensor: Tensor, axis: int) -> TensorType:
    shape = list(tensor.shape)
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"scan axis {axis} of {tensor!r} (at {trace.user_line()})")
    del shape[axis]
    return TensorType(tensor.dtype, tuple(shape))


def _results(what: str, result: Any, least: int) -> tuple:
    results = _as_tuple(result)
    if len(results) < least:
        raise ModelError(
            f"the body of the {what} returns {len(results)} tensors, fewer than its {least} states"
        )
    return results


def _control(kind: str, operands: list, frames: list, count: int, attrs: dict, name: str) -> Any:
    """Adds an op with regions; their captures become operands of it."""
    captured = share_captures([(frame.region, frame.captures) for frame in frames])
    defn = opdef.lookup(kind)
    if "captures" in defn.attrs:
        attrs["captures"] = len(captured)
    own = [o.value if isinstance(o, Tensor) else o for o in operands]
    regions = [frame.region for frame in frames]
    values = trace.record(defn, [*own, *captured], attrs, count, regions, name)
    skip = 1 if kind == "Loop" else 0
    for value, inner in zip(values, regions[0].results[skip:]):
        if value.type is None and isinstance(inner.type, TensorType):
            value.type = TensorType(inner.type.dtype, None)
    return Tensor(values[0]) if count == 1 else tuple(map(Tensor, values))


def __getattr__(name: str) -> Any:
    if name in dtypes.BY_NAME:
        return ElementType(dtypes.BY_NAME[name])
    if name[:1].isupper() and opdef.find(name) is not None:
        return lambda *operands, **options: apply(name, *operands, **options)
    names = [*dtypes.BY_NAME, *(kind for domain, kind in opdef.REGISTRY if not domain)]
    near = did_you_mean(name, names)
    raise AttributeError(f"dsl has no operator or element type {name!r}{near}")
