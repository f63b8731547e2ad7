"""Classical machine learning, losses, and steps of training."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import f32, i64
from templates.table import is_f32, template

ML = "ai.onnx.ml"


@template(0.3)
def losses(g: Generator) -> None:
    x = g.pick(is_f32, (2, 4), filled=True)
    n, classes, *rest = x.tensor.dims
    target = g.b.constant(g.rng.integers(0, classes, (n, *rest)).astype(np.int64))
    weight = g.b.constant((g.rng.integers(1, 5, classes) / 4).astype(np.float32))
    weights = [weight] if g.chance(0.5) else []
    attrs = {"reduction": g.choice(("mean", "sum", "none"))}
    if g.chance(0.3) and classes > 1 and attrs["reduction"] != "mean":
        attrs["ignore_index"] = 1
    name = g.choice(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))
    g.emit(name, x, target, *weights, **attrs)


@template(0.3)
def scores(g: Generator) -> None:
    x = g.pick(is_f32, (2, 2), filled=True)
    features = x.tensor.dims[1]
    which = g.integer(0, 3)
    if which == 0:
        offset, scale = (g.array(f32, (features,), small=True).tolist() for _ in range(2))
        g.emit("Scaler", x, domain=ML, offset=offset, scale=scale)
    elif which == 1:
        y = g.emit("Add", g.emit("Abs", x), 0.5)
        g.emit("Normalizer", y, domain=ML, norm=g.choice(("MAX", "L1", "L2")))
    elif which == 2:
        targets = g.integer(1, 3)
        weights = g.array(f32, (targets * features,), small=True).tolist()
        g.emit("LinearRegressor", x, domain=ML, targets=targets, coefficients=weights,
               intercepts=[0.5] * targets)  # fmt: skip
    else:
        g.emit("FeatureVectorizer", x, domain=ML, inputdimensions=[features])


@template(0.3)
def picked_features(g: Generator) -> None:
    x = g.pick(is_f32, (1, 3), exact=True, filled=True)
    if g.chance(0.5):
        g.emit("Binarizer", x, domain=ML, threshold=0.25, keeps=True)
    else:
        picked = g.rng.integers(0, x.tensor.dims[-1], g.integer(1, 4)).astype(np.int64)
        g.for_onnxruntime &= x.tensor.rank > 1  # it adds a dimension
        g.emit("ArrayFeatureExtractor", x, picked, domain=ML, keeps=True)


@template(0.4)
def trees(g: Generator) -> None:
    """A few trees of depth two."""
    x = g.pick(is_f32, (2, 2), exact=True, filled=True)
    count, targets = g.integer(1, 6), g.integer(1, 3)
    nodes: dict[str, list] = {name: [] for name in ("tree", "node", "feature", "mode", "value",
                                                    "yes", "no")}  # fmt: skip
    leaves: dict[str, list] = {name: [] for name in ("tree", "node", "target", "weight")}
    mode = g.choice(("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"))
    for tree in range(count):
        for node in range(7):
            inner = node < 3
            row = (tree, node, g.integer(0, x.tensor.dims[1] - 1) if inner else 0,
                   mode if inner else "LEAF", g.integer(-6, 6) / 4 if inner else 0.0,
                   2 * node + 1 if inner else 0, 2 * node + 2 if inner else 0)  # fmt: skip
            for items, item in zip(nodes.values(), row):
                items.append(item)
            if not inner:
                leaf = (tree, node, g.integer(0, targets - 1), g.integer(-8, 8) / 8)
                for items, item in zip(leaves.values(), leaf):
                    items.append(item)
    g.emit(
        "TreeEnsembleRegressor", x, domain=ML, n_targets=targets,
        nodes_treeids=nodes["tree"], nodes_nodeids=nodes["node"],
        nodes_featureids=nodes["feature"], nodes_modes=nodes["mode"],
        nodes_values=nodes["value"], nodes_truenodeids=nodes["yes"],
        nodes_falsenodeids=nodes["no"], target_treeids=leaves["tree"],
        target_nodeids=leaves["node"], target_ids=leaves["target"],
        target_weights=leaves["weight"],
        aggregate_function=g.choice(("SUM", "AVERAGE", "MIN", "MAX")),
    )  # fmt: skip


@template(0.3)
def training_step(g: Generator) -> None:
    x = g.pick(is_f32, (0, 3), filled=True)
    shape = x.tensor.dims
    rate = g.b.constant(0.1, f32)
    step = g.b.constant(g.integer(0, 3), i64)
    domain = "ai.onnx.preview.training"
    which = g.integer(0, 2)
    g.for_onnxruntime = False  # it has none of them in inference builds
    first, second = g.operand(f32, shape), g.emit("Abs", g.operand(f32, shape), keeps=True)
    if which == 0:
        g.emit("Momentum", rate, step, x, first, g.operand(f32, shape), domain=domain, alpha=0.9,
               beta=0.5, norm_coefficient=0.01, mode=g.choice(("standard", "nesterov")),
               outputs=2)  # fmt: skip
    elif which == 1:
        g.emit("Adagrad", rate, step, x, first, second, domain=domain, epsilon=0.01,
               decay_factor=0.1, outputs=2)  # fmt: skip
    else:
        g.emit("Adam", rate, step, x, first, g.operand(f32, shape), second, domain=domain,
               epsilon=0.01, outputs=3)  # fmt: skip


@template(0.2)
def drawn_by_shape(g: Generator) -> None:
    """Values that depend on shapes alone."""
    x = g.pick(is_f32, (1, 4))
    which = g.integer(0, 3)
    if which == 0:
        g.emit("ConstantOfShape", np.array(g.shape(2), np.int64),
               value=np.array([g.integer(0, 3)], np.float32), keeps=True)  # fmt: skip
    elif which == 1:
        start, step = g.integer(-5, 5), g.choice((1, 2, -1, 3))
        limit = start + step * g.integer(0, 9)
        g.emit("Range", *(np.array(n, np.int64) for n in (start, limit, step)), keeps=True)
    elif which == 2:
        g.emit(g.choice(("Shape", "Size")), x, keeps=True)
    elif x.tensor.rank == 2:
        g.emit("EyeLike", x, k=g.integer(-2, 2), dtype=f32.onnx, keeps=True)
    else:
        raise Decline
