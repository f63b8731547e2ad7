"""Which constants of a model are trained, and which state a step carries besides."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Value

STATISTICS = {"BatchNormalization": (3, 4)}  # operands that hold running statistics


def discovered(
    graph: Graph, patterns: Sequence[str] | None = None, frozen: Sequence[str] = ()
) -> dict[str, Op]:
    """The constants to train, by name: those of floats with a dimension or more that are no running
    statistics, and match one of `patterns` (shell patterns; None: all) and none of `frozen`.

    ModelError if a pattern matches none, or if nothing is left.
    """
    candidates = {
        op.output.name: op
        for op in graph.ops
        if op.name == "Constant" and op.output.tensor.dtype.is_float and op.output.tensor.rank
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
