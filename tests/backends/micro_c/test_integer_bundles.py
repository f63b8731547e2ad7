"""Quantised models as bundles: the same integers as the interpreter's, in one byte per weight."""

from __future__ import annotations

import re

import numpy as np
import pytest

from graphc import driver
from graphc.backends.micro_c import BundleOptions, bundle

from bundles import checked, run_bundle  # isort: skip

from quantised_models import QuantisedModel, convolution, dense, residual  # isort: skip

CASES = {
    "padded": lambda t: convolution(t, pads=[1, 1, 1, 1]),
    "many channels": lambda t: convolution(t, (1, 8, 6, 7), (6, 8, 3, 3), pads=[1, 1, 1, 1]),
    "pointwise": lambda t: convolution(t, (1, 11, 5, 5), (9, 11, 1, 1)),
    "depthwise": lambda t: convolution(t, (1, 4, 6, 6), (4, 1, 3, 3), pads=[1] * 4, group=4),
    "gemm": lambda t: dense("Gemm", t),
    "residual": residual,
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_within_one_unit(name, dtype, tmp_path):
    model = CASES[name](dtype)
    run_bundle(model.result, model.feeds, tmp_path, 1.0)


def test_header_tells_how_integers_are_read():
    model = convolution(np.int8)
    program = driver.micro_program(driver.typed(model.result))
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
    program = driver.micro_program(driver.typed(model.result))
    assert sum(c.nbytes for c in program.constants) == 8 * 8 * 9 + 2 * 8 * 4
