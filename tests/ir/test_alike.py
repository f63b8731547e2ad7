"""Bodies and shapes are made once for ops that are alike, and for no others."""

import math

import numpy as np
import pytest

from graphc.ir import alike, dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.infer import op_body
from graphc.ir.types import TensorType


@pytest.fixture
def made(monkeypatch):
    """A builder over an input of two types, and the bodies that were made, by attribute."""
    monkeypatch.setattr(alike, "_kept", {})
    types = {"x": TensorType(dtypes.f32, (2, 6)), "y": TensorType(dtypes.f32, (3, 6))}
    graph = new_graph("main", **types)
    return Builder(graph), *graph.params


def body(value):
    return op_body(value.producer, value.producer.outputs.index(value))


def test_equal_ops_have_one_body(made):
    b, x, y = made
    first = b.LeakyRelu(x, alpha=0.5)
    kept = len(alike._kept)
    assert body(b.LeakyRelu(x, alpha=0.5)) is body(first) and len(alike._kept) == kept
    assert body(b.LeakyRelu(y, alpha=0.5)) is not body(first) and len(alike._kept) > kept


@pytest.mark.suite("all")
@pytest.mark.parametrize("one, other", [(0.5, 0.25), (0.0, -0.0), (math.nan, 1.0), (1, 1.0)])
def test_attributes_tell_ops_apart(made, one, other):
    b, x, _ = made
    ops = [b.LeakyRelu(x, alpha=alpha).producer for alpha in (one, other)]
    assert alike._key(ops[0], ()) != alike._key(ops[1], ())


def test_contents_tell_ops_apart(made):
    b, x, _ = made
    shapes = [b.Reshape(x, np.array(dims)).tensor.dims for dims in ((3, 4), (4, 3), (3, 4))]
    assert shapes == [(3, 4), (4, 3), (3, 4)]
    parts = [b.Split(x, np.array(sizes), axis=1, outputs=2) for sizes in ((2, 4), (4, 2))]
    assert [[v.tensor.dims[1] for v in pair] for pair in parts] == [[2, 4], [4, 2]]
    assert body(parts[0][1]) is not body(parts[1][1])


def test_what_is_no_plain_value_is_not_compared(made):
    b, x, _ = made
    op = b.LeakyRelu(x, alpha=0.5).producer
    op.attrs["alpha"] = np.float32(0.5)
    assert alike._key(op, ()) is None
    large = b.Pad(x, np.zeros(4, np.int64)).producer
    assert alike._key(large, ()) is not None
    many = b.constant(np.zeros(alike.LARGE + 1, np.int64))
    assert alike._contents(many) is None and alike._contents(x) is None


def test_what_is_kept_is_bounded(made, monkeypatch):
    monkeypatch.setattr(alike, "KEPT", 4)
    b, x, _ = made
    values = [b.LeakyRelu(x, alpha=n / 8) for n in range(20)]
    assert len(alike._kept) <= 4 and len({id(body(v)) for v in values}) == 20
