"""What code is made for: layers of one structure share a function, and size makes less text."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import SANITISED, STRICT, checked, model_of, reference
from onnx import TensorProto, helper

from graphc import driver
from graphc.backends.micro_c import BundleOptions, bundle, write_bundle
from graphc.backends.micro_c.model import size_rows
from graphc.errors import ModelError

RNG = np.random.default_rng(0)
CHANNELS = (8, 16, 24, 32, 40, 48)  # multiples of a tile of columns


def dense_layers():
    """Matrix products of different sizes, five of them of one structure."""
    nodes, constants = [], {}
    for n, (before, after) in enumerate(zip(CHANNELS, CHANNELS[1:])):
        constants[f"w{n}"] = RNG.standard_normal((before, after)).astype(np.float32) / 4
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"p{n}"]))
        nodes.append(helper.make_node("Relu", [f"p{n}"], [f"x{n + 1}"]))
    last = f"x{len(CHANNELS) - 1}"
    inputs = {"x0": (TensorProto.FLOAT, (6, CHANNELS[0]))}
    return model_of(nodes, inputs, {last: (TensorProto.FLOAT, None)}, constants)


@pytest.mark.parametrize("opt", ["speed", "size"])
def test_both_goals_give_the_same(opt, tmp_path):
    model, data = dense_layers(), RNG.standard_normal((6, CHANNELS[0])).astype(np.float32)
    program = driver.program_for(driver.typed(model), "c", opt=opt)
    assert len(program.kernels) < len(program.steps) == 5
    samples = ([data], reference(model, [data]))
    options = BundleOptions(name="net", samples=samples, tolerance=1e-4, opt=opt)
    files = write_bundle(program, tmp_path, options)
    assert "net_sizes" in str(files["net_weights.c"])
    assert "sizes_of_the_call[0]" in str(files["net.c"])
    flags = ["-std=c99", "-O1", *STRICT, *SANITISED]
    checked(["gcc", *flags, "net.c", "net_weights.c", "net_test.c", "-lm", "-o", "t"], tmp_path)
    checked(["./t"], tmp_path)


def test_size_makes_less_text():
    model = dense_layers()
    programs = {o: driver.program_for(driver.typed(model), "c", opt=o) for o in ("speed", "size")}
    speed, size = (bundle(p, BundleOptions("net", opt=o))["net.c"] for o, p in programs.items())
    assert len(size) < len(speed)
    assert 'GCC optimize("O2")' in str(size) and 'GCC optimize("O2")' not in str(speed)


def test_sizes_lie_in_binary_constants_too(tmp_path):
    program = driver.program_for(driver.typed(dense_layers()), "c")
    files = bundle(program, BundleOptions("net", weights_as="bin"))
    table = np.array([n for row in size_rows(program) for n in row], np.int32)
    assert files["net_weights.bin"].endswith(table.tobytes())  # type: ignore[arg-type]


def test_unknown_goals():
    with pytest.raises(ModelError, match="speed, fastest, size"):
        driver.program_for(driver.typed(dense_layers()), "c", opt="beauty")
    with pytest.raises(ModelError, match="speed or fastest or size"):
        bundle(driver.program_for(driver.typed(dense_layers()), "c"), BundleOptions(opt="beauty"))
