"""Models of scikit-learn at default options, as skl2onnx writes them, judged by ONNX Runtime.

`FAMILIES` names the estimators; each is fitted to a little random data (no two distances are
equal) of float32, and of float64 where ONNX Runtime takes that. `judged` tells, of one, how graphc
disagrees with ONNX Runtime, or why there is nothing to compare.

    python tests/sklearn_models.py [--all] [--trees]

runs every estimator that scikit-learn lists (--all), and models of XGBoost and LightGBM (--trees).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import sklearn
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import compose, feature_extraction, linear_model, pipeline, preprocessing, svm
from sklearn.utils import all_estimators, get_tags

import graphc
from graphc.ir.compare import compare

OPSETS = {"": 20, "ai.onnx.ml": 3}
TOLERANCE = 2e-4  # of the range of an output

FAMILIES = {
    "linear classifiers": """LogisticRegression LogisticRegressionCV RidgeClassifier SGDClassifier
        RidgeClassifierCV Perceptron PassiveAggressiveClassifier LinearSVC
        LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis MLPClassifier""",
    "other classifiers": """GaussianNB BernoulliNB MultinomialNB ComplementNB KNeighborsClassifier
        SVC NuSVC CategoricalNB GaussianProcessClassifier""",
    "forests": """DecisionTreeClassifier ExtraTreeClassifier RandomForestClassifier
        ExtraTreesClassifier GradientBoostingClassifier AdaBoostClassifier BaggingClassifier
        DecisionTreeRegressor ExtraTreeRegressor RandomForestRegressor GradientBoostingRegressor
        HistGradientBoostingClassifier HistGradientBoostingRegressor""",
    "linear regressors": """LinearRegression Ridge RidgeCV Lasso LassoCV ElasticNet ElasticNetCV
        BayesianRidge HuberRegressor Lars LassoLars LassoLarsIC OrthogonalMatchingPursuit
        SGDRegressor TheilSenRegressor RANSACRegressor TweedieRegressor PoissonRegressor
        GammaRegressor QuantileRegressor LinearSVR PassiveAggressiveRegressor""",
    "other regressors": """SVR NuSVR KNeighborsRegressor MLPRegressor GaussianProcessRegressor
        PLSRegression MultiTaskLasso MultiTaskElasticNet""",
    "scalers": """StandardScaler MinMaxScaler MaxAbsScaler RobustScaler Normalizer Binarizer
        PolynomialFeatures PowerTransformer QuantileTransformer SimpleImputer KNNImputer
        VarianceThreshold SelectKBest SelectPercentile SelectFpr TfidfTransformer
        FunctionTransformer OrdinalEncoder""",
    "decompositions": """PCA IncrementalPCA TruncatedSVD KMeans MiniBatchKMeans GaussianMixture
        BayesianGaussianMixture OneClassSVM NeighborhoodComponentsAnalysis""",
    "of others": """OneVsRestClassifier OneVsOneClassifier CalibratedClassifierCV VotingRegressor
        StackingClassifier StackingRegressor MultiOutputRegressor MultiOutputClassifier
        GridSearchCV Pipeline FeatureUnion ColumnTransformer RFE SelectFromModel""",
}
ENDLESS = ("BaggingRegressor float64",)  # skl2onnx looks for a threshold and finds no end
PARTS: dict[str, Any] = {
    "estimator": linear_model.LogisticRegression, "param_grid": lambda: {"C": [1, 2]},
    "param_distributions": lambda: {"C": [1, 2]},
    "steps": lambda: [("s", preprocessing.StandardScaler()), ("c", svm.SVC())],
    "transformer_list": lambda: [("s", preprocessing.StandardScaler()),
                                 ("m", preprocessing.MinMaxScaler())],
    "transformers": lambda: [("s", preprocessing.StandardScaler(), [0, 2]),
                             ("r", "passthrough", [1])],
}  # fmt: skip
"""What estimators made of others must be given."""


@dataclass
class Case:
    """A fitted estimator, its inputs, and how it is converted."""

    name: str
    model: Any
    feeds: dict[str, np.ndarray]
    types: list | None = None
    options: dict | None = None

    def proto(self) -> bytes:
        """The model as skl2onnx writes it."""
        (first, *_) = self.feeds.values()
        given = {"initial_types": self.types} if self.types else {"X": first[:1]}
        opsets = {**OPSETS, "com.microsoft": 1}
        options = {id(self.model): self.options} if self.options else None
        made = to_onnx(self.model, **given, target_opset=opsets, options=options)
        return made.SerializeToString()


def judged(case: Callable[[], Case], compiled: bool = True) -> tuple[str, str]:
    """Whether a model "agrees", "differs" or is "declined" (by scikit-learn, skl2onnx or ONNX
    Runtime), and why. If not `compiled`, the interpreter runs it."""
    with _quietly():
        try:
            found = case()
            proto = found.proto()
            session = onnxruntime.InferenceSession(
                _without_locales(proto), providers=["CPUExecutionProvider"]
            )
            expected = session.run(None, found.feeds)
        except Exception as error:
            return "declined", f"{type(error).__name__}: {error}"
        try:
            if compiled:
                outputs = graphc.compile(proto, threads=1).run(found.feeds)
            else:
                graph = graphc.import_onnx(proto)
                outputs = graphc.interpret(graph, [found.feeds[p.name] for p in graph.params])
        except graphc.GraphcError as error:
            return "differs", f"{type(error).__name__}: {error}"
    for number, (a, b) in enumerate(zip(outputs, expected, strict=True)):
        agreement = compare(f"output {number}", a, b)
        if not agreement.within(TOLERANCE):
            return "differs", str(agreement)
    return "agrees", ""


def _without_locales(proto: bytes) -> bytes:
    """The model for ONNX Runtime, whose StringNormalizer is given no locale by skl2onnx and then
    takes en_US.UTF-8, which not every machine has. For text of ASCII "C" makes no difference."""
    model = onnx.load_from_string(proto)
    for node in model.graph.node:
        if node.op_type == "StringNormalizer" and not any(
            a.name == "locale" for a in node.attribute
        ):
            node.attribute.append(onnx.helper.make_attribute("locale", "C"))
    return model.SerializeToString()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    onnxruntime.set_default_logger_severity(4)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


# ---------------------------------------------------------------- estimators


def estimators() -> dict[str, type]:
    """All that scikit-learn lists."""
    return dict(all_estimators())


def fitted(name: str, dtype: type) -> Case:
    """An estimator of scikit-learn on data of a type."""
    seed = sum(map(ord, name))
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, 48)
    x = np.abs(rng.normal(size=(48, 4)) + classes[:, None]) + 0.1
    y: np.ndarray = classes
    made = _made(name, seed)
    tags = get_tags(made)
    if tags.target_tags.multi_output and not tags.target_tags.single_output:
        y = np.stack([y, (y + 1) % 2], 1)
    elif tags.estimator_type == "regressor":
        y = classes + 0.3 * x[:, 0] + 0.5
    elif seed % 2 and name not in ("NuSVC", "GaussianProcessClassifier"):
        y = np.array(["no", "yes"])[(classes > 0).astype(int)]
    if name == "CategoricalNB":
        x = np.floor(x) % 2
    # ONNX lets NaN be a key of LabelEncoder; ONNX Runtime does not find it for these two
    encoder = name in ("OrdinalEncoder", "TargetEncoder")
    holes = tags.input_tags.allow_nan and seed % 2 and not encoder
    if holes or name in ("KNNImputer", "SimpleImputer"):
        x[rng.random(x.shape) < 0.05] = np.nan
    x = x.astype(dtype)
    try:
        made.fit(x, y)
    except ValueError:
        made.fit(x, (classes > 0).astype(int))
    wide = dtype is np.float64 and tags.estimator_type == "classifier"
    return Case(name, made, {"X": x[::8]}, options={"zipmap": False} if wide else None)


def _made(name: str, seed: int) -> Any:
    kind = estimators()[name]
    wanted = _parameters(kind)
    given = {key: PARTS[key]() for key in PARTS if key in wanted and _is_needed(kind, key)}
    if "estimators" in wanted and _is_needed(kind, "estimators"):
        one = linear_model.Ridge if "Regressor" in name else linear_model.LogisticRegression
        given["estimators"] = [("a", one()), ("b", one(fit_intercept=False))]
    if "Regressor" in name and "estimator" in given:
        given["estimator"] = linear_model.Ridge()
    if "random_state" in wanted:
        given["random_state"] = seed
    return kind(**given)


def _parameters(kind: type) -> Any:
    import inspect

    return inspect.signature(kind).parameters


def _is_needed(kind: type, key: str) -> bool:
    parameter = _parameters(kind)[key]
    return parameter.default is parameter.empty


# ---------------------------------------------------------------- columns and text

WORDS = np.array(
    ["the cat sat on the mat", "A dog, a cat", "mat and dog", "the dog sat", "no words of mine"],
    object,
)  # fmt: skip
TEXT = [("X", StringTensorType([None, 1]))]


def columns() -> Case:
    """Numbers and text in columns of their own, in front of a classifier with text for labels."""
    rng = np.random.default_rng(0)
    numbers, kinds = rng.normal(size=(40, 2)).astype(np.float32), rng.choice(["a", "b", "c"], 40)
    table = np.concatenate([numbers.astype(object), kinds[:, None].astype(object)], 1)
    prepared = compose.ColumnTransformer(
        [("n", preprocessing.StandardScaler(), [0, 1]),
         ("k", preprocessing.OneHotEncoder(handle_unknown="ignore"), [2])]
    )  # fmt: skip
    model = pipeline.make_pipeline(prepared, linear_model.LogisticRegression())
    model.fit(table, np.where(numbers[:, 0] + (kinds == "a") > 0, "up", "down"))
    types = [("p", FloatTensorType([None, 1])), ("q", FloatTensorType([None, 1])),
             ("kind", StringTensorType([None, 1]))]  # fmt: skip
    feeds = {"p": numbers[:7, :1], "q": numbers[:7, 1:], "kind": kinds[:7, None].astype(object)}
    feeds["kind"][3] = "unknown"
    return Case("columns", model, feeds, types)


def encoded(kind: type, integers: bool) -> Case:
    """An encoder of categories."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 4, (30, 2))
    if integers:
        return Case("encoded", kind().fit(x), {"X": x[:9]}, [("X", Int64TensorType([None, 2]))])
    letters = np.array(["b", "a", "d", "c"], object)[x]
    types = [("X", StringTensorType([None, 2]))]
    return Case("encoded", kind().fit(letters), {"X": letters[:9]}, types)


def words(**options: Any) -> Case:
    """Counts of words and pairs of words."""
    kind = feature_extraction.text.TfidfVectorizer if options.pop("tfidf", 0) else (
        feature_extraction.text.CountVectorizer
    )  # fmt: skip
    return Case("words", kind(**options).fit(WORDS), {"X": WORDS.reshape(-1, 1)}, TEXT)


def hashed() -> Case:
    """Features by the hashes of words. (skl2onnx has no converter for HashingVectorizer.)"""
    model = feature_extraction.FeatureHasher(n_features=8, input_type="string")
    rows = WORDS[:4].reshape(-1, 1)
    return Case("hashed", model.fit(rows), {"X": rows}, TEXT)


OTHERS: dict[str, Callable[[], Case]] = {
    "columns": columns,
    "one-hot integers": lambda: encoded(preprocessing.OneHotEncoder, True),
    "one-hot words": lambda: encoded(preprocessing.OneHotEncoder, False),
    "ordinal words": lambda: encoded(preprocessing.OrdinalEncoder, False),
    "words": words,
    "pairs of words": lambda: words(ngram_range=(1, 2)),
    "characters": lambda: words(analyzer="char"),
    "words by tf-idf": lambda: words(tfidf=1),
    "hashed": hashed,
}


# ---------------------------------------------------------------- trees of other libraries


def boosted() -> dict[str, Callable[[], Case]]:
    """Models of XGBoost and LightGBM, as onnxmltools converts them."""
    import lightgbm
    import xgboost

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 5)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5)
    kinds = {
        "xgboost": (xgboost.XGBClassifier, xgboost.XGBRegressor),
        "lightgbm": (lightgbm.LGBMClassifier, lightgbm.LGBMRegressor),
    }
    few = {"n_estimators": 8}
    cases: dict[str, Callable[[], Case]] = {}
    for library, (classifier, regressor) in kinds.items():
        for what, kind, y in (("binary", classifier, labels > 0), ("classes", classifier, labels),
                              ("numbers", regressor, x[:, 2])):  # fmt: skip
            target = y.astype(int) if what == "binary" else y
            cases[f"{library} {what}"] = lambda k=kind, t=target, n=library: Boosted(  # type: ignore[misc]
                n, k(**few).fit(x, t), {"X": x[::5]}
            )
    return cases


class Boosted(Case):
    def proto(self) -> bytes:
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        convert = getattr(onnxmltools, f"convert_{self.name}")
        types = [("X", FloatTensorType([None, self.feeds["X"].shape[1]]))]
        return convert(self.model, initial_types=types, target_opset=15).SerializeToString()


# ---------------------------------------------------------------- a run of everything


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="every estimator of scikit-learn")
    parser.add_argument("--trees", action="store_true", help="XGBoost and LightGBM too")
    args = parser.parse_args()
    names = [*estimators()] if args.all else [n for text in FAMILIES.values() for n in text.split()]
    cases: dict[str, Callable[[], Case]] = {
        f"{name} {dtype.__name__}": lambda n=name, d=dtype: fitted(n, d)  # type: ignore[misc]
        for name in names for dtype in (np.float32, np.float64)
        if f"{name} {dtype.__name__}" not in ENDLESS
    }  # fmt: skip
    cases |= OTHERS | (boosted() if args.trees else {})
    counts = dict.fromkeys(("agrees", "differs", "declined"), 0)
    for name, case in cases.items():
        result, why = judged(case)
        counts[result] += 1
        if result == "differs" or (result == "declined" and not args.all):
            print(f"{result}: {name}: {' '.join(why.split())[:200]}", flush=True)
    print(f"scikit-learn {sklearn.__version__}: {counts}")
    return int(counts["differs"] > 0)


if __name__ == "__main__":
    sys.exit(main())
