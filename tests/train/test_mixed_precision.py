"""Training in bf16 and f16: against float32, PyTorch's autocast and the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import dsl, train
from graphc.ir.graph import clone_graph
from graphc.train.loss_scale import GOOD, SCALE, SKIPPED
from graphc.train.step_graph import step_graph

DIGITS = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = {"w1": (16, 32), "b1": (32,), "w2": (32, 32), "w3": (32, 4)}
    return {n: (rng.standard_normal(s) * 0.3).astype(np.float32) for n, s in sizes.items()}


def perceptron():
    """Three layers with a normalisation; x [N, 16] to [N, 4]."""
    with dsl.building("perceptron") as g:
        w = {name: dsl.constant(array, name=name) for name, array in weights().items()}
        h = dsl.Relu(g.input("x", dsl.f32["N", 16]) @ w["w1"] + w["b1"])
        ones, zeros = np.ones(32, np.float32), np.zeros(32, np.float32)
        h = dsl.LayerNormalization(dsl.Relu(h @ w["w2"]), dsl.constant(ones), dsl.constant(zeros))
        g.output(y=h @ w["w3"])
    return g.graph


def batches(count: int, size: int = 32) -> list[tuple[np.ndarray, np.ndarray]]:
    """Points whose label is the quadrant of their first two coordinates."""
    rng, made = np.random.default_rng(5), []
    for _ in range(count):
        x = rng.standard_normal((size, 16)).astype(np.float32)
        made.append((x, (x[:, 0] > 0) * 2 + (x[:, 1] > 0)))
    return made


def stepping(precision: str = "f16", scale: train.LossScale | None = None, **options):
    options = {"optimizer": train.Adam(0.01), "threads": 1, **options}
    return train.Step(perceptron(), precision=precision, loss_scale=scale, **options)


@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32"])
def test_curves_follow_float32(precision):
    narrow, wide = stepping(precision), stepping("f32")
    losses = np.array([(narrow(batch).loss, wide(batch).loss) for batch in batches(60)])
    assert losses[-5:, 1].mean() < 0.6 * losses[:5, 1].mean()
    tolerance = {"f16": 1e-2, "tf32": 1e-2, "bf16": 8e-2}[precision]  # 20 roundings of the type
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], atol=tolerance)
    assert (losses[:, 0] != losses[:, 1]).any()
    assert all(array.dtype == np.float32 for array in narrow.state_dict().values())


def test_products_alone_are_rounded():
    """What a product multiplies is rounded; a sum of numbers that f16 cannot tell apart is not."""
    with dsl.building("sums") as g:
        x, w = g.input("x", dsl.f32[4, 8]), dsl.constant(np.eye(8, dtype=np.float32), name="w")
        g.output(y=dsl.ReduceSum(x @ w, [1], keepdims=0))
    x = np.full((4, 8), 2049.0, np.float32)  # rounded to 2048
    step = train.Step(g.graph, "l1", train.SGD(0.0), precision="f16", threads=1)
    assert step((x, np.zeros(4, np.float32))).loss == 8 * 2048
    x[:] = 0
    x[:, :2] = 2048, 1
    assert step((x, np.zeros(4, np.float32))).loss == 2049


def test_an_overflow_skips_the_update():
    batch = batches(1)[0]
    step = stepping(scale=train.LossScale(initial=2.0**60))
    start, kept = step.state_dict(), step.everything()
    result = step(batch)
    assert not np.isfinite(result.gradient_norm) and np.isfinite(result.loss)
    assert step.loss_scale == 2.0**59 and step.count == 1
    after = step.everything()
    for name in after:
        changes = name in (SCALE, SKIPPED, "number of the step")
        assert np.array_equal(after[name], kept[name]) != changes, name
    while not np.isfinite(step(batch).gradient_norm):
        for name, array in step.state_dict().items():
            assert np.array_equal(array, start[name])
    # Adam has made one update, the first: as a step that started with this scale
    other = stepping(scale=train.LossScale(initial=step.loss_scale))
    other(batch)
    assert step.everything()[SKIPPED] == step.count - 1
    for name, array in other.state_dict().items():
        assert np.array_equal(array, step.state_dict()[name])


def test_the_scale_grows_after_updates_in_a_row():
    step = stepping(scale=train.LossScale(initial=4.0, growth=8.0, interval=3))
    scales = []
    for batch in batches(7):
        step(batch)
        scales.append(step.loss_scale)
    assert scales == [4, 4, 32, 32, 32, 256, 256]
    assert step.everything()[GOOD] == 1


def test_small_gradients_need_the_scale():
    """Gradients of 1e-9 are zero in f16, unless the loss is scaled."""
    x, y = floats(8, 4), np.zeros((8, 3), np.float32)
    with dsl.building("small") as g:
        w = {n: dsl.constant(a, name=n) for n, a in (("a", floats(4, 5)), ("b", floats(5, 3)))}
        g.output(y=(g.input("x", dsl.f32["N", 4]) @ w["a"]) @ w["b"])

    def loss(made, target):
        return dsl.ReduceMean((made - target) ** 2.0, keepdims=0) * np.float32(1e-9)

    def gradients(**options):
        return train.Step(g.graph, loss, threads=1, **options).gradients((x, y))[1]["a"]

    exact = gradients()
    scale = train.LossScale(initial=2.0**24)
    assert (gradients(precision="f16", loss_scale=train.LossScale(initial=1.0)) == 0).all()
    scaled = gradients(precision="f16", loss_scale=scale)
    np.testing.assert_allclose(scaled, exact, atol=3e-3 * np.abs(exact).max())


def test_gradients_are_clipped_by_their_norm_without_the_scale():
    batch = batches(1)[0]
    options = {"optimizer": train.SGD(1.0), "clip_norm": 0.01}
    one, many = (stepping(scale=train.LossScale(initial=s), **options) for s in (1.0, 1024.0))
    start = one.state_dict()
    results = [step(batch).gradient_norm for step in (one, many)]
    assert results[0] > 0.01 and results[0] == pytest.approx(results[1], rel=1e-2)
    moved = [many.state_dict()[n] - array for n, array in start.items()]
    assert np.sqrt(sum((m**2).sum() for m in moved)) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_run_that_is_taken_up_again_has_the_same_bits(tmp_path, suffix):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    scale = train.LossScale(initial=2.0**40, growth=16.0, interval=4)
    step = stepping(scale=scale)
    data = batches(40)
    for n, batch in enumerate(data):
        step(batch)
        if n == 30:
            step.save(tmp_path / f"half{suffix}")
    again = stepping(scale=scale)
    again.load(tmp_path / f"half{suffix}")
    for batch in data[31:]:
        again(batch)
    kept = again.everything()
    for name, array in step.everything().items():
        assert np.array_equal(array, kept[name]), name
    assert 0 < kept[SKIPPED] < 40 and kept[SCALE] != 2.0**40
    with pytest.raises(graphc.ModelError, match="lacks 'scale of the loss'.* or precision"):
        wide = stepping("f32")
        wide.save(tmp_path / f"wide{suffix}")
        again.load(tmp_path / f"wide{suffix}")


def test_parts_of_a_batch_are_scaled_too():
    batch = batches(1)[0]
    parts = stepping(scale=train.LossScale(initial=2.0**60), accumulate=2)
    start = parts.state_dict()
    assert not np.isfinite(parts(batch).gradient_norm)
    assert parts.loss_scale == 2.0**59
    for name, array in parts.state_dict().items():
        assert np.array_equal(array, start[name])
    whole, parts = stepping(optimizer=train.SGD(0.1)), stepping(
        optimizer=train.SGD(0.1), accumulate=2
    )  # fmt: skip
    norms = [step(batch).gradient_norm for step in (whole, parts)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
    for name, array in whole.state_dict().items():
        np.testing.assert_allclose(array, parts.state_dict()[name], atol=1e-3)


def test_the_simulator_of_a_gpu_makes_the_same_steps():
    data = batches(3)
    for precision in ("f16", "bf16"):
        step = stepping(precision, optimizer=train.SGD(0.1))
        state = step.everything()
        types = step._batches.types(step._feeds(data[0]))
        made = step_graph(step.recipe, clone_graph(step.trained()), types)
        names = [p.name for p in made.graph.params]
        gpu = graphc.compile(made.graph, "cuda", simulate=True, precision=precision)
        for batch in data:
            given = {**state, **step._feeds(batch), **step._numbers()}
            results = gpu.run({name: given[name] for name in names})
            found = dict(zip([*made.numbers, *made.updated], results))
            assert found["loss"] == pytest.approx(step(batch).loss, rel=2e-3)
            state.update({name: found[name] for name in made.updated})
        for name, array in step.state_dict().items():
            np.testing.assert_allclose(state[name], array, atol=2e-3)


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_digits_follow_autocast_of_pytorch(precision):
    """Losses are as close to those of float32 as PyTorch's."""
    torch = pytest.importorskip("torch")
    from test_step import Digits

    rng, count = np.random.default_rng(9), 12
    data = [(rng.random((16, 1, 8, 8), np.float32), rng.integers(0, 10, 16)) for _ in range(4)]
    sgd = train.SGD(0.01)
    step = train.Step(DIGITS, optimizer=sgd, threads=1, precision=precision)
    wide = train.Step(DIGITS, optimizer=sgd, threads=1)
    network = Digits()
    state = {k: torch.tensor(v) for k, v in step.state_dict().items()}
    network.load_state_dict(state, strict=False)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "f16")
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[precision]
    ours, theirs = [], []
    for n in range(count):
        x, y = data[n % 4]
        with torch.autocast("cpu", dtype=dtype):
            loss = torch.nn.functional.cross_entropy(
                network(torch.tensor(x)).float(), torch.tensor(y)
            )
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        exact = wide((x, y)).loss
        ours.append(abs(step((x, y)).loss - exact))
        theirs.append(abs(loss.item() - exact))
    assert scaler.get_scale() == step.loss_scale
    assert max(ours) < 2 * max(theirs) + 1e-3
