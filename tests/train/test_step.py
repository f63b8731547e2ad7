"""Training steps against PyTorch: the same weights, batches and optimisers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import dsl, train
from graphc.train import LOSSES

torch = pytest.importorskip("torch")
F = torch.nn.functional
DIGITS = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
RNG = np.random.default_rng(0)

OPTIMIZERS = {
    "sgd": (train.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        train.SGD(0.05, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        train.SGD(0.05, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    ),
    "adam": (
        train.Adam(0.01, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    ),
    "adamw": (train.AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.01)),
    "adagrad": (train.Adagrad(0.05), lambda p: torch.optim.Adagrad(p, 0.05)),
    "rmsprop": (train.RMSProp(0.01), lambda p: torch.optim.RMSprop(p, 0.01)),
}


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def perceptron(w1: np.ndarray, b1: np.ndarray, w2: np.ndarray):
    with dsl.building("perceptron") as g:
        x = g.input("x", dsl.f32["N", w1.shape[0]])
        weights = (dsl.constant(w, name=n) for w, n in zip((w1, b1, w2), ("w1", "b1", "w2")))
        first, bias, second = weights
        g.output(y=dsl.Tanh(x @ first + bias) @ second)
    return g.graph


def weights() -> dict[str, np.ndarray]:
    return {"w1": floats(5, 8), "b1": floats(8), "w2": floats(8, 3)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_are_pytorchs(name):
    ours, theirs = OPTIMIZERS[name]
    start = weights()
    step = train.Step(perceptron(**start), loss="mse", optimizer=ours, threads=1)
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in start.items()}
    optimizer = theirs(list(leaves.values()))
    for _ in range(5):
        x, y = floats(4, 5), floats(4, 3)
        loss = F.mse_loss(
            torch.tanh(torch.tensor(x) @ leaves["w1"] + leaves["b1"]) @ leaves["w2"],
            torch.tensor(y),
        )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((v.grad**2).sum() for v in leaves.values()))
        result = step((x, y))
        assert result.loss == pytest.approx(loss.item(), rel=1e-4)
        assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
        optimizer.step()
    for key, leaf in leaves.items():
        np.testing.assert_allclose(step.state_dict()[key], leaf.detach().numpy(), atol=1e-5)


def test_lion_steps_by_signs():
    start = weights()
    step = train.Step(perceptron(**start), loss="mse", optimizer=train.Lion(0.5), threads=1)
    step((floats(4, 5), floats(4, 3)))
    moved = np.abs(step.state_dict()["w2"] - start["w2"])
    np.testing.assert_allclose(moved, 0.5, atol=1e-6)


def test_gradients_are_clipped_by_their_norm():
    start = weights()
    batch = floats(4, 5), 100 * floats(4, 3)
    step = train.Step(
        perceptron(**start), loss="mse", optimizer=train.SGD(1.0), clip_norm=0.5, threads=1
    )
    result = step(batch)
    assert result.gradient_norm > 1
    moved = np.concatenate([(step.state_dict()[k] - v).ravel() for k, v in start.items()])
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-4)


LABELS = np.array([2, 0, 1, 1])
REFERENCES = {
    "cross_entropy": (F.cross_entropy, LABELS),
    "nll": (F.nll_loss, LABELS),
    "bce": (F.binary_cross_entropy_with_logits, RNG.random((4, 3)).astype(np.float32)),
    "mse": (F.mse_loss, floats(4, 3)),
    "l1": (F.l1_loss, floats(4, 3)),
    "huber": (F.huber_loss, floats(4, 3)),
    "kl": (
        lambda x, y: F.kl_div(x, y, reduction="batchmean"),
        np.array([[0, 0.5, 0.5], [1, 0, 0], [0.2, 0.3, 0.5], [0, 0, 1]], np.float32),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_losses_are_pytorchs(name):
    reference, target = REFERENCES[name]
    x = floats(4, 3)
    leaf = torch.tensor(x, requires_grad=True)
    wanted = reference(leaf, torch.tensor(target))
    wanted.backward()
    value, slope = graphc.value_and_grad(lambda v: LOSSES[name](v, dsl.constant(target)))(x)
    assert value == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(slope, leaf.grad.numpy(), atol=1e-6)


class Digits(torch.nn.Module):
    """The network of models/digits_cnn.onnx."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv3, self.bn3 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.fc = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.max_pool2d(F.relu(self.bn3(self.conv3(x))), 2)
        return self.fc(x.flatten(1))


def test_a_network_learns_as_in_pytorch(tmp_path):
    step = train.Step(DIGITS, optimizer=train.SGD(0.01, momentum=0.9), threads=1)
    network = Digits()
    missing = network.load_state_dict(
        {k: torch.tensor(v) for k, v in step.state_dict().items()}, strict=False
    )
    assert all("num_batches" in name for name in missing.missing_keys)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    batches = [(floats(8, 1, 8, 8), RNG.integers(0, 10, 8)) for _ in range(3)]
    for n in range(12):
        x, y = batches[n % 3]
        loss = F.cross_entropy(network(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step((x, y)).loss == pytest.approx(loss.item(), abs=1e-3)
        if n == 5:  # a run that is taken up again goes on to the same bits
            step.save(tmp_path / "half.npz")
    again = train.Step(DIGITS, optimizer=train.SGD(0.01, momentum=0.9), threads=1)
    again.load(tmp_path / "half.npz")
    for n in range(6, 12):
        again(batches[n % 3])
    for name, array in step.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], array)
    trained = graphc.compile(step.trained(), threads=1).run([batches[0][0]])[0]
    mean = network.bn1.running_mean.numpy()
    np.testing.assert_allclose(step.state_dict()["bn1.running_mean"], mean, rtol=1e-3, atol=1e-4)
    assert (trained.argmax(1) == batches[0][1]).mean() > 0.5


def test_frozen_parameters_stay():
    start = weights()
    step = train.Step(perceptron(**start), loss="mse", frozen=["w1"], threads=1)
    step((floats(4, 5), floats(4, 3)))
    np.testing.assert_array_equal(step.state_dict()["w1"], start["w1"])
    assert (step.state_dict()["w2"] != start["w2"]).any()
    only = train.Step(perceptron(**start), loss="mse", parameters=["b*"], threads=1)
    only((floats(4, 5), floats(4, 3)))
    np.testing.assert_array_equal(only.state_dict()["w2"], start["w2"])


def test_constants_of_one_name_are_parameters_of_their_own():
    with dsl.building("normalised") as g:
        x, ones, zeros = g.input("x", dsl.f32[4, 3]), np.ones(3, "f4"), np.zeros(3, "f4")
        g.output(y=dsl.LayerNormalization(x, dsl.constant(ones), dsl.constant(zeros)))
    step = train.Step(g.graph, loss="mse", threads=1)
    assert [array.sum() for array in step.state_dict().values()] == [3, 0]
    step((floats(4, 3), floats(4, 3)))
    first, second = step.state_dict().values()
    assert (first != 1).all() and (second != 0).all() and (first != second).all()


def test_batches_of_other_sizes_go_on():
    step = train.Step(perceptron(**weights()), loss="mse", threads=1)
    for size in (4, 2, 4):
        assert np.isfinite(step((floats(size, 5), floats(size, 3))).loss)
    assert step.count == 3


def test_mistakes_are_named(tmp_path):
    graph = perceptron(**weights())
    with pytest.raises(graphc.ModelError, match="no loss 'sse'; did you mean 'mse'"):
        train.Step(graph, loss="sse")
    with pytest.raises(graphc.ModelError, match=r"no parameter matches 'v\*'; there are \['b1'"):
        train.Step(graph, parameters=["v*"])
    step = train.Step(graph, loss="mse")
    with pytest.raises(graphc.ModelError, match="a batch holds .*'x', 'target'.*found 1"):
        step((floats(4, 5),))
    with pytest.raises(graphc.ModelError, match="no parameter 'w3'"):
        step.load_state_dict({"w3": floats(1)})
    with pytest.raises(graphc.ModelError, match="w2 has shape .8, 3., found .3,."):
        step.load_state_dict({"w2": floats(3)})
    np.savez(tmp_path / "other.npz", a=floats(1))
    with pytest.raises(graphc.ModelError, match="not written by Step.save"):
        step.load(tmp_path / "other.npz")
    step.save(tmp_path / "adam.npz")
    with pytest.raises(graphc.ModelError, match="lacks 'momentum of w1'"):
        train.Step(graph, loss="mse", optimizer=train.SGD(momentum=0.9)).load(tmp_path / "adam.npz")


def test_parameters_are_in_memory_once():
    step = train.Step(perceptron(**weights()), loss="mse", optimizer=train.SGD(0.1), threads=1)
    batch = floats(4, 5), floats(4, 3)

    def held() -> bool:
        arrays = {op.output.name: op.attrs["value"] for op in step.graph.ops if "value" in op.attrs}
        return all(arrays[name] is array for name, array in step._state.items())

    step(batch)
    before = step.trained()
    kept = {op.output.name: op.attrs["value"].copy() for op in before.ops if "value" in op.attrs}
    assert held()
    step(batch)
    assert all(
        np.array_equal(op.attrs["value"], kept[op.output.name])
        for op in before.ops
        if "value" in op.attrs
    )
    step.load_state_dict(kept)
    assert held()
    step.restore(step.everything())
    assert held()
