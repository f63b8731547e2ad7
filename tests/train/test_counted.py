"""Steps of models with sizes that data decides, next to PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from graphc import dsl, train
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
