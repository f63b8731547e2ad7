"""Operators of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnxruntime
import pytest
from every_target import agree_everywhere
from onnx import TensorProto, helper
from single_op import run_op

import graphc
from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType

ML = "ai.onnx.ml"
onnxruntime.set_default_logger_severity(3)
rng = np.random.default_rng(0)
X = rng.standard_normal((6, 3)).astype(np.float32)
X[0] = 0
LABELS = rng.integers(-3, 3, (6, 3))


def agree_ml(
    name: str, *inputs: np.ndarray, outputs: int = 1, domain: str = ML, columns: int | None = None,
    **attrs,
) -> None:  # fmt: skip
    """Asserts that one node gives what ONNX Runtime gives, in the first `columns`."""
    names = [f"x{n}" for n in range(len(inputs))]
    results = [f"y{n}" for n in range(outputs)]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs)
    ]
    outs = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in results]
    for out in outs:
        out.ClearField("type")
    node = helper.make_node(name, names, results, domain=domain, **attrs)
    opsets = [helper.make_opsetid(*o) for o in (("", 18), (ML, 3), ("com.microsoft", 1))]
    model = helper.make_model(
        helper.make_graph([node], "g", infos, outs), opset_imports=opsets, ir_version=8
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, dict(zip(names, inputs)))
    for got, want in zip(interpret(import_onnx(model), list(inputs)), expected):
        assert got.shape == want.shape
        if want.dtype.kind == "O":
            assert got.tolist() == want.tolist()
        else:
            assert got.dtype == want.dtype
            if columns is not None and want.ndim == 2:
                got, want = got[:, :columns], want[:, :columns]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- features


@pytest.mark.suite("all")
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    agree_ml("Normalizer", X, norm=norm)
    agree_ml("Normalizer", LABELS, norm=norm)


def test_scaler():
    agree_ml("Scaler", X, offset=[1.0, 2.0, 3.0], scale=[2.0, 0.5, 1.0])
    agree_ml("Scaler", LABELS, offset=[1.0], scale=[2.0])


def test_imputer():
    holes = np.where(X > 0.5, np.nan, X).astype(np.float32)
    agree_ml("Imputer", holes, imputed_value_floats=[1.0, 2.0, 3.0],
             replaced_value_float=float("nan"))  # fmt: skip
    agree_ml("Imputer", LABELS, imputed_value_int64s=[7], replaced_value_int64=-1)


def test_encoders_and_selectors():
    agree_ml("OneHotEncoder", LABELS, cats_int64s=[-1, 0, 2])
    agree_ml("OneHotEncoder", X, cats_int64s=[-1, 0, 2])
    words = np.array([["b", "?"], ["a", "b"]], object)
    agree_ml("OneHotEncoder", words, cats_strings=["a", "c", "b"])
    agree_ml("FeatureVectorizer", X, X[:, :2], inputdimensions=[3, 2])
    agree_ml("FeatureVectorizer", X, X[:, :2], inputdimensions=[2, 4])
    agree_ml("FeatureVectorizer", X[0], X[1], inputdimensions=[5, 1])
    agree_ml("ArrayFeatureExtractor", X, np.array([[2, 0]]))
    agree_ml("ArrayFeatureExtractor", X[1], np.array([2, 0]))
    agree_ml("Binarizer", X, threshold=0.2)


@pytest.mark.parametrize("zeros", [0, 1])
def test_categories_of_a_vector_on_every_target(zeros):
    x = np.array([2, 1, 5, 1], np.float32)
    graph = new_graph(x=TensorType(dtypes.f32, x.shape))
    attrs = {"cats_int64s": (1, 2, 5), "zeros": zeros}
    graph.set_results([Builder(graph).op("OneHotEncoder", *graph.params, domain=ML, **attrs)])
    graph.phase = "typed"
    agree_everywhere(graph, [x], [np.eye(3, dtype=np.float32)[[1, 0, 2, 0]]])


@pytest.mark.parametrize(
    "good, bad, cats",
    [(np.array([[1], [2]]), np.array([[1], [9]]), {"cats_int64s": [2, 1]}),
     (np.array(["a", "b"], object), np.array(["a", "?"], object), {"cats_strings": ["a", "b"]})],
)  # fmt: skip
def test_unknown_categories_fail_the_run(good, bad, cats):
    agree_ml("OneHotEncoder", good, zeros=0, **cats)
    info = helper.make_tensor_value_info(
        "x", helper.np_dtype_to_tensor_dtype(good.dtype), good.shape
    )
    node = helper.make_node("OneHotEncoder", ["x"], ["y"], name="enc", domain=ML, zeros=0, **cats)
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    compiled = graphc.compile(helper.make_model(graph, opset_imports=opsets), threads=1)
    assert compiled.run([good])[0].sum() == 2
    with pytest.raises(ModelError, match='OneHotEncoder "enc": element 2 of x is not one of the 2'):
        compiled.run([bad])


def test_of_equal_categories_the_last_counts():
    agree_ml("OneHotEncoder", LABELS, cats_int64s=[1, 0, 1])


def test_ten_thousand_categories_and_features():
    """Expressions do not grow with them."""
    categories = np.random.default_rng(3).permutation(30_000)[:10_000]
    ids = np.arange(0, 30_000, 6007).reshape(1, -1)
    agree_ml("OneHotEncoder", ids, cats_int64s=categories.tolist())
    holes = np.where(categories % 3, categories, np.nan).astype(np.float32)[None]
    agree_ml("Imputer", holes, imputed_value_floats=[float(c) for c in categories],
             replaced_value_float=float("nan"))  # fmt: skip

    graph = new_graph(x=TensorType(dtypes.i64, ids.shape))
    made = Builder(graph).op(
        "OneHotEncoder", *graph.params, domain="ai.onnx.ml", cats_int64s=categories.tolist()
    )
    graph.set_results([made])
    graph.phase = "typed"
    agree_everywhere(graph, [ids], [(ids[..., None] == categories).astype(np.float32)])


# ---------------------------------------------------------------- linear models

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_models(transform):
    weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0, 1.0, -2.0]
    agree_ml("LinearRegressor", X, coefficients=weights[:6], intercepts=[0.5, -0.5], targets=2,
             post_transform=transform)  # fmt: skip
    agree_ml("LinearClassifier", X, outputs=2, coefficients=weights, intercepts=[0.5, -0.5, 0.0],
             classlabels_ints=[5, 6, 7], post_transform=transform)  # fmt: skip
    if transform != "PROBIT":  # ONNX Runtime leaves half of the scores unwritten then
        agree_ml("LinearClassifier", X, outputs=2, coefficients=weights[:3], intercepts=[0.5],
                 classlabels_ints=[5, 6], post_transform=transform)  # fmt: skip
    agree_ml("LinearRegressor", X, coefficients=weights[:3], post_transform=transform)
    agree_ml("LinearClassifier", X, outputs=2, coefficients=weights[:6],
             intercepts=[0.5, -0.5], classlabels_strings=["a", "b"],
             post_transform=transform)  # fmt: skip


# ---------------------------------------------------------------- trees

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


class RandomForest:
    """Attributes of a random ensemble whose leaves vote for the given targets."""

    def __init__(self, seed: int, votes: str, targets, modes, lowest: float):
        self.random, self.votes, self.targets = random.Random(seed), votes, targets
        self.modes, self.lowest = modes, lowest
        self.attrs: dict[str, list] = {}
        for tree in range(self.random.randint(1, 4)):
            self.count = 0
            self.build(tree, self.random.randint(0, 4))

    def add(self, name: str, value) -> int:
        column = self.attrs.setdefault(name, [])
        column.append(value)
        return len(column) - 1

    def build(self, tree: int, depth: int) -> int:
        node, pick = self.count, self.random
        self.count += 1
        leaf = depth == 0 or pick.random() < 0.2
        row = self.add("nodes_treeids", tree)
        self.add("nodes_nodeids", node)
        self.add("nodes_featureids", pick.randrange(3))
        self.add("nodes_values", pick.choice((-1.0, 0.0, 0.5, 1.0)))
        self.add("nodes_modes", "LEAF" if leaf else pick.choice(self.modes))
        self.add("nodes_missing_value_tracks_true", 0 if leaf else pick.randint(0, 1))
        self.add("nodes_truenodeids", 0)
        self.add("nodes_falsenodeids", 0)
        if not leaf:
            self.attrs["nodes_truenodeids"][row] = self.build(tree, depth - 1)
            self.attrs["nodes_falsenodeids"][row] = self.build(tree, depth - 1)
            return node
        for target in self.targets:
            self.add(f"{self.votes}_treeids", tree)
            self.add(f"{self.votes}_nodeids", node)
            self.add(f"{self.votes}_ids", target)
            self.add(f"{self.votes}_weights", pick.uniform(self.lowest, 1))
        return node


def rows(seed: int) -> np.ndarray:
    values = [-1, 0, 0.5, 1, 2, -0.3, np.nan]
    return np.random.default_rng(seed).choice(values, (7, 3)).astype(np.float32)


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(12))
def test_tree_regressors(seed):
    targets = seed % 3 + 1
    modes = (MODES[:1], MODES[1:3], MODES)[seed % 3]
    forest = RandomForest(seed, "target", range(targets), modes, -1)
    extra = {"base_values": [0.1 * n + 0.2 for n in range(targets)]} if seed % 2 else {}
    agree_ml(
        "TreeEnsembleRegressor", rows(seed), **forest.attrs, **extra, n_targets=targets,
        aggregate_function=("SUM", "AVERAGE", "MIN", "MAX")[seed % 4],
        post_transform=TRANSFORMS[seed % 3],
    )  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(12))
def test_tree_classifiers(seed):
    binary = seed % 2 == 0
    ids = [0] if binary else [0, 1, 2]
    forest = RandomForest(seed, "class", ids, MODES, -1 if seed % 3 else 0)
    agree_ml(
        "TreeEnsembleClassifier", rows(seed), outputs=2, **forest.attrs,
        classlabels_int64s=[10, 11] if binary else [10, 11, 12],
        post_transform=TRANSFORMS[seed % 4 // 2],
    )  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("voted", [0, 1])
@pytest.mark.parametrize("lowest", [0, -1])
def test_binary_decisions_of_trees(transform, voted, lowest):
    """All weights are for one class: above 1/2, or above 0 if one is negative, is the second."""
    for seed in range(6):
        forest = RandomForest(seed, "class", [voted], MODES, lowest)
        base = {"base_values": [0.3]} if seed % 2 else {}
        labels = {"classlabels_strings": ["n", "y"]} if seed % 3 else {"classlabels_int64s": [4, 9]}
        agree_ml(
            "TreeEnsembleClassifier", rows(seed), outputs=2, **forest.attrs, **labels, **base,
            post_transform=transform, columns=1 if transform == "PROBIT" and not voted else None,
        )  # fmt: skip


def test_classes_that_no_leaf_votes_for_are_not_the_label():
    for seed in range(8):
        forest = RandomForest(seed, "class", [0, 1, 2], MODES, -1)
        kept = [n for n in range(len(forest.attrs["class_ids"])) if n % 3 != seed % 3]
        votes = {k: [v[n] for n in kept] for k, v in forest.attrs.items() if k.startswith("class_")}
        agree_ml("TreeEnsembleClassifier", rows(seed), outputs=2, **{**forest.attrs, **votes},
                 classlabels_int64s=[10, 11, 12])  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_tree_regressors(transform):
    for targets in (1, 2):
        forest = RandomForest(targets, "target", range(targets), MODES, -1)
        agree_ml("TreeEnsembleRegressor", rows(3), **forest.attrs, n_targets=targets,
                 post_transform=transform)  # fmt: skip


# ---------------------------------------------------------------- support vector machines


def some(count: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).uniform(-1, 1, count).astype(np.float32).tolist()


KERNELS = [("LINEAR", 3.0), ("POLY", 2.0), ("POLY", 3.0), ("POLY", 4.0), ("RBF", 3.0),
           ("SIGMOID", 3.0)]  # fmt: skip


@pytest.mark.parametrize("kernel, degree", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_svm_classifiers(kernel, degree, classes):
    vectors, pairs = [2, 3, 1, 2][:classes], classes * (classes - 1) // 2
    count = sum(vectors)
    attrs = dict(
        vectors_per_class=vectors, support_vectors=some(count * 3), rho=some(pairs, 1),
        coefficients=some(count * (classes - 1), 2), kernel_type=kernel,
        kernel_params=[0.5, 0.25, degree],
    )  # fmt: skip
    probabilities = {"prob_a": some(pairs, 3), "prob_b": some(pairs, 4)}
    ints, strings = [5, 3, 8, 9][:classes], list("cabd")[:classes]
    for transform in TRANSFORMS:
        first = 1 if transform == "PROBIT" and classes == 2 else None
        agree_ml("SVMClassifier", X, outputs=2, **attrs, classlabels_ints=ints,
                 post_transform=transform, columns=first)  # fmt: skip
        agree_ml("SVMClassifier", X, outputs=2, **attrs, **probabilities,
                 classlabels_strings=strings, post_transform=transform)  # fmt: skip
    agree_ml("SVMClassifier", X[1], outputs=2, **attrs, classlabels_ints=ints)
    agree_ml("SVMClassifier", LABELS, outputs=2, **attrs, classlabels_ints=ints)
    agree_ml("SVMClassifier", X.astype(np.float64), outputs=2, **attrs, classlabels_ints=ints)


@pytest.mark.suite("all")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("sign", [1, -1])
def test_svm_classifiers_without_vectors(transform, sign):
    for classes in (1, 2, 3):
        weights = [sign * abs(w) for w in some(3 * classes)]
        agree_ml("SVMClassifier", X, outputs=2, coefficients=weights, rho=[0.1],
                 kernel_params=[0.0, 0.0, 3.0], classlabels_ints=[5, 3, 8][:classes],
                 post_transform=transform)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("kernel, degree", KERNELS)
def test_svm_regressors(kernel, degree):
    for one_class in (0, 1):
        agree_ml("SVMRegressor", X, support_vectors=some(12), coefficients=some(4, 1), n_supports=4,
                 rho=[0.3], kernel_type=kernel, kernel_params=[0.5, 0.25, degree],
                 one_class=one_class, post_transform="LOGISTIC")  # fmt: skip
    agree_ml("SVMRegressor", X, coefficients=some(3), rho=[0.3], kernel_params=[0.0, 0.0, 3.0])


def test_svm_on_every_target():
    graph = new_graph(x=TensorType(dtypes.f32, X.shape))
    made = Builder(graph).op(
        "SVMClassifier", *graph.params, domain=ML, outputs=2, vectors_per_class=(2, 1, 2),
        support_vectors=some(15), rho=some(3, 1), coefficients=some(10, 2), kernel_type="RBF",
        kernel_params=(0.5, 0.0, 3.0), prob_a=some(3, 3), prob_b=some(3, 4),
        classlabels_ints=(5, 3, 8),
    )  # fmt: skip
    graph.set_results(list(made))
    graph.phase = "typed"
    agree_everywhere(graph, [X], interpret(graph, [X]))


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "changes, message",
    [({"support_vectors": (1.0,)}, "support_vectors has 1 values, expected 3 x 3"),
     ({"coefficients": (1.0,)}, "coefficients has 1 values, expected 1 x 3"),
     ({"rho": ()}, "rho has 0 values, expected 1"), ({"prob_a": (1.0,)}, "1 and 0 values for 1"),
     ({"kernel_params": (1.0,)}, "gamma, coef0 and degree"), ({"kernel_type": "X"}, "LINEAR"),
     ({"vectors_per_class": (3,)}, "one per label"), ({"classlabels_ints": None}, "class labels")],
)  # fmt: skip
def test_malformed_machines_are_refused(changes, message):
    attrs = dict(
        vectors_per_class=(1, 2), support_vectors=some(9), rho=(0.1,), coefficients=some(3),
        classlabels_ints=(0, 1),
    )  # fmt: skip
    with pytest.raises(ModelError, match=message):
        run_op("SVMClassifier", X, domain=ML, outputs=2, **{**attrs, **changes})


# ---------------------------------------------------------------- ONNX Runtime's own operators

RUNTIME = "com.microsoft"


def test_murmur_hash():
    words = np.array(["abcd", "", "é", "hello world", "abc", "ab"], object)
    for attrs in ({}, {"seed": 5, "positive": 0}):
        for x in (words, X, LABELS, X.astype(np.float64), LABELS.astype(np.int32)):
            agree_ml("MurmurHash3", x, domain=RUNTIME, **attrs)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "attrs",
    [{"separators": [" "]}, {"separators": ["[ ,]", "b+"]}, {"separators": [""]},
     {"separators": ["x*"]}, {"tokenexp": "[a-zA-Z0-9_]+"}, {"tokenexp": "."},
     {"tokenexp": "a*", "mincharnum": 2}, {"tokenexp": "\\b\\w\\w+\\b"}],
)  # fmt: skip
def test_tokenizer(attrs):
    words = np.array(["the cat, sat", "bb é abba", "", " , ", "x aaa"], object)
    for x in (words, words.reshape(1, 5), words.reshape(5, 1), words[2:3]):
        for mark in (0, 1):
            agree_ml("Tokenizer", x, domain=RUNTIME, mark=mark, pad_value="#",
                     **{"mincharnum": 1, **attrs})  # fmt: skip


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_cdist(metric):
    agree_ml("CDist", X, X[1:] + 1, domain=RUNTIME, metric=metric)


def test_inverse_and_solve():
    matrices = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
    matrices[0, 0, 0] = 0
    agree_ml("Inverse", matrices, domain=RUNTIME)
    wide = matrices.astype(np.float64)
    right = np.random.default_rng(2).standard_normal((4, 3))
    for a, y in ((wide[0], right), (wide[1], right[:, 0])):
        found = run_op("Solve", a, y, domain=RUNTIME)
        np.testing.assert_allclose(found, np.linalg.solve(a, y), rtol=1e-9)
        found = run_op("Solve", a, y, domain=RUNTIME, transposed=1)
        np.testing.assert_allclose(found, np.linalg.solve(a.T, y), rtol=1e-9)


def test_inverse_on_every_target():
    matrices = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
    graph = new_graph(x=TensorType(dtypes.f32, matrices.shape))
    graph.set_results([Builder(graph).op("Inverse", *graph.params, domain=RUNTIME)])
    graph.phase = "typed"
    agree_everywhere(graph, [matrices], [np.linalg.inv(matrices)])


# ---------------------------------------------------------------- malformed trees


def tree(**changes):
    """x[0] in {1, 3} ? 5 : 7, as the newest operator writes it."""
    attrs = dict(
        nodes_featureids=(0,), nodes_splits=np.zeros(1, np.float32), nodes_modes=np.uint8([6]),
        nodes_truenodeids=(0,), nodes_falsenodeids=(1,), nodes_trueleafs=(1,),
        nodes_falseleafs=(1,), tree_roots=(0,), leaf_targetids=(0, 0),
        leaf_weights=np.float32([5, 7]), membership_values=np.float32([1, 3]),
    )  # fmt: skip
    x = np.array([[1], [2], [3], [np.nan]], np.float32)
    return run_op("TreeEnsemble", x, domain=ML, **{**attrs, **changes})


def test_membership_nodes():
    assert tree().ravel().tolist() == [5, 7, 5, 7]


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "changes, message",
    [({"nodes_truenodeids": (4,)}, "does not exist"), ({"nodes_featureids": (1,)}, "rows of 1"),
     ({"nodes_trueleafs": (0,)}, "two parents"), ({"nodes_featureids": ()}, "elements"),
     ({"membership_values": np.float32([np.nan])}, "empty set")],
)  # fmt: skip
def test_malformed_trees_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        tree(**changes)
