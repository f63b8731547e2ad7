"""Quantised models as bundles: the same integers as the interpreter's, in one byte per weight."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bundles import checked, run_bundle
from quantised_models import QuantisedModel, convolution, dense, difference, residual

from graphc import driver
from graphc.backends.micro_c import BundleOptions, bundle

IMAGE = (1, 4, 6, 7)


def single(kind: str, scale=0.05, zero=-5, **attrs):
    """A model of one operator between dequantising and quantising."""

    def build(dtype) -> QuantisedModel:
        model = QuantisedModel(dtype)
        result = model.node(kind, model.activation(IMAGE, 0.05), **attrs)
        model.result = model.build(model.quantise(result, scale, zero))
        return model

    return build


def mixed(dtype) -> QuantisedModel:
    """A product, slopes below zero, a transposed convolution, and a choice between two."""
    model = QuantisedModel(dtype)
    x, y = model.activation(IMAGE, 0.05), model.activation((4, 1, 1), 0.02)
    slopes = model.constant(np.float32([0.1, 0.2, 0.3, -0.4]).reshape(4, 1, 1))
    steep = model.quantise(model.node("PRelu", model.node("Mul", x, y), slopes), 0.07, 9)
    again = model.dequantise(steep, 0.07, 9 if model.dtype == np.int8 else 137)
    wide = model.node("ConvTranspose", again, model.weights((4, 3, 2, 2), 1), strides=[2, 2])
    pooled = model.node("MaxPool", wide, kernel_shape=[2, 2], strides=[2, 2])
    model.result = model.build(model.quantise(pooled, 0.3, 1))
    return model


CASES = {
    "table": single("Sigmoid", 1 / 256, -128),
    "limits": single("Relu"),
    "softmax": single("Softmax", 1 / 256, -128),
    "ties": single("AveragePool", kernel_shape=[2, 2]),
    "ties of other scales": single("AveragePool", 0.1, kernel_shape=[2, 2], pads=[1] * 4),
    "window": single("AveragePool", 0.0317, kernel_shape=[2, 2]),
    "mixed": mixed,
    "padded": lambda t: convolution(t, pads=[1, 1, 1, 1]),
    "many channels": lambda t: convolution(t, (1, 8, 6, 7), (6, 8, 3, 3), pads=[1, 1, 1, 1]),
    "pointwise": lambda t: convolution(t, (1, 11, 5, 5), (9, 11, 1, 1)),
    "depthwise": lambda t: convolution(t, (1, 4, 6, 6), (4, 1, 3, 3), pads=[1] * 4, group=4),
    "gemm": lambda t: dense("Gemm", t),
    "residual": residual,
    "difference": difference,
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_within_one_unit(name, dtype, tmp_path):
    model = CASES[name](dtype)
    run_bundle(model.result, model.feeds, tmp_path, 1.0)


def test_header_tells_how_integers_are_read():
    model = convolution(np.int8)
    program = driver.program_for(driver.typed(model.result), "c")
    text = bundle(program, BundleOptions(name="net"))["net.h"]
    assert "#define NET_INPUT_x0_ZERO_POINT (3)\n" in text
    assert "_ZERO_POINT (-5)\n" in text and f"_SCALE {float(np.float32(0.1))!r}f\n" in text


def test_softmax_between_integers_needs_no_libm(tmp_path):
    model = QuantisedModel()
    total = model.node("Softmax", model.activation((3, 40), 0.1))
    quantised = model.build(model.quantise(total, 1 / 256, -128))
    run_bundle(quantised, model.feeds, tmp_path, 1.0)
    checked(["gcc", "-std=c99", "-O2", "-c", "net.c"], tmp_path)
    assert not re.findall(r"U (?!net_w|_)\w+", checked(["nm", "net.o"], tmp_path))


def test_weights_take_a_byte_each():
    model = convolution(np.int8, (1, 8, 6, 6), (8, 8, 3, 3), pads=[1, 1, 1, 1])
    program = driver.program_for(driver.typed(model.result), "c")
    assert sum(c.nbytes for c in program.constants) == 8 * 8 * 9 + 2 * 8 * 4
