"""The CTC loss against PyTorch's: values, and gradients by the scores before log-softmax."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl, train
from graphc.train.losses import ctc

torch = pytest.importorskip("torch")
F = torch.nn.functional
RNG = np.random.default_rng(0)

ROWS = [  # labels of a sample each; blank is 0
    [[1, 2, 3], [4, 4, 2], [1, 1, 1]],
    [[3], [1, 2], [2, 2, 4]],
    [[2], [], [1]],
    [[1]],
]


def padded(rows: list[list[int]]) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([row + [-1] * (width - len(row)) for row in rows])


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("steps", [7, 12])
@pytest.mark.parametrize("cut", [False, True])
def test_it_is_pytorchs(rows, steps, cut):
    x = RNG.standard_normal((steps, len(rows), 5)).astype(np.float32)
    lengths = np.array([steps - n % 2 * cut for n in range(len(rows))])
    leaf = torch.tensor(x, requires_grad=True)
    wanted = F.ctc_loss(
        F.log_softmax(leaf, 2),
        torch.tensor([label for row in rows for label in row]),
        torch.tensor(lengths),
        torch.tensor(list(map(len, rows))),
    )
    wanted.backward()

    def loss(scores):
        own = dsl.constant(lengths) if cut else None
        return ctc(dsl.LogSoftmax(scores, axis=2), dsl.constant(padded(rows)), own)

    value, slope = graphc.value_and_grad(loss)(x)
    assert value == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(slope, leaf.grad.numpy(), atol=1e-5)


def test_a_step_learns_to_spell():
    rng = np.random.default_rng(0)
    with dsl.building("speller") as g:
        x = g.input("x", dsl.f32[8, 2, 4])
        w = dsl.constant(rng.standard_normal((4, 5)).astype(np.float32), name="w")
        g.output(y=dsl.LogSoftmax(x @ w, axis=2))
    step = train.Step(g.graph, loss="ctc", optimizer=train.Adam(0.1), threads=1)
    batch = rng.standard_normal((8, 2, 4)).astype(np.float32), np.array([[1, 2], [3, -1]])
    losses = [step(batch).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
