"""Steps over open dimensions: one program for batches of all sizes within bounds."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
import graphc.api
from graphc import dsl, train

RNG = np.random.default_rng(0)


def weight(*shape: int, name: str) -> dsl.Tensor:
    return dsl.constant(RNG.standard_normal(shape).astype(np.float32) * 0.3, name=name)


def attention() -> graphc.Graph:
    """A word table, attention over a text of open length, and scores of each word."""
    with dsl.building("attention") as g:
        words = g.input("words", dsl.i64["N", "S"])
        x = dsl.Gather(weight(20, 8, name="table"), words)
        x = dsl.LayerNormalization(x, weight(8, name="scale"), axis=-1)
        q, k, v = (x @ weight(8, 8, name=name) for name in "qkv")
        scores = dsl.Softmax(q @ dsl.Transpose(k, perm=[0, 2, 1]), axis=-1)
        y = dsl.Relu(scores @ v + x) @ weight(8, 5, name="out")
        g.output(scores=dsl.Transpose(y, perm=[0, 2, 1]))
    return g.graph


def convolution() -> graphc.Graph:
    """A convolution, normalised over the batch, and scores of three classes."""
    with dsl.building("convolution") as g:
        x = dsl.Conv(g.input("x", dsl.f32["N", 1, 6, 6]), weight(4, 1, 3, 3, name="w"))
        scale, bias, mean, variance = (dsl.constant(np.ones(4, np.float32), name=n) for n in "abmv")
        x = dsl.Relu(dsl.BatchNormalization(x, scale, bias, mean, variance))
        x = dsl.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2])
        g.output(y=dsl.Flatten(x) @ weight(16, 3, name="out"))
    return g.graph


def labelled(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 20, shape), RNG.integers(0, 5, shape)


def images(size: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((size, 1, 6, 6)).astype(np.float32), RNG.integers(0, 3, size)


def assert_steps_alike(one: train.Step, other: train.Step, batches) -> None:
    for batch in batches:
        a, b = one(batch), other(batch)
        np.testing.assert_allclose(a.loss, b.loss, rtol=1e-5)
        np.testing.assert_allclose(a.gradient_norm, b.gradient_norm, rtol=1e-4)
    wanted = other.state_dict()
    for name, array in one.state_dict().items():
        np.testing.assert_allclose(
            array, wanted[name], rtol=0, atol=1e-5 * max(1, np.abs(wanted[name]).max())
        )


@pytest.fixture
def compiled(monkeypatch) -> list[graphc.Graph]:
    """The graphs that are compiled."""
    graphs = []
    real = graphc.api.compile

    def counted(graph, **options):
        graphs.append(graph)
        return real(graph, **options)

    monkeypatch.setattr(graphc.api, "compile", counted)
    return graphs


def test_one_program_takes_all_sizes_of_a_batch(compiled):
    options = {"optimizer": train.SGD(0.05, momentum=0.9), "threads": 1, "metrics": ["accuracy"]}
    graph = convolution()
    step = train.Step(graph, dims={"N": (1, 8)}, **options)
    batches = [images(size) for size in (8, 5, 8)]
    assert_steps_alike(step, train.Step(graph, **options), batches)
    step(images(1))
    assert sum(bool(graph.symbols) for graph in compiled) == 1
    step.evaluate(batches[0]), step.evaluate(batches[1])
    assert sum(bool(graph.symbols) for graph in compiled) == 2


def test_batch_and_length_are_open(compiled):
    options = {"optimizer": train.SGD(0.1), "threads": 1}
    graph = attention()
    step = train.Step(graph, dims={"N": (1, 4), "S": (2, 9)}, **options)
    batches = [labelled(shape) for shape in ((4, 9), (1, 2))]
    assert_steps_alike(step, train.Step(graph, **options), batches)
    step(labelled((3, 5)))
    assert sum(bool(graph.symbols) for graph in compiled) == 1


def test_what_is_not_bounded_is_that_of_a_batch(compiled):
    with dsl.building("bag") as g:
        x = dsl.Gather(weight(20, 8, name="table"), g.input("words", dsl.i64["N", "S"]))
        g.output(y=dsl.ReduceMean(x, [1], keepdims=0))
    step = train.Step(g.graph, optimizer=train.SGD(0.1), threads=1, dims={"N": (1, 4)})
    for words in ((4, 5), (2, 5), (3, 5), (3, 6)):
        step((np.ones(words, np.int64), np.zeros(words[0], np.int64)))
    assert len(compiled) == 2


def test_parts_of_a_batch_differ_in_size(compiled):
    options = {"optimizer": train.SGD(0.05), "threads": 1, "train_mode": False, "accumulate": 3}
    step = train.Step(convolution(), dims={"N": (1, 8)}, **options)
    whole = train.Step(step.graph, **{**options, "accumulate": 1})
    batch = images(8)
    np.testing.assert_allclose(step(batch).loss, whole(batch).loss, rtol=1e-5)
    assert len(compiled) == 3  # gradients, the update, and the whole step
    for name, array in whole.state_dict().items():
        np.testing.assert_allclose(step.state_dict()[name], array, rtol=0, atol=1e-5)


def test_targets_of_the_shape_of_the_result():
    with dsl.building("line") as g:
        g.output(y=g.input("x", dsl.f32["N", 3]) @ weight(3, 2, name="w"))
    options = {"loss": "kl", "optimizer": train.SGD(0.1), "threads": 1}
    batches = [
        (RNG.standard_normal((n, 3)).astype(np.float32), RNG.random((n, 2)).astype(np.float32))
        for n in (2, 1, 4)
    ]
    step = train.Step(g.graph, dims={"N": (1, 4)}, **options)
    assert_steps_alike(step, train.Step(g.graph, **options), batches)


def test_a_recurrent_layer_over_texts_of_known_length():
    with dsl.building("tagger") as g:
        x = g.input("x", dsl.f32[3, "N", 3])
        w, r = weight(1, 16, 3, name="w"), weight(1, 16, 4, name="r")
        _, h, _ = dsl.LSTM(x, w, r, hidden_size=4, outputs=3)
        g.output(y=dsl.Squeeze(h, [0]) @ weight(4, 3, name="out"))
    options = {"optimizer": train.SGD(0.1), "threads": 1}
    batches = [
        (RNG.standard_normal((3, n, 3)).astype(np.float32), RNG.integers(0, 3, n)) for n in (4, 2)
    ]
    step = train.Step(g.graph, dims={"N": (1, 4)}, **options)
    assert_steps_alike(step, train.Step(g.graph, **options), batches)


def test_a_limit_holds_at_all_sizes():
    graph = convolution()
    free = train.Step(graph, optimizer=train.SGD(0.05), dims={"N": (1, 8)}, threads=1)
    large, small = free.memory(images(8)), free.memory(images(2))
    assert large.temporaries == small.temporaries
    limit = large.total - 1000
    step = train.Step(graph, optimizer=train.SGD(0.05), dims={"N": (1, 8)}, threads=1, memory=limit)
    kept = step.memory(images(2))
    assert kept.total <= limit and kept.again.values
    assert_steps_alike(step, free, [images(8), images(3)])


def test_mistakes_are_told():
    with pytest.raises(graphc.ModelError, match="no dimension 'M'"):
        train.Step(convolution(), dims={"M": (1, 8)})
    step = train.Step(convolution(), dims={"N": (2, 8)}, threads=1)
    with pytest.raises(graphc.ModelError, match=r"N = 9 is not in 2..8"):
        step(images(9))
    with pytest.raises(graphc.ModelError, match="takes f32, found f64"):
        step((np.zeros((4, 1, 6, 6)), np.zeros(4, np.int64)))
    wrong = np.zeros((4, 2, 6, 6), np.float32), np.zeros(4, np.int64)
    with pytest.raises(graphc.ModelError, match=r"\(4, 1, 6, 6\), found \(4, 2, 6, 6\)"):
        step(wrong)
    with pytest.raises(graphc.ModelError):
        step((images(4)[0], np.zeros(3, np.int64)))


def test_ctc_asks_for_static_shapes():
    with dsl.building("speech") as g:
        x = g.input("x", dsl.f32[6, "N", 4])
        g.output(y=dsl.LogSoftmax(x @ weight(4, 3, name="w"), axis=-1))
    step = train.Step(g.graph, loss="ctc", dims={"N": (1, 4)}, threads=1)
    batch = np.zeros((6, 2, 4), np.float32), np.ones((2, 2), np.int64)
    with pytest.raises(graphc.UnsupportedError, match="ctc takes tensors of static shapes"):
        step(batch)
