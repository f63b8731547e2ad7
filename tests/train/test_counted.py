"""Steps of models with sizes that data decides, next to PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl, train
from graphc.cli.app import main
from graphc.errors import UnsupportedError
from graphc.transforms import grad

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
W = RNG.standard_normal((3, 2)).astype(np.float32)


def sized():
    """Scores of x @ w, taken by Compress (along an axis, of all elements, by a condition that is
    too short), NonZero, and Unique (of elements that Compress gives, and along an axis)."""
    with dsl.building("sized") as g:
        x, c = g.input("x", dsl.f32[6, 3]), g.input("c", dsl.bool[6])
        h = x @ dsl.constant(W, name="w")
        places = dsl.Squeeze(dsl.NonZero(c), np.array([0]))
        kept = dsl.Compress(h, c, axis=0)
        parts = [
            dsl.Reshape(kept, np.array([-1])),
            dsl.Compress(h, c),
            dsl.Compress(dsl.Transpose(h, perm=[1, 0]), c[:4], axis=1),
            dsl.Gather(h, places, axis=0),
            dsl.Unique(kept, outputs=1),
            dsl.Unique(h, axis=0, sorted=0, outputs=3)[0],
        ]
        sums = [dsl.ReduceSum(dsl.Exp(part) * float(n + 1)) for n, part in enumerate(parts)]
        g.output(y=dsl.Concat(*(dsl.Reshape(s, np.array([1])) for s in sums), axis=0))
    return g.graph


def of_torch(x: np.ndarray, c: np.ndarray) -> tuple[float, np.ndarray]:
    """The sum, and its gradient by w: of equal items, by the first."""
    w = torch.tensor(W, requires_grad=True)
    h, kept = torch.tensor(x) @ w, torch.tensor(c)
    once = np.sort(np.unique(h[kept].detach().numpy(), return_index=True)[1])
    rows = np.sort(np.unique(h.detach().numpy(), axis=0, return_index=True)[1])
    parts = [h[kept], h.flatten()[:6][kept], h.T[:, :4][:, kept[:4]], h[kept],
             h[kept].flatten()[once], h[rows]]  # fmt: skip
    total = sum(((n + 1) * part.exp()).sum() for n, part in enumerate(parts))
    total.backward()
    return total.item(), w.grad.numpy()


def test_gradients_pass_sizes_that_data_decides():
    step = train.Step(sized(), lambda y, _: dsl.ReduceSum(y, keepdims=0), train.SGD(0.1))
    x = RNG.standard_normal((6, 3)).astype(np.float32)
    x[4] = x[1]
    for c in ([1, 0, 1, 1, 0, 1], [0] * 6, [1] * 6):
        c = np.array(c, bool)
        result, slopes = step.gradients((x, c, np.zeros(1, np.float32)))
        loss, slope = of_torch(x, c)
        assert result.loss == pytest.approx(loss, rel=1e-6)
        np.testing.assert_allclose(slopes["w"], slope, rtol=1e-5, atol=1e-5)


def test_functions_have_no_sizes_that_data_decides():
    def kept(x, c):
        return dsl.ReduceSum(dsl.Compress(x, c), keepdims=0)

    with pytest.raises(UnsupportedError, match="Compress has no derivative .*training steps"):
        grad(kept)(W.reshape(-1), np.ones(6, bool))


@pytest.fixture
def picked(tmp_path):
    """A file of a model that sums exponentials of the rows that Compress keeps."""
    with dsl.building("picked") as g:
        x, c = g.input("x", dsl.f32[6, 3]), g.input("c", dsl.bool[6])
        kept = dsl.Compress(x @ dsl.constant(W, name="w"), c, axis=0)
        g.output(y=dsl.ReduceSum(dsl.Exp(kept), keepdims=0))
    graphc.export_onnx(g.graph, tmp_path / "picked.onnx")
    return tmp_path / "picked.onnx"


def written(model, *options: str) -> int:
    return main(["compile", str(model), "--train", "all", "--loss", "mse", *options])


def test_files_hold_steps_of_such_models(picked):
    path = picked.with_suffix(".gcm")
    assert written(picked, "-o", str(path)) == 0
    step, w = graphc.load(path), W.astype(np.float64)
    x = RNG.standard_normal((6, 3)).astype(np.float32)
    for kept in (3, 0, 6):
        given = {"target": np.array(1, np.float32), "rate of the step": np.array(1e-3, np.float32)}
        loss, new = step.run({"x": x, "c": np.arange(6) < kept, "w": w.astype(np.float32), **given})
        exps = np.exp(x[:kept] @ w)
        assert float(loss) == pytest.approx((exps.sum() - 1) ** 2, rel=1e-5)
        w -= 1e-3 * 2 * (exps.sum() - 1) * x[:kept].T @ exps
        np.testing.assert_allclose(new, w, rtol=1e-5, atol=1e-6)


def test_bundles_that_train_have_no_such_sizes(picked, capsys):
    assert written(picked, "--target", "c", "-o", str(picked.with_suffix(""))) == 2
    assert "data decides a size" in capsys.readouterr().err
