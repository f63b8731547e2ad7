"""What 8 bits cost: accuracy of quantised models on data that neither training nor calibration saw.

    python benchmarks/quantised_accuracy.py [--samples 64] [NAME ...]

Models are trained here, in seconds, on the small data sets that scikit-learn carries: perceptrons
of scikit-learn on digits and on the breast cancer data, and networks of PyTorch on digits (residual
convolutions, an LSTM over rows of pixels, a transformer over rows), beside models/digits_cnn.onnx.
One JSON line for each model and setting (`default`; `integers` from input to output): the accuracy
in percent of the float model, of the quantised one in graphc and in ONNX Runtime, and how many test
samples there are.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import graphc

MODELS = Path(__file__).parents[1] / "models"
sys.path.insert(0, str(MODELS))

SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "integers": {"whole": True}}
EPOCHS, BATCH = 30, 64
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Samples to train on and to judge by, then their labels."""


class Residual(nn.Module):
    """Images [N, 1, 8, 8] to scores, by residual and depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU6())
        self.inner = nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.ReLU6(),
            nn.Conv2d(24, 24, 1), nn.BatchNorm2d(24),
        )  # fmt: skip
        self.down = nn.Sequential(
            nn.Conv2d(24, 32, 3, stride=2), nn.BatchNorm2d(32), nn.Hardswish()
        )
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.out(self.down(x + self.inner(x)).mean((2, 3)))


class Rows(nn.Module):
    """Images [N, 8, 8] to scores, by an LSTM over their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    """Images [N, 8, 8] to scores, by attention between their rows."""

    def __init__(self) -> None:
        super().__init__()
        from learning_curves import Block

        self.embed, self.places = nn.Linear(8, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(self.embed(x) + self.places).mean(1))


def digits() -> Split:
    """Images [N, 1, 8, 8] between 0 and 1; those to judge by were not seen by digits_cnn.onnx."""
    from train_digits import load

    return load()


def cancer() -> Split:
    x, y = load_breast_cancer(return_X_y=True)
    x = x.astype(np.float32)
    return tuple(train_test_split(x, y.astype(np.int64), test_size=0.5, random_state=0, stratify=y))


def of_torch(make: Callable[[], nn.Module], split: Split) -> onnx.ModelProto:
    """A network, trained and exported."""
    torch.manual_seed(0)
    network, x, y = make(), torch.from_numpy(split[0]), torch.from_numpy(split[2])
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
    buffer = io.BytesIO()
    torch.onnx.export(
        network.eval(), (x[:2],), buffer, dynamo=False, opset_version=17, input_names=["x"],
        output_names=["scores"], dynamic_axes={"x": {0: "N"}, "scores": {0: "N"}},
    )  # fmt: skip
    return onnx.load_model_from_string(buffer.getvalue())


def of_sklearn(estimator: Any, split: Split) -> onnx.ModelProto:
    """A pipeline, trained and exported; its output is the probability of each class."""
    from skl2onnx import to_onnx

    estimator.fit(split[0], split[2])
    made = to_onnx(estimator, split[0][:1], options={"zipmap": False})
    del made.graph.output[0]  # the labels
    return made


def flat(split: Split) -> Split:
    return split[0].reshape(len(split[0]), -1), split[1].reshape(len(split[1]), -1), *split[2:]


def rows(split: Split) -> Split:
    return split[0][:, 0], split[1][:, 0], *split[2:]


def prepared(name: str) -> tuple[onnx.ModelProto, Split]:
    """A float model, and its data."""
    if name == "digits_cnn":
        return onnx.load(MODELS / "digits_cnn.onnx"), digits()
    if name == "sklearn_digits":
        split = flat(digits())
        return of_sklearn(MLPClassifier((64, 32), max_iter=400, random_state=0), split), split
    if name == "sklearn_cancer":
        split = cancer()
        perceptron = MLPClassifier((32,), max_iter=1000, random_state=0)
        return of_sklearn(make_pipeline(StandardScaler(), perceptron), split), split
    if name == "torch_residual":
        return of_torch(Residual, digits()), digits()
    if name == "torch_lstm":
        return of_torch(Rows, rows(digits())), rows(digits())
    return of_torch(Transformer, rows(digits())), rows(digits())


NAMES = (
    "digits_cnn", "sklearn_digits", "sklearn_cancer", "torch_residual", "torch_lstm",
    "torch_transformer",
)  # fmt: skip


def accuracy(run: Callable[[dict], list], feeds: dict[str, np.ndarray], y: np.ndarray) -> float:
    """The share in percent of samples whose largest score is that of their class."""
    return 100 * float((np.asarray(run(feeds)[0]).argmax(-1) == y).mean())


def integer_feeds(graph: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs as a model of integers takes them: with the scale of its first operator."""
    made = {}
    for value in graph.inputs:
        array = feeds[value.name]
        if value.type.dtype.is_float:
            made[value.name] = array
            continue
        op = value.users[0]
        scale, zero = (op.operand(n).constant for n in (1, 2))
        limits = np.iinfo(value.type.dtype.np)
        steps = np.rint(array / scale) + zero
        made[value.name] = np.clip(steps, limits.min, limits.max).astype(value.type.dtype.np)
    return made


def measure(name: str, samples: int) -> None:
    model, (x, test, _, labels) = prepared(name)
    source = model.SerializeToString()
    inputs = [value.name for value in model.graph.input]
    feeds = {inputs[0]: test}
    session = ort.InferenceSession(source)
    before = accuracy(lambda f: session.run(None, f), feeds, labels)
    for setting, options in SETTINGS.items():
        quantised = graphc.quantise(source, {inputs[0]: x[:samples]}, **options)
        made = ort.InferenceSession(quantised.to_onnx().SerializeToString())
        given = integer_feeds(quantised.graph, feeds)
        row = {
            "model": name, "setting": setting, "tested": len(labels), "float": before,
            "graphc": accuracy(graphc.compile(quantised.graph).run, given, labels),
            "onnxruntime": accuracy(lambda f, made=made: made.run(None, f), given, labels),
            "layers": len(quantised.layers),
        }  # fmt: skip
        print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=" ".join(NAMES))
    parser.add_argument("--samples", type=int, default=64, help="to calibrate on")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in args.names:
        if name not in NAMES:
            parser.error(f"expected one of {', '.join(NAMES)}, found {name!r}")
        measure(name, args.samples)


if __name__ == "__main__":
    main()
