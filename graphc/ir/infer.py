"""Type inference of one op from its definition, and the bodies of typed ops.

`infer_op` sets the types of an op's outputs. Errors name the op by the user's names. When the type
depends on contents that are not constant, NeedsValue carries the graph value that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphc.errors import LIMITS, GraphcError, InternalError, ModelError, NeedsValue, beyond_limits
from graphc.ir import binding, dtypes
from graphc.ir.alike import once
from graphc.ir.binding import Arguments, bind, bind_attrs
from graphc.ir.checks import Condition, collected
from graphc.ir.expr import Expr
from graphc.ir.graph import Graph, Op, Region, Value, constant_op
from graphc.ir.types import Shape, TensorType, Type

# what a definition stumbles over when operands or attributes are not what it expects
_MISTAKES = (
    TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError, OverflowError,
)  # fmt: skip


def infer_op(op: Op) -> None:
    """Types the outputs of an op whose operands are typed. Layouts stay as they are."""
    for value, type in zip(op.outputs, output_types(op)):
        layout, value.type = value.layout, type
        if layout is not None:
            value.type = value.tensor.with_layout(layout)


def output_types(op: Op) -> list[Type]:
    """The types of the outputs; ModelError, UnsupportedError or NeedsValue name the op."""
    with blaming(op):
        _require_typed(op)
        return _INFER[op.defn.form](op)


@contextmanager
def blaming(op: Op) -> Iterator[None]:
    """Makes errors name the op; what goes wrong inside a definition is a fault of the model."""
    try:
        yield
    except NeedsValue as error:
        if isinstance(error.value, int):
            error.value = op.inputs[error.value]
        if not error.located:
            error.args = (f"{op.where()}: {error}",)
            error.located = True
        raise
    except GraphcError as error:
        if error.located:
            raise
        raise _located(op, error) from error
    except LIMITS as error:
        raise _located(op, beyond_limits(error)) from error
    except _MISTAKES as error:
        types = ", ".join("none" if v is None else str(v.type) for v in op.inputs)
        kind = "" if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: "
        raise ModelError(f"{op.where()}: does not take ({types}): {kind}{error}") from error


def _located(op: Op, error: GraphcError) -> GraphcError:
    text = str(error)
    return type(error)(text if text.startswith(op.name + " ") else f"{op.where()}: {text}")


def _require_typed(op: Op) -> None:
    for value in op.inputs:
        if value is None:
            continue
        if value.type is None or (isinstance(value.type, TensorType) and value.type.shape is None):
            raise NeedsValue(f"the type of %{value.name} is not known", value)


def arguments(op: Op) -> Arguments:
    """The operands and attributes of an op bound to its definition's parameters."""
    types = [None if v is None else v.type for v in op.inputs]
    constants = [None if v is None else v.known for v in op.inputs]
    return bind(op.defn, types, op.attrs, constants)


def op_body(op: Op, output: int = 0) -> Expr:
    """The scalar body of an output of an elementwise or indexed op (see binding.body)."""
    key = ("body", output)
    body = op.memo.get(key)
    if body is None:
        value = op.outputs[output]
        shape = _shapes(op)[output] if value.type is None else value.tensor.dims
        body = _built(op, shape, output)
    return body


def _built(op: Op, shape: Shape, output: int) -> Expr:
    def build() -> tuple[Expr, list[Condition]]:
        with collected() as conditions:
            expr = binding.body(op.defn, arguments(op), shape, output, len(op.outputs))
        return expr, conditions

    expr, conditions = once(op, ("body", shape, output), build)
    op.memo["body", output], op.memo["conditions", output] = expr, conditions
    return expr


def conditions_of(op: Op) -> list[Condition]:
    """What the scalar bodies of an op ask of its operands, once each."""
    conditions: list[Condition] = []
    for output in range(len(op.outputs)):
        op_body(op, output)
        conditions += (c for c in op.memo["conditions", output] if c not in conditions)
    return conditions


def _shapes(op: Op) -> list:
    return once(
        op, ("shapes",), lambda: binding.infer_shapes(op.defn, arguments(op), len(op.outputs))
    )


def _infer_body(op: Op) -> list[Type]:
    shapes = _shapes(op)
    types: list[Type] = []
    for k in range(len(op.outputs)):
        shape = shapes[k].dims if isinstance(shapes[k], TensorType) else tuple(shapes[k])
        checked = TensorType(dtypes.f32, shape)  # rejects negative dimensions
        expr = _built(op, checked.dims, k)
        types.append(TensorType(expr.dtype, shape))
    return types


def _infer_declared(op: Op) -> list[Type]:
    if op.defn.infer is None:
        raise NeedsValue("the types of its outputs are known only once it has run", None)
    op.memo.pop("conditions", None)  # those of other types
    return binding.infer_shapes(op.defn, arguments(op), len(op.outputs))


def _infer_composite(op: Op) -> list[Type]:
    _, results = _expanded(op)
    return [r.type for r in results]  # type: ignore[misc]


def expand(op: Op, batched: bool = False) -> tuple[Graph, list[Value]]:
    """The body of a composite op as a graph whose parameters stand for the op's operands;
    `batched` as for Builder. It is made once and kept with the op: whoever changes it copies it.

    Raises the errors of `output_types`.
    """
    with blaming(op):
        return _expanded(op, batched)


def _expanded(op: Op, batched: bool = False) -> tuple[Graph, list[Value]]:
    read = [None if v is None else v.type for v in op.inputs], op.loc
    kept = op.memo.get(("expansion", batched))
    if kept is None or kept[0] != read:
        kept = read, _expand(op, batched)
        op.memo["expansion", batched] = kept
    return kept[1]


def _expand(op: Op, batched: bool) -> tuple[Graph, list[Value]]:
    from graphc.ir.build import Builder  # which infers every op it adds
    from graphc.ir.wide_graphs import unrounded  # which does so too

    graph = Graph(op.name)
    values: list[Value | None] = []
    for value in op.inputs:
        if value is None:
            values.append(None)
        elif value.constant is not None and value.constant.size <= 64:
            values.append(graph.append(constant_op(value.constant)).output)
            graph.add_param(value.type)  # keeps the numbering of parameters
        else:
            values.append(graph.add_param(value.type, value.name))
        if value is None:
            graph.add_param(None)
    types = [None if v is None else v.type for v in op.inputs]
    constants = [None if v is None else v.known for v in op.inputs]
    bound = bind(op.defn, types, op.attrs, constants, wrap=lambda n, _: values[n])
    builder = Builder(graph, None, op.loc, len(op.outputs), batched, digits=True)
    builder.body = op.regions[0] if op.regions else None
    assert op.defn.function is not None
    results = op.defn.function(builder, *bound.positional, **bound.keywords)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    if len(results) < len(op.outputs):
        raise ModelError(f"has {len(results)} outputs, {len(op.outputs)} are asked for")
    graph.set_results(results[: len(op.outputs)])
    unrounded(graph, builder.held)
    return graph, graph.results


def _infer_core(op: Op) -> list[Type]:
    if op.name == "Constant":
        return [op.output.type]  # type: ignore[list-item]
    if op.name == "fused":
        infer_region(op.regions[0])
        return [v.type for v in op.regions[0].results]  # type: ignore[misc]
    raise InternalError(f"cannot infer {op.name}")


def _infer_region_op(op: Op) -> list[Type]:
    assert op.defn.infer is not None
    bind_attrs(op.defn, op.attrs)
    return op.defn.infer(op)


def infer_region(region: Region) -> None:
    """Types every op of a region whose parameters are typed, in order."""
    for op in region.ops:
        if op.name != "Constant":
            infer_op(op)


_INFER = {
    "elementwise": _infer_body,
    "indexed": _infer_body,
    "imperative": _infer_declared,
    "host": _infer_declared,
    "composite": _infer_composite,
    "region": _infer_region_op,
    "core": _infer_core,
}
