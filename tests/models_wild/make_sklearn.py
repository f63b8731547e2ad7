"""Models written by skl2onnx: a Gaussian process, a Gaussian mixture and a small MLP classifier.

Needs scikit-learn and skl2onnx (made with scikit-learn 1.9, skl2onnx 1.20).  The first two use
only the default domain; the MLP picks its class label with ai.onnx.ml's ArrayFeatureExtractor.
"""

from __future__ import annotations

import warnings

import numpy as np
from make_common import add_case, save
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.mixture import GaussianMixture
from sklearn.neural_network import MLPClassifier

STYLE = "skl2onnx"


def make(model, rows: np.ndarray, name: str, opset: int, **arguments) -> None:
    targets = {"": opset, "ai.onnx.ml": 3}
    save(to_onnx(model, rows[:1], target_opset=targets, **arguments), f"{name}.onnx")
    style = f"{STYLE}, opset {opset}"
    add_case(f"{name}.onnx", name, style, {"X": rows})


def main() -> None:
    warnings.filterwarnings("ignore")
    rows, labels = load_iris(return_X_y=True)
    rows = rows.astype(np.float32)
    sample = rows[::12]

    # The kernel matrix is a Scan over rows of cdist, sized by Shape, Gather and ConstantOfShape.
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.5, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None)
    process.fit(rows[::5], rows[::5, 0] * 0.5 + labels[::5])
    make(process, sample, "sklearn_gaussian_process", 12)

    mixture = GaussianMixture(3, random_state=0).fit(rows)
    make(mixture, sample, "sklearn_mixture", 13)

    network = MLPClassifier((12, 8), max_iter=400, random_state=0).fit(rows, labels)
    make(network, sample, "sklearn_mlp", 17, options={id(network): {"zipmap": False}})


if __name__ == "__main__":
    main()
