"""Tree ensembles of ai.onnx.ml: the attributes become one table of nodes, walked by one kernel.

A `Forest` numbers all inner nodes of all trees from 0. A child that is a leaf is written as
-1 - leaf, so a walk ends when the position is negative. `TreeLeaves` finds the leaf of every (row,
tree); the weights of those leaves are then gathered and aggregated by ordinary operators. A node
that tests membership of a set becomes a chain of equality tests with one common true branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, f32, f64, i64
from graphc.ir.expr import Expr, call, isnan, select
from graphc.ir.graph import Value
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.opdef import REQUIRED, Bool, Float, Int, Number, Operand, composite, imperative
from graphc.ir.ops.scores import (
    TRANSFORMS,
    chosen,
    either,
    label_array,
    post_transformed,
    transformed_targets,
    two_columns,
)
from graphc.ir.ops.traditional_ml import DOMAIN
from graphc.ir.types import TensorType
from graphc.records import dataclass

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
_COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
_MODES = {
    "BRANCH_LEQ": LEQ, "BRANCH_LT": LT, "BRANCH_GTE": GTE, "BRANCH_GT": GT, "BRANCH_EQ": EQ,
    "BRANCH_NEQ": NEQ,
}  # fmt: skip
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


# ---------------------------------------------------------------- walking


def _leaf_type(x: Operand, *tables: Any) -> TensorType:
    return TensorType(i64, (x.shape[0], tables[-1].shape[0]))


@imperative("TreeLeaves", infer=_leaf_type, domain="graphc")
def tree_leaves(
    k: Collectives, x: Number, feature: Int, split: Float, mode: Int, yes: Int, no: Int,
    missing: Bool, roots: Int, *, modes: tuple[int, ...], missing_matters: int,
) -> None:  # fmt: skip
    """The leaf that each row of x ends at in each tree.

    `modes` are the comparisons that occur, so that no kernel tests for others; `missing` says per
    node whether NaN takes the true branch, and is read only if `missing_matters`.
    """
    (leaves,) = k.outputs
    with k.loops(x.shape[0], roots.shape[0], kind="parallel") as (row, tree):
        node = k.var(i64, roots[tree])
        with k.repeat(node[()] >= 0):
            at = k.let(node[()])
            value = k.let(x[row, feature[at]].cast(split.dtype))
            taken = _test(value, split[at], mode[at], modes)
            if missing_matters:
                taken = taken | (missing[at] & isnan(value))
            k.store(node, (), select(taken, yes[at], no[at]))
        k.store(leaves, (row, tree), -1 - node[()])


def _test(value: Expr, threshold: Expr, mode: Expr, modes: Sequence[int]) -> Expr:
    result = call(_COMPARISONS[modes[0]], value, threshold)
    for other in modes[1:]:
        result = select(mode.eq(other), call(_COMPARISONS[other], value, threshold), result)
    return result


# ---------------------------------------------------------------- the table


@dataclass
class Forest:
    """Columns of all inner nodes, the root of each tree, and the weight of each leaf per target.

    weights[leaf, target] is NaN where a leaf says nothing of a target.
    """

    feature: list[int]
    split: list[float]
    mode: list[int]
    yes: list[int]
    no: list[int]
    missing: list[bool]
    roots: list[int]
    weights: np.ndarray

    def checked(self) -> Forest:
        """Itself, if the columns have one length, every position exists and every walk ends."""
        count = len(self.mode)
        columns = (self.feature, self.split, self.yes, self.no, self.missing)
        if any(len(column) != count for column in columns):
            raise ModelError(f"node attributes have {[count, *map(len, columns)]} elements")
        unknown = sorted(set(self.mode) - set(range(MEMBER + 1)))
        if unknown:
            raise ModelError(f"node modes are 0 to {MEMBER}, found {unknown[0]}")
        parent = dict.fromkeys(self.roots, -1)
        for node, children in enumerate(zip(self.yes, self.no)):
            for child in children:
                if child >= 0 and parent.setdefault(child, node) != node:
                    raise ModelError(f"node {child} has two parents: this is not a tree")
        for position in (*self.yes, *self.no, *self.roots):
            if not -len(self.weights) <= position < count:
                raise ModelError(f"a branch leads to node or leaf {position}, which does not exist")
        return self

    def leaves(self, b: Builder, x: Value, kind: DType) -> Value:
        """The leaf numbers [rows, trees] of the rows of x, compared in type `kind`."""
        if x.tensor.rank != 2:
            raise ModelError(f"takes rows of features, found {x.type}")
        features = x.tensor.dims[1]
        if any(f < 0 or f >= features for f in self.feature):
            raise ModelError(f"feature ids up to {max(self.feature)} in rows of {features}")

        def column(values: list, dtype: Any = np.int64) -> np.ndarray:
            return np.asarray(values or [0], dtype)

        missing = column(self.missing, bool)
        tables = [
            column(self.feature), column(self.split, kind.np), column(self.mode),
            column(self.yes), column(self.no), missing, column(self.roots),
        ]  # fmt: skip
        return b.op(
            "TreeLeaves", x, *map(b.constant, tables), domain="graphc",
            modes=tuple(sorted(set(self.mode))) or (LEQ,), missing_matters=int(missing.any()),
        )  # fmt: skip


def _aggregated(
    b: Builder, forest: Forest, x: Value, aggregate: str, base: Sequence[float] | None, kind: DType
) -> Value:
    """Leaf weights over all trees, plus base values: [rows, targets]."""
    if aggregate not in _AGGREGATES:
        raise ModelError(f"aggregate_function must be one of {_AGGREGATES}, found {aggregate!r}")
    absent = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0)
    votes = _votes(b, forest, forest.leaves(b, x, kind), absent, kind)
    trees = b.constant([1], i64)
    if aggregate in ("MIN", "MAX"):
        best = (b.ReduceMin if aggregate == "MIN" else b.ReduceMax)(votes, trees, keepdims=0)
        scores = b.Where(b.IsInf(best), b.constant(0, kind), best)
    else:
        scores = b.ReduceSum(votes, trees, keepdims=0)
    if aggregate == "AVERAGE":
        scores = b.Div(scores, b.constant(len(forest.roots), kind))
    if base is not None and len(base):
        scores = b.Add(scores, b.constant(np.asarray(base, kind.np)))
    return scores


def _votes(b: Builder, forest: Forest, leaves: Value, absent: float, kind: DType) -> Value:
    """The weights of leaves, per tree and target; `absent` where a leaf says nothing of one."""
    table = np.where(np.isnan(forest.weights), absent, forest.weights).astype(kind.np)
    return b.Gather(b.constant(table), leaves, axis=0)


def _compared_in(x: Value, *tables: Any) -> DType:
    """float64 if the rows or the thresholds are, else float32."""
    doubles = any(getattr(t, "dtype", None) == np.float64 for t in tables)
    return f64 if doubles or x.tensor.dtype is f64 else f32


# ---------------------------------------------------------------- TreeEnsemble


@composite("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(
    b: Builder, x: Float, *, nodes_featureids: Sequence[int], nodes_splits: np.ndarray,
    nodes_modes: np.ndarray, nodes_truenodeids: Sequence[int], nodes_falsenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int], nodes_falseleafs: Sequence[int], tree_roots: Sequence[int],
    leaf_targetids: Sequence[int], leaf_weights: np.ndarray, n_targets: int = 1,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_hitrates: np.ndarray | None = None, membership_values: np.ndarray | None = None,
    aggregate_function: int = 1, post_transform: int = 0,
) -> Value:  # fmt: skip
    """The aggregated leaf weights of all trees for each row, one column per target."""
    weights = np.full((len(leaf_targetids), n_targets), np.nan)
    weights[np.arange(len(leaf_targetids)), list(leaf_targetids)] = leaf_weights
    modes = [int(m) for m in np.asarray(nodes_modes).reshape(-1)]
    forest = Forest(
        list(nodes_featureids), [float(v) for v in np.asarray(nodes_splits).reshape(-1)], modes,
        [-1 - n if leaf else n for n, leaf in zip(nodes_truenodeids, nodes_trueleafs)],
        [-1 - n if leaf else n for n, leaf in zip(nodes_falsenodeids, nodes_falseleafs)],
        [bool(v) for v in nodes_missing_value_tracks_true or [0] * len(modes)],
        list(tree_roots), weights,
    ).checked()  # fmt: skip
    _expand_members(forest, membership_values)
    kind = x.tensor.dtype if x.tensor.dtype is f64 else f32
    scores = _aggregated(b, forest, x, _AGGREGATES[aggregate_function], None, kind)
    scores = transformed_targets(b, scores, TRANSFORMS[post_transform])
    return b.Cast(scores, to=x.tensor.dtype.onnx) if x.tensor.dtype is not kind else scores


def _expand_members(forest: Forest, values: np.ndarray | None) -> None:
    """Turns each membership node into equality nodes, chained by their false branches."""
    sets: list[list[float]] = [[]]
    for value in np.asarray(values if values is not None else [], np.float64).reshape(-1):
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(float(value))
    members = [n for n, mode in enumerate(forest.mode) if mode == MEMBER]
    for node, members_of in zip(members, sets):
        if not members_of:
            raise ModelError(f"node {node} tests membership of an empty set")
        forest.mode[node], forest.split[node] = EQ, members_of[0]
        for other in members_of[1:]:
            added = len(forest.mode)
            forest.feature.append(forest.feature[node])
            forest.split.append(other)
            forest.mode.append(EQ)
            forest.missing.append(forest.missing[node])
            forest.yes.append(forest.yes[node])
            forest.no.append(forest.no[node])
            forest.no[node] = added
            node = added
    if MEMBER in forest.mode:
        raise ModelError(f"{len(members)} membership nodes, but fewer sets of values")


# ---------------------------------------------------------------- the older pair of operators


_NODES = ("treeids", "nodeids", "featureids", "modes", "truenodeids", "falsenodeids")
NODES = {
    **{f"nodes_{name}": REQUIRED for name in _NODES},
    "nodes_values": None,
    "nodes_values_as_tensor": None,
    "nodes_missing_value_tracks_true": None,
    "nodes_hitrates": None,
    "nodes_hitrates_as_tensor": None,
}
"""The attributes of the nodes of all trees, an element each. How often nodes were met is not used.
"""


def _forest_by_ids(given: dict, values: np.ndarray, votes: tuple, targets: int) -> Forest:
    """A Forest from nodes named by (tree, node) ids, and votes (tree, node, target, weight)."""
    nodes = {name: given[f"nodes_{name}"] for name in _NODES}
    count = len(nodes["treeids"])
    keys = list(zip(nodes["treeids"], nodes["nodeids"]))
    inner: dict[tuple[int, int], int] = {}
    leaf: dict[tuple[int, int], int] = {}
    for key, mode in zip(keys, nodes["modes"]):
        group = leaf if mode == "LEAF" else inner
        group[key] = len(group)
    weights = np.full((max(1, len(leaf)), targets), np.nan)
    for tree, node, target, weight in zip(*votes):
        if (tree, node) not in leaf:
            raise ModelError(f"weight for node {node} of tree {tree}, which is not a leaf")
        row = leaf[tree, node]
        weights[row, target] = np.nan_to_num(weights[row, target]) + weight

    def position(tree: int, node: int) -> int:
        key = (tree, node)
        if key not in inner and key not in leaf:
            raise ModelError(f"tree {tree} has no node {node}")
        return inner[key] if key in inner else -1 - leaf[key]

    rows = [n for n in range(count) if keys[n] in inner]
    tracks = given["nodes_missing_value_tracks_true"] or [0] * count
    unknown = {nodes["modes"][n] for n in rows} - set(_MODES)
    if unknown:
        raise ModelError(f"nodes_modes holds {sorted(unknown)[0]!r}")
    first = {tree: (tree, node) for tree, node in reversed(keys)}
    return Forest(
        [nodes["featureids"][n] for n in rows],
        [float(values[n]) for n in rows],
        [_MODES[nodes["modes"][n]] for n in rows],
        [position(nodes["treeids"][n], nodes["truenodeids"][n]) for n in rows],
        [position(nodes["treeids"][n], nodes["falsenodeids"][n]) for n in rows],
        [bool(tracks[n]) for n in rows],
        [position(*first[tree]) for tree in dict.fromkeys(nodes["treeids"])],
        weights,
    ).checked()


def _either(as_floats: Sequence[float] | None, as_tensor: np.ndarray | None) -> Any:
    """The attribute given as floats or, in double precision, as a tensor."""
    return as_floats if as_tensor is None else np.asarray(as_tensor).reshape(-1)


@composite("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(
    b: Builder, x: Number, *, target_treeids: Sequence[int], target_nodeids: Sequence[int],
    target_ids: Sequence[int], target_weights: Sequence[float] | None = None,
    target_weights_as_tensor: np.ndarray | None = None, base_values: Sequence[float] | None = None,
    base_values_as_tensor: np.ndarray | None = None, aggregate_function: str = "SUM",
    n_targets: int = 1, post_transform: str = "NONE", **nodes: NODES,
) -> Value:  # fmt: skip
    """The aggregated leaf weights of all trees for each row, as float32."""
    values = _either(nodes["nodes_values"], nodes["nodes_values_as_tensor"])
    weights = _either(target_weights, target_weights_as_tensor)
    votes = (target_treeids, target_nodeids, target_ids, weights)
    forest = _forest_by_ids(nodes, values, votes, n_targets)
    base = _either(base_values, base_values_as_tensor)
    scores = _aggregated(b, forest, x, aggregate_function, base, _compared_in(x, values))
    scores = transformed_targets(b, scores, post_transform)
    return b.Cast(scores, to=f32.onnx)


@composite("TreeEnsembleClassifier", outputs=2, domain=DOMAIN)
def tree_ensemble_classifier(
    b: Builder, x: Number, *, class_treeids: Sequence[int], class_nodeids: Sequence[int],
    class_ids: Sequence[int], class_weights: Sequence[float] | None = None,
    class_weights_as_tensor: np.ndarray | None = None, base_values: Sequence[float] | None = None,
    base_values_as_tensor: np.ndarray | None = None,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None, post_transform: str = "NONE", **nodes: NODES,
) -> tuple[Value, ...]:  # fmt: skip
    """The label with the largest sum of leaf weights of each row, and the sums of all labels.

    Of classes that no leaf of the row votes for, the sum is 0, and they are not the label. Two
    labels with weights for one of them alone mean a binary decision: see `_binary`.
    """
    values = _either(nodes["nodes_values"], nodes["nodes_values_as_tensor"])
    labels = label_array(classlabels_int64s, classlabels_strings)
    weights = _either(class_weights, class_weights_as_tensor)
    given = _either(base_values, base_values_as_tensor)
    base = [] if given is None else list(given)
    kind = _compared_in(x, values)
    votes = (class_treeids, class_nodeids, class_ids, weights)
    forest = _forest_by_ids(nodes, values, votes, len(labels))
    if len(labels) == 2 and len(set(class_ids)) == 1:
        positive = bool(min(weights) >= 0)
        second, scores = _binary(b, forest, x, kind, class_ids[0], base, post_transform, positive)
        return either(b, labels, second), b.Cast(scores, to=f32.onnx)
    base += [0.0] * (len(labels) - len(base) if base else 0)
    scores = _aggregated(b, forest, x, "SUM", base, kind)
    ranked = scores if base else _ranked(b, forest, x, scores)
    best = b.ArgMax(ranked, axis=1, keepdims=0)
    return chosen(b, labels, best), b.Cast(
        transformed_targets(b, scores, post_transform), to=f32.onnx
    )


def _ranked(b: Builder, forest: Forest, x: Value, scores: Value) -> Value:
    """The scores, -inf for classes that no leaf of the row votes for."""
    voting = ~np.isnan(forest.weights)
    if voting.all():
        return scores
    kind = scores.tensor.dtype
    leaves = forest.leaves(b, x, kind)
    taken = b.Gather(b.constant(voting.astype(np.float32)), leaves, axis=0)
    voted = b.ReduceMax(taken, b.constant([1], i64), keepdims=0)
    return b.Where(b.Greater(voted, b.constant(0, f32)), scores, b.constant(-np.inf, kind))


def _binary(
    b: Builder, forest: Forest, x: Value, kind: DType, voted: int, base: list, post_transform: str,
    positive: bool,
) -> tuple[Value, ...]:  # fmt: skip
    """Whether the sum s of the class that is `voted` for means the second label, and two scores.

    It does if s > 1/2, or s > 0 if a weight is negative. Where all weights are for the first class,
    `two_columns` makes scores of s; otherwise those of the classes are transformed, of which one is
    0. Two base values are those of the classes; one is the first's. ONNX Runtime's rules, but where
    two base values and weights for the second class meet: there it drops the weights.
    """
    one = b.constant([1], i64)
    column = np.where(np.isnan(forest.weights[:, voted]), 0, forest.weights[:, voted])
    votes = b.Gather(b.constant(column.astype(kind.np)), forest.leaves(b, x, kind), axis=0)
    score = b.ReduceSum(votes, one, keepdims=1)
    if len(base) > voted:
        score = b.Add(score, b.constant(base[voted], kind))
    second = b.Greater(score, b.constant(0.5 if positive else 0, kind))
    if voted == 0 and len(base) < 2:
        return second, two_columns(b, score, post_transform, positive)
    other = b.Mul(score, b.constant(0, kind))
    both = b.Concat(*((score, other) if voted == 0 else (other, score)), axis=1)
    return second, post_transformed(b, both, post_transform)
