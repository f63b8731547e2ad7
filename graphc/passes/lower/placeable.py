"""Ops that cannot run without a host are refused by name: the ONNX node, and what to do about it.

Everything a program computes is a tensor of numbers or booleans whose shape is known when it is
compiled. Everything else (strings, sequences, optionals, sizes that depend on data, control flow
that was not resolved) is refused before anything is lowered.
"""

from __future__ import annotations

from graphc.errors import UnsupportedError
from graphc.ir.expr import Sym, as_expr, symbols
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.types import OptionalType, SequenceType, TensorType
from graphc.ir.wide_graphs import is_made_of_others

KERNEL_FORMS = ("elementwise", "indexed", "imperative")
REGIONS = ("fused",)


def check_typed(graph: Graph) -> None:
    """UnsupportedError if a typed graph has inputs, outputs or ops that no pass can help."""
    _check_interface(graph)
    for op in graph.ops:
        if op.defn.form == "host":
            raise UnsupportedError(f"{op.where()}: {_why(op)}")


def check_placeable(graph: Graph, control_flow: bool = False) -> None:
    """UnsupportedError if an optimised graph cannot be made a program, which may have loops and
    branches if there is `control_flow`."""
    _check_interface(graph)
    for op in graph.ops:
        if op.name == "Constant":
            continue
        has_kernel = op.defn.form in KERNEL_FORMS and not is_made_of_others(op)
        is_flow = control_flow and op.defn.form == "region"
        if not (has_kernel or is_flow or op.name in REGIONS):
            raise UnsupportedError(f"{op.where()}: {_why(op)}")
        for value in op.outputs:
            _check_value(value, op.where(), graph)


def _check_interface(graph: Graph) -> None:
    for value in graph.params:
        _check_value(value, "input", graph)
    for name, value in graph.named_results():
        maker = value.producer
        where = maker.where() if maker is not None and maker.name != "Constant" else "output"
        named = f"{where}, output {name!r}" if where != "output" else "output"
        _check_value(value, named, graph)


def _why(op: Op) -> str:
    if is_made_of_others(op):
        return (
            "lowering requires a graph that is decomposed (no operator is made of others), and no "
            "pass has taken it apart; put pass decompose after those that make such operators"
        )
    if op.name == "Scan":
        return (
            "it has too many steps to be written out, and a program without a host has no loops; "
            "run the model on parts of the sequence, each from the state of the one before"
        )
    if op.regions:
        return (
            "its branch or trip count depends on data, and a program without a host has no control "
            "flow; make it constant, with --set if it comes from an input"
        )
    return (
        "it runs on a host only; compute it before the model runs, and give its result as an input"
    )


def _check_value(value: Value, where: str, graph: Graph) -> None:
    problem = _problem(value, frozenset(graph.symbols.values()))
    if problem:
        raise UnsupportedError(f"{where}: {value.name!r} {problem}")


def _problem(value: Value, sizes: frozenset[Sym]) -> str:
    """Why a value has no place in memory; empty if it has one: its dims are integers, or
    expressions over the sizes of the graph."""
    type = value.type
    if isinstance(type, SequenceType):
        return f"is {type}: sequences need a host; take the model apart into tensors"
    if isinstance(type, OptionalType):
        return f"is {type}: optional values need a host; make it an input that is always there"
    if not isinstance(type, TensorType):
        return "has no type that is known when it is compiled; a program without a host needs it"
    if type.dtype.kind in ("string", "complex"):
        kind = "strings" if type.dtype.kind == "string" else "complex numbers"
        return f"is {type}: compiled code has no {kind}; convert it to real numbers beforehand"
    if type.shape is None or not all(symbols(as_expr(d)) <= sizes for d in type.shape):
        return f"is {type}: its size depends on data; fix it with --shape, --dim or --set"
    return ""
