"""Edges of a row of vectors: where a condition on positions may hold for some lanes only.

A mirrored border or an enlarged image has conditions that hold for all lanes or for none, except in
vectors at the ends of a row. The vectors in between are computed apart (loop peeling). They need no
conditions, and their loads are often contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Expr, Index, Reduce, free_indices, walk
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim

ENDS = ((1, 0), (0, 1), (1, 1))  # how many vectors there may be at the two ends


def undecided_edges(
    exprs: Sequence[Expr], index: Index, lanes: int, vectors: Dim
) -> list[tuple[int, Dim]]:
    """Pieces, first vector and how many, of the vectors that `index` runs over in a row."""
    if vectors == 0:
        return []
    whole: list[tuple[int, Dim]] = [(0, vectors)]
    if not isinstance(vectors, int):
        return whole
    nodes = {node for e in exprs for node in walk(e)}
    conditions = [node for node in nodes if _is_condition(node, {index})]
    if vectors < 3 or not conditions or any(isinstance(node, Reduce) for node in nodes):
        return whole
    lane = Index(f"{index.name}l", lanes)
    for left, right in ENDS:
        count = vectors - left - right
        inner = Index(f"{index.name}v", count)
        place: dict[Expr, Expr] = {index: (inner + left) * lanes + lane}
        if not any(_stays(simplify(c, place), {inner, lane}) for c in conditions):
            pieces: list[tuple[int, Dim]] = [(0, left), (left, count), (left + count, right)]
            return [piece for piece in pieces if piece[1]]
    return whole


def _stays(expr: Expr, indices: set[Index]) -> bool:
    return any(_is_condition(node, indices) for node in walk(expr))


def _is_condition(node: Expr, indices: set[Index]) -> bool:
    """Whether a node chooses by comparing positions that depend on the indices."""
    if not isinstance(node, Call) or not indices & free_indices(node):
        return False
    if node.op.name in ("min", "max"):
        return node.dtype is i64
    return node.op.rule == "compare" and node.args[0].dtype is i64
