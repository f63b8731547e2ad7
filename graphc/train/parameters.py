"""Which constants of a model are trained, and which state a step carries besides."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.opdef import lookup
from graphc.ir.ops.normalization import moments
from graphc.ir.types import TensorType

DRAW = "number of the draw"
STATISTICS = {"BatchNormalization": (3, 4)}  # operands that hold running statistics


def discovered(
    graph: Graph, patterns: Sequence[str] | None = None, frozen: Sequence[str] = ()
) -> dict[str, Op]:
    """The constants to train, by name: those of floats with a name and a dimension or more that are
    no running statistics, and match one of `patterns` (shell patterns; None: all) and none of
    `frozen`.

    ModelError if a pattern matches none, or if nothing is left.
    """
    candidates = {
        op.output.name: op
        for op in graph.ops
        if op.name == "Constant" and op.output.tensor.dtype.is_float and op.output.tensor.rank
        if op.output.name
        if not any(is_statistic(user, position) for user, position in op.output.uses)
    }
    for pattern in (*(patterns or ()), *frozen):
        if not any(fnmatchcase(name, pattern) for name in candidates):
            raise ModelError(f"no parameter matches {pattern!r}; there are {sorted(candidates)}")
    chosen = {
        name: op
        for name, op in candidates.items()
        if (patterns is None or any(fnmatchcase(name, p) for p in patterns))
        and not any(fnmatchcase(name, p) for p in frozen)
    }
    if not chosen:
        raise ModelError(f"there is nothing to train; the parameters are {sorted(candidates)}")
    return chosen


def is_statistic(user: Op, position: int) -> bool:
    """Whether an operand is a running statistic."""
    return position in STATISTICS.get(user.name, ())


def statistics(graph: Graph) -> list[str]:
    """The names of the constants that are running statistics."""
    return list(
        dict.fromkeys(
            maker.output.name
            for op in graph.ops
            for position in STATISTICS.get(op.name, ())
            if (maker := op.operand(position).producer) is not None and maker.name == "Constant"
        )
    )


def as_input(graph: Graph, op: Op) -> Value:
    """A constant made an input of the graph, of the same name."""
    value = graph.add_param(op.output.type, op.output.name)
    op.output.replace_uses(value)
    op.erase()
    return value


def with_batch_statistics(graph: Graph) -> dict[str, Value]:
    """Has every BatchNormalization use the statistics of the batch. The running ones become inputs;
    gives, by their names, the values that they move to."""
    moved: dict[str, Value] = {}
    for op in [op for op in graph.ops if op.name == "BatchNormalization"]:
        makers = [op.operand(position).producer for position in STATISTICS[op.name]]
        if not all(m is not None and m.name == "Constant" for m in makers):
            continue
        op.attrs["training_mode"] = 1
        while len(op.outputs) < 3:
            op.outputs.append(Value(None, op, len(op.outputs)))
        for maker, output in zip(makers, op.outputs[1:]):
            assert maker is not None
            if len(maker.output.users) > 1:
                raise ModelError(f"{op.where()} shares its statistics with another layer")
            output.type = maker.output.type
            moved[maker.output.name] = output
            as_input(graph, maker)
        op.memo.clear()
    return moved


def with_shared_statistics(graph: Graph) -> None:
    """Computes the statistics of each BatchNormalization of training once, as ops of their own: the
    operator's body has them in every element, and so would its gradient."""
    for op in [op for op in graph.ops if op.name == "BatchNormalization"]:
        if not op.attrs.get("training_mode"):
            continue
        x, scale, bias, *running = (op.operand(n) for n in range(5))
        b = Builder(graph, op, op.loc)
        kept, wide = running[0].tensor.dtype, x.tensor.dtype.compute
        rest = [axis for axis in range(x.tensor.rank) if axis != 1]
        mean, _, variance = moments(b, b.Cast(x, to=wide.onnx), rest)
        own = [b.Cast(b.Squeeze(value, np.array(rest)), to=kept.onnx) for value in (mean, variance)]
        epsilon = op.attrs.get("epsilon", 1e-5)
        y = b.op("BatchNormalization", x, scale, bias, *own, epsilon=epsilon)
        share = op.attrs.get("momentum", 0.9)
        moved = [b.Add(b.Mul(old, share), b.Mul(new, 1 - share)) for old, new in zip(running, own)]
        for output, value in zip(op.outputs, (y, *moved)):
            output.replace_uses(value)
        op.erase()


def with_dropout(graph: Graph, seed: int) -> None:
    """Has every Dropout drop elements, other ones in each step: the graph gets an input, DRAW."""
    draw: Value | None = None
    ops = [op for op in graph.ops if op.name == "Dropout"]
    for layer, op in enumerate(ops):
        if any(v.uses for v in op.outputs[1:]):
            raise UnsupportedError(f"{op.where()}: a mask that is used cannot be trained with")
        ratio = op.operand(1) if len(op.inputs) > 1 and op.inputs[1] is not None else None
        if ratio is not None and ratio.constant is None:
            raise UnsupportedError(f"{op.where()}: a ratio that is computed cannot be trained with")
        rate = 0.5 if ratio is None else float(ratio.constant)  # type: ignore[arg-type]
        draw = draw or graph.add_param(TensorType(dtypes.i64, ()), DRAW)
        own = op.attrs.get("seed")
        attrs = {"ratio": rate, "seed": seed if own is None else int(own), "layer": layer}
        made = Op(lookup("DropoutAt", "graphc"), [op.operand(0), draw], attrs, loc=op.loc)
        op.outputs[0].replace_uses(graph.insert_before(op, made).output)
        op.erase()


def with_own_names(graph: Graph) -> Graph:
    """Gives each constant with a name one of its own: a graph of the DSL may have several that are
    named alike, and parameters go by names."""
    taken = {value.name for value in graph.params}
    for op in graph.ops:
        if op.name == "Constant" and op.output.name:
            name, count = op.output.name, 0
            while op.output.name in taken:
                count += 1
                op.output.name = f"{name}.{count}"
            taken.add(op.output.name)
    return graph


def as_inference(graph: Graph) -> Graph:
    """Turns a model that was exported for training into one for inference."""
    for op in graph.ops:
        if op.name == "Dropout" and not any(v.uses for v in op.outputs[1:]):
            op.set_inputs(op.inputs[:2])
        if op.name == "BatchNormalization" and not any(v.uses for v in op.outputs[1:]):
            op.attrs.pop("training_mode", None)
            del op.outputs[1:]
            op.memo.clear()
    return graph
