"""Training mode, parts of a batch, metrics, and files of parameters."""

from __future__ import annotations

import numpy as np
import pytest
from every_target import agree_everywhere

import graphc
from graphc import dsl, train
from graphc.ir import dtypes
from graphc.ir.expr import Const
from graphc.ir.interp import interpret
from graphc.ir.ops.philox import philox

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def network(ratio: float = 0.0):
    """Two layers, with Dropout between them; x [N, 5] to [N, 3]."""
    rng = np.random.default_rng(1)
    with dsl.building("network") as g:
        x = g.input("x", dsl.f32["N", 5])
        w1, w2 = (
            dsl.constant(rng.standard_normal(s).astype(np.float32), name=n)
            for n, s in (("w1", (5, 64)), ("w2", (64, 3)))
        )
        hidden = dsl.Tanh(x @ w1)
        if ratio:
            hidden = dsl.Dropout(hidden, np.float32(ratio))
        g.output(y=hidden @ w2)
    return g.graph


# Random123's known answers (kat_vectors) for philox2x32 with ten rounds
KNOWN = [
    (0, 0, 0, 0xFF1DAE59, 0x6CD10DF2),
    (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x2C3F628B, 0xAB4FD7AD),
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0xDD7CE038, 0xF62A4C12),
]


@pytest.mark.parametrize(("low", "high", "key", "first", "second"), KNOWN)
def test_philox_gives_known_answers(low, high, key, first, second):
    made = philox(Const(low, dtypes.u64), Const(high, dtypes.u64), key)
    assert [word.value for word in made] == [first, second]


def dropping(ratio: float = 0.25, **attrs: int):
    with dsl.building("dropping") as g:
        x, draw = g.input("x", dsl.f32[200, 100]), g.input("draw", dsl.i64)
        g.output(y=dsl.op("graphc.DropoutAt", x, draw, ratio=ratio, **attrs))
    return g.graph


def test_dropout_draws_the_same_on_every_target():
    ones = np.ones((200, 100), np.float32)
    (expected,) = interpret(dropping(), [ones, np.array(7)])
    kept = expected != 0
    np.testing.assert_array_equal(expected[kept], np.float32(1 / 0.75))
    assert kept.mean() == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / kept.size) ** 0.5)
    agree_everywhere(dropping(), [ones, np.array(7)], [expected], tolerance=0)
    for other in (
        interpret(dropping(), [ones, np.array(8)]),
        interpret(dropping(seed=1), [ones, np.array(7)]),
        interpret(dropping(layer=1), [ones, np.array(7)]),
    ):
        assert 0.5 < ((other[0] != 0) == kept).mean() < 0.75  # 0.625 if independent


def test_rows_of_dropout_are_independent():
    (y,) = interpret(dropping(0.5), [np.ones((200, 100), np.float32), np.array(0)])
    rows = (y != 0).astype(np.float64) - 0.5
    correlations = np.corrcoef(rows)[np.triu_indices(200, 1)]
    assert np.abs(correlations).max() < 0.55 and abs(correlations.mean()) < 0.01


def test_gradients_pass_what_dropout_kept():
    x = np.ones((200, 100), np.float32)

    def total(v):
        dropped = dsl.op("graphc.DropoutAt", v, np.array(7), ratio=0.25)
        return dsl.ReduceSum(dropped, keepdims=0)

    (kept,) = interpret(dropping(), [x, np.array(7)])
    np.testing.assert_array_equal(graphc.grad(total)(x), kept)


def test_dropout_is_for_training_and_goes_on_after_loading(tmp_path):
    batch = floats(8, 5), floats(8, 3)

    def started(**options):
        return train.Step(network(0.5), loss="mse", optimizer=train.SGD(0.0), threads=1, **options)

    step = started(seed=3)
    losses = [step(batch).loss for _ in range(4)]
    assert len(set(losses)) == 4  # other elements in each step
    again = started(seed=3)
    assert [again(batch).loss for _ in range(2)] == losses[:2]
    again.save(tmp_path / "half.safetensors")
    loaded = started(seed=3)
    loaded.load(tmp_path / "half.safetensors")
    assert [loaded(batch).loss for _ in range(2)] == losses[2:]
    assert started(seed=4)(batch).loss != losses[0]
    plain = train.Step(network(), loss="mse", threads=1)
    expected = plain.evaluate(batch)["loss"]
    assert step.evaluate(batch)["loss"] == pytest.approx(expected, rel=1e-6)
    assert started(train_mode=False)(batch).loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_gradients_of_parts_are_those_of_the_batch(parts):
    batch = floats(8, 5), floats(8, 3)
    whole, split = (
        train.Step(network(), loss="mse", metrics=["l1"], threads=1, accumulate=n, clip_norm=0.1)
        for n in (1, parts)
    )
    (one, gradients), (other, sums) = whole.gradients(batch), split.gradients(batch)
    for name, array in gradients.items():
        np.testing.assert_allclose(sums[name], array, rtol=0, atol=1e-6 * np.abs(array).max())
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-6)
    for _ in range(3):
        one, other = whole(batch), split(batch)
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
        assert other.metrics["l1"] == pytest.approx(one.metrics["l1"], rel=1e-5)
    for name, array in whole.state_dict().items():
        np.testing.assert_allclose(split.state_dict()[name], array, atol=1e-5)


def test_metrics_are_means_over_samples():
    labels = RNG.integers(0, 3, 16)
    x = floats(16, 5)
    step = train.Step(network(), metrics=["accuracy", "top5"], threads=1)
    scores = graphc.compile(step.trained(), threads=1).run([x])[0]
    right = (scores.argmax(1) == labels).mean()
    assert step.evaluate((x, labels))["accuracy"] == pytest.approx(right)
    result = step((x, labels)).metrics
    assert result["accuracy"] == pytest.approx(right) and result["top5"] == 1
    target = RNG.random((16, 3)).astype(np.float32)
    binary = train.Step(network(), loss="bce", metrics=["binary_accuracy"], threads=1)
    expected = ((scores > 0) == (target > 0.5)).mean()
    assert binary((x, target)).metrics["binary_accuracy"] == pytest.approx(expected)


def test_pytorch_reads_parameters_by_name(tmp_path):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = torch.nn.Parameter(torch.zeros(5, 64))
            self.w2 = torch.nn.Parameter(torch.zeros(64, 3))

        def forward(self, x):
            return torch.tanh(x @ self.w1) @ self.w2

    step = train.Step(network(), loss="mse", threads=1)
    x = floats(8, 5)
    step((x, floats(8, 3)))
    train.save_state_dict(step.state_dict(), tmp_path / "trained.safetensors")
    theirs = Network()
    theirs.load_state_dict(library.load_file(tmp_path / "trained.safetensors"))  # by name, strictly
    ours = graphc.compile(step.trained(), threads=1).run([x])[0]
    np.testing.assert_allclose(theirs(torch.tensor(x)).detach().numpy(), ours, atol=1e-5)
    library.save_file(Network().state_dict(), tmp_path / "theirs.safetensors")
    step.load_state_dict(train.read_state_dict(tmp_path / "theirs.safetensors"))
    assert not any(array.any() for array in step.state_dict().values())


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_of_parameters(tmp_path, suffix):
    pytest.importorskip("safetensors")
    state = {
        "file": floats(2, 3),  # numpy.savez takes no array of this name
        "a/b.c": np.array(3, np.int64),
        "empty": np.zeros((0, 2), np.float16),
        "turned": floats(3, 4).T,
    }
    for name in ("one", "two"):
        train.save_state_dict(state, tmp_path / (name + suffix))
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
    read = train.read_state_dict(tmp_path / f"one{suffix}")
    assert set(read) == set(state)
    for name, array in state.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    damaged = (tmp_path / f"one{suffix}").read_bytes()
    for cut in (0, 5, 20, len(damaged) // 2):
        (tmp_path / f"cut{suffix}").write_bytes(damaged[:cut])
        with pytest.raises(graphc.ModelError, match=f"cut{suffix}: is no {suffix} file"):
            train.read_state_dict(tmp_path / f"cut{suffix}")


def test_mistakes_of_modes_are_named(tmp_path):
    with pytest.raises(graphc.ModelError, match="no metric 'f1'; there are accuracy"):
        train.Step(network(), metrics=["f1"])
    with pytest.raises(graphc.ModelError, match="accumulate must be 1 or more, found 0"):
        train.Step(network(), accumulate=0)
    step = train.Step(network(), loss="mse", accumulate=4)
    with pytest.raises(graphc.ModelError, match="accumulate=4 needs a batch of 4 or more, found 3"):
        step((floats(3, 5), floats(3, 3)))
    with pytest.raises(graphc.ModelError, match="axis 0, which must be the batch; found"):
        step((floats(3, 5), floats(2, 3)))
    with pytest.raises(graphc.ModelError, match="there is no gradient of 'w1'"):
        step.apply({})
    with pytest.raises(graphc.ModelError, match="ending in .npz or .safetensors"):
        step.save(tmp_path / "w.pt")
    with pytest.raises(graphc.ModelError, match="there is no such file"):
        step.load(tmp_path / "w.npz")
    with pytest.raises(graphc.ModelError, match="ratio must be from 0 to below 1, found 1.0"):
        graphc.compile(dropping(1.0))
