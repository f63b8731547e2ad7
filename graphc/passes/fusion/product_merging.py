"""Products of one operand with several constant matrices become one product (as for Q, K and V).

    x W1 + b1,  x W2 + b2,  ...   ==   slices of   x [W1 | W2 | ...] + [b1 | b2 | ...]

A branch is a MatMul or Gemm with a constant matrix, and the ops behind it that are affine in each
column: constant terms and factors, which go into the matrix and the term. A branch whose result is
read by anything but movements and contractions keeps its own product, because arithmetic on the
result is cheaper in that product's kernel. One large product fills a machine with many cores better
than several small ones, and reads x once. Where products run one after another anyway, the slices
cost more than that saves, so the pass is for targets that ask for it.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis import structure
from graphc.passes.fusion.movements import raise_scalars
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.pattern import P, attribute, opt, var
from graphc.passes.reasons import Reason
from graphc.passes.rules.facts import array_of, channel_vector
from graphc.passes.rules.weights import is_shared
from graphc.records import dataclass

RULE = "merge-products"

x, y, b = var("x y b")
MATMUL, GEMM, ADDED, SCALED = P.MatMul(x, y), P.Gemm(x, y, opt(b)), P.Add(x, y), P.Mul(x, y)


@dataclass
class Branch:
    """`result` is `operand @ matrix + term`; `ops` compute it."""

    ops: list[Op]
    matrix: np.ndarray
    term: np.ndarray

    @property
    def operand(self) -> Value:
        value = self.ops[0].inputs[0]
        assert value is not None
        return value

    @property
    def result(self) -> Value:
        return self.ops[-1].output

    @property
    def loc(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(where for op in self.ops for where in op.loc))


def merge_products(graph: Graph, ctx: Context) -> bool:
    """Merges all groups of branches; whether there were any."""
    raise_scalars(graph, ctx)
    groups: dict[tuple, list[Branch]] = {}
    for op in graph.ops:
        branch = _branch(graph, op)
        if isinstance(branch, Reason):
            ctx.decline(RULE, op, branch)
        elif branch is not None:
            groups.setdefault((branch.operand, branch.matrix.dtype.str), []).append(branch)
    merged = False
    for branches in groups.values():
        if len(branches) == 1:
            ctx.decline(RULE, branches[0].ops[0], "no other product reads the same operand")
        elif ctx.spend(RULE, branches[0].ops[0], [op for b in branches for op in b.ops]):
            _merge(graph, branches)
            merged = True
    return merged


def _branch(graph: Graph, op: Op) -> Branch | Reason | None:
    """The branch that begins with a product; why it is better alone; None if there is none."""
    branch = _product(op)
    if not isinstance(branch, Branch):
        return branch
    while (following := _affine_user(graph, branch)) is not None:
        user, factor, term = following
        with np.errstate(all="ignore"):
            matrix, moved = branch.matrix * factor, branch.term * factor + term
        if not (np.isfinite(matrix).all() and np.isfinite(moved).all()):
            break
        branch = Branch([*branch.ops, user], matrix, moved)
    users = branch.result.users
    apart = all(structure.is_movement(u) or structure.is_contraction(u)
                for u in users if structure.has_body(u))  # fmt: skip
    inside = branch.result not in graph.results and all(structure.has_body(u) for u in users)
    if users and apart and inside:
        return branch
    return Reason("arithmetic on {} is cheaper in the product's own kernel", branch.result)


def _product(op: Op) -> Branch | Reason | None:
    if not (MATMUL.admits(op.defn) or GEMM.admits(op.defn)):
        return None
    operand, weights = op.inputs[:2]
    matrix = array_of(weights)
    if operand is None or operand.constant is not None or weights is None or matrix is None:
        return Reason("the right operand is not constant, or the left one is")
    wide = weights.tensor.dtype.is_float and weights.tensor.dtype.bits >= 32
    if matrix.ndim != 2 or operand.tensor.rank < 2 or not wide or is_shared(weights):
        return Reason("the weights are no matrix of float32 or wider, or have other users")
    term = np.zeros(1, matrix.dtype)
    if GEMM.admits(op.defn):
        if attribute(op, "transA") or attribute(op, "alpha") != 1 or attribute(op, "beta") != 1:
            return Reason("Gemm has factors, or transposes its first operand")
        matrix = matrix.T if attribute(op, "transB") else matrix
        if len(op.inputs) > 2 and op.inputs[2] is not None:
            row_term = channel_vector(op.inputs[2], 2, 1, matrix.shape[1])
            if row_term is None:
                return Reason("its term differs between rows")
            term = row_term
    return Branch([op], matrix, np.broadcast_to(term, matrix.shape[1:]))


def _affine_user(graph: Graph, branch: Branch) -> tuple[Op, np.ndarray, np.ndarray] | None:
    """(user, factor, term) if the result's only user scales its columns or adds to them."""
    value = branch.result
    if len(value.uses) != 1 or value in graph.results:
        return None
    ((user, position),) = value.uses
    adds, scales = ADDED.admits(user.defn), SCALED.admits(user.defn)
    if not (adds or scales) or user.output.type != value.type:
        return None
    rank, columns = value.tensor.rank, branch.matrix.shape[1]
    other = channel_vector(user.inputs[1 - position], rank, rank - 1, columns)
    if other is None:
        return None
    zero, one = (np.full(columns, n, branch.matrix.dtype) for n in (0, 1))
    return (user, one, other) if adds else (user, other, zero)


def _merge(graph: Graph, branches: list[Branch]) -> None:
    """Replaces branches over one operand by slices of one product."""
    where = {op: position for position, op in enumerate(graph.ops)}
    anchor = min((b.ops[0] for b in branches), key=where.__getitem__)
    loc = tuple(dict.fromkeys(name for b in branches for name in b.loc))
    b = Builder(graph, anchor, loc)
    product = b.MatMul(branches[0].operand, np.concatenate([x.matrix for x in branches], 1))
    term = np.concatenate([x.term for x in branches])
    whole = b.Add(product, term) if term.any() else product
    start, axis = 0, np.array([whole.tensor.rank - 1])
    for branch in branches:
        end = start + branch.matrix.shape[1]
        piece = Builder(graph, anchor, branch.loc).Slice(
            whole, np.array([start]), np.array([end]), axis
        )
        piece.name = branch.result.name
        branch.result.replace_uses(piece)
        start = end
    for op in (op for branch in branches for op in reversed(branch.ops)):
        op.erase()


@register_pass
@dataclass
class MergeProducts(Pass):
    """Makes one product of several that share an operand (see the module)."""

    name = RULE
    requires = ("typed", "unfused")
    destroys = ("original", "canonical")

    def run(self, graph: Graph, ctx: Context) -> bool:
        return merge_products(graph, ctx)
