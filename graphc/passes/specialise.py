"""A graph for given input shapes and values, all of whose types are static.

Everything is compiled for static shapes. `specialise` copies a graph, gives its inputs the types
asked for, makes bound inputs constants (they stay parameters, so that positions do not change),
and types the whole. Where a type depends on the contents of a value that is not known, NeedsValue
carries that value and the graph typed so far: the caller binds the small inputs it comes from
(`needed_inputs`) and tries again, or runs what is typed and specialises the rest then
(partition.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphc.errors import ModelError, did_you_mean, warn
from graphc.ir import dtypes, opdef
from graphc.ir.expr import Const, Expr, Sym, substitute
from graphc.ir.graph import Graph, Op, Value, clone_graph, constant_op
from graphc.ir.ops.counts import is_count
from graphc.ir.simplify import simplify
from graphc.ir.types import MAX_ELEMENTS, OptionalType, SequenceType, Shape, TensorType, Type
from graphc.passes.dce import remove_dead
from graphc.passes.fold import FoldPolicy
from graphc.passes.infer_types import Need, TypeInference
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass

Shapes = Mapping[str, Any]

MOST_CHOICES = 64  # of extents that a model is compiled for ahead of time


def specialise(
    graph: Graph,
    shapes: Shapes | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    policy: FoldPolicy | None = None,
    partial: bool = False,
    ctx: Context | None = None,
) -> Graph:
    """A copy of `graph` with static types, but for sizes that it counts (ir/ops/counts.py).

    `shapes` maps inputs to shapes (a list of shapes for a sequence; None for an empty optional),
    `values` inputs to their contents, `dims` dimension symbols to extents. ModelError if these
    contradict each other or the declared types, or leave a dimension open. NeedsValue if a type
    depends on data; with `partial`, what cannot be typed is left untyped instead. `ctx` takes
    down what is rewritten. A static graph that is past the phase `typed` stays as it is.
    """
    result = clone_graph(graph)
    binding = _Binding(result, dict(shapes or {}), dict(values or {}), dict(dims or {}))
    binding.apply()
    if ctx is not None:
        ctx.begin("specialise")
    if graph.is_optimised and not graph.symbols:
        return result
    walk = TypeInference(policy, members=binding.members, ctx=ctx)
    walk.region(result)
    remove_dead(result)
    result.symbols = {size.name: size for size in _decided_by_data(result)}
    result.phase = "typed"
    check_declared(result)
    needs = [need for need in walk.needs if _is_alive(need, result)]
    if needs and not partial:
        error = needs[0].error
        error.graph, error.needs = result, tuple(need.error for need in needs)
        raise error
    return result


def choices(graph: Graph) -> list[dict[str, int]]:
    """Every choice of extents for the open dimensions of a graph; one if there are none. ModelError
    names a dimension without bounds, or says that there are too many choices."""
    for name, symbol in graph.symbols.items():
        if symbol.hi is None:
            raise ModelError(
                f"dimension {name} is open: pin it with --dim {name}=1 or --shape, or bound it "
                f"with --dim {name}=1..8"
            )
    extents = [range(s.lo, (s.hi or 0) + 1) for s in graph.symbols.values()]
    count = math.prod(map(len, extents))
    if count > MOST_CHOICES:
        bounds = ", ".join(f"{n}={s.lo}..{s.hi}" for n, s in graph.symbols.items())
        raise ModelError(
            f"within {bounds} a model has {count} shapes, of which each is compiled; narrow the "
            f"bounds to at most {MOST_CHOICES}"
        )
    return [dict(zip(graph.symbols, sizes)) for sizes in itertools.product(*extents)]


def has_static_inputs(graph: Graph) -> bool:
    """Whether the types of all inputs are known, and without symbols."""
    return all(p.type is not None and p.type.is_static for p in graph.params)


def type_symbolically(graph: Graph, policy: FoldPolicy | None = None) -> Graph:
    """A copy of `graph`, typed and folded as far as it can be for all values of its symbols.

    What the declared types of the inputs leave open stays untyped.
    """
    result = clone_graph(graph)
    TypeInference(policy, symbolic=True).region(result)
    remove_dead(result)
    result.phase = "typed"
    check_declared(result)
    return result


def bind_contents(graph: Graph, contents: Mapping[str, np.ndarray]) -> None:
    """Makes constants of the contents of some inputs, in place. They stay parameters."""
    binding = _Binding(graph, {}, dict(contents), {})
    binding.apply(partial=True)


def pin(
    graph: Graph,
    shapes: Shapes | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
) -> Graph:
    """A copy of `graph` whose inputs have the shapes, and dimension symbols the extents, given.

    A pair in `dims` bounds a dimension instead; if its ends are equal, the extent is that. Inputs
    that `values` names become constants, and are inputs no more; what is not given stays open.
    ModelError as for `specialise`. Without anything to pin, the graph itself.
    """
    if not (shapes or values or dims):
        return graph
    _check_pins(shapes or {}, dims or {})
    result = clone_graph(graph)
    bounds = {n: _bounds(graph, n, d) for n, d in (dims or {}).items() if isinstance(d, tuple)}
    fixed = {n: d for n, d in (dims or {}).items() if not isinstance(d, tuple)}
    fixed.update((n, low) for n, (low, high) in bounds.items() if low == high)
    binding = _Binding(result, dict(shapes or {}), dict(values or {}), fixed)
    binding.apply(partial=True)
    for name, (low, high) in bounds.items():
        if name not in fixed:
            _bound(result, name, low, high)
    result.params = [p for p in result.params if p.name not in binding.values]
    for position, param in enumerate(result.params):
        param.index = position
    closed = {symbol.name for symbol in binding.dims if isinstance(symbol, Sym)}
    result.symbols = {n: s for n, s in result.symbols.items() if n not in closed}
    return result


def _check_pins(shapes: Shapes, dims: Mapping[str, Any]) -> None:
    """ModelError unless shapes and dimensions are integers, and bounds leave something."""
    for name, shape in shapes.items():
        if not isinstance(shape, (list, tuple, type(None))):
            raise ModelError(f"the shape of {name!r} must be a tuple of integers, found {shape!r}")
        if not all(isinstance(d, (int, np.integer, list, tuple)) for d in shape or ()):
            raise ModelError(f"the shape of {name!r} must be integers, found {shape!r}")
    for name, extent in dims.items():
        pair = extent if isinstance(extent, tuple) else (extent, extent)
        if len(pair) != 2 or not all(isinstance(d, (int, np.integer)) for d in pair):
            raise ModelError(f"dimension {name!r} is an integer or a pair, found {extent!r}")
        if pair[0] > pair[1]:
            raise ModelError(f"dimension {name!r}: nothing is within {pair[0]}..{pair[1]}")
        if pair[0] < 0 or pair[1] > MAX_ELEMENTS:
            raise ModelError(f"dimension {name!r} is from 0 to 2^46, found {extent}")


def _no_dimension(name: str, graph: Graph) -> ModelError:
    known = sorted(graph.symbols)
    near = did_you_mean(name, known)
    return ModelError(f"there is no dimension {name!r}; the dimensions are {known}{near}")


def _bounds(graph: Graph, name: str, bounds: tuple[int, int]) -> tuple[int, int]:
    """Bounds of a dimension symbol that are within its own too."""
    if name not in graph.symbols:
        raise _no_dimension(name, graph)
    known_as = graph.symbols[name]
    high = bounds[1] if known_as.hi is None else min(bounds[1], known_as.hi)
    return max(bounds[0], known_as.lo), high


def _bound(graph: Graph, name: str, low: int, high: int) -> None:
    """Narrows the bounds of a dimension symbol."""
    old = graph.symbols[name]
    new = graph.symbols[name] = Sym(name, low, high)
    for param in graph.params:
        type = param.type
        if isinstance(type, TensorType) and type.shape is not None:
            dims = (d if isinstance(d, int) else substitute(d, {old: new}) for d in type.shape)
            param.type = type.with_shape(dims)


def check_declared(graph: Graph) -> None:
    """ModelError if an output has other elements than the model says; a warning if it has another
    shape. (A scalar that is declared says nothing.)"""
    for (name, value), declared in zip(graph.named_results(), graph.output_types):
        actual = value.type
        if not isinstance(actual, TensorType) or not isinstance(declared, TensorType):
            continue
        if actual.dtype is not declared.dtype:
            raise ModelError(f"output {name!r} is declared as {declared}, but is {actual}")
        if not declared.shape or actual.shape is None:
            continue
        if not _may_be(declared.shape, actual.shape):
            warn(f"output {name!r} is declared as {declared}, but is {actual}, which is given")


def _may_be(declared: Shape, actual: Shape) -> bool:
    """Whether a shape is what was declared, as far as extents are known."""
    return len(declared) == len(actual) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(declared, actual)
    )


def _decided_by_data(graph: Graph) -> Iterator[Sym]:
    """The sizes that ops of a graph count."""
    return (op.attrs["size"] for op in graph.ops if is_count(op))


def _is_alive(need: Need, graph: Graph) -> bool:
    return need.op.region is graph


# ---------------------------------------------------------------- inputs


class _Binding:
    """The types of the inputs, from shapes, values and dims."""

    def __init__(self, graph: Graph, shapes: dict, values: dict, dims: dict[str, int]):
        self.graph, self.shapes, self.values = graph, shapes, values
        self.partial = False
        self.dims: dict[Expr, Const] = {}
        self.bound_by: dict[Expr, str] = {}
        self.members: dict[Value, list[TensorType]] = {}  # of sequences whose members are known
        names = [p.name for p in graph.params]
        for given in (shapes, values):
            wrong = [n for n in given if n not in names]
            if wrong:
                near = did_you_mean(wrong[0], names)
                raise ModelError(f"there is no input {wrong[0]!r}; the inputs are {names}{near}")
        for name, extent in dims.items():
            if name not in graph.symbols:
                raise _no_dimension(name, graph)
            self.bind(graph.symbols[name], extent, "--dim")

    def bind(self, symbol: Sym, extent: int, where: str) -> None:
        """Gives a symbol a value; ModelError if it is out of bounds, or has another from `--dim`.

        If it has another from an input that names it too, each input keeps its own extent.
        """
        known = self.dims.get(symbol)
        if known is not None and known.value != extent:
            differ = f"dimension {symbol.name} is {extent}, but also {known.value}"
            if self.bound_by[symbol] == "--dim" or self.graph.is_optimised:
                raise ModelError(f"{where}: {differ}")
            warn(f"{where}: {differ} (of {self.bound_by[symbol]}); they are told apart")
            return
        if extent < symbol.lo or (symbol.hi is not None and extent > symbol.hi):
            raise ModelError(f"{where}: dimension {symbol.name} = {extent} is out of "
                             f"{symbol.lo}..{'' if symbol.hi is None else symbol.hi}")  # fmt: skip
        self.dims[symbol] = Const(int(extent), dtypes.i64)
        self.bound_by[symbol] = where

    def apply(self, partial: bool = False) -> None:
        """Types the parameters and replaces those that have values. What is not known is an error,
        or stays as it is if `partial`."""
        self.partial = partial
        params = self.graph.params
        for param in params:
            self.unify(param)
        for param in params:
            param.type = self.typed(param)
        for param in reversed(params):
            if param.name in self.values:
                self.replace(param, self.values[param.name])
            elif isinstance(param.type, (SequenceType, OptionalType)):
                self.take_apart(param)

    def shape_of(self, param: Value) -> tuple[int, ...] | None:
        if param.name in self.values:
            return tuple(np.shape(self.values[param.name]))
        shape = self.shapes.get(param.name)
        return None if shape is None else tuple(shape)

    def unify(self, param: Value) -> None:
        """Checks a shape against the declared type, and binds the symbols in it."""
        type, shape = param.type, self.shape_of(param)
        if not isinstance(type, TensorType) or shape is None:
            return
        where = f"input {param.name!r}"
        given = self.values.get(param.name)
        if given is not None and dtypes.of(np.asarray(given).dtype) is not type.dtype:
            raise ModelError(f"{where} takes {type.dtype}, found {np.asarray(given).dtype}")
        if type.shape is None:
            return
        if len(shape) and not type.shape and not self.graph.is_optimised:
            if math.prod(shape) != 1:
                warn(f"{where} is declared a scalar, found {list(shape)}, which is taken")
        elif len(shape) != len(type.shape):
            raise ModelError(f"{where} has rank {len(type.shape)} ({type}), found {list(shape)}")
        for declared, extent in zip(type.shape, shape):
            if isinstance(declared, Sym):
                self.bind(declared, int(extent), where)
            elif isinstance(declared, int) and declared != extent:
                raise ModelError(f"{where} takes {type}, found shape {list(shape)}")

    def typed(self, param: Value) -> Type | None:
        """The type of a parameter with all symbols replaced."""
        type, shape = param.type, self.shape_of(param)
        if not isinstance(type, TensorType):
            return type
        if shape is not None:
            return type.with_shape(map(int, shape))
        if type.shape is None:
            if self.partial:
                return type
            raise ModelError(f"input {param.name!r}: its shape is not known; give it a shape")
        return type.with_shape(self.extent(d, param.name) for d in type.shape)

    def extent(self, dim: int | Expr, name: str) -> int | Expr:
        if isinstance(dim, int):
            return dim
        extent = simplify(dim, self.dims)  # type: ignore[arg-type]
        if not isinstance(extent, Const):
            if self.partial:
                return extent
            raise ModelError(
                f"input {name!r}: dimension {dim} is not known; give the input a shape, or the "
                f"dimension a value"
            )
        return int(extent.value)

    def replace(self, param: Value, contents: Any) -> None:
        """Uses of the parameter become uses of a constant."""
        array = np.asarray(contents)
        op = constant_op(array.astype(object) if array.dtype.kind in "US" else array, param.name)
        self.graph.insert_before(self.first, op)
        param.replace_uses(op.output)

    def take_apart(self, param: Value) -> None:
        """The types of the members of a sequence, and whether an optional is there, are known."""
        if param.name not in self.shapes:
            return
        given, type = self.shapes[param.name], param.type
        if isinstance(type, OptionalType):
            self.take_optional_apart(param, type, given is not None)
            type = type.element
        if given is None or not isinstance(type, SequenceType):
            return
        if isinstance(type.element, TensorType):
            members = [type.element.with_shape(map(int, shape)) for shape in given]
            self.members[param] = members
            same = all(member == members[0] for member in members)
            element = members[0] if members and same else TensorType(type.element.dtype, None)
            param.type = SequenceType(element)

    def take_optional_apart(self, param: Value, type: OptionalType, present: bool) -> None:
        """An optional that is there has the type of what it holds; an absent one is a constant."""
        if present:
            shape = self.shapes[param.name]
            tensor = isinstance(type.element, TensorType)
            param.type = type.element.with_shape(map(int, shape)) if tensor else type.element  # type: ignore[union-attr]
            return
        empty = Op(opdef.lookup("Optional"), [], {"type": type.element})
        empty.output.type = type
        self.graph.insert_before(self.first, empty)
        param.replace_uses(empty.output)

    @property
    def first(self) -> Op | None:
        return self.graph.ops[0] if self.graph.ops else None


# ---------------------------------------------------------------- what depends on what


def needed_inputs(graph: Graph, value: Value) -> list[Value]:
    """The inputs that the contents of `value` depend on (not just through their shapes)."""
    seen = _before(value)
    return [param for param in graph.params if param in seen]


def ops_before(value: Value) -> list[Op]:
    """The ops that the contents of `value` take."""
    return list(dict.fromkeys(v.producer for v in _before(value) if v.producer is not None))


def _before(value: Value) -> dict[Value, None]:
    """A value, and those whose contents its own depend on."""
    seen: dict[Value, None] = {}
    stack = [value]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen[current] = None
        producer = current.producer
        if producer is not None and producer.name not in ("Shape", "Size"):
            stack.extend(v for v in producer.inputs if v is not None)
    return seen


# ---------------------------------------------------------------- passes


@register_pass
@dataclass
class Infer(Pass):
    """Types every op of a graph with static inputs, folding what types depend on."""

    name = "infer"
    establishes = ("typed",)

    def run(self, graph: Graph, ctx: Context) -> bool:
        walk = TypeInference(ctx.options.get("fold_policy"), ctx=ctx)
        changed = walk.region(graph)
        needs = [need for need in walk.needs if _is_alive(need, graph)]
        if needs:
            raise needs[0].error
        return changed


@register_pass
@dataclass
class Fold(Pass):
    """Evaluates what is known at compile time, where that does not make large constants."""

    name = "fold"
    requires = ("typed",)
    symbolic = True

    def run(self, graph: Graph, ctx: Context) -> bool:
        symbolic = bool(graph.symbols) or not has_static_inputs(graph)
        policy = ctx.options.get("fold_policy")
        walk = TypeInference(policy, False, ctx, symbolic=symbolic, checked=True)
        return walk.region(graph)
