"""Derivatives of functions of tensors, as JAX has them.

    def loss(params, x, y):
        return dsl.ReduceMean((dsl.Relu(x @ params["w"]) - y) ** 2.0, keepdims=0)

    gradient = graphc.grad(loss)({"w": w}, x, y)        # arrays in, arrays out

A function takes and gives tensors of the DSL, or lists, tuples and dicts of them. What is made of
it may be called with arrays: then a graph is built, compiled for the CPU once for each tuple of
types, and run. Called with tensors, while a graph is built, it adds to that graph; so
transformations nest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphc.autodiff import forward, reverse
from graphc.autodiff.rules import RULES
from graphc.autodiff.values import seeded, zeros_like
from graphc.errors import ModelError
from graphc.frontend import dsl_trace as trace
from graphc.frontend.dsl_tensor import Tensor, apply, constant
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Region, Value, copy_op
from graphc.ir.opdef import Any_, OpDef, Param, find, register
from graphc.ir.types import TensorType

Tree = Any
"""A tensor or array, or a list, tuple or dict of trees."""


# ---------------------------------------------------------------- the transformations


def grad(function: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """A function that gives the gradient of `function`, which returns a scalar, by its arguments
    `argnums` (a tuple of gradients, if that is a sequence). With `has_aux`, `function` returns a
    scalar and something else, which is returned beside the gradient."""
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def gradient(*args: Tree) -> Tree:
        value, gradients = both(*args)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def value_and_grad(
    function: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable:
    """As `grad`, with the value of `function` before the gradient."""

    def traced(*args: Tree) -> Tree:
        positions = [argnums] if isinstance(argnums, int) else list(argnums)
        wanted = [args[n] for n in positions]
        chosen = dict(zip(positions, wanted))

        def of_chosen(*values: Tree) -> Tree:
            given = {**dict(enumerate(args)), **dict(zip(chosen, values))}
            return function(*(given[n] for n in range(len(args))))

        body = _Body(of_chosen, wanted)
        result = body.value[0] if has_aux else body.value
        if not isinstance(result, Tensor) or result.shape != ():
            raise ModelError(
                f"grad takes a function that returns a scalar, {_name(function)} returns "
                f"{result!r}; reduce it (dsl.ReduceSum(y, keepdims=0)), or use graphc.vjp"
            )
        value, gradients = body.pulled([constant(np.ones((), result.dtype.np))])
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return _Callable(function, traced)


def vjp(function: Callable, *args: Tree) -> tuple[Tree, Callable]:
    """The value of `function`, and a function from the gradient of that value to the gradients of
    the arguments (a tuple).

    With arrays for arguments, `function` is run twice: for the value, and with each gradient.
    """
    if not _is_eager(args):
        return _pullback(function, args)

    def pulled(g: Tree, *given: Tree) -> Tree:
        return vjp(function, *given)[1](g)

    compiled = _Callable(function, pulled)
    return _Callable(function, function)(*args), lambda g: compiled(g, *args)


def jvp(function: Callable, args: Sequence[Tree], tangents: Sequence[Tree]) -> tuple[Tree, Tree]:
    """The value of `function` and its tangent, for tangents of the arguments."""

    def traced(args: Sequence[Tree], tangents: Sequence[Tree]) -> tuple[Tree, Tree]:
        return _pushed(function, args, tangents)

    return _Callable(function, traced)(list(args), list(tangents))


def stop_gradient(x: Tree) -> Tree:
    """x, which no gradient passes: its derivative is zero."""
    return _mapped(lambda tensor: apply("graphc.StopGradient", tensor), x)


class custom_vjp:  # noqa: N801  (a decorator)
    """A function with a gradient of its own.

        @graphc.custom_vjp
        def clipped(x): ...

        @clipped.defvjp
        def _(residuals, g): return (gradient of x,)

    `residuals` are the arguments, unless `defvjp(forward, backward)` gives a function `forward`
    that returns the value and what the backward pass is to have.
    """

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)
        self.function = function
        self.forward: Callable | None = None
        self.backward: Callable | None = None
        self.definitions: dict[Any, tuple[OpDef, Any]] = {}

    def defvjp(self, *functions: Callable) -> Callable:
        """Sets the backward pass, or the forward and the backward pass."""
        self.forward, self.backward = functions if len(functions) == 2 else (None, functions[0])
        return functions[-1]

    def __call__(self, *args: Tree) -> Tree:
        if _is_eager(args):
            return _Callable(self.function, self)(*args)
        if self.backward is None:
            raise ModelError(f"{_name(self.function)} has no gradient: give it one by defvjp")
        leaves, shape = _flattened([_mapped(_tensor, a) for a in args])
        types = tuple(leaf.value.tensor for leaf in leaves)
        if (types, str(shape)) not in self.definitions:
            self.definitions[types, str(shape)] = self._define(types, shape)
        defn, result = self.definitions[types, str(shape)]
        made = trace.record(defn, [leaf.value for leaf in leaves], {}, result.count)
        return _unflattened(result, [Tensor(value) for value in made])

    def _define(self, types: Sequence[TensorType], shape: Any) -> tuple[OpDef, Any]:
        """A composite operator for arguments of these types."""

        def forward_pass(*flat: Tensor) -> Tree:
            args = _unflattened(shape, flat)
            return (self.function(*args), args) if self.forward is None else self.forward(*args)

        def backward_pass(residuals: Tree, g: Tree) -> Tree:
            assert self.backward is not None
            return self.backward(residuals, g)

        region, value = _traced(lambda *flat: forward_pass(*flat)[0], types)
        result = _Shape.of(value)

        def expand(b: Builder, *values: Value) -> list[Value]:
            return inlined(b, lambda *flat: _flattened(forward_pass(*flat)[0])[0], values)

        def pull(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
            given = [zeros_like(b, v) if g is None else g for v, g in zip(op.outputs, cotangents)]

            def pulled(*flat: Tensor) -> list[Tensor]:
                _, residuals = forward_pass(*flat[: len(types)])
                gradients = backward_pass(residuals, _unflattened(result, flat[len(types) :]))
                return _flattened(tuple(gradients))[0]

            operands = [op.operand(n) for n in range(len(op.inputs))]
            return list(inlined(b, pulled, [*operands, *given]))

        name, number = _name(self.function), 0
        while find(f"{name}_{number}", "custom_vjp") is not None:
            number += 1
        params = tuple(Param(f"x{n}", Any_, "required") for n in range(len(types)))
        defn = OpDef(
            f"{name}_{number}", "composite", expand, None, "custom_vjp", params, {},
            outputs=result.count, doc=self.function.__doc__ or "",
        )  # fmt: skip
        RULES[defn.domain, defn.name] = pull
        return register(defn), result


# ---------------------------------------------------------------- trees of tensors


class _Shape:
    """How a tree is made of its leaves."""

    def __init__(self, kind: Any, parts: list[_Shape], count: int):
        self.kind, self.parts, self.count = kind, parts, count

    @staticmethod
    def of(tree: Tree) -> _Shape:
        if isinstance(tree, dict):
            parts = [_Shape.of(value) for value in tree.values()]
            return _Shape(tuple(tree), parts, sum(p.count for p in parts))
        if isinstance(tree, (list, tuple)):
            parts = [_Shape.of(value) for value in tree]
            return _Shape(type(tree), parts, sum(p.count for p in parts))
        return _Shape(None, [], 1)

    def __repr__(self) -> str:
        return f"{self.kind}{self.parts}"


def _flattened(tree: Tree) -> tuple[list, _Shape]:
    def leaves(tree: Tree) -> list:
        if isinstance(tree, dict):
            return [leaf for value in tree.values() for leaf in leaves(value)]
        if isinstance(tree, (list, tuple)):
            return [leaf for value in tree for leaf in leaves(value)]
        return [tree]

    return leaves(tree), _Shape.of(tree)


def _unflattened(shape: _Shape, leaves: Sequence) -> Tree:
    if shape.kind is None:
        return leaves[0]
    values, start = [], 0
    for part in shape.parts:
        values.append(_unflattened(part, leaves[start : start + part.count]))
        start += part.count
    if isinstance(shape.kind, tuple):
        return dict(zip(shape.kind, values))
    return list(values) if shape.kind is list else tuple(values)


def _mapped(function: Callable, tree: Tree) -> Tree:
    leaves, shape = _flattened(tree)
    return _unflattened(shape, [function(leaf) for leaf in leaves])


def _tensor(leaf: Any) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else constant(leaf)


def _name(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__).strip("<>")


def _is_eager(args: Tree) -> bool:
    """Whether a function is called with arrays, and no graph is being built."""
    return not trace.is_building() and not any(isinstance(a, Tensor) for a in _flattened(args)[0])


# ---------------------------------------------------------------- tracing


def _traced(function: Callable, types: Sequence[TensorType]) -> tuple[Region, Tree]:
    """A function's ops, in a region with a parameter for each type, and the tree it returns."""
    region = Region()
    with trace.inside(region, nested=False) as frame:
        params = [Tensor(frame.add_param(type, f"x{n}")) for n, type in enumerate(types)]
        return region, _mapped(_tensor, function(*params))


def inlined(b: Builder, function: Callable, values: Sequence[Value]) -> list[Value]:
    """The results of a function that gives a list of tensors, from values, where `b` is."""
    region, results = _traced(function, [v.tensor for v in values])
    mapping = dict(zip(region.params, values))
    for op in region.ops:
        copy_op(op, b.region, mapping, b.anchor)
    return [mapping[tensor.value] for tensor in results]


class _Body:
    """A function's ops in a region of their own, within the graph that is being built."""

    def __init__(self, function: Callable, args: Sequence[Tree]):
        leaves, shape = _flattened(tuple(args))
        self.args = [_tensor(leaf) for leaf in leaves]
        self.shape = shape
        self.outer = trace.current()
        with trace.inside(Region()) as frame:
            self.frame, self.region = frame, frame.region
            params = [Tensor(frame.add_param(a.value.type, a.value.name)) for a in self.args]
            self.value = _mapped(_tensor, function(*_unflattened(shape, params)))
            results, self.result_shape = _flattened(self.value)
            self.region.set_results([frame.local(t.value) for t in results])
            self.params = [p.value for p in params]

    def inline(self, extra: Sequence[tuple[Value, Tensor]] = ()) -> dict[Value, Value]:
        """Moves the ops into the graph around; `extra` are more parameters with their values."""
        mapping = {p: self.outer.local(a.value) for p, a in zip(self.params, self.args)}
        for outside, inside in self.frame.captures.items():
            mapping[inside] = self.outer.local(outside)
        mapping.update({p: self.outer.local(t.value) for p, t in extra})
        for op in self.region.ops:
            copy = copy_op(op, self.outer.region, mapping)
            self.outer.owned.update(copy.outputs)
        return mapping

    def results(self, mapping: Mapping[Value, Value]) -> Tree:
        """What the function gives, in the graph around."""
        values = [Tensor(mapping[value]) for value in self.region.results]
        return _unflattened(self.result_shape, values)

    def pulled(self, given: Sequence[Tensor]) -> tuple[Tree, tuple]:
        """What the function gives, and the gradients of its arguments, from those of the first of
        its results."""
        results = self.region.results[: len(given)]
        for value, g in zip(results, given):
            if g.value.type != value.type:
                raise ModelError(
                    f"a gradient of {Tensor(value)!r} is {g!r}: their types must be equal"
                )
        params = [self.frame.add_param(g.value.type, "g") for g in given]
        seeds = seeded(self.region, results, params)
        gradients = reverse.gradients(self.region, seeds, self.params)
        mapping = self.inline(list(zip(params, given)))
        slopes = _unflattened(self.shape, [Tensor(mapping[v]) for v in gradients])
        return self.results(mapping), slopes


def _pullback(function: Callable, args: Sequence[Tree]) -> tuple[Tree, Callable]:
    """The value of a function, and what pulls gradients back."""
    body = _Body(function, args)

    def pull(g: Tree) -> tuple:
        given, shape = _flattened(_mapped(_tensor, g))
        if str(shape) != str(body.result_shape):
            raise ModelError(
                f"the gradient of {_name(function)} has the structure {shape}, "
                f"not {body.result_shape}"
            )
        return _Body(function, args).pulled(given)[1]

    return body.results(body.inline()), pull


def _pushed(function: Callable, args: Sequence[Tree], given: Sequence[Tree]) -> tuple[Tree, Tree]:
    body = _Body(function, args)
    directions = [_tensor(t) for t in _flattened(tuple(given))[0]]
    extra = []
    for arg, direction in zip(body.args, directions, strict=True):
        if arg.value.type != direction.value.type:
            raise ModelError(f"the tangent of {arg!r} is {direction!r}: their types must be equal")
        extra.append((body.frame.add_param(direction.value.type, "t"), direction))
    seeds = {p: t for p, (t, _) in zip(body.params, extra)}
    made = forward.tangents(body.region, seeds, body.region.results)
    mapping = body.inline(extra)
    slopes = [Tensor(mapping[value]) for value in made]
    return body.results(mapping), _unflattened(body.result_shape, slopes)


# ---------------------------------------------------------------- with arrays


class _Callable:
    """A function of tensors that takes arrays as well: it is compiled for their types."""

    def __init__(self, function: Callable, traced: Callable):
        functools.update_wrapper(self, function)
        self.traced = traced
        self.compiled: dict[Any, tuple[Any, _Shape]] = {}

    def __call__(self, *args: Tree) -> Tree:
        if not _is_eager(args):
            return self.traced(*args)
        leaves, shape = _flattened(args)
        arrays = [trace.as_array(leaf) for leaf in leaves]
        key = str(shape), tuple((a.dtype.str, a.shape) for a in arrays)
        if key not in self.compiled:
            self.compiled[key] = self._compile(shape, arrays)
        model, result = self.compiled[key]
        return _unflattened(result, model.run({f"x{n}": a for n, a in enumerate(arrays)}))

    def _compile(self, shape: _Shape, arrays: Sequence[np.ndarray]) -> tuple[Any, _Shape]:
        from graphc.api import compile  # only arrays need it

        graph = Graph(_name(self.traced))
        with trace.inside(graph, nested=False) as frame:
            params = [
                Tensor(frame.add_param(TensorType(dtypes.of(a.dtype), a.shape), f"x{n}"))
                for n, a in enumerate(arrays)
            ]
            result = _mapped(_tensor, self.traced(*_unflattened(shape, params)))
            leaves, made = _flattened(result)
            graph.set_results([frame.local(t.value) for t in leaves])
        graph.output_names = [f"y{n}" for n in range(len(leaves))]
        return compile(graph), made
