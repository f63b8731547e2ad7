"""Learning curves of graphc next to PyTorch's, from the same weights and batches.

    python benchmarks/learning_curves.py [--steps 200] [--precision f32 bf16 f16] [NAME ...]

Three networks: `digits`, the CNN of models/ on scikit-learn's digits; `tagger`, an LSTM that tags
each token by it and the one before; `transformer`, of two layers, which tags each by it and the
first one. Each is written in PyTorch, exported to ONNX untrained, and trained by both. One JSON
line for each network and precision: the largest and the mean difference of losses of one step, and
losses and accuracies on samples that neither was trained on. `apart` is the difference to PyTorch's
curve in float32; `moved_apart` is that of PyTorch itself when it starts from weights that are moved
by a rounding (the largest of `--moved` runs): ReLU and max pooling switch, so that one rounding may
decide about a step. For narrower types `autocast_apart` is the difference of PyTorch's autocast
(with GradScaler for f16).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from graphc import train

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

Batch = tuple[np.ndarray, np.ndarray]
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
TOKENS, TAGS, LENGTH = 40, 8, 16
ROUNDING = 2.0**-24


class Tagger(nn.Module):
    """Tokens [N, T] to scores of tags [N, TAGS, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 24)
        self.lstm = nn.LSTM(24, 48, batch_first=True)
        self.out = nn.Linear(48, TAGS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(tokens))
        return self.out(states).transpose(1, 2)


class Block(nn.Module):
    """Attention and a perceptron, each behind a normalisation and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, width = x.shape
        parts = self.qkv(self.first(x)).reshape(size, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(size, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Tokens [N, T] to scores of tags [N, TAGS, T]."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.1)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.out = nn.Linear(width, TAGS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(self.embed(tokens) + self.place)).transpose(1, 2)


def tagged(count: int, seed: int) -> Batch:
    """Tokens, and tags that follow from each token and the one before."""
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (count, LENGTH))
    before = np.concatenate([np.zeros((count, 1), np.int64), tokens[:, :-1]], 1)
    return tokens, (tokens + 3 * (before % 3)) % TAGS


def begun(count: int, seed: int) -> Batch:
    """Tokens, and tags that follow from each and the first of its sequence."""
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (count, LENGTH))
    return tokens, (tokens + 4 * (tokens[:, :1] % 2)) % TAGS


def digits(count: int, seed: int) -> Batch:
    """Images of digits: three quarters to train on (seed 0), the others to test."""
    from train_digits import load

    x_train, x_test, y_train, y_test = load()
    x, y = (x_train, y_train) if seed == 0 else (x_test, y_test)
    return x[:count], y[:count]


@dataclass(frozen=True)
class Case:
    """A network, its samples by number and seed, its input, and how both are trained."""

    network: Callable[[], nn.Module]
    samples: Callable[[int, int], Batch]
    optimizer: train.Optimizer
    theirs: Callable[..., torch.optim.Optimizer]


def digits_network() -> nn.Module:
    from train_digits import DigitsNet

    return DigitsNet()


CASES = {
    "digits": Case(
        digits_network, digits, train.SGD(0.005, momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.005, momentum=0.9),
    ),
    "tagger": Case(
        Tagger, tagged, train.Adam(5e-3), lambda p: torch.optim.Adam(p, 5e-3)
    ),
    "transformer": Case(
        Transformer, begun, train.AdamW(4e-3),
        lambda p: torch.optim.AdamW(p, 4e-3, weight_decay=0.01),
    ),
}  # fmt: skip


def batches(samples: Batch, steps: int, size: int) -> Iterator[Batch]:
    """So many batches of samples, in a new order in each epoch."""
    rng, order = np.random.default_rng(7), np.zeros(0, np.int64)
    for _ in range(steps):
        if len(order) < size:
            order = rng.permutation(len(samples[0]))
        chosen, order = order[:size], order[size:]
        yield samples[0][chosen], samples[1][chosen]


@dataclass
class Curve:
    """The loss of each step; `test` gives loss and accuracy on other samples at the end."""

    losses: list[float]
    test: Callable[[], tuple[float, float]]

    @cached_property
    def _tested(self) -> tuple[float, float]:
        return self.test()

    @property
    def loss(self) -> float:
        """The loss on other samples."""
        return self._tested[0]

    @property
    def accuracy(self) -> float:
        """The accuracy on other samples."""
        return self._tested[1]

    def apart(self, other: Curve) -> float:
        """The largest difference of losses of one step."""
        return float(np.abs(np.subtract(self.losses, other.losses)).max())


class Race:
    """One network, trained by both from the same weights and batches."""

    def __init__(self, name: str, steps: int, size: int = 32):
        self.case, self.steps, self.size = CASES[name], steps, size
        self.training = self.case.samples(1340, 0)
        self.test = self.case.samples(13 * size, 1)
        torch.manual_seed(3)
        self.start = self.case.network()
        data = io.BytesIO()
        example = torch.tensor(self.training[0][:size])
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.start, (example,), data, dynamo=False, opset_version=17, input_names=["x"],
                training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
            )  # fmt: skip
        self.model = data.getvalue()

    def ours(self, precision: str) -> Curve:
        """The curve of graphc."""
        names = [name for name, _ in self.start.named_parameters()]  # the same in the ONNX model
        step = train.Step(
            self.model, optimizer=self.case.optimizer, metrics=["accuracy"], threads=1,
            precision=precision, parameters=names,
        )  # fmt: skip
        losses = [step(batch).loss for batch in batches(self.training, self.steps, self.size)]

        def test() -> tuple[float, float]:
            judged = [step.evaluate(batch) for batch in self._tests()]
            loss, accuracy = (np.mean([x[k] for x in judged]) for k in ("loss", "accuracy"))
            return float(loss), float(accuracy)

        return Curve(losses, test)

    def theirs(self, precision: str, moved: int = 0) -> Curve:
        """The curve of PyTorch; from weights `moved` by a rounding, at random by that number."""
        network = self.case.network()
        network.load_state_dict(self.start.state_dict())
        torch.manual_seed(moved)
        with torch.no_grad():
            for weight in network.parameters() if moved else ():
                weight *= 1 + ROUNDING * torch.randn_like(weight)
        network.train()
        optimizer = self.case.theirs(network.parameters())
        scaler = torch.amp.GradScaler("cpu", enabled=precision == "f16")
        narrow = precision in DTYPES
        losses = []
        for x, y in batches(self.training, self.steps, self.size):
            with torch.autocast("cpu", dtype=DTYPES.get(precision, torch.bfloat16), enabled=narrow):
                scores = network(torch.tensor(x))
            loss = nn.functional.cross_entropy(scores.float(), torch.tensor(y))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        network.eval()
        return Curve(losses, lambda: self._judged(network))

    def _judged(self, network: nn.Module) -> tuple[float, float]:
        """Loss and accuracy of PyTorch's network on other samples."""
        judged = []
        with torch.no_grad():
            for x, y in self._tests():
                scores, labels = network(torch.tensor(x)), torch.tensor(y)
                loss = nn.functional.cross_entropy(scores, labels).item()
                judged.append((loss, (scores.argmax(1) == labels).float().mean().item()))
        loss, accuracy = np.mean(judged, axis=0).tolist()
        return loss, accuracy

    def _tests(self) -> Iterator[Batch]:
        x, y = self.test
        for n in range(0, len(x), self.size):
            yield x[n : n + self.size], y[n : n + self.size]


def record(name: str, precision: str, race: Race, exact: Curve, moved: int) -> dict[str, object]:
    """What is told of a network in a precision; `exact` is PyTorch's curve in float32."""
    ours = race.ours(precision)
    told: dict[str, object] = {
        "model": name, "precision": precision, "steps": race.steps,
        "first_loss": round(exact.losses[0], 4), "last_loss": round(exact.losses[-1], 4),
        "apart": float(f"{ours.apart(exact):.2g}"),
        "mean_apart": float(f"{np.mean(np.abs(np.subtract(ours.losses, exact.losses))):.2g}"),
        "accuracy": round(ours.accuracy, 4), "pytorch_accuracy": round(exact.accuracy, 4),
        "test_loss": round(ours.loss, 4), "pytorch_test_loss": round(exact.loss, 4),
    }  # fmt: skip
    if precision == "f32" and moved:
        apart = max(race.theirs("f32", n + 1).apart(exact) for n in range(moved))
        told["moved_apart"] = float(f"{apart:.2g}")
    if precision in DTYPES:
        try:
            autocast = race.theirs(precision)
        except RuntimeError:  # PyTorch has no LSTM in f16 on CPUs
            return told
        told["autocast_apart"] = float(f"{autocast.apart(exact):.2g}")
        told["autocast_accuracy"] = round(autocast.accuracy, 4)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--precision", nargs="*", default=["f32", "bf16", "f16"])
    parser.add_argument("--moved", type=int, default=5)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names:
        race = Race(name, args.steps)
        exact = race.theirs("f32")
        for precision in args.precision:
            print(json.dumps(record(name, precision, race, exact, args.moved)), flush=True)


if __name__ == "__main__":
    main()
