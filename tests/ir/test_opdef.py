"""Attributes that operators share are declared once, and bound as all others are."""

from __future__ import annotations

import pytest

from graphc.errors import ModelError
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.opdef import REGISTRY, REQUIRED, Float, composite, op
from graphc.ir.types import TensorType

DOMAIN = "test.shared"
SHARED = {"rows": REQUIRED, "scale": 2.0}


@pytest.fixture
def shared(monkeypatch):
    """Two operators with the same attributes, and one of their own; forgotten afterwards."""
    monkeypatch.setattr("graphc.ir.opdef.REGISTRY", registry := dict(REGISTRY))

    def shape(x, **attrs: SHARED):  # type: ignore[valid-type]
        assert set(attrs) == set(SHARED)
        return (attrs["rows"], *x.shape[1:])

    @op("First", domain=DOMAIN, infer=shape)
    def first(i, x: Float, *, shift=0.0, **attrs: SHARED):
        return x[i] * attrs["scale"] + shift

    @composite("FirstTwice", domain=DOMAIN)
    def first_twice(b, x: Float, **attrs: SHARED):
        return b.op("First", b.op("First", x, domain=DOMAIN, **attrs), domain=DOMAIN, **attrs)

    return registry


def build(name: str, **attrs):
    graph = new_graph(x=TensorType(f32, (4, 3)))
    return Builder(graph).op(name, graph.params[0], domain=DOMAIN, **attrs)


def test_their_defaults_are_taken(shared):
    assert shared[DOMAIN, "First"].attrs == {"shift": 0.0, "rows": None, "scale": 2.0}
    for name in ("First", "FirstTwice"):
        assert build(name, rows=2).tensor.static_shape == (2, 3)


def test_one_without_a_default_is_required(shared):
    for name in ("First", "FirstTwice"):
        with pytest.raises(ModelError, match="attribute 'rows' is required"):
            build(name, scale=1.0)


def test_an_operator_with_unnamed_attributes_is_refused(shared):
    with pytest.raises(ModelError, match=r"operator Loose: .*annotate it as \*\*attrs: SHARED"):

        @op("Loose", domain=DOMAIN)
        def loose(i, x: Float, **attrs):
            return x[i]
