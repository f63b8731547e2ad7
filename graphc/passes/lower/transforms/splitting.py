"""Splitting: outputs of different shapes are computed apart, and an iteration space is cut into
segments in each of which a select takes one side. Constants are transposed at compile time so that
vectors of them are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    as_expr,
    free_indices,
    loads,
    transform,
    walk,
)  # fmt: skip
from graphc.ir.extents import as_dim, is_of_sizes, least, most
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import bounds, from_poly, simplify, to_poly
from graphc.ir.types import Dim
from graphc.passes.analysis.computation import Computation, Output, index_of

MAX_SEGMENTS = 256  # pieces that an iteration space is cut into
LONG_PIECE = 256  # elements of a piece that is worth loops of its own within another
AT_ONCE = 16  # pieces for which expressions are first narrowed together, if there are many


def split_outputs(computation: Computation) -> list[Computation]:
    """One computation per iteration space."""
    groups: dict[tuple, list[Output]] = {}
    for output in computation.outputs:
        groups.setdefault(output.extents, []).append(output)
    if len(groups) == 1:
        return [computation]
    return [computation.restricted(outputs) for outputs in groups.values()]


def segments(indices: list[Index], exprs: list[Expr]) -> Iterator[tuple[list[Index], list[Expr]]]:
    """Pieces of the iteration space in which a select on one index alone (a Concat, a Pad) goes one
    way: the indices of each, and the expressions there. Each is cut along another index too where
    that leaves long pieces."""
    pieces = list(_cut(indices, exprs, 0, MAX_SEGMENTS))
    for left, parts in pieces:
        yield from _cut(left, parts, LONG_PIECE, MAX_SEGMENTS // len(pieces))


def _cut(
    indices: list[Index], exprs: list[Expr], shortest: int, number: int
) -> Iterator[tuple[list[Index], list[Expr]]]:
    """Pieces along the index that is cut most often, at most so many; one piece, if there would be
    more, or some of fewer elements than the `shortest`."""
    cuts: dict[Index, set[Dim]] = {}
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, Call) and node.op.name == "select":
                _add_cuts(node.args[0], indices, cuts)
    if not cuts:
        yield indices, [simplify(e) for e in exprs]
        return
    index = max(cuts, key=lambda x: (len(cuts[x]), -indices.index(x)))
    edges = [0, *_in_order(cuts[index], index.extent), index.extent]
    lengths = [least(as_dim(high - low)) for low, high in zip(edges, edges[1:])]
    inner = math.prod(least(x.extent) for x in indices[indices.index(index) + 1 :])
    if len(lengths) > number or min(lengths) * inner < shortest:
        yield indices, [simplify(e) for e in exprs]
        return
    for some, start, narrowed in _narrowed(index, edges, exprs):
        for low, high in zip(some, some[1:]):
            piece = Index(index.name, as_dim(high - low))
            shift = as_expr(low - start, i64)
            place = shift if piece.extent == 1 else piece + shift
            inside = Index(index.name, as_dim(some[-1] - start))
            left = [piece if x is index else x for x in indices]
            parts = [simplify(e, {inside: place}) for e in narrowed]
            yield [x for x in left if x.extent != 1], parts


def _in_order(cuts: set[Dim], extent: Dim) -> list[Dim]:
    """The cuts within an extent, in the order of their values. Of those that are known at run time
    only the first is taken, if it is within at all sizes and no other is."""
    within: list[Dim] = sorted(c for c in cuts if isinstance(c, int) and 0 < c < least(extent))
    for cut in sorted((c for c in cuts if isinstance(c, Expr)), key=str):
        if not within and bounds(cut)[0] >= 0 and bounds(simplify(extent - cut))[0] >= 0:
            return [cut]
    return within


def _narrowed(
    index: Index, edges: list[Dim], exprs: list[Expr]
) -> Iterator[tuple[list[Dim], Dim, list[Expr]]]:
    """Runs of edges, where the index starts there, and the expressions between them: of very many
    pieces each would else be found in expressions that tell all of them apart."""
    if len(edges) <= 2 * AT_ONCE:
        yield edges, 0, exprs
        return
    for first in range(0, len(edges) - 1, AT_ONCE):
        some = edges[first : first + AT_ONCE + 1]
        place = Index(index.name, as_dim(some[-1] - some[0])) + some[0]
        yield some, some[0], [simplify(e, {index: place}) for e in exprs]


def _add_cuts(condition: Expr, indices: list[Index], cuts: dict[Index, set[Dim]]) -> None:
    """Where comparisons of a single output index with a constant change their truth."""
    for node in walk(condition):
        if not (isinstance(node, Call) and node.op.name in ("lt", "le", "gt", "ge")):
            continue
        if node.args[0].dtype is not i64:
            continue
        poly = to_poly(simplify(node.args[0] - node.args[1]))
        atoms = [k for k in poly if not all(map(is_of_sizes, k))]
        if len(atoms) == 1 and len(atoms[0]) == 1:
            index, factor = _divided_index(atoms[0][0])
            if index not in indices:
                continue
            step = poly[atoms[0]]
            rest = as_dim(from_poly({k: v for k, v in poly.items() if k is not atoms[0]}))
            if abs(step) == 1:  # step * i + rest changes sign at i = -rest / step
                edge = as_dim(-rest * step)
                at_edge = node.op.name in ("lt", "ge") if step > 0 else node.op.name in ("gt", "le")
                cuts.setdefault(index, set()).add(as_dim((edge if at_edge else edge + 1) * factor))
        elif node.op.name in ("lt", "ge"):
            _add_cut_of_rows(poly, indices, cuts)


def _divided_index(atom: Expr) -> tuple[Expr, int]:
    """(i, c) of i // c; any other expression is one that is divided by 1."""
    if isinstance(atom, Call) and atom.op.name == "floordiv":
        index, divisor = atom.args
        if isinstance(divisor, Const) and divisor.value > 0:
            return index, divisor.value
    return atom, 1


def _add_cut_of_rows(poly: dict, indices: list[Index], cuts: dict[Index, set[Dim]]) -> None:
    """Where an offset is compared with that of the start of a row: step * i + j + rest, for
    0 <= j < step, changes sign with i alone if `rest` is a multiple of the step."""
    steps = {k[0]: step for k, step in poly.items() if len(k) == 1 and k[0] in indices}
    others = {k: v for k, v in poly.items() if len(k) != 1 or k[0] not in steps}
    of_sizes = all(is_of_sizes(a) for k in others for a in k)
    if not of_sizes or min(steps.values(), default=0) <= 0:
        return
    index = max(steps, key=lambda x: steps[x])
    step, rest = steps[index], as_dim(from_poly(others))
    along = sum(steps[x] * (most(x.extent) - 1) for x in steps if x is not index)
    if along < step and (isinstance(rest, Expr) or rest % step == 0):
        cuts.setdefault(index, set()).add(as_dim(-rest // step))


def transposed_constants(
    computation: Computation,
) -> tuple[Computation, list[Computation], list[Buffer]]:
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
        index = index_of(shape)
        contents = buffer[tuple(index[order.index(d)] for d in range(buffer.rank))]
        transposed, filled = computation.copied(
            f"turned_{buffer.name}", index, contents, "transpose"
        )
        prepare.append(filled)
        temporaries.append(transposed)
        inputs.append(transposed)

        def rewrite(
            node: Expr, buffer: Buffer = buffer, transposed: Buffer = transposed,
            order: Sequence[int] = order,
        ) -> Expr | None:  # fmt: skip
            if isinstance(node, Load) and node.source == buffer.name:
                return transposed[tuple(node.index[d] for d in order)]
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
    (moved,) = dims
    return moved[0] if len(moved) == 1 and moved[0] != buffer.rank - 1 else None
