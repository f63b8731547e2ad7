"""Inputs that are arrays of other libraries, or no arrays at all."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import graphc
from graphc.runtime.exchange import as_numpy

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def copied(value, kind: str = "float"):
    """What a model makes of an input that it hands on."""
    made = model(f"g ({kind}[N,M] x) => (y) {{ y = Identity(x) }}")
    return graphc.compile(made, threads=1).run([value])[0]


class Exported:
    """What offers DLPack alone; `place` is where it says that it is."""

    def __init__(self, array, place=None):
        self.array, self.place = array, place

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.place or self.array.__dlpack_device__()


class Described:
    """What offers `__array_interface__` alone."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


@pytest.mark.parametrize("form", [Exported, Described, memoryview, list, tuple])
def test_whatever_is_an_array(form):
    assert np.array_equal(copied(form(X)), X)


NARROW = {
    "bfloat16": ("bfloat16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("float8e5m2", ml_dtypes.float8_e5m2),
}


@pytest.mark.parametrize("name", NARROW)
def test_types_that_numpy_lacks(name):
    torch = pytest.importorskip("torch")
    kind, wanted = NARROW[name]
    tensor = torch.from_numpy(X).to(getattr(torch, name))
    forms = ((tensor, X), (Exported(tensor), X), (tensor.T, X.T), (tensor[:, 1:], X[:, 1:]))
    for form, exact in forms:
        found = copied(form, kind)
        assert found.dtype == wanted and np.array_equal(found.astype(np.float32), exact)


TYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "int64": "int64", "bool": "bool",
    "int32": "int32", "uint8": "uint8", "int8": "int8", "complex64": "complex64",
    "uint16": "uint16",
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_tensors_of_pytorch(kind):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X).to(getattr(torch, TYPES[kind]))
    for form in (tensor, tensor.T, tensor[:, 1:], tensor.expand(2, 3)):
        assert np.array_equal(copied(form, kind), form.numpy())


def test_memory_is_shared_where_it_can_be():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X.copy())
    narrow = tensor.bfloat16()
    for value, size in ((tensor, 4), (narrow, 2), (narrow.T, 2), (Exported(tensor), 4)):
        there = as_numpy(value, "it").__array_interface__["data"][0]
        assert there == getattr(value, "array", value).data_ptr(), size


def test_memory_lives_as_long_as_what_is_made_of_it():
    torch = pytest.importorskip("torch")
    arrays = [as_numpy(torch.full((1000,), n).bfloat16(), "it") for n in range(50)]
    assert [float(a.astype(np.float32).sum()) for a in arrays] == [1000.0 * n for n in range(50)]


def test_gradients_are_left_behind():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X.copy()).requires_grad_()
    assert np.array_equal(copied(tensor), X)
    assert np.array_equal(copied(torch.nn.Parameter(tensor.detach())), X)
    assert copied(tensor.bfloat16(), "bfloat16").dtype == ml_dtypes.bfloat16


def test_one_tensor_is_one_input():
    torch = pytest.importorskip("torch")
    made = graphc.compile(model("g (float[N,M] x) => (y) { y = Neg(x) }"), threads=1)
    assert np.array_equal(made(torch.from_numpy(X))[0], -X)
    fixed = graphc.compile(
        model("g (float[N,M] x, float[N,M] y) => (z) { z = Add(x, y) }"),
        values={"y": torch.from_numpy(X).requires_grad_()}, threads=1,
    )  # fmt: skip
    assert np.array_equal(fixed(X)[0], X + X)


def test_tensors_that_are_none():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(X.copy())
    wrong = {
        "meta": torch.empty(2, 3, device="meta"),
        "layout": tensor.to_sparse(),
        "negative": torch._neg_view(tensor.bfloat16()),
        "conjugate": torch.view_as_complex(torch.zeros(2, 3, 2)).conj(),
    }
    with pytest.raises(graphc.ModelError, match="input 'x' takes float32, found complex64"):
        copied(torch.view_as_complex(torch.ones(2, 3, 2)))
    for name, value in wrong.items():
        kind = {"negative": "bfloat16", "conjugate": "complex64"}.get(name, "float")
        with pytest.raises(graphc.ModelError, match="input 'x' is no array"):
            copied(value, kind)


class Raising:
    """What raises an error of its own when it is read."""

    def __init__(self, *names):
        self.names = names

    def __getattr__(self, name):
        if name in object.__getattribute__(self, "names"):
            raise KeyError(name)
        raise AttributeError(name)


@pytest.mark.parametrize(
    "value, said",
    [
        (Exported(X, (2, 0)), "is in a GPU's memory"),
        (Exported(X, (8, 0)), "is in a GPU's memory"),
        (Exported(object()), "is no array"),
        (Raising("__array__"), "is no array"),
        (Raising("__dlpack_device__"), "is no array"),
        ([[1, 2], [3]], "is no array"),
        ([["a", "b"]], "takes float32"),
        (object(), "takes float32"),
        ({"a": 1}, "takes float32"),
        ("text", "takes float32"),
        (None, "is required"),
        (X.astype(np.float64), "takes float32, found float64"),
        (X.astype(np.uint16), "takes float32, found uint16"),
        (X.astype("M8[s]"), "takes float32"),
        (X[0], "has rank 2"),
    ],
)
def test_what_is_no_array(value, said):
    with pytest.raises(graphc.ModelError, match=f"input 'x' {said}"):
        copied(value)
