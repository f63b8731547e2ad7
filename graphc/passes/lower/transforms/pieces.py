"""Taking a computation apart before its loops are made: outputs of different shapes, pieces of an
iteration space in which a select goes one way, and constants turned so that vectors are contiguous.
"""

from __future__ import annotations

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, free_indices, loads, transform, walk
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify, to_poly
from graphc.passes.lower.computation import Computation, Output

MAX_SEGMENTS = 128  # pieces that an iteration space is cut into


def split_outputs(computation: Computation) -> list[Computation]:
    """One computation per iteration space."""
    groups: dict[tuple, list[Output]] = {}
    for output in computation.outputs:
        groups.setdefault(output.extents, []).append(output)
    if len(groups) == 1:
        return [computation]
    return [computation.restricted(outputs) for outputs in groups.values()]


def segments(indices: list[Index], exprs: list[Expr]):
    """Pieces of the iteration space in which a select on one index alone (a Concat, a Pad) goes one
    way: for each, what replaces the index, and the indices of the piece."""
    cuts: dict[Index, set[int]] = {}
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, Call) and node.op.name == "select":
                _add_cuts(node.args[0], indices, cuts)
    if not cuts:
        return [({}, indices)]
    index = max(cuts, key=lambda x: (len(cuts[x]), -indices.index(x)))
    extent = index.count
    edges = sorted({0, extent} | {c for c in cuts[index] if 0 < c < extent})
    if len(edges) > MAX_SEGMENTS + 1:
        return [({}, indices)]
    found = []
    for low, high in zip(edges, edges[1:]):
        piece = Index(index.name, high - low)
        mapping: dict[Expr, Expr] = {index: piece + low if high - low > 1 else Const(low, i64)}
        left = [piece if x is index else x for x in indices]
        found.append((mapping, [x for x in left if x.extent != 1]))
    return found


def _add_cuts(condition: Expr, indices: list[Index], cuts: dict[Index, set[int]]) -> None:
    """Where comparisons of a single output index with a constant change their truth."""
    for node in walk(condition):
        if not (isinstance(node, Call) and node.op.name in ("lt", "le", "gt", "ge")):
            continue
        if node.args[0].dtype is not i64:
            continue
        poly = to_poly(simplify(node.args[0] - node.args[1]))
        atoms = [k for k in poly if k]
        if len(atoms) == 1 and len(atoms[0]) == 1 and atoms[0][0] in indices:
            step, rest = poly[atoms[0]], poly.get((), 0)
            if abs(step) == 1:  # step * i + rest changes sign at i = -rest / step
                edge = -rest * step
                at_edge = node.op.name in ("lt", "ge") if step > 0 else node.op.name in ("gt", "le")
                cuts.setdefault(atoms[0][0], set()).add(edge if at_edge else edge + 1)  # type: ignore


def turned_constants(computation: Computation):
    """The computation with constants transposed, at compile time, so that vectors of them are
    contiguous: the dim that the innermost output index runs over is moved last."""
    outputs = computation.outputs
    if not outputs[0].index:
        return computation, [], []
    prepare, temporaries, inputs = [], [], []
    for buffer in computation.inputs:
        dim = _lane_dim(computation, buffer)
        if dim is None:
            inputs.append(buffer)
            continue
        order = [d for d in range(buffer.rank) if d != dim] + [dim]
        shape = tuple(buffer.shape[d] for d in order)
        turned = Buffer(f"turned_{buffer.name}", buffer.dtype, shape)
        index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(shape))
        contents = buffer[tuple(index[order.index(d)] for d in range(buffer.rank))]
        prepare.append(computation.filling(turned, index, contents, "transpose"))
        temporaries.append(turned)
        inputs.append(turned)

        def rewrite(node: Expr, buffer=buffer, turned=turned, order=order) -> Expr | None:
            if isinstance(node, Load) and node.source == buffer.name:
                return turned[tuple(node.index[d] for d in order)]
            return None

        outputs = tuple(Output(o.buffer, o.index, transform(o.expr, rewrite)) for o in outputs)
    changed = Computation(tuple(inputs), outputs, computation.constants, computation.label)
    return changed, prepare, temporaries


def _lane_dim(computation: Computation, buffer: Buffer) -> int | None:
    """The dim of a constant, not its last, in which alone the innermost output index moves."""
    if buffer.name not in computation.constants or buffer.rank < 2:
        return None
    dims = set()
    for output in computation.outputs:
        wide = [x for x in output.index if x.extent != 1]
        for load in loads(output.expr):
            if load.source == buffer.name and wide:
                dims.add(tuple(d for d, x in enumerate(load.index) if wide[-1] in free_indices(x)))
    if len(dims) != 1:
        return None
    (found,) = dims
    return found[0] if len(found) == 1 and found[0] != buffer.rank - 1 else None
